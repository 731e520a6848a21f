"""Handles of asynchronous operations, and messages in one or more segments."""

from __future__ import annotations

import subprocess
import sys
import weakref

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll.errors import CommunicationError
from hpccoll.runtime.progress import InFlight, Progress
from hpccoll.runtime.work import MpiTransfer, Work


class Countdown(InFlight):
    """An operation that is complete at the given call of `advance` (0: never)."""

    def __init__(self, calls):
        super().__init__()
        self.left = calls

    def _advance(self):
        self.left -= 1
        return self.left == 0


def test_wait_returns_the_result_of_a_complete_operation():
    result = np.ones(3)
    work = Work(0, Progress(), Countdown(3), result)
    assert work.wait() is result
    assert work.done
    assert work.wait() is result


def test_an_operation_that_was_complete_at_once_is_done():
    work = Work(0, Progress(), None, "result")
    assert work.done
    assert work.test()
    assert work.wait() == "result"


def test_test_advances_until_the_operation_is_complete():
    operation = Countdown(2)
    work = Work(0, Progress(), operation, None)
    assert [work.test(), work.test(), work.test()] == [False, True, True]
    assert operation.left == 0, "advanced after it was complete"


def test_test_advances_a_plan_in_flight_once():
    progress, operation = Progress(), Countdown(3)
    progress.add(operation)
    work = Work(0, progress, operation, None)
    assert [work.test(), work.test(), work.test()] == [False, False, True]


def test_wait_advances_the_other_operations():
    progress, other = Progress(), Countdown(2)
    progress.add(other)
    Work(0, progress, Countdown(5), None).wait()
    assert not progress


def test_a_wait_that_takes_too_long_raises_and_may_be_repeated():
    operation = Countdown(0)
    work = Work(3, Progress(), operation, "result")
    with pytest.raises(CommunicationError, match=r"rank 3: not complete after 0\.002 s"):
        work.wait(timeout=0.002)
    assert not work.done
    operation.left = 2
    assert work.wait(timeout=60) == "result"


def test_an_error_is_raised_by_every_wait():
    class Broken(InFlight):
        def _advance(self):
            raise CommunicationError("link is down")

    work = Work(0, Progress(), Broken(), None)
    for _ in range(2):
        with pytest.raises(CommunicationError, match="link is down"):
            work.wait()


def test_a_transfer_in_flight_keeps_its_memory(own):
    x = np.ones(3, np.uint8)
    kept, received = weakref.ref(x), np.zeros(3, np.uint8)
    message = MpiTransfer("rank 0: receiving", [own.Irecv([received, MPI.BYTE], own.rank, 5)], [], [3], (x,))
    del x
    assert not message.advance()
    assert kept() is not None
    own.Isend([np.ones(3, np.uint8), MPI.BYTE], own.rank, 5).Free()
    complete(message)
    assert kept() is None


def transfer(comm, sent, received, last=(), expected=None):
    """Send segments to the own rank; return the transfer that receives them."""
    for segment in sent:
        comm.Isend([segment, MPI.BYTE], comm.rank, 5).Free()
    requests = [comm.Irecv([segment, MPI.BYTE], comm.rank, 5) for segment in received]
    sizes = [segment.nbytes for segment in received] if expected is None else expected
    return MpiTransfer("rank 0: receiving from rank 0", requests, list(last), sizes)


@pytest.fixture(scope="module")
def own(comm):
    made = comm.Dup()
    made.Set_errhandler(MPI.ERRORS_RETURN)
    yield made
    made.Free()


def complete(message):
    """Advance a message until it is complete; raise its error."""
    for _ in range(10_000):
        if message.advance():
            message.raise_error()
            return
    raise AssertionError("not complete")


def test_a_transfer_is_complete_after_its_last_segment_and_runs_the_last_calls_once(own):
    sent = [np.arange(start, start + 4, dtype=np.uint8) for start in (0, 10)]
    received, calls = [np.zeros(4, np.uint8) for _ in sent], []
    message = transfer(own, sent, received, [lambda: calls.append("first"), lambda: calls.append("second")])
    complete(message)
    assert [segment.tolist() for segment in received] == [segment.tolist() for segment in sent]
    complete(message)
    assert calls == ["first", "second"]


def test_the_last_calls_wait_for_every_segment(own):
    received, calls = [np.zeros(4, np.uint8) for _ in range(2)], []
    sent = [np.ones(4, np.uint8) for _ in range(2)]
    message = transfer(own, sent[:1], received, [lambda: calls.append("copied")])
    for _ in range(100):
        assert not message.advance()
    assert calls == []
    own.Isend([sent[1], MPI.BYTE], own.rank, 5).Free()
    complete(message)
    assert calls == ["copied"]


def test_a_message_that_is_too_short_names_both_sizes(own):
    message = transfer(own, [np.ones(3, np.uint8)], [np.zeros(8, np.uint8)])
    with pytest.raises(CommunicationError, match=r"rank 0: receiving .* message of 3 bytes into an array of 8; pass"):
        complete(message)


def test_a_message_that_is_too_long_names_the_transfer(own):
    message = transfer(own, [np.ones(8, np.uint8)], [np.zeros(3, np.uint8)])
    with pytest.raises(CommunicationError, match=r"rank 0: receiving from rank 0 failed: .*; pass an array as large"):
        complete(message)


@pytest.mark.parametrize("nbytes", [3, 8])
def test_after_an_error_no_other_segment_is_received(own, nbytes):
    received = [np.zeros(4, np.uint8) for _ in range(3)]
    message = transfer(own, [np.ones(nbytes, np.uint8)], received)
    with pytest.raises(CommunicationError):
        complete(message)
    later = np.zeros(4, np.uint8)
    sent = own.Isend([np.full(4, 7, np.uint8), MPI.BYTE], own.rank, 5)
    assert own.Irecv([later, MPI.BYTE], own.rank, 5).Test()
    sent.Wait()
    assert set(later) == {7}
    assert not received[1].any()


def test_a_completed_wait_forgets_its_own_transfer_and_completes_dropped_ones(own):
    progress, arrays = Progress(), [np.zeros(3, np.uint8) for _ in range(3)]
    messages = [transfer(own, [np.ones(3, np.uint8)], [x]) for x in arrays]
    for message in messages:
        progress.add_transfer(message)
    kept = Work(0, progress, messages[2], arrays[2])
    kept.wait()
    assert messages[2] not in progress.transfers
    for _ in range(10_000):
        if not progress.transfers:
            break
        progress.advance()
    assert all(message.done for message in messages)


SUSPENDED = """
import os, subprocess, time
from hpccoll.errors import WaitTimeoutError
from hpccoll.runtime.progress import InFlight, Progress
from hpccoll.runtime.work import Work

class Endless(InFlight):
    def _advance(self):
        return False

subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -STOP {os.getpid()}; sleep 2.5; kill -CONT {os.getpid()}"])
began = time.monotonic()
try:
    Work(0, Progress(), Endless(), None).wait(timeout=1.2)
except WaitTimeoutError:
    print(time.monotonic() - began)
"""


def test_the_time_of_a_suspended_process_does_not_count():
    done = subprocess.run([sys.executable, "-c", SUSPENDED], capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) > 2.85  # 2.6 if all of it counted


def test_a_limit_of_waits_does_not_count_suspended_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("hpccoll.runtime.progress.time.monotonic", lambda: now[0])
    progress = Progress()
    progress.limit_waits(2.0)
    now[0] = 200.0  # suspended
    assert not progress._is_late()
    now[0] = 200.7
    assert not progress._is_late()
    now[0] = 201.3
    assert progress._is_late()
