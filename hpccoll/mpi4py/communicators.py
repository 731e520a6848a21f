"""mpi4py's communicator classes with collectives over hpccoll, and the methods that make new communicators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from hpccoll.mpi4py.acceleration import find_acceleration
from hpccoll.mpi4py.object_collectives import ObjectsOverBuffers
from hpccoll.mpi4py.watched_calls import watch_inherited_methods

_PREDEFINED: Final = ("COMM_WORLD", "COMM_SELF")


if TYPE_CHECKING:  # the classes that inherit from `NewCommunicators` inherit from MPI.Comm, too
    _Comm = MPI.Comm
    _Intracomm = MPI.Intracomm
else:
    _Comm = _Intracomm = object


class NewCommunicators(_Comm):
    """mpi4py's methods that return new communicators, whose collectives run over hpccoll as well.

    `Dup`, `Clone` and `Idup` need no method in this class, because mpi4py's methods return an object of the class of
    `self`. `Spawn`, `Connect` and `Accept` return communicators of mpi4py, because the other job may run without
    hpccoll.
    """

    __slots__ = ()

    def Create(self, *args: Any, **kwargs: Any) -> Any:
        """Create a communicator of a group of ranks; collective, see mpi4py."""
        return accelerate(super().Create(*args, **kwargs))

    def Split(self, *args: Any, **kwargs: Any) -> Any:
        """Return a communicator of the ranks with the same color, ordered by key; collective, see mpi4py."""
        return accelerate(super().Split(*args, **kwargs))

    def Split_type(self, *args: Any, **kwargs: Any) -> Any:
        """Return a communicator of the ranks that share a resource, such as a node; collective, see mpi4py."""
        return accelerate(super().Split_type(*args, **kwargs))

    def Shrink(self, *args: Any, **kwargs: Any) -> Any:
        """Create a communicator without failed processes; collective over the living processes, see mpi4py."""
        return accelerate(super().Shrink(*args, **kwargs))

    def Free(self) -> None:
        """Free the communicator and its hpccoll communicator; collective."""
        self._release()
        super().Free()

    def free(self) -> None:
        """Call `Free` if the communicator is neither null nor predefined; collective."""
        if not _is_constant(self):
            self._release()
            super().free()

    def Disconnect(self) -> None:
        """Wait for pending communication and free the communicator; collective."""
        self._release()
        super().Disconnect()

    def _release(self) -> None:
        """Do nothing; subclasses close their hpccoll communicator here, before MPI frees the MPI communicator."""

    def __reduce__(self) -> Any:
        name = _find_predefined(self)
        if name is None:
            return super().__reduce__()
        return (get_predefined, (name,)) if _is_constant(self) else (type(self), (get_predefined(name),))

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Return a communicator for the MPI handle `handle`, with collectives over hpccoll."""
        return accelerate(super().fromhandle(handle))


class NewIntracommunicators(NewCommunicators, _Intracomm):
    """mpi4py's methods that only intracommunicators have, and that return new communicators."""

    def Create_group(self, *args: Any, **kwargs: Any) -> Any:
        """Create a communicator of a group; collective over the ranks of the group only, see mpi4py."""
        return accelerate(super().Create_group(*args, **kwargs))

    def Create_cart(self, *args: Any, **kwargs: Any) -> Any:
        """Create a communicator whose ranks are the points of a grid; collective, see mpi4py."""
        return accelerate(super().Create_cart(*args, **kwargs))

    def Create_graph(self, *args: Any, **kwargs: Any) -> Any:
        """Create a communicator whose ranks are the nodes of a graph; collective, see mpi4py."""
        return accelerate(super().Create_graph(*args, **kwargs))

    def Create_dist_graph(self, *args: Any, **kwargs: Any) -> Any:
        """Create a communicator on a graph of which each rank passes some edges; collective, see mpi4py."""
        return accelerate(super().Create_dist_graph(*args, **kwargs))

    def Create_dist_graph_adjacent(self, *args: Any, **kwargs: Any) -> Any:
        """Create a communicator on a graph of which each rank passes its own neighbors; collective, see mpi4py."""
        return accelerate(super().Create_dist_graph_adjacent(*args, **kwargs))

    def Create_intercomm(self, *args: Any, **kwargs: Any) -> Any:
        """Create an intercommunicator with another group of ranks; collective, see mpi4py.

        The collectives of the communicator that its `Merge` returns run over hpccoll.
        """
        return accelerate(super().Create_intercomm(*args, **kwargs))


class AcceleratedCollectives(NewIntracommunicators, ObjectsOverBuffers):
    """All methods of mpi4py's intracommunicators that hpccoll replaces, for communicators of several ranks."""

    def Agree(self, *args: Any, **kwargs: Any) -> Any:
        """Agree on an integer although processes have failed; see mpi4py. Collective.

        Later collectives of this communicator run over MPI, unless it already has an hpccoll communicator.
        """
        find_acceleration(self).refuse()
        return super().Agree(*args, **kwargs)

    def Iagree(self, *args: Any, **kwargs: Any) -> Any:
        """Start to agree on an integer, as `Agree` does, without waiting; see mpi4py."""
        find_acceleration(self).refuse()
        return super().Iagree(*args, **kwargs)

    def _release(self) -> None:
        """Close the hpccoll communicator before MPI frees this communicator; not for COMM_WORLD and COMM_SELF."""
        if self != MPI.COMM_NULL and _find_predefined(self) is None:
            find_acceleration(self).close()
            self._forget()


