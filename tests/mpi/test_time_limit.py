"""The time limit of the barrier suite between two barriers: a stopped rank is named, a busy rank is not."""

from __future__ import annotations

import os
import subprocess
import threading
import time

import pytest

from hpccoll.barrier_suite.time_limit import TimeLimit

pytestmark = [pytest.mark.mpi, pytest.mark.mpi(min_size=2)]
LIMIT_S = 0.3


def stop_for(seconds: float) -> None:
    """Stop this process by SIGSTOP; another process continues it after `seconds`."""
    words = f"sleep 0.2; kill -STOP {os.getpid()}; sleep {seconds}; kill -CONT {os.getpid()}"
    subprocess.run(["/bin/sh", "-c", words], check=True)


def test_a_rank_that_works_between_two_barriers_is_not_reported_however_long(comm):
    messages: list[str] = []
    limit = TimeLimit(comm, LIMIT_S, messages.append)
    end = time.monotonic() + 8 * LIMIT_S
    while comm.rank == 0 and time.monotonic() < end:
        limit.end_call()
        time.sleep(LIMIT_S / 3)
    comm.Barrier()
    limit.close()
    assert messages == []


def test_a_rank_that_stops_between_two_barriers_is_named(comm):
    messages: list[str] = []
    failed = threading.Event()

    def fail(message: str) -> None:
        messages.append(message)
        failed.set()

    limit = TimeLimit(comm, LIMIT_S, fail)
    limit.description = "mpi/barrier"
    last = comm.size - 1
    if comm.rank == last:
        stop_for(8)
    elif comm.rank == 0:
        assert failed.wait(20)
    comm.Barrier()
    limit.close()
    if comm.rank == 0:
        (message,) = messages
        assert f"mpi/barrier: rank{'s' if last > 1 else ''} 0" in message
        assert f"between two barriers; rank {last} does not respond: stopped or unreachable" in message


def test_a_rank_that_closes_before_it_reads_a_message_is_not_reported(comm):
    messages: list[str] = []
    for number in range(20):
        limit = TimeLimit(comm, 0.05, messages.append)
        end = time.monotonic() + 0.15 + 0.005 * number  # close at different times after the message of a waiting rank
        while comm.rank == 0 and time.monotonic() < end:
            limit.end_call()
            time.sleep(0.01)
        comm.Barrier()
        limit.close()
    assert messages == []
