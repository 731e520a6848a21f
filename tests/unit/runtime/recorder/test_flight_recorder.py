"""What a recorder file keeps, and what a reader of broken files is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpccoll.errors import RecordingError
from hpccoll.runtime.recorder import CallKind, ClockModel, FlightRecorder, layout, read_recording, read_recordings
from hpccoll.runtime.recorder.layout import format_ranks, parse_ranks

FIRST_ENTRY = layout.HEADER_BYTES + 2 * layout.TABLE_BYTES
WORLD = 0xFFFF_0000_0000_0001  # needs all 64 bits
KILLED = """
import os, signal, sys
from hpccoll.runtime.recorder import FlightRecorder
recorder = FlightRecorder(sys.argv[1], rank=3, size=4)
recorder.add_communicator(7, 3, (0, 1, 2, 3))
begin = recorder.bind(recorder.describe(7, "all_reduce", algorithm="ring", count=5, dtype="float32", reduction="sum"))
recorder.end(begin(1))
begin(2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def recorder(tmp_path: Path) -> FlightRecorder:
    return FlightRecorder(str(tmp_path), rank=1, size=4, entries=8)


def path_of(recorder: FlightRecorder) -> Path:
    assert recorder.path is not None
    return Path(recorder.path)


def test_call_is_read_as_it_was_recorded(recorder):
    recorder.add_communicator(WORLD, 1, (0, 1, 2, 3))
    description = recorder.describe(
        WORLD, "reduce", algorithm="tree", count=3, dtype="float32", reduction="sum", root=2
    )
    place = recorder.bind(description)(17)
    (begun,) = read_recording(path_of(recorder)).calls
    assert (begun.state, begun.ended_ns, begun.is_waited_for) == ("begun", None, True)
    recorder.end(place)
    recording = read_recording(path_of(recorder))
    (call,) = recording.calls
    assert (call.serial, call.communicator, call.number, call.kind) == (1, WORLD, 17, CallKind.COLLECTIVE)
    assert (call.operation, call.algorithm, call.count, call.dtype) == ("reduce", "tree", 3, "float32")
    assert (call.reduction, call.root, call.peer, call.tag) == ("sum", 2, None, None)
    assert call.state == "ended"
    assert recording.created_ns < call.begun_ns < (call.ended_ns or 0)
    assert (recording.rank, recording.size, recording.pid) == (1, 4, os.getpid())
    assert recording.host == os.uname().nodename
    communicator = recording.communicators[WORLD]
    assert (communicator.rank, communicator.size, communicator.members) == (1, 4, (0, 1, 2, 3))


def test_message_has_a_peer_and_a_tag(recorder):
    for kind, peer in ((CallKind.SEND, 0), (CallKind.RECEIVE, -1)):
        recorder.bind(recorder.describe(1, kind.name.lower(), kind=kind, root=peer, tag=5, asynchronous=True))(1)
    send, receive = recorder.read().calls
    assert (send.peer, send.root, send.tag, send.state) == (0, None, 5, "scheduled")
    assert (receive.peer, receive.kind) == (None, CallKind.RECEIVE)


def test_failure_is_recorded(recorder):
    recorder.fail(recorder.bind(recorder.describe(1, "barrier"))(1))
    assert recorder.read().calls[0].state == "failed"


def test_ring_keeps_the_latest_calls(recorder):
    begin = recorder.bind(recorder.describe(1, "barrier"))
    for number in range(1, 21):
        recorder.end(begin(number))
    recording = read_recording(path_of(recorder))
    assert [call.number for call in recording.calls] == list(range(13, 21))
    assert recording.lost == 12


def test_entry_that_overwrites_another_one_forgets_its_course(recorder):
    begin = recorder.bind(recorder.describe(1, "barrier"))
    recorder.fail(begin(1))
    for number in range(2, 10):
        begin(number)
    assert {call.state for call in recorder.read().calls} == {"begun"}


def test_torn_entry_is_left_out(recorder):
    begin = recorder.bind(recorder.describe(1, "barrier"))
    for number in range(1, 12):
        begin(number)
    contents = bytearray(path_of(recorder).read_bytes())
    at = FIRST_ENTRY + 3 * layout.ENTRY_BYTES  # of entry 11, as if the process had died after its first word
    contents[at : at + 8] = (19).to_bytes(8, "little")
    path_of(recorder).write_bytes(contents)
    assert [call.serial for call in read_recording(path_of(recorder)).calls] == [4, 5, 6, 7, 8, 9, 10]


def test_recording_survives_kill(tmp_path):
    run = subprocess.run([sys.executable, "-c", KILLED, tmp_path], timeout=60, check=False)
    assert run.returncode == -signal.SIGKILL
    (recording,) = read_recordings(tmp_path).recordings
    assert [(call.number, call.state) for call in recording.calls] == [(1, "ended"), (2, "begun")]
    assert recording.communicators[7].members == (0, 1, 2, 3)
    assert read_recordings(tmp_path).missing == (0, 1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda contents: b"", "begins differently"),
        (lambda contents: b"\x7fELF" + contents, "begins differently"),
        (lambda contents: contents[:100], "it has 100 bytes"),
        (lambda contents: contents[:-1], "is truncated: it has"),
        (lambda contents: contents[:8] + b"\x09" + contents[9:], "format version 9"),
    ],
)
def test_broken_file_is_refused(recorder, tmp_path, change, message):
    path_of(recorder).write_bytes(change(path_of(recorder).read_bytes()))
    with pytest.raises(RecordingError, match=message):
        read_recording(path_of(recorder))
    with pytest.raises(RecordingError, match="no readable recorder file"):
        read_recordings(tmp_path)


