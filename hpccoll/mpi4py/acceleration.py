"""Decides which collectives of an MPI communicator run over hpccoll, and makes the hpccoll communicator for them.

The modules that carry out collectives are imported with the first hpccoll communicator, because imports take 100 ms.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from mpi4py import MPI

from hpccoll.failures.time_limit import read_timeout
from hpccoll.mpi4py.configuration import AUTO, COMM_POINTS, KIND_POINTS, get_configuration
from hpccoll.plan import Count, Operation
from hpccoll.units import KiB

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator
    from hpccoll.runtime.collective_call import CollectiveCall

FEW_CALLS: Final = "few such calls so far"  # reasons why the MPI library carries out a call
CHOSEN: Final = "chosen by the user"

POINT_BYTES: Final = 16 * KiB  # bytes of a message that count as one more call, see `Acceleration.is_due`
MOST_COUNTED: Final = 4096  # most kinds of calls that are counted
MOST_OPEN: Final = 128  # most hpccoll communicators, of two MPI communicators each; MPICH allows about 2,000 of these
_BLOCKS_IN_INPUT: Final = (Operation.ALL_TO_ALL, Operation.REDUCE_SCATTER)
_BLOCKS_IN_MESSAGE: Final = (*_BLOCKS_IN_INPUT, Operation.ALL_GATHER)

# The properties of all calls of one kind: operation, reduction, element type, count, root.
CollectiveKind: TypeAlias = tuple[Operation, str, np.dtype[Any], Count, int]
CallKey: TypeAlias = tuple[Any, ...]  # arguments of a call that determine its kind, and are quick to read


class CallCount:
    """The points of one kind of calls so far.

    Args:
        worth: points per call of the kind.
    """

    __slots__ = ("points", "worth")

    def __init__(self, worth: int) -> None:
        self.points, self.worth = 0, worth


class Acceleration:
    """Decides which collectives of one MPI communicator run over hpccoll, and makes the hpccoll communicator for them.

    A process's first call over hpccoll takes 150 ms, and hpccoll's first call of each kind (operation, reduction,
    dtype, count and root) takes some milliseconds. The MPI library therefore carries out the first calls of the
    communicator, and the first calls of each kind. All ranks count the same calls, so that all make the hpccoll
    communicator in the same call. MPI keeps the `Acceleration` as an attribute of the communicator, so that all Python
    objects of one communicator share it.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm, self.size, self.rank = comm, comm.Get_size(), comm.Get_rank()
        self.communicator: Communicator | None = None
        self.is_refused = self.size == 1  # whether all calls go to the MPI library
        self._kind_points, self._comm_points = read_points_before()
        self._points = 0  # of all calls that were counted
        self._counted: dict[CollectiveKind, CallCount] = {}
        self._early: dict[CallKey | None, CallCount] = {}  # counts of calls that MPI carries out, see `count_early`
        self._selected: dict[CollectiveKind, str | None] = {}
        self.slots: dict[tuple[str, int], Any] = {}  # slots by mpi4py's method and root, see object_collectives.py
        self.watched = 0  # calls of the MPI library that were recorded, see watched_calls.py
        self.reason = ""  # why `select` left the latest call to the MPI library
        get_configuration().communicators.add(self)

    def is_due(self, kind: CollectiveKind, worth: int = 1, key: CallKey | None = None) -> bool:
        """Count a call of the kind `kind`; return whether hpccoll may carry it out. All ranks get the same result.

        hpccoll carries out a call after enough calls of its kind and of the communicator, or if the user has chosen its
        algorithm. `worth` is the number of calls that the call counts as; a long message counts as more, because
        hpccoll saves more time. If the result is false, `count_early` counts the next calls that have the same `key`.
        Collective, because the first call for which the result is true makes the hpccoll communicator.
        """
        if kind in self._selected:
            return True
        if self.is_refused:
            return False
        count = self._find_count(kind, worth)
        is_early = count.points < self._kind_points or self._points < self._comm_points
        count.points += count.worth
        self._points += count.worth
        if is_early and not self._find_choice(kind):
            self.reason = FEW_CALLS
            self._remember(key, count)
            return False
        if self.communicator is None:
            self.open()
        return self.communicator is not None

    def count_early(self, key: CallKey | None) -> bool:
        """Count a call if its key shows that the MPI library must carry it out; return whether the key shows that.

        If the result is false, the caller calls `select` or `is_due`, which count the call in the same way. Ranks may
        therefore count one collective by different functions. Local.
        """
        count = self._early.get(key)
        if count is None or (count.points >= self._kind_points and self._points >= self._comm_points):
            return self.is_refused
        count.points += count.worth
        self._points += count.worth
        self.reason = FEW_CALLS if count.worth else ""
        return True

    def leave_to_mpi(self, key: CallKey | None) -> None:
        """Let `count_early` return True for later calls with the key `key`, until there is an hpccoll communicator.

        The MPI library carries out such calls always; they add no points.
        """
        if self.communicator is None:
            self._remember(key, CallCount(0))

    def _remember(self, key: CallKey | None, count: CallCount) -> None:
        """Let `count_early` find the count of a call by its key; without effect if the user has chosen algorithms."""
        if key is None or get_configuration().choices:
            return
        if len(self._early) >= MOST_COUNTED:
            self._early.clear()
        self._early[key] = count

    def _find_count(self, kind: CollectiveKind, worth: int) -> CallCount:
        """Return the count of calls of the kind `kind`, each of which counts as `worth` calls and its long message."""
        count = self._counted.get(kind)
        if count is None:
            if len(self._counted) >= MOST_COUNTED:
                self._counted.clear()
                self._early.clear()
            count = self._counted[kind] = CallCount(worth + self._count_bytes(kind) // POINT_BYTES)
        return count

    def open(self) -> None:
        """Make the hpccoll communicator; if a rank has MOST_OPEN of them, leave all calls to MPI. Collective."""
        from hpccoll.communicator import Communicator

        answer = np.array([len(list_open()) < MOST_OPEN])
        with self._record_wait():
            self.comm.Allreduce(MPI.IN_PLACE, answer, MPI.LAND)
            if not answer[0]:
                self.is_refused = True
                return
            # The user's communicator may have non-blocking collectives in flight, so blocking ones are used here.
            # `Split` makes the new communicator, because `Dup` would copy the user's attributes.
            own = MPI.Intracomm(self.comm.Split(0, self.rank))
        own.Set_errhandler(MPI.ERRORS_RETURN)
        self.communicator = Communicator(own, adopt=True)
        list_open().append(self)
        self._early.clear()  # `pass_later_calls` adds calls that MPI always carries out to the table of known calls

    def forget_selections(self) -> None:
        """Select the algorithms of later collectives again, because the configuration has changed.

        Otherwise the algorithm that was once selected for a kind of call is kept.
        """
        self._selected.clear()
        self._early.clear()
        self.slots.clear()
        if self.communicator is not None:
            self.communicator._cache.forget()

    def _record_wait(self) -> AbstractContextManager[object]:
        """Return a context in which the flight recorder states that this rank waits for other ranks to call `open`.

        Nothing is recorded before MPI.COMM_WORLD has an hpccoll communicator.
        """
        world = find_acceleration(MPI.COMM_WORLD).communicator
        if world is None:
            return nullcontext()
        group, everyone = self.comm.Get_group(), MPI.COMM_WORLD.Get_group()
        ranks = group.Translate_ranks(None, everyone)
        group.Free()
        everyone.Free()
        peers = tuple(rank for rank in ranks if rank not in (world.rank, MPI.UNDEFINED))
        return world._state.wait("first collective of a communicator", peers=peers)

    def refuse(self) -> None:
        """Leave all collectives to the MPI library, unless there is an hpccoll communicator already.

        `refuse` is called for communicators that must survive the failure of a process, because hpccoll's communicators
        in mpi4py programs do not survive a failure.
        """
        self.is_refused = self.communicator is None

    def close(self) -> None:
        """Close the hpccoll communicator, if any, and leave later calls to MPI; collective.

        `close` is called before the MPI communicator is freed.
        """
        communicator, self.communicator, self.is_refused = self.communicator, None, True
        self._selected.clear()
        self.slots.clear()
        if communicator is not None:
            list_open().remove(self)
            communicator.close()

    def select(
        self,
        operation: Operation,
        op: str,
        dtype: np.dtype[Any],
        count: Count,
        root: int = 0,
        key: CallKey | None = None,
    ) -> str | None:
        """Count a call; return the name of its algorithm, or `auto`; None if the MPI library carries it out.

        All ranks get the same algorithm. Collective, because the call may make the hpccoll communicator.

        Args:
            op: the name of the reduction; ignored by operations that do not reduce.
            count: the number of elements of one block if the operation has a block per rank, else of the whole vector;
                or a tuple with the number of elements of each rank's block.
            key: the argument of `is_due`.
        """
        if not self.is_due((operation, op, dtype, count, root), key=key):
            return None
        algorithm = self.select_now(operation, op, dtype, count, root)
        if algorithm is None:
            self.reason = CHOSEN if get_configuration().choices else "auto selects MPI's"
        return algorithm

    def select_now(
        self, operation: Operation, op: str, dtype: np.dtype[Any], count: Count, root: int = 0
    ) -> str | None:
        """Return what `select` returns (an algorithm's name, `auto` or None), but count no call. Local."""
        kind = operation, op, dtype, count, root
        try:
            return self._selected[kind]
        except KeyError:
            self._selected[kind] = algorithm = self._select(kind)
            self._early.clear()  # otherwise ranks whose calls have a key would still leave this kind to MPI
            return algorithm

    def is_passed(self, kind: CollectiveKind) -> bool:
        """Whether the MPI library was selected for all later calls of a kind."""
        return self._selected.get(kind, AUTO) is None

    def _count_bytes(self, kind: CollectiveKind) -> int:
        """Return the message size in bytes of calls of a kind: the sum over all blocks if there is a block per rank."""
        operation, _, dtype, count, _ = kind
        if isinstance(count, tuple):
            return sum(count) * dtype.itemsize
        return count * dtype.itemsize * (self.size if operation in _BLOCKS_IN_MESSAGE else 1)

    def _find_choice(self, kind: CollectiveKind) -> str | None:
        """Return the name of the algorithm that the user chose by `configure` for a kind of calls, or None."""
        algorithm = get_configuration().find_algorithm(kind[0], self._count_bytes(kind))
        return None if algorithm == AUTO else algorithm

    def _select(self, kind: CollectiveKind) -> str | None:
        """Select the algorithm for a kind of call; return its name, or `auto`, or None for the MPI library."""
        from hpccoll.selection import MPI_LIBRARY

        chosen = self._find_choice(kind)
        if chosen is not None or self.communicator is None:
            return None if chosen == MPI_LIBRARY else chosen
        call = self.make_example(kind)
        return AUTO if self.communicator._engine.selector.select_for(call).algorithm is not None else None

    def make_example(self, kind: CollectiveKind) -> CollectiveCall:
        """Return a call of hpccoll of the given kind, on new arrays with undefined values, to select an algorithm."""
        from hpccoll.runtime.arguments import check_call

        operation, op, dtype, count, root = kind
        if operation is Operation.SCATTER and isinstance(count, int):
            items = np.empty((self.size, count), dtype) if self.rank == root else None
            return check_call(operation, items, np.empty(count, dtype), self.rank, self.size, root, op)
        if isinstance(count, int):
            x = np.empty(count * (self.size if operation in _BLOCKS_IN_INPUT else 1), dtype)
            return check_call(operation, x, None, self.rank, self.size, root, op)
        x = np.empty(sum(count) if operation in _BLOCKS_IN_INPUT else count[self.rank], dtype)
        return check_call(operation, x, None, self.rank, self.size, root, op, counts=(count, None))


def read_points_before() -> tuple[int, int]:
    """Return the points of a kind of calls, and of a communicator, before which the MPI library carries out calls.

    With HPCCOLL_TIMEOUT, both are 0 by default, because hpccoll compares the calls of the ranks.
    """
    given = get_configuration().calls_before
    if given is None and read_timeout() is None:
        return KIND_POINTS, COMM_POINTS
    return given or 0, given or 0


@cache
def list_open() -> list[Acceleration]:
    """Return the list of this process's `Acceleration`s whose hpccoll communicator is open."""
    return []


@cache
def get_keyval() -> int:
    """Return the MPI attribute key (keyval) of a communicator's `Acceleration`; the first call creates the key."""
    return MPI.Comm.Create_keyval()


def find_acceleration(comm: MPI.Comm) -> Acceleration:
    """Return the `Acceleration` of an intracommunicator, which is made at the first call. Local."""
    plain = MPI.Intracomm(comm)
    state = plain.Get_attr(get_keyval())
    if not isinstance(state, Acceleration):
        state = Acceleration(plain)
        plain.Set_attr(get_keyval(), state)
    return state
