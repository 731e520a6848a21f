"""The time limit of the barrier suite: a stopped rank is named; a busy rank and a late rank are not."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from hpccoll.barrier_suite import time_limit
from hpccoll.barrier_suite.time_limit import TimeLimit

pytestmark = [pytest.mark.mpi, pytest.mark.mpi(min_size=2)]
LIMIT_S = 0.3


@pytest.fixture
def long_grace(monkeypatch):
    """Let ranks answer late, because a busy machine may not schedule a healthy rank for seconds."""
    monkeypatch.setattr(time_limit, "GRACE_S", 20.0)


def test_a_rank_that_works_between_two_barriers_is_not_reported(comm, long_grace):
    messages: list[str] = []
    limit = TimeLimit(comm, LIMIT_S, messages.append)
    while comm.rank and 0 not in limit._answered and not messages:
        time.sleep(0.01)
    others_are_answered = comm.Ibarrier()
    while not others_are_answered.Test():
        if comm.rank == 0:
            limit.end_call()
        time.sleep(0.01)
    limit.close()
    assert messages == []


def test_a_rank_that_stops_between_two_barriers_is_named(comm):
    messages: list[str] = []
    failed = threading.Event()

    def fail(message: str) -> None:
        messages.append(message)
        failed.set()

    processes = comm.allgather(os.getpid())
    limit = TimeLimit(comm, LIMIT_S, fail)
    limit.description = "mpi/barrier"
    last = comm.size - 1
    if comm.rank == last:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif comm.rank == 0:
        is_reported = failed.wait(60)
        os.kill(processes[last], signal.SIGCONT)
        assert is_reported
    comm.barrier()
    limit.close()
    if comm.rank == 0:
        (message,) = messages
        assert f"mpi/barrier: rank{'s' if last > 1 else ''} 0" in message
        assert f"between two barriers; rank {last} does not respond: stopped or unreachable" in message


def test_a_rank_that_closes_before_it_reads_a_message_is_not_reported(comm, long_grace):
    messages: list[str] = []
    for number in range(20):
        limit = TimeLimit(comm, 0.05, messages.append)
        end = time.monotonic() + 0.15 + 0.005 * number  # close at different times after the message of a waiting rank
        while comm.rank == 0 and time.monotonic() < end:
            limit.end_call()
            time.sleep(0.01)
        comm.barrier()
        limit.close()
    assert messages == []


def test_a_late_rank_that_enters_within_the_grace_period_is_not_reported(comm, long_grace):
    messages: list[str] = []
    limit = TimeLimit(comm, LIMIT_S, messages.append)
    others = comm.size - 1
    while comm.rank == 0 and len(limit._waiting) < others and not messages:  # until the others wait in the barrier
        limit.end_call()
        time.sleep(0.01)
    limit.begin_call(0)
    comm.barrier()
    limit.end_call()
    time.sleep(4 * LIMIT_S)  # ranks that now wait between two barriers tell each other
    limit.close()
    assert messages == []