def test_broken_file_does_not_hide_the_others(recorder, tmp_path):
    (tmp_path / f"{layout.FILE_PREFIX}rank0").write_bytes(b"nothing")
    found = read_recordings(tmp_path)
    assert [recording.rank for recording in found.recordings] == [1]
    assert len(found.problems) == 1


def test_missing_file_and_directory_are_named(tmp_path):
    with pytest.raises(RecordingError, match="No such file"):
        read_recording(tmp_path / "none")
    with pytest.raises(RecordingError, match="No such file"):
        read_recordings(tmp_path / "none")


def test_latest_job_of_a_directory_is_read(tmp_path):
    for job in (1, 2):
        for rank in (0, 1):
            FlightRecorder(str(tmp_path), rank, 2, entries=8).add_communicator(job, rank, (0, 1))
    found = read_recordings(tmp_path)
    assert [recording.rank for recording in found.recordings] == [0, 1]
    assert all(set(recording.communicators) == {2} for recording in found.recordings)
    assert "2 recorder files of 1 other job" in found.problems[0]


def test_clock_and_ending_are_kept(recorder):
    assert recorder.read().clock is None
    assert recorder.read().to_global(recorder.read().created_ns) == pytest.approx(recorder.read().created_at)
    model = ClockModel(10.0, 2.0, 0.5, 1e-6, 1e-9)
    recorder.set_clock(model)
    recorder.write_ending("ValueError: ö")
    recording = read_recording(path_of(recorder))
    assert (recording.clock, recording.ending) == (model, "ValueError: ö")
    assert recording.to_global(12 * 10**9) == pytest.approx(15.0)


def test_many_communicators_and_names_leave_the_latest_readable(recorder):
    """The tables have a fixed size; what does not fit is left out, and the entries stay readable."""
    recorder.add_communicator(10**6, 0, tuple(range(4)))
    for number in range(2000):
        recorder.add_communicator(number, 0, (0, number + 9, 5, number + 11, 7))
        if number >= 1000:
            recorder.close_communicator(number)
    recorder.bind(recorder.describe(10**6, "all_reduce", algorithm="ring"))(1)
    for number in range(2000):
        recorder.describe(1, f"operation {number}")
    recorder.bind(recorder.describe(10**6, "operation 1999", algorithm="ring"))(2)
    recording = read_recording(path_of(recorder))
    assert recording.communicators[10**6].members == (0, 1, 2, 3)
    assert not recording.communicators[1999].is_open
    assert [call.operation for call in recording.calls] == ["all_reduce", "?"]
    assert [call.algorithm for call in recording.calls] == ["ring", "ring"]


def test_directory_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="rank 0 cannot keep its flight recorder"):
        recorder = FlightRecorder(str(tmp_path / "file"), 0, 1, entries=8)
    recorder.bind(recorder.describe(1, "barrier"))(1)
    assert recorder.path is None
    assert len(recorder.read().calls) == 1


def test_remove_keeps_the_memory(recorder):
    path = path_of(recorder)
    recorder.remove()
    recorder.bind(recorder.describe(1, "barrier"))(1)
    assert not path.exists()


@pytest.mark.parametrize("ranks", [(0,), (3, 2, 1, 0), (0, 2, 4, 5, 1), (7, 0, 3), tuple(range(1000))])
def test_ranks_are_read_as_they_were_written(ranks):
    assert tuple(parse_ranks(format_ranks(ranks))) == ranks
