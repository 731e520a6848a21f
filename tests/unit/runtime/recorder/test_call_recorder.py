"""An exception of a signal handler while a call is being recorded makes the communicator unusable at once."""

from __future__ import annotations

import pytest

from hpccoll.errors import CommunicationError
from hpccoll.runtime.recorder.call_recorder import CallRecorder


def make_recorder_that_is_interrupted(monkeypatch):
    state = CallRecorder()
    state.open(1, 0, 2, None)

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(state.recorder, "take_entry", interrupt)
    return state


def begin(state):
    state.bind("barrier", state.describe("barrier"))()


def surround(state):
    state.surround("barrier", state.describe("barrier"), [], bool)()


@pytest.mark.parametrize("call", [begin, surround])
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
