"""Tells the calls of a communicator that ranks have died, so that they raise RankLostError on all survivors.

Open MPI, started with `--with-ft ulfm`, tells every process which other processes have ended (MPI_Comm_get_failed); a
rank asks MPI at once when process_watch.py notices the end of a process of the same host.

After a death, the thread of endings.py sets `CallRecorder.is_lost`, after which no call returns a result any more, and
tells all other ranks that it has done so. The thread then waits until all survivors have set `is_lost`: a program may
overwrite its arrays after the error, and the new values must not become part of another rank's result. At last, the
thread revokes the MPI communicators, so that waits in MPI end, and ends this rank's waits in shared memory.

The wait for a survivor that does not answer, because it is stopped or has closed the communicator, ends after ANSWER_S
seconds. A rank that is closing the communicator neither waits for answers nor revokes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.failures.fault_tolerance import find_members
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
    """Records deaths among the ranks of one communicator, whose calls then raise RankLostError.

    Args:
        comms: the MPI communicators to revoke after a death; all have the same ranks.
        state: the recorder of this rank's calls.
        hosts: the host of each rank.
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
        """Add a communicator of the same ranks to those that are revoked after a death."""
        self._comms.append(comm)

    def receive(self, notice: LossNotice) -> None:
        """Record the notice that calls of another rank return no results any more, because ranks have died."""
        self._dead.update(notice.dead)
        self._answered.add(notice.rank)

    def advance(self, failed: MPI.Group, send: Callable[[int, object], None], stop: Callable[[], None]) -> bool:
        """Take the next steps after a death without waiting; return whether an answer of another rank is awaited.

        The steps are: tell the other ranks, await their answers, revoke the communicators, and end calls.

        Args:
            failed: the dead processes of the job.
            send: sends a notice to a rank.
            stop: makes a wait of this rank raise the error.
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
        # Ranks that have closed the communicator do not answer, and need not: `close` ends all operations first.
        if alive - self._answered and not self._state.is_closing and time.monotonic() - self._began < ANSWER_S:
            return True
        self._is_over = True
        self._end_calls(stop)
        return False

    def _end_calls(self, stop: Callable[[], None]) -> None:
        """Let this rank's calls in flight and its later calls raise RankLostError."""
        ranks = tuple(sorted(self._dead))
        self._state.receive_interruption(LostRanks(ranks, tuple(self._hosts[rank] for rank in ranks)))
        if not self._state.is_closing:  # a rank that has closed it may have given its number to another communicator
            self.revoke()
        if self._state.is_in_call:
            stop()

    def revoke(self) -> None:
        """Let waits in MPI on the communicators end with an error, on all ranks."""
        for comm in self._comms:
            with suppress(MPI.Exception):
                comm.Revoke()


def read_fault(rank: int) -> int:
    """Return the number of the call in which rank `rank` of MPI.COMM_WORLD kills itself; 0 for none.

    Tests of programs that go on after a death set the variable HPCCOLL_FAULT: `kill:rank=2,call=1000` lets rank 2 kill
    itself in its call 1000. Several faults, one per rank, are separated by semicolons.

    Raises:
        UsageError: HPCCOLL_FAULT does not have the form of the example.
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
