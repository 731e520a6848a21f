"""Decides which collectives of an MPI communicator run over hpccoll, and makes the hpccoll communicator for them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from mpi4py import MPI

from hpccoll.communicator import Communicator
from hpccoll.mpi4py.configuration import AUTO, CALLS_BEFORE, get_configuration
from hpccoll.plan import Count, Operation
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.failure_detection.watchdog import read_timeout
from hpccoll.selection import MPI_LIBRARY
from hpccoll.units import KiB

FEW_CALLS: Final = "few such calls so far"  # reasons why the MPI library carries out a call
CHOSEN: Final = "chosen by the user"

POINT_BYTES: Final = 16 * KiB  # of a message that counts as one more call, see `Acceleration.is_due`
MOST_COUNTED: Final = 4096  # kinds of calls that are counted
MOST_OPEN: Final = 128  # hpccoll communicators; MPICH allows about 2,000 MPI communicators, and each of these uses two
_BLOCKS_IN_INPUT: Final = (Operation.ALL_TO_ALL, Operation.REDUCE_SCATTER)
_BLOCKS_IN_MESSAGE: Final = (*_BLOCKS_IN_INPUT, Operation.ALL_GATHER)

# The properties of all calls of one kind: operation, reduction, element type, count, root.
CollectiveKind: TypeAlias = tuple[Operation, str, np.dtype[Any], Count, int]


class Acceleration:
    """Decides which collectives of one MPI communicator run over hpccoll, and makes the hpccoll communicator for them.

    Making the hpccoll communicator takes some milliseconds, and so does the first call of each kind. The MPI library
    therefore carries out the first calls of each kind. All ranks count the same calls, so they make the hpccoll
    communicator, which is collective, in the same call. MPI keeps the object as an attribute of the communicator, so
    that all Python objects of one communicator share it.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm, self.size, self.rank = comm, comm.Get_size(), comm.Get_rank()
        self.communicator: Communicator | None = None
        self.is_refused = self.size == 1  # whether all calls go to the MPI library
        self._calls_before = read_calls_before()
        self._counted: dict[CollectiveKind, int] = {}
        self._selected: dict[CollectiveKind, str | None] = {}
        self.slots: dict[tuple[str, int], Any] = {}  # by mpi4py's method and root, see object_collectives.py
        self.watched = 0  # calls of the MPI library that were recorded, see watched_calls.py
        self.reason = ""  # why `select` left the latest call to the MPI library

    def is_due(self, kind: CollectiveKind, worth: int = 1) -> bool:
        """Count a call of a kind; return whether enough calls have passed that hpccoll may carry them out.

        `worth` is the number of calls that the call counts as; a long message counts as more, because hpccoll saves
        more time. The result is the same on all ranks. Collective, because the first call for which the result is true
        makes the hpccoll communicator.
        """
        if kind in self._selected:
            return True
        if self.is_refused:
            return False
        if len(self._counted) >= MOST_COUNTED:
            self._counted.clear()
        counted = self._counted.get(kind, 0)
        self._counted[kind] = counted + worth + self._count_bytes(kind) // POINT_BYTES
        if counted < self._calls_before and not self._find_choice(kind):
            self.reason = FEW_CALLS
            return False
        if self.communicator is None:
            self.open()
        return self.communicator is not None

    def open(self) -> None:
        """Make the hpccoll communicator, unless a rank has MOST_OPEN of them; then MPI keeps all calls. Collective."""
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
        get_configuration().communicators.add(self)

    def forget_selections(self) -> None:
        """Select the algorithms of later collectives again, because the configuration has changed.

        Calls of known kinds would otherwise go on without a selection (see `BufferCollectives`).
        """
        self._selected.clear()
        self.slots.clear()
        if self.communicator is not None:
            self.communicator._cache.forget()

    def _record_wait(self) -> AbstractContextManager[object]:
        """Return a context in which the flight recorder states that this rank waits for the others to call `open`.

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

    def select(self, operation: Operation, op: str, dtype: np.dtype[Any], count: Count, root: int = 0) -> str | None:
        """Count a call; return its algorithm, or None if the MPI library carries it out. The same on all ranks.

        Collective, because the call may make the hpccoll communicator.

        Args:
            op: the name of the reduction; ignored by operations that do not reduce.
            count: elements of one block in an operation with a block per rank, else of the whole vector; or a tuple of
                the elements of each rank's block.
        """
        if not self.is_due((operation, op, dtype, count, root)):
            return None
        algorithm = self.select_now(operation, op, dtype, count, root)
        if algorithm is None:
            self.reason = CHOSEN if get_configuration().choices else "auto selects MPI's"
        return algorithm

    def select_now(
        self, operation: Operation, op: str, dtype: np.dtype[Any], count: Count, root: int = 0
    ) -> str | None:
        """Return the algorithm of a call, None for the MPI library's; unlike `select`, count no call. Local."""
        kind = operation, op, dtype, count, root
        try:
            return self._selected[kind]
        except KeyError:
            self._selected[kind] = algorithm = self._select(kind)
            return algorithm

    def is_passed(self, kind: CollectiveKind) -> bool:
        """Whether the MPI library was selected for all later calls of a kind."""
        return self._selected.get(kind, AUTO) is None

    def _count_bytes(self, kind: CollectiveKind) -> int:
        """Return the message size in bytes of a kind of calls, with all blocks if there is a block per rank."""
        operation, _, dtype, count, _ = kind
        if isinstance(count, tuple):
            return sum(count) * dtype.itemsize
        return count * dtype.itemsize * (self.size if operation in _BLOCKS_IN_MESSAGE else 1)

    def _find_choice(self, kind: CollectiveKind) -> str | None:
        """Return the algorithm that the user has chosen for a kind of calls by `configure`, None without a choice."""
        algorithm = get_configuration().find_algorithm(kind[0], self._count_bytes(kind))
        return None if algorithm == AUTO else algorithm

    def _select(self, kind: CollectiveKind) -> str | None:
        """Return the algorithm of a kind of calls, None for the MPI library's, without a look at earlier selections."""
        chosen = self._find_choice(kind)
        if chosen is not None or self.communicator is None:
            return None if chosen == MPI_LIBRARY else chosen
        call = self.make_example(kind)
        return AUTO if self.communicator._engine.select(call).algorithm is not None else None

    def make_example(self, kind: CollectiveKind) -> CollectiveCall:
        """Return a call of hpccoll of the given kind, on new arrays with undefined values, to select an algorithm."""
        operation, op, dtype, count, root = kind
        if operation is Operation.SCATTER and isinstance(count, int):
            items = np.empty((self.size, count), dtype) if self.rank == root else None
            return check_call(operation, items, np.empty(count, dtype), self.rank, self.size, root, op)
        if isinstance(count, int):
            x = np.empty(count * (self.size if operation in _BLOCKS_IN_INPUT else 1), dtype)
            return check_call(operation, x, None, self.rank, self.size, root, op)
        x = np.empty(sum(count) if operation in _BLOCKS_IN_INPUT else count[self.rank], dtype)
        return check_call(operation, x, None, self.rank, self.size, root, op, counts=(count, None))


def read_calls_before() -> int:
    """Return the number of small calls of a kind that the MPI library carries out before hpccoll does.

    With HPCCOLL_TIMEOUT, the number is 0 by default, because hpccoll compares the calls of the ranks.
    """
    given = get_configuration().calls_before
    return given if given is not None else CALLS_BEFORE if read_timeout() is None else 0


@cache
def list_open() -> list[Acceleration]:
    """Return the list of this process's `Acceleration`s whose hpccoll communicator is open."""
    return []


@cache
def get_keyval() -> int:
    """Return MPI's attribute key (keyval) under which communicators keep their `Acceleration`."""
    return MPI.Comm.Create_keyval()


def find_acceleration(comm: MPI.Comm) -> Acceleration:
    """Return the `Acceleration` of an intracommunicator, which is made at the first call. Local."""
    plain = MPI.Intracomm(comm)
    state = plain.Get_attr(get_keyval())
    if not isinstance(state, Acceleration):
        state = Acceleration(plain)
        plain.Set_attr(get_keyval(), state)
    return state