class EqualToBase(type):
    """The metaclass of accelerated classes: an accelerated class equals the class of mpi4py that it replaces.

    Programs compare `type(comm)` to a class of mpi4py, or to the type of an object that mpi4py has made.
    """

    def __eq__(cls, other: object) -> bool:
        return cls is other or _get_mpi_class(cls) is other

    def __hash__(cls) -> int:
        return hash(_get_mpi_class(cls))


def _get_mpi_class(cls: type) -> type:
    """Return the class of mpi4py, such as MPI.Intracomm, that a class of hpccoll.mpi4py inherits from."""
    return next(base for base in cls.__mro__ if base.__module__ == "mpi4py.MPI")


class AcceleratedIntracomm(AcceleratedCollectives, MPI.Intracomm, metaclass=EqualToBase):
    """An intracommunicator of mpi4py whose collectives run over hpccoll."""


class AcceleratedCartcomm(AcceleratedCollectives, MPI.Cartcomm, metaclass=EqualToBase):
    """A communicator of mpi4py on a grid; neighborhood collectives run over MPI, other collectives over hpccoll."""

    def Sub(self, *args: Any, **kwargs: Any) -> Any:
        """Create a communicator on a subgrid of the grid; collective, see mpi4py."""
        return accelerate(super().Sub(*args, **kwargs))


class AcceleratedGraphcomm(AcceleratedCollectives, MPI.Graphcomm, metaclass=EqualToBase):
    """A communicator of mpi4py on a graph; neighborhood collectives run over MPI, other collectives over hpccoll."""


class AcceleratedDistgraphcomm(AcceleratedCollectives, MPI.Distgraphcomm, metaclass=EqualToBase):
    """A communicator of mpi4py on a distributed graph; collectives except neighborhood collectives run over hpccoll."""


class OneRankIntracomm(NewIntracommunicators, MPI.Intracomm, metaclass=EqualToBase):
    """An intracommunicator of mpi4py with one rank, whose collectives run over MPI."""


class OneRankCartcomm(NewIntracommunicators, MPI.Cartcomm, metaclass=EqualToBase):
    """A communicator of mpi4py with one rank on a grid, whose collectives run over MPI."""

    def Sub(self, *args: Any, **kwargs: Any) -> Any:
        """Create a communicator on a subgrid of the grid; collective, see mpi4py."""
        return accelerate(super().Sub(*args, **kwargs))


class AcceleratedIntercomm(NewCommunicators, MPI.Intercomm, metaclass=EqualToBase):
    """An intercommunicator of mpi4py; only communicators that are made from it run their collectives over hpccoll."""

    def Merge(self, *args: Any, **kwargs: Any) -> Any:
        """Create a communicator of the ranks of both groups; collective, see mpi4py."""
        return accelerate(super().Merge(*args, **kwargs))


_CLASSES: Final[dict[type, Any]] = {
    MPI.Intracomm: AcceleratedIntracomm,
    MPI.Cartcomm: AcceleratedCartcomm,
    MPI.Graphcomm: AcceleratedGraphcomm,
    MPI.Distgraphcomm: AcceleratedDistgraphcomm,
    MPI.Intercomm: AcceleratedIntercomm,
}


_ONE_RANK_CLASSES: Final[dict[type, Any]] = {MPI.Intracomm: OneRankIntracomm, MPI.Cartcomm: OneRankCartcomm}


def list_intracommunicator_classes() -> list[type]:
    """Return the classes of this file that inherit from MPI.Intracomm."""
    classes = [*_CLASSES.values(), *_ONE_RANK_CLASSES.values()]
    return [cls for cls in classes if issubclass(cls, MPI.Intracomm)]


watch_inherited_methods(_CLASSES[cls] for cls in _CLASSES if cls is not MPI.Intercomm)


def accelerate(comm: Any) -> Any:
    """Return a communicator with the handle of `comm` whose collectives run over hpccoll; local.

    Communicators of other classes than mpi4py's own, such as those of a user, are returned as they are.
    """
    if isinstance(comm, NewCommunicators):
        return comm
    classes = _CLASSES
    if MPI.Is_initialized() and comm != MPI.COMM_NULL and comm.Get_size() == 1:
        classes = _CLASSES | _ONE_RANK_CLASSES
    accelerated = classes.get(type(comm))
    try:
        return comm if accelerated is None else accelerated(comm)
    except TypeError:  # Open MPI calls a distributed graph Cartesian if it was made from a Cartesian communicator
        return comm


def reduce_plain(comm: MPI.Intracomm) -> Any:
    """Return the tuple by which pickle saves an object of MPI.Intracomm, also after COMM_WORLD was replaced.

    pickle calls this function instead of `__reduce__` for communicators of mpi4py's own class.
    """
    name = None if isinstance(comm, NewCommunicators) else _find_predefined(comm)
    return (type(comm), (get_predefined(name),)) if name else comm.__reduce__()


def get_predefined(name: str) -> Any:
    """Return the attribute `name`, such as COMM_WORLD, of mpi4py.MPI; called by pickle to restore a communicator."""
    return getattr(MPI, name)


def _is_constant(comm: Any) -> bool:
    """Whether `comm` is the Python object MPI.COMM_WORLD or MPI.COMM_SELF itself."""
    return comm is MPI.COMM_WORLD or comm is MPI.COMM_SELF


def _find_predefined(comm: Any) -> str | None:
    """Return the name "COMM_WORLD" or "COMM_SELF" if `comm` has the handle of that communicator, else None."""
    return next((name for name in _PREDEFINED if comm == getattr(MPI, name)), None)
