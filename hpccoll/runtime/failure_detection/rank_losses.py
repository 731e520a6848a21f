"""Tells the calls of a communicator that ranks have died, so that they raise RankLostError on all survivors.

Open MPI, started with `--with-ft ulfm`, tells every process which other processes have ended (MPI_Comm_get_failed); the
watch of the processes of a host (process_watch.py) makes a rank ask at once. The thread of endings.py then

1. sets `CallRecorder.is_lost`, with which no call returns a result any more, and tells all other ranks so;
2. waits until all survivors have set `is_lost`: a program may overwrite its arrays after the error, and these values
   must not become part of another rank's result;
3. revokes the MPI communicators, so that waits in MPI end, and ends this rank's waits in shared memory.

The wait for a survivor that does not answer, because it is stopped, ends after ANSWER_S seconds.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.runtime.job import ProcessId
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.interruption import LostRanks

ANSWER_S: Final = 2.0
FAULT: Final = "HPCCOLL_FAULT"


@dataclass(frozen=True, slots=True)
class LossNotice:
    """The notice that no call of rank `rank` returns a result any more, because the ranks `dead` have ended."""

    rank: int
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillRequest:
    """The request to end the process of rank `rank` of MPI.COMM_WORLD, which is counted as dead."""

    rank: int


class LossWatch:
    """The deaths among the ranks of one communicator.

    Args:
        comms: the MPI communicators to revoke; all have the same ranks.
        state: this rank's calls.
        hosts: the hosts of the ranks.
    """

    def __init__(self, comms: Sequence[MPI.Intracomm], state: CallRecorder, hosts: Sequence[str]) -> None:
        self._comms, self._state, self._hosts = list(comms), state, hosts
        self._rank, self._size = comms[0].rank, comms[0].size
        self._failed = 0  # the number of dead processes of the job when `_dead` was last determined
        self._dead: set[int] = set()
        self._answered: set[int] = set()
        self._began = 0.0
        self._is_over = False  # whether the calls have been told

    def add(self, comm: MPI.Intracomm) -> None:
        """Revoke another communicator of the same ranks, too."""
        self._comms.append(comm)

    def receive(self, notice: LossNotice) -> None:
        """Act on the notice of another rank."""
        self._dead.update(notice.dead)
        self._answered.add(notice.rank)

    def advance(self, failed: MPI.Group, send: Callable[[int, object], None], stop: Callable[[], None]) -> bool:
        """Go through the steps as far as possible without waiting; return whether an answer is awaited.

        Args:
            failed: the dead processes of the job.
            send: sends a notice to a rank.
            stop: lets a wait of this rank raise its error.
        """
        if failed.size != self._failed:
            self._failed = failed.size
            self._dead.update(find_members(failed, self._comms[0]))
        if not self._dead or self._is_over:
            return False
        alive = set(range(self._size)) - self._dead - {self._rank}
        if not self._began:
            self._began = time.monotonic()
            self._state.is_lost = True
            for rank in alive:
                send(rank, LossNotice(self._rank, tuple(self._dead)))
        if alive - self._answered and time.monotonic() - self._began < ANSWER_S:
            return True
        self._is_over = True
        self._end_calls(stop)
        return False

    def _end_calls(self, stop: Callable[[], None]) -> None:
        """Let this rank's calls in flight, and later ones, raise RankLostError."""
        ranks = tuple(sorted(self._dead))
        self._state.receive_interruption(LostRanks(ranks, tuple(self._hosts[rank] for rank in ranks)))
        self.revoke()
        if self._state.is_in_call:
            stop()

    def revoke(self) -> None:
        """Let waits in MPI on the communicators end with an error, on all ranks."""
        for comm in self._comms:
            with suppress(MPI.Exception):
                comm.Revoke()


def find_members(failed: MPI.Group, comm: MPI.Intracomm) -> list[int]:
    """Return the ranks of `comm` that are in a group of dead processes."""
    group = comm.Get_group()
    ranks = failed.Translate_ranks(range(failed.size), group)
    group.Free()
    return [rank for rank in ranks if rank != MPI.UNDEFINED]


def kill_rank(rank: int, processes: Mapping[int, ProcessId], notify: Callable[[int, object], None]) -> None:
    """End the process of a rank of MPI.COMM_WORLD, or let a rank of its host do so.

    Args:
        rank: a rank that does not answer.
        processes: the processes of a communicator's ranks, by rank in MPI.COMM_WORLD.
        notify: sends a notice to a rank of MPI.COMM_WORLD.
    """
    own, other = processes[MPI.COMM_WORLD.rank], processes[rank]
    if other[1:3] == own[1:3]:
        with suppress(OSError):
            os.kill(other[0], signal.SIGKILL)
        return
    for neighbour, process in processes.items():
        if process[1:3] == other[1:3]:
            notify(neighbour, KillRequest(rank))


def read_fault(rank: int) -> int:
    """Return the number of the call in which rank `rank` of MPI.COMM_WORLD kills itself; 0 for none.

    Tests of programs that go on after a death set the variable HPCCOLL_FAULT: `kill:rank=2,call=1000` lets rank 2 kill
    itself in its call 1000. Several faults, one per rank, are separated by semicolons.

    Raises:
        UsageError: HPCCOLL_FAULT has another form.
    """
    setting = os.environ.get(FAULT, "")
    calls: dict[int, int] = {}
    for fault in setting.split(";") if setting else ():
        kind, _, rest = fault.partition(":")
        values = dict(each.partition("=")[::2] for each in rest.split(","))
        if kind != "kill" or set(values) != {"rank", "call"} or not all(value.isdecimal() for value in values.values()):
            raise UsageError(f"{FAULT}={setting!r} is no fault; set it to kill:rank=R,call=N, or unset it")
        calls[int(values["rank"])] = int(values["call"])
    return calls.get(rank, 0)
