"""In-flight operations advance in every wait, and a wait pauses for longer the longer it lasts."""

from __future__ import annotations

import itertools
import os
import time

import pytest

from hpccoll.runtime.backoff import FIRST_SLEEP_S, LONGEST_SLEEP_S, SPIN_S, YIELD_S, Backoff
from hpccoll.runtime.progress import Progress


class Countdown:
    """An operation that is complete at the given call of `advance`, and fails if it is advanced again."""

    def __init__(self, calls):
        self.left = calls

    def advance(self):
        assert self.left, "advanced after it was complete"
        self.left -= 1
        return not self.left


def test_progress_is_true_while_an_operation_is_in_flight():
    progress = Progress()
    assert not progress
    progress.add(7, Countdown(2))
    assert progress
    assert 7 in progress
    assert 8 not in progress


def test_advance_removes_complete_operations_only():
    progress = Progress()
    for tag, calls in ((2, 1), (3, 2), (4, 1)):
        progress.add(tag, Countdown(calls))
    progress.advance()
    assert list(progress.operations) == [3]
    progress.advance()
    assert not progress
    progress.advance()


def test_an_operation_may_begin_another_while_it_advances():
    progress = Progress()

    class Chained:
        def advance(self):
            progress.add(3, Countdown(1))
            return True

    progress.add(2, Chained())
    progress.advance()
    assert list(progress.operations) == [3]


def test_an_error_of_an_operation_leaves_the_others_in_flight():
    progress = Progress()

    class Broken:
        def advance(self):
            raise OSError("link is down")

    progress.add(2, Broken())
    progress.add(3, Countdown(1))
    with pytest.raises(OSError, match="link is down"):
        progress.advance()
    assert 3 in progress


def test_wait_until_advances_the_operations_between_polls():
    progress, operation = Progress(), Countdown(5)
    progress.add(2, operation)
    progress.wait_until(lambda: 2 not in progress)
    assert operation.left == 0


def test_wait_until_returns_at_once_where_the_condition_holds():
    progress, operation = Progress(), Countdown(5)
    progress.add(2, operation)
    progress.wait_until(lambda: True)
    assert operation.left == 5


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for sleeps and `ticks`; records what each pause did."""

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
    wait.pause()
    assert clock.did == []
    clock.now += SPIN_S * 1.1
    wait.pause()
    assert clock.did == ["yield"]
    clock.now += YIELD_S
    for _ in range(9):
        wait.pause()
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
