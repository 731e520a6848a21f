"""A communicator in a reference cycle is collected at any place and in any thread, and freed by the next call."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import hpccoll
from hpccoll.runtime.progress import get_progress
from hpccoll.runtime.recorder.flight_recorder import get_recorder


class Cycle:
    """An object that refers to a communicator and to itself."""

    def __init__(self) -> None:
        self.comm, self.own = hpccoll.Communicator(), self


def make_garbage() -> tuple[weakref.ref[Cycle], int]:
    """Return a weak reference to a dropped cycle, and the id of its communicator in recordings."""
    cycle = Cycle()
    cycle.comm.all_reduce(np.ones(3))
    return weakref.ref(cycle), cycle.comm._state.communicator


def is_open(communicator: int) -> bool:
    return get_recorder().read().communicators[communicator].is_open


@pytest.mark.timeout(60)
def test_collection_while_the_recorder_is_locked_waits_for_the_next_call():
    gc.disable()
    dropped, number = make_garbage()
    with get_recorder()._lock:
        gc.collect()
    gc.enable()
    assert dropped() is None
    assert is_open(number)
    comm = hpccoll.Communicator()
    assert not is_open(number)
    comm.close()


@pytest.mark.timeout(60)
def test_collection_in_another_thread_frees_nothing_there():
    gc.disable()
    comm = hpccoll.Communicator()
    dropped, number = make_garbage()
    collector = threading.Thread(target=gc.collect)
    collector.start()
    collector.join()
    gc.enable()
    assert dropped() is None
    assert len(get_progress().garbage) == 1
    assert is_open(number)
    comm.all_reduce(np.ones(5))
    assert not is_open(number)
    comm.close()
