"""In-flight operations advance in every wait, and the pauses of a long wait become longer."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

import pytest

from hpccoll.errors import UsageError
from hpccoll.runtime.backoff import FIRST_SLEEP_S, LONGEST_SLEEP_S, SPIN_S, YIELD_S, Backoff
from hpccoll.runtime.progress import InFlight, Progress


class Countdown(InFlight):
    """An operation that is complete at the given call of `advance`, and fails if it is advanced again."""

    def __init__(self, calls):
        super().__init__()
        self.left = calls

    def _advance(self):
        assert self.left, "advanced after it was complete"
        self.left -= 1
        return not self.left


class Broken(InFlight):
    """An operation that fails."""

    def _advance(self):
        raise OSError("link is down")


def test_progress_is_true_while_a_plan_is_in_flight():
    progress = Progress()
    progress.add_transfer(Countdown(9))
    assert not progress
    progress.add(Countdown(2))
    assert progress


def test_advance_removes_complete_operations_only():
    progress, operations = Progress(), [Countdown(calls) for calls in (1, 2, 1)]
    for operation in operations:
        progress.add(operation)
    progress.advance()
    assert list(progress.operations) == [operations[1]]
    progress.advance()
    assert not progress
    progress.advance()


def test_progress_advances_after_exceptions_of_signal_handlers_at_any_instant():
    class Interrupted(Exception):
        pass

    def handle(*_):
        raise Interrupted

    progress, interrupted = Progress(), 0
    previous = signal.signal(signal.SIGALRM, handle)
    while interrupted < 300:
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            while progress.advance():
                pass
            pytest.fail("advance believes that another call is still advancing")
        except Interrupted:
            interrupted += 1
    signal.signal(signal.SIGALRM, previous)
    assert progress.advance()


class Handler:
    """A signal handler that is no function."""

    def __call__(self, *_):
        raise OSError("time is up")


def handle(*_):
    raise OSError("time is up")


@pytest.mark.parametrize("handler", [handle, Handler(), Handler().__call__])
def test_an_exception_of_a_signal_handler_is_raised_although_it_ends_an_operation(handler):
    """The caller waits for another operation, such as a blocking call, and must not wait any longer."""

    class Signalled(InFlight):
        def _advance(self):
            signal.raise_signal(signal.SIGUSR1)
            return False

    operation, progress = Signalled(), Progress()
    progress.add(operation)
    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(OSError, match="time is up"):
            progress.advance()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert operation.done
    assert isinstance(operation.error, OSError)
    assert progress.advance() is not None  # it no longer stops the others


def test_an_operation_may_begin_another_while_it_advances():
    progress, second = Progress(), Countdown(1)

    class Chained(InFlight):
        def _advance(self):
            progress.add(second)
            return True

    progress.add(Chained())
    progress.advance()
    assert list(progress.operations) == [second]


def test_an_operation_that_waits_does_not_advance_the_others_within():
    progress, other = Progress(), Countdown(9)

    class Waiting(InFlight):
        def _advance(self):
            progress.wait_until(iter((False, False, True)).__next__)
            return True

    progress.add(Waiting())
    progress.add(other)
    progress.advance()
    assert other.left == 8


def test_an_error_is_raised_where_its_own_operation_is_waited_for():
    progress, broken, other = Progress(), Broken(), Countdown(2)
    progress.add(broken)
    progress.add(other)
    progress.advance()
    assert list(progress.operations) == [other]
    assert broken.done
    with pytest.raises(OSError, match="link is down"):
        broken.raise_error()
    other.raise_error()


def test_transfers_are_tested_one_per_turn_until_they_are_done():
    progress, transfers = Progress(), [Countdown(2), Countdown(1), Countdown(2)]
    for transfer in transfers:
        progress.add_transfer(transfer)
    left = []
    for _ in range(5):
        progress.advance()
        left.append([transfer.left for transfer in transfers])
    assert left == [[1, 1, 2], [1, 0, 2], [1, 0, 1], [0, 0, 1], [0, 0, 0]]
    assert not progress.transfers


@pytest.mark.parametrize("kind", ["plan", "transfer"])
def test_wait_until_advances_what_is_in_flight_between_polls(kind):
    progress, operation, polls = Progress(), Countdown(5), iter(range(1000))
    (progress.add if kind == "plan" else progress.add_transfer)(operation)
    progress.wait_until(lambda: operation.done or next(polls) is None)
    assert operation.left == 0


def test_wait_until_returns_at_once_where_the_condition_holds():
    progress, operation = Progress(), Countdown(5)
    progress.add(operation)
    progress.wait_until(lambda: True)
    assert operation.left == 5


@pytest.mark.parametrize("kind", ["plan", "transfer"])
def test_sleep_until_advances_what_is_in_flight_and_does_not_sleep(clock, kind):
    polls = []
    progress, operation = Progress(lambda: polls.append("polled")), Countdown(300)
    (progress.add if kind == "plan" else progress.add_transfer)(operation)
    progress.sleep_until(lambda: operation.done)
    assert set(clock.did) == {"yield"}
    assert not polls


def test_sleep_until_polls_mpi_only_after_it_has_slept(clock):
    did = clock.did
    progress = Progress(lambda: did.append("polled"))
    turns = itertools.count()

    def is_done():
        clock.now += YIELD_S / 3
        return next(turns) == 8

    progress.sleep_until(is_done)
    assert did[0] == "yield"
    first = did.index("polled")
    assert set(did[: first - 1]) == {"yield"}
    assert [what == "polled" for what in did[first - 1 :]] == [False, True] * (len(did[first - 1 :]) // 2)


def test_a_blocking_call_is_made_directly_while_no_plan_is_in_flight():
    progress = Progress()
    progress.add_transfer(Countdown(9))
    assert progress.call(threading.current_thread) is threading.current_thread()


def test_plans_advance_during_a_blocking_call():
    progress, gate = Progress(), threading.Event()

    class Opening(InFlight):
        def _advance(self):
            gate.set()
            return True

    progress.add(Opening())
    assert progress.call(lambda: gate.wait(30)) is True


def test_an_error_of_a_blocking_call_is_raised_beside_plans():
    progress = Progress()
    progress.add(Countdown(10**9))

    def fail():
        raise OSError("link is down")

    with pytest.raises(OSError, match="link is down"):
        progress.call(fail)


@pytest.fixture
def clock(monkeypatch):
    """A clock that advances only by sleeps and `ticks`; records every pause."""

    class Clock:
        now, did = 1.0, []

        def sleep(self, seconds):
            self.did.append(seconds)
            self.now += seconds

    clock = Clock()
    clock.did = []
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(os, "sched_yield", lambda: clock.did.append("yield"))
    return clock


def test_a_backoff_spins_then_yields_then_sleeps_for_longer_and_longer(clock):
    wait = Backoff(spins=True)
    assert not wait.pause()
    assert clock.did == []
    clock.now += SPIN_S * 1.1
    assert not wait.pause()
    assert clock.did == ["yield"]
    clock.now += YIELD_S
    for _ in range(9):
        assert wait.pause()
    sleeps = clock.did[1:]
    assert sleeps[:3] == [FIRST_SLEEP_S, 2 * FIRST_SLEEP_S, 4 * FIRST_SLEEP_S]
    assert all(first <= second for first, second in itertools.pairwise(sleeps))
    assert sleeps[-1] == LONGEST_SLEEP_S


def test_a_backoff_without_spinning_yields_at_once(clock):
    Backoff(spins=False).pause()
    assert clock.did == ["yield"]


def test_a_backoff_without_sleeping_yields_for_ever(clock):
    wait = Backoff(spins=True, sleeps=False)
    wait.pause()
    clock.now += 60
    wait.pause()
    wait.pause()
    assert clock.did == ["yield", "yield"]


@pytest.mark.parametrize("oversubscribed", [False, True])
def test_waits_for_messages_sleep_only_where_ranks_share_cores(clock, oversubscribed):
    progress = Progress()
    progress.cores_per_rank = 0.5 if oversubscribed else 1.0
    polls = iter(range(10_000))

    def is_done():
        clock.now += YIELD_S / 10
        return next(polls) > 1000

    progress.wait_until(is_done)
    assert any(isinstance(pause, float) for pause in clock.did) == oversubscribed
    assert "yield" in clock.did


def test_reset_begins_again_with_the_shortest_pause(clock):
    wait = Backoff(spins=True)
    wait.pause()
    clock.now += YIELD_S * 1.1
    wait.pause()
    wait.pause()
    wait.reset()
    wait.pause()
    assert clock.did == [FIRST_SLEEP_S, 2 * FIRST_SLEEP_S]
    clock.now += YIELD_S * 1.1
    wait.pause()
    assert clock.did[2:] == [FIRST_SLEEP_S]


def test_in_a_forked_child_operations_in_flight_fail():
    progress, plan, transfer = Progress(), Countdown(9), Countdown(9)
    progress.add(plan)
    progress.add_transfer(transfer)
    progress.abandon()  # as a fork does in the child
    assert not progress.operations
    assert not progress.transfers
    for operation in (plan, transfer):
        assert operation.advance()
        with pytest.raises(UsageError, match="wait for the operation in the parent process"):
            operation.raise_error()
