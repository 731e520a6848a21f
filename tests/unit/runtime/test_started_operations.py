"""An interruption ends the operations of a communicator once other ranks have read the memory that they send."""

from __future__ import annotations

import pytest

from hpccoll.runtime.progress import InFlight, Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.started_operations import StartedOperations


class Sending(InFlight):
    """An operation whose message is sent at the third look; its advance may raise an exception."""

    def __init__(self, error: type[BaseException] | None = None):
        super().__init__()
        self.raised, self.looks = error, 0

    def _advance(self):
        if self.raised is not None:
            raise self.raised
        return False

    def is_settled(self):
        self.looks += 1
        return self.looks == 3


def make_state() -> tuple[CallRecorder, StartedOperations]:
    state, progress = CallRecorder(), Progress()
    state.open(1, 0, 2, None)
    started = StartedOperations(progress, state, bool)
    state.on_interruption, state.settle = started.fail, started.settle
    return state, started


def start(state: CallRecorder, started: StartedOperations, operation: Sending) -> Sending:
    operation.awaited = state.start("all_reduce", state.describe("all_reduce"))
    started.add(operation)
    return operation


def test_operations_in_flight_are_settled_once():
    state, started = make_state()
    operation = start(state, started, Sending())
    state.interrupt("barrier", "KeyboardInterrupt")
    assert operation.done
    assert operation.looks == 3
    started.settle()
    assert operation.looks == 3


def test_the_operation_in_which_the_exception_occurred_is_settled():
    state, started = make_state()
    operation = start(state, started, Sending(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        operation.advance()
    assert state.is_unusable
    assert operation.looks == 3
