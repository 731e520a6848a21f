"""The hpccoll communicator that carries out the collectives of one MPI communicator, and what it carries out."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.communicator import Communicator
from hpccoll.mpi4py.configuration import AUTO, get_configuration
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.failure_detection.watchdog import read_timeout
from hpccoll.selection import MPI_LIBRARY

# Collectives that the MPI library carries out before a communicator other than MPI.COMM_WORLD gets an hpccoll
# communicator, which takes some milliseconds to make. With HPCCOLL_TIMEOUT it is made in the first call, because the
# MPI library does not report missing ranks.
CALLS_BEFORE: Final = 3
MOST_OPEN: Final = 128  # hpccoll communicators; MPICH allows about 2,000 MPI communicators, and each of these uses two
_BLOCKS_IN_INPUT: Final = (Operation.ALL_TO_ALL, Operation.REDUCE_SCATTER)
_BLOCKS_IN_MESSAGE: Final = (*_BLOCKS_IN_INPUT, Operation.ALL_GATHER)


class Acceleration:
    """The state of one MPI communicator, whichever Python objects refer to it; an attribute of the communicator.

    The hpccoll communicator is made in a collective call, because this is collective. All ranks count the same calls,
    so they make it in the same call.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm, self.size, self.rank = comm, comm.Get_size(), comm.Get_rank()
        self.communicator: Communicator | None = None
        self.is_refused = self.size == 1  # whether all calls go to the MPI library
        is_first = comm.handle == MPI.COMM_WORLD.handle or read_timeout() is not None
        self._calls = CALLS_BEFORE if is_first else 0
        self._selected: dict[tuple[object, ...], str | None] = {}
        self.slots: Any = None  # see object_collectives.py
        self.reason = ""  # why `select` left the latest call to the MPI library

    def enter(self) -> Communicator | None:
        """Count a collective call of all ranks; return the hpccoll communicator, or None if the MPI library calls.

        The first call after CALLS_BEFORE calls makes the hpccoll communicator, which is collective.
        """
        if self.communicator is None and not self.is_refused:
            self._calls += 1
            if self._calls > CALLS_BEFORE:
                self._open()
        return self.communicator

    def _open(self) -> None:
        """Make the hpccoll communicator if all ranks can; collective."""
        answer = np.array([len(list_open()) < MOST_OPEN])
        with self._record_wait():
            self.comm.Allreduce(MPI.IN_PLACE, answer, MPI.LAND)
            if not answer[0]:
                self.is_refused = True
                return
            # Only blocking collectives of the user's communicator, because non-blocking ones may be in flight. `Dup`
            # would copy the user's attributes.
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
        if self.communicator is not None:
            self.communicator._cache.forget()

    def _record_wait(self) -> AbstractContextManager[object]:
        """Record the wait for the other ranks in the flight recorder, if MPI.COMM_WORLD has an hpccoll communicator."""
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

        For communicators that shall survive the failure of a process, which those of hpccoll do not.
        """
        self.is_refused = self.communicator is None

    def close(self) -> None:
        """Close the hpccoll communicator, before the MPI communicator is freed; collective."""
        communicator, self.communicator, self.is_refused = self.communicator, None, True
        if communicator is not None:
            list_open().remove(self)
            communicator.close()

    def select(self, operation: Operation, op: str, dtype: np.dtype[Any], count: int, root: int = 0) -> str | None:
        """Return the algorithm of a call; None if the MPI library carries it out. The same on all ranks.

        Args:
            count: elements of one block in an operation with a block per rank, else of the whole vector.
        """
        key = operation, op, dtype, count, root
        try:
            algorithm = self._selected[key]
        except KeyError:
            self._selected[key] = algorithm = self._select(*key)
        if algorithm is None:
            self.reason = "chosen by the user" if get_configuration().choices else "auto selects MPI's"
        return algorithm

    def _select(self, operation: Operation, op: str, dtype: np.dtype[Any], count: int, root: int) -> str | None:
        """Return the algorithm as `select` does, not from its memory."""
        blocks = self.size if operation in _BLOCKS_IN_MESSAGE else 1
        algorithm = get_configuration().find_algorithm(operation, count * dtype.itemsize * blocks)
        if algorithm == MPI_LIBRARY or self.communicator is None:
            return None
        if algorithm != AUTO:
            return algorithm
        x = np.empty(count * (blocks if operation in _BLOCKS_IN_INPUT else 1), dtype)
        call = check_call(operation, x, None, self.rank, self.size, root, op)
        return AUTO if self.communicator._engine.select(call).algorithm is not None else None


@cache
def list_open() -> list[Acceleration]:
    """Return the states of this process with an open hpccoll communicator, which they keep until they are closed."""
    return []


@cache
def get_keyval() -> int:
    """Return the key under which MPI communicators keep their `Acceleration`."""
    return MPI.Comm.Create_keyval()


def find_acceleration(comm: MPI.Comm) -> Acceleration:
    """Return the state of an intracommunicator; makes one at the first call, which is local."""
    plain = MPI.Intracomm(comm)
    state = plain.Get_attr(get_keyval())
    if not isinstance(state, Acceleration):
        state = Acceleration(plain)
        plain.Set_attr(get_keyval(), state)
    return state
