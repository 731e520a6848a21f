"""Ends the job when a barrier does not complete in time or a rank stops responding, and names the guilty ranks.

A thread of each rank measures how long the rank has been in a barrier, or between two barriers. When a rank stays in a
barrier, or between two barriers, for longer than the limit, the rank counts as waiting, and its thread sends a message
to the threads of all other ranks. A thread that receives such a message answers it, unless its own rank counts as
waiting, too.

- If a rank waits in a barrier, the barrier counts as hung, and the ranks that do not wait are guilty.
- If ranks wait only between two barriers, the ranks whose threads do not answer are guilty, because their processes are
  stopped or unreachable. A rank whose thread answers may be busy with long work, such as a prediction.

After a grace period, the lowest rank that still waits prints the waiting ranks and the guilty ranks, and ends the job.
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

GRACE_S = 3.0  # time for the messages of all waiting ranks to arrive, and at least the time for ranks to answer
CHECKS_PER_LIMIT, LONGEST_CHECK_S = 10, 0.25
PAUSE_S = 0.1  # time between two polls for answers
POLL_S = 1e-3  # time between two polls for the last messages
BETWEEN_BARRIERS = -1  # sent instead of the number of a round: the rank waits between two barriers
ANSWER = -2  # sent instead of the number of a round: the rank does not wait


def _report_and_abort(message: str) -> None:
    """Print an error message on standard error, and end all ranks with the exit status of failed communication."""
    sys.stderr.write(f"Error: {message}\n")
    sys.stderr.flush()
    job.abort(CommunicationError.exit_status)


class TimeLimit:
    """Ends the job if a barrier hangs or a rank stops responding, from the construction of the object to `close`.

    A thread of each rank watches the rank. The constructor and `close` are collective over `world`.

    Args:
        world: the communicator of the ranks that call the barriers.
        limit_s: the seconds that a rank may spend in a barrier, or between two barriers.
        fail: ends the job; called with the error message on the lowest rank that exceeds `limit_s`.
    """

    def __init__(self, world: MPI.Intracomm, limit_s: float, fail: Callable[[str], None] = _report_and_abort) -> None:
        self.description = "the start of the suite"  # the barrier and the pattern of the calls
        self._comm, self._limit_s, self._fail = world.Dup(), limit_s, fail
        self._phase = BETWEEN_BARRIERS, time.monotonic()  # the round, and the time at which it began
        self._asked_s = 0.0  # the time of the last messages to the other ranks
        self._grace_s = GRACE_S  # the time in which the other ranks may react to these messages
        self._answered: set[int] = set()  # the ranks that have answered these messages
        self._waiting: dict[int, tuple[int, float]] = {}  # by waiting rank: its round, and the time of its message
        self._requests: list[MPI.Request] = []
        self._sent, self._received = [0] * world.size, [0] * world.size  # messages to and from each rank
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hpccoll-time-limit", daemon=True)
        self._thread.start()

    def begin_call(self, number: int) -> None:
        """Record that this rank enters the barrier of round `number`."""
        self._phase = number, time.monotonic()

    def end_call(self) -> None:
        """Record that this rank has left the barrier."""
        self._phase = BETWEEN_BARRIERS, time.monotonic()

    def close(self) -> None:
        """Stop watching this rank, and receive all messages before the communicator is freed. Collective.

        Open MPI reuses the number of a freed communicator, and would deliver a late message to the next communicator
        with the same number, whose own messages would then never match.
        """
        self._comm.Barrier()  # in this wait, the watching thread still answers messages of other ranks
        self._closed.set()
        self._thread.join()
        expected = self._comm.alltoall(self._sent)
        while self._received != expected or not all(request.test()[0] for request in self._requests):
            self._receive()
            time.sleep(POLL_S)
        self._comm.Free()

    def _watch(self) -> None:
        """Answer other ranks, and check whether this rank exceeds the limit, until `close` is called. For a thread."""
        pause = min(self._limit_s / CHECKS_PER_LIMIT, LONGEST_CHECK_S)
        while not self._closed.wait(pause):
            for source in self._receive():
                self._send(ANSWER, source)
            phase = self._phase
            if time.monotonic() - max(phase[1], self._asked_s) > self._limit_s and self._is_hung(phase):
                self._report(phase[0])
                return

    def _send(self, number: int, dest: int) -> None:
        """Start to send a message to rank `dest`; keep the request until MPI has sent the message.

        The message is `number`: the round in which this rank waits, BETWEEN_BARRIERS, or ANSWER.
        """
        self._requests = [request for request in self._requests if not request.test()[0]]
        self._requests.append(self._comm.isend(number, dest))
        self._sent[dest] += 1

    def _receive(self) -> list[int]:
        """Receive the messages that have arrived, without waiting; return the ranks that wait and expect an answer."""
        asking, status = [], job.load_mpi().Status()
        while self._comm.iprobe(status=status):
            number, source = self._comm.recv(source=status.source), status.source
            self._received[source] += 1
            if number == ANSWER:
                self._waiting.pop(source, None)
                self._answered.add(source)
            else:
                self._waiting[source] = number, time.monotonic()
                asking.append(source)
        return asking

    def _is_hung(self, phase: tuple[int, float]) -> bool:
        """Ask the other ranks for answers, and return whether the job hangs.

        The job hangs if this rank stays in its barrier, or stays between two barriers and a rank does not answer.
        `phase` is the round in which this rank waits, or BETWEEN_BARRIERS, and the time at which this phase began. The
        result is False if this rank leaves the phase before the time for answers is over.
        """
        number, others = phase[0], set(range(self._comm.size)) - {self._comm.rank}
        self._asked_s = time.monotonic()
        self._grace_s = max(GRACE_S, self._limit_s) if number == BETWEEN_BARRIERS else GRACE_S
        self._answered.clear()
        for dest in others:
            self._send(number, dest)
        missing = others
        for _ in range(round(self._grace_s / PAUSE_S)):  # a count, because this process may be stopped meanwhile
            if self._closed.wait(PAUSE_S) or self._phase is not phase:
                return False  # another rank may have closed before it read the message
            self._receive()
            missing = others - set(self._find_waiting()) - (self._answered if number == BETWEEN_BARRIERS else set())
            if not missing:
                break
        return number != BETWEEN_BARRIERS or bool(missing)

    def _find_waiting(self) -> dict[int, int]:
        """Return the ranks that have recently sent the message that they wait, with the round in which they wait."""
        since = self._asked_s - self._grace_s
        return {rank: number for rank, (number, heard) in self._waiting.items() if heard > since}

    def _report(self, number: int) -> None:
        """End the job by `fail` with the error message; `number` is the round in which this rank waits.

        If a lower rank waits as well, this rank gives it time to end the job first.
        """
        waiting = {self._comm.rank: number, **self._find_waiting()}
        message = self._describe(waiting)
        if self._comm.rank != min(waiting):
            time.sleep(2 * GRACE_S)  # the lowest rank ends the job
        self._fail(message)

    def _describe(self, waiting: dict[int, int]) -> str:
        """Return the error message on waiting and missing ranks; `waiting` has the round of each waiting rank."""
        rounds = sorted(set(waiting.values()) - {BETWEEN_BARRIERS})
        others = sorted(set(range(self._comm.size)) - set(waiting))
        message = f"{self.description}: {_name_ranks(sorted(waiting))} waited longer than {self._limit_s:g} s "
        message += f"in round {rounds[0]} of a batch" if rounds else "between two barriers"
        if others and rounds:
            verb = "has" if len(others) == 1 else "have"
            message += f"; {_name_ranks(others)} {verb} not entered it: stopped, slow or blocked elsewhere"
        elif others:
            silent = sorted(set(others) - self._answered)
            message += f"; {_name_ranks(silent)} "
            message += f"{'does' if len(silent) == 1 else 'do'} not respond: stopped or unreachable"
        elif len(rounds) > 1:
            message += f", others in round {rounds[-1]}: this barrier does not work with this MPI library"
        else:
            message += ": all ranks have entered it, and it does not end"
        return f"{message}; look at the processes of these ranks, or allow more time by --timeout {4 * self._limit_s:g}"


def _name_ranks(ranks: list[int]) -> str:
    """Return ranks in words, such as `rank 1` or `ranks 0-2,5`."""
    return f"{format_count(len(ranks), 'rank').partition(' ')[2]} {format_ranges(ranks)}"
