"""Ends the job when a barrier does not complete in time, and names the ranks that have not entered it.

A thread of each rank watches the call that its rank is in. When a call exceeds the limit, the thread tells all other
ranks, by MPI messages, which call its rank is in. After a grace period, the lowest rank that waits prints the ranks
that wait and the ranks from which no message came, and ends the job.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpccoll.errors import CommunicationError
from hpccoll.runtime import job
from hpccoll.units import format_count, format_ranges

if TYPE_CHECKING:
    from mpi4py import MPI

GRACE_S = 1.0  # time in which the messages of all waiting ranks arrive
CHECKS_PER_LIMIT, LONGEST_CHECK_S = 10, 0.5


def _report_and_abort(message: str) -> None:
    """Print the message as an error on standard error and end all ranks with the status of failed communication."""
    sys.stderr.write(f"Error: {message}\n")
    sys.stderr.flush()
    job.abort(CommunicationError.exit_status)


class TimeLimit:
    """Watches the calls of this rank between `begin_call` and `end_call`; the constructor and `close` are collective.

    Args:
        world: the ranks that make the calls.
        limit_s: the seconds that a call may take.
        fail: called with a message on the lowest rank whose call takes longer; ends the job.
    """

    def __init__(self, world: MPI.Intracomm, limit_s: float, fail: Callable[[str], None] = _report_and_abort) -> None:
        self.description = ""  # the barrier and the pattern of the calls
        self._comm, self._limit_s, self._fail = world.Dup(), limit_s, fail
        self._began_s: float | None = None
        self._round = 0
        self._requests: list[MPI.Request] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hpccoll-time-limit", daemon=True)
        self._thread.start()

    def begin_call(self, number: int) -> None:
        """State that this rank enters the barrier of round `number`."""
        self._round, self._began_s = number, time.monotonic()

    def end_call(self) -> None:
        """State that this rank is in no barrier."""
        self._began_s = None

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()
        self._comm.Free()

    def _watch(self) -> None:
        """Check the current call until the limit is exceeded or `close` is called."""
        pause = min(self._limit_s / CHECKS_PER_LIMIT, LONGEST_CHECK_S)
        while not self._closed.wait(pause):
            began = self._began_s
            if began is not None and time.monotonic() - began > self._limit_s:
                self._report()
                return

    def _report(self) -> None:
        """Exchange the calls of all waiting ranks; on the lowest of them, call `fail` with a message."""
        comm, rank = self._comm, self._comm.rank
        # The requests are kept until the job ends, because MPI may still send the messages.
        self._requests = [comm.isend(self._round, dest) for dest in range(comm.size) if dest != rank]
        waiting = {rank: self._round}
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and len(waiting) < comm.size:
            status = job.load_mpi().Status()
            if comm.iprobe(status=status):
                waiting[status.source] = comm.recv(source=status.source)
            else:
                time.sleep(GRACE_S / 100)
        if rank != min(waiting):
            time.sleep(2 * GRACE_S)  # the lowest rank ends the job
        self._fail(self._describe(waiting))

    def _describe(self, waiting: dict[int, int]) -> str:
        """Return the error message for a call in which the ranks `waiting`, with their rounds, wait too long."""
        rounds, others = sorted(set(waiting.values())), sorted(set(range(self._comm.size)) - set(waiting))
        found = f"{self.description}: {_name_ranks(sorted(waiting))} waited longer than {self._limit_s:g} s in "
        found += f"round {rounds[0]} of a batch"
        if others:
            verb = "has" if len(others) == 1 else "have"
            found += f"; {_name_ranks(others)} {verb} not entered it: stopped, slow or blocked elsewhere"
        elif len(rounds) > 1:
            found += f", others in round {rounds[-1]}: this barrier does not work with this MPI library"
        else:
            found += ": all ranks have entered it, and it does not end"
        return f"{found}; look at the processes of these ranks, or allow more time by --timeout {4 * self._limit_s:g}"


def _name_ranks(ranks: list[int]) -> str:
    """Return ranks with their noun, such as `rank 1` or `ranks 0-2,5`."""
    return f"{format_count(len(ranks), 'rank').partition(' ')[2]} {format_ranges(ranks)}"
