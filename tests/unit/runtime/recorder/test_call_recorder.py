"""Exceptions of signal handlers while a call is being recorded, and deaths of ranks during a call."""

from __future__ import annotations

import pytest

from hpccoll.errors import CommunicationError, RankLostError
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.interruption import Interruption, LostRanks


def make_recorder_that_is_interrupted(monkeypatch):
    state = CallRecorder()
    state.open(1, 0, 2, None)

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(state.recorder, "take_entry", interrupt)
    return state


def begin(state):
    state.begin("barrier", state.describe("barrier"))


def call_barrier(state):
    with state.call("barrier"):
        pass


@pytest.mark.parametrize("call", [begin, call_barrier])
def test_an_exception_before_the_entry_is_written_makes_the_communicator_unusable(call, monkeypatch):
    state = make_recorder_that_is_interrupted(monkeypatch)
    announced = []
    state.announce = lambda: announced.append(True)
    with pytest.raises(KeyboardInterrupt):
        call(state)
    assert state.is_unusable
    assert announced
    with pytest.raises(CommunicationError, match="call 1 \\(barrier\\) of rank 0 was interrupted by KeyboardInterrupt"):
        call(state)


def test_a_wait_that_is_interrupted_at_its_beginning_leaves_the_communicator_usable(monkeypatch):
    state = CallRecorder()
    state.open(1, 0, 2, None)
    reason = state.start("barrier", state.describe("barrier"))

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(reason), "_store_time", interrupt)
        with pytest.raises(KeyboardInterrupt), reason:
            pass
    assert state.current is None


def run_with_death(state, interruption):
    """Make a call, during which this rank learns of a death and receives an interruption."""
    state.survives = True
    with state.call("gather"):
        state.is_lost = True
        state.receive_interruption(interruption)


def test_no_call_returns_a_result_after_a_death():
    state = CallRecorder()
    state.open(1, 0, 3, None)
    with pytest.raises(RankLostError) as caught:
        run_with_death(state, LostRanks((2,), ("host",)))
    assert (caught.value.ranks, caught.value.operation) == ((2,), "gather")
    with pytest.raises(RankLostError):
        run_with_death(state, LostRanks((2,), ("host",)))


def test_no_call_returns_a_result_after_a_death_that_came_after_an_interruption():
    state = CallRecorder()
    state.open(1, 0, 3, None)
    with pytest.raises(CommunicationError, match="was interrupted by KeyboardInterrupt"):
        run_with_death(state, Interruption(1, 1, "gather", "KeyboardInterrupt"))
