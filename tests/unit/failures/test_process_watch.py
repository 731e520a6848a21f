"""A rank sees whether the process of another rank is stopped, or runs without signs of life."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpccoll
from hpccoll.failures import process_watch
from hpccoll.failures.process_watch import ProcessWatch
from hpccoll.recordings.process_notes import ObservedState, parse_notes, read_process_state
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder

LIMIT_S = 60.0
RANK_1 = """
import sys, time
from hpccoll.failures.process_watch import ProcessWatch
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder
recorder = FlightRecorder(sys.argv[1], 1, 2, entries=64)
ProcessWatch(recorder, print).hold()
recorder.write_sign_of_life(time.monotonic_ns(), "")
print(flush=True)
time.sleep(1000)
"""


def wait_until(done: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_silent_process_that_is_stopped_differs_from_one_that_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(process_watch, "QUIET_S", 0.0)
    recorder = FlightRecorder(str(tmp_path), 0, 2, entries=64)
    deaths: list[int] = []

    def observe() -> list[tuple[int, ObservedState]]:
        watch.observe_quiet_ranks()
        return [(each.rank, each.state) for each in parse_notes(bytes(recorder.memory)).observations]

    with subprocess.Popen([sys.executable, "-c", RANK_1, str(tmp_path)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            watch = ProcessWatch(recorder, deaths.append)
            (file,) = [path.name for path in tmp_path.iterdir() if "rank1" in path.name]
            watch.add({0: (os.getpid(), 0, 0, ""), 1: (other.pid, 0, 0, file)})
            wait_until(lambda: observe() == [(1, ObservedState.RUNNING)])
            other.send_signal(signal.SIGSTOP)
            wait_until(lambda: read_process_state(other.pid) == "T")
            assert observe() == [(1, ObservedState.STOPPED)]
            other.send_signal(signal.SIGCONT)
            wait_until(lambda: read_process_state(other.pid) != "T")
            assert observe() == [(1, ObservedState.RUNNING)]
        finally:
            other.kill()
        wait_until(lambda: deaths == [1])
    assert observe() == [(1, ObservedState.RUNNING)]


def test_the_location_of_a_call_is_the_line_that_calls_hpccoll():
    file = Path(hpccoll.__file__).with_name("communicator") / "base.py"
    found: dict[str, Any] = {"locate": process_watch.find_location, "thread": threading.get_ident()}
    exec(compile("location = locate(thread)", file, "exec"), found)
    assert found["location"].startswith("test_process_watch.py:")


def test_the_location_of_an_error_is_the_line_that_called_hpccoll():
    file = Path(hpccoll.__file__).with_name("communicator") / "base.py"
    with pytest.raises(KeyError) as caught:
        exec(compile("raise KeyError", file, "exec"))
    location = process_watch.find_error_location(caught.value.__traceback__)
    assert re.fullmatch(r"test_process_watch\.py:\d+ in test_the_location_of_an_error_is\w+", location)
    assert process_watch.find_error_location(None) == ""
