"""The contents of a recorder file, and the errors for damaged files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from hpccoll.doctor.shared_memory import remove_stale_files
from hpccoll.errors import RecordingError
from hpccoll.recordings import CallKind, ClockModel, layout, read_recording, read_recordings
from hpccoll.recordings.layout import decode_ranks, encode_ranks
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder, choose_directory, remove_old_files

FIRST_ENTRY = layout.HEADER_BYTES + 2 * layout.TABLE_BYTES
WORLD = 0xFFFF_0000_0000_0001  # needs all 64 bits
KILLED = """
import os, signal, sys
from functools import partial
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder
from hpccoll.runtime.recorder.call_recorder import CallRecorder
calls = CallRecorder(FlightRecorder(sys.argv[1], rank=3, size=4))
calls.open(7, 3, 4, (0, 1, 2, 3))
begin = partial(calls.begin, "all_reduce", calls.describe("all_reduce", algorithm="ring", count=5, dtype="float32"))
calls.end(begin())
begin()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def recorder(tmp_path: Path) -> FlightRecorder:
    return FlightRecorder(str(tmp_path), rank=1, size=4, entries=8)


@pytest.fixture
def calls(recorder: FlightRecorder) -> CallRecorder:
    return CallRecorder(recorder)


def get_path(recorder: FlightRecorder) -> Path:
    """Return the path of a recorder's file."""
    assert recorder.path is not None
    return Path(recorder.path)


def test_call_is_read_as_it_was_recorded(calls, recorder):
    calls.open(WORLD, 1, 4, (0, 1, 2, 3))
    calls.count = 16
    description = calls.describe("reduce", algorithm="tree", count=3, dtype="float32", reduction="sum", root=2)
    place = calls.begin("reduce", description)
    (begun,) = read_recording(get_path(recorder)).calls
    assert (begun.state, begun.ended_ns, begun.is_waited_for) == ("begun", None, True)
    assert (calls.count, calls.current) == (17, "reduce")
    calls.end(place)
    recording = read_recording(get_path(recorder))
    (call,) = recording.calls
    assert (call.serial, call.communicator, call.number, call.kind) == (1, WORLD, 17, CallKind.COLLECTIVE)
    assert (call.operation, call.algorithm, call.count, call.dtype) == ("reduce", "tree", 3, "float32")
    assert (call.reduction, call.root, call.peer, call.tag) == ("sum", 2, None, None)
    assert (call.state, calls.current) == ("ended", None)
    assert recording.created_ns < call.begun_ns < (call.ended_ns or 0)
    assert (recording.rank, recording.size, recording.pid) == (1, 4, os.getpid())
    assert recording.host == os.uname().nodename
    communicator = recording.communicators[WORLD]
    assert (communicator.rank, communicator.size, communicator.members) == (1, 4, (0, 1, 2, 3))


def test_message_has_a_peer_and_a_tag(calls, recorder):
    for kind, peer in ((CallKind.SEND, 0), (CallKind.RECEIVE, -1)):
        description = calls.describe(kind.name.lower(), kind=kind, root=peer, tag=5, asynchronous=True)
        calls.start_message(kind.name.lower(), description, ())
    send, receive = recorder.read().calls
    assert (send.peer, send.root, send.tag, send.state, send.number) == (0, None, 5, "scheduled", 1)
    assert (receive.peer, receive.kind, receive.number) == (None, CallKind.RECEIVE, 2)
    assert calls.count == 0


def test_asynchronous_call_is_scheduled_started_waited_for_and_ended(calls, recorder):
    record = calls.start("all_reduce", calls.describe("all_reduce", asynchronous=True))
    states = [recorder.read().calls[0]]
    record.mark_started()
    states.append(recorder.read().calls[0])
    with record:
        assert calls.current is record
        states.append(recorder.read().calls[0])
    record.end(failed=False)
    states.append(recorder.read().calls[0])
    assert [each.state for each in states] == ["scheduled", "started", "started", "ended"]
    assert [each.is_waited_for for each in states] == [False, False, True, False]
    assert calls.current is None
    assert calls.count == record.number == 1


def test_wait_is_recorded_as_long_as_it_lasts(calls, recorder):
    with calls.wait("new_group", peers=(2,)):
        assert recorder.read().calls[0].kind is CallKind.WAIT
        assert recorder.read().calls[0].is_waited_for
    assert recorder.read().calls[0].state == "ended"


def test_failures_are_recorded(calls, recorder):
    for context in (calls.call("close"), calls.call("split"), calls.wait("new_group")):
        with pytest.raises(ValueError, match="planted"), context:
            raise ValueError("planted")
    calls.start("all_reduce", calls.describe("all_reduce", asynchronous=True)).end(failed=True)
    assert [call.state for call in recorder.read().calls] == ["failed"] * 4


def test_recorded_block_is_recorded_as_it_ends(calls, recorder):
    begin = partial(calls.begin, "gather", calls.describe("gather", count=4))
    seen = []
    for error in (None, ValueError("planted"), OSError("planted")):
        with pytest.raises(type(error)) if error else nullcontext(), calls.record(begin):
            seen.append((calls.count, calls.current, recorder.read().calls[-1].state))
            if error is not None:
                raise error
        assert calls.current is None
    assert seen == [(number, "gather", "begun") for number in (1, 2, 3)]
    recorded = recorder.read().calls
    assert [call.state for call in recorded] == ["ended", "failed", "failed"]
    assert all(call.begun_ns <= call.ended_ns and (call.operation, call.count) == ("gather", 4) for call in recorded)


def test_ring_keeps_the_latest_calls(calls, recorder):
    begin = partial(calls.begin, "barrier", calls.describe("barrier"))
    for _ in range(20):
        calls.end(begin())
    recording = read_recording(get_path(recorder))
    assert [call.number for call in recording.calls] == list(range(13, 21))
    assert recording.lost == 12


def test_entry_that_overwrites_another_one_forgets_its_course(calls, recorder):
    begin = partial(calls.begin, "barrier", calls.describe("barrier"))
    calls.fail(begin())
    for _ in range(8):
        begin()
    assert {call.state for call in recorder.read().calls} == {"begun"}


def test_operation_whose_entry_was_overwritten_leaves_the_new_entry_alone(calls, recorder):
    record = calls.start("all_reduce", calls.describe("all_reduce", asynchronous=True))
    begin = partial(calls.begin, "barrier", calls.describe("barrier"))
    places = [begin() for _ in range(8)]
    with record:
        record.mark_started()
    record.end(failed=True)
    assert {call.state for call in recorder.read().calls} == {"begun"}
    for place in places:
        calls.end(place)
    assert {call.state for call in recorder.read().calls} == {"ended"}


def test_torn_entry_is_left_out(calls, recorder):
    begin = partial(calls.begin, "barrier", calls.describe("barrier"))
    for _ in range(11):
        begin()
    contents = bytearray(get_path(recorder).read_bytes())
    at = FIRST_ENTRY + 3 * layout.ENTRY_BYTES  # of entry 11, as if the process had died after its first word
    contents[at : at + 8] = (19).to_bytes(8, "little")
    get_path(recorder).write_bytes(contents)
    assert [call.serial for call in read_recording(get_path(recorder)).calls] == [4, 5, 6, 7, 8, 9, 10]


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
    get_path(recorder).write_bytes(change(get_path(recorder).read_bytes()))
    with pytest.raises(RecordingError, match=message):
        read_recording(get_path(recorder))
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
            FlightRecorder(str(tmp_path), rank, 2, entries=8).add_communicator(job, rank, 2, (0, 1))
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
    recording = read_recording(get_path(recorder))
    assert (recording.clock, recording.ending) == (model, "ValueError: ö")
    assert recording.to_global(12 * 10**9) == pytest.approx(15.0)


@pytest.mark.slow
def test_many_communicators_and_names_leave_the_latest_readable(calls, recorder):
    """The tables have a fixed size; what does not fit is left out, and the entries stay readable."""
    calls.open(10**6, 0, 4, (0, 1, 2, 3))
    for number in range(2000):
        recorder.add_communicator(number, 0, 5, (0, number + 9, 5, number + 11, 7))
        if number >= 1000:
            recorder.close_communicator(number)
    calls.call("split").__enter__()
    for number in range(2000):
        calls.describe(f"operation {number}")
    calls.start("", calls.describe("operation 1999", algorithm="split"))
    recording = read_recording(get_path(recorder))
    assert recording.communicators[10**6].members == (0, 1, 2, 3)
    assert not recording.communicators[1999].is_open
    assert [call.operation for call in recording.calls] == ["split", "?"]
    assert recording.calls[1].algorithm == "split"


def test_communicator_ids_differ_between_processes(recorder, tmp_path):
    other = FlightRecorder(str(tmp_path), 1, 4, entries=8)
    ids = [each.make_communicator_id() for each in (recorder, recorder, other, other)]
    assert len(set(ids)) == 4
    assert max(ids) < 2**64


def test_directory_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match="rank 0 cannot keep its flight recorder"):
        recorder = FlightRecorder(str(tmp_path / "file"), 0, 1, entries=8)
    CallRecorder(recorder).start("barrier", recorder.describe(0, "barrier"))
    assert recorder.path is None
    assert len(recorder.read().calls) == 1


def test_remove_keeps_the_memory(calls, recorder):
    path = get_path(recorder)
    recorder.remove()
    calls.start("barrier", calls.describe("barrier"))
    assert not path.exists()
    assert len(recorder.read().calls) == 1


@pytest.mark.parametrize("ranks", [(0,), (3, 2, 1, 0), (0, 2, 4, 5, 1), (7, 0, 3), tuple(range(1000))])
def test_ranks_are_read_as_they_were_written(ranks):
    assert tuple(decode_ranks(encode_ranks(ranks))) == ranks


def test_doctor_removes_the_file_of_an_ended_process_only(recorder, tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], timeout=60, check=False)
    removed = remove_stale_files(tmp_path)
    assert "removed 1 file" in removed.found
    assert [path.name for path in tmp_path.iterdir()] == [get_path(recorder).name]


def test_old_files_and_all_but_the_newest_of_a_rank_are_removed_unless_in_use(
    recorder: FlightRecorder, tmp_path: Path
) -> None:
    def leave(rank: int, age_s: float) -> str:
        path = tmp_path / f"{layout.FILE_PREFIX}rank{rank}-1-{len(list(tmp_path.iterdir())):08x}"
        path.touch()
        os.utime(path, times=(time.time() - age_s,) * 2)
        return path.name

    used = get_path(recorder)
    os.utime(used, times=(0, 0))
    kept = {used.name, *(leave(1, age_s) for age_s in range(8)), *(leave(2, age_s) for age_s in range(20))}
    for rank, age_s in ((1, 10), (1, 90_000), (2, 90_000)):
        leave(rank, age_s)
    (tmp_path / "other").touch()
    os.utime(tmp_path / "other", times=(0, 0))
    remove_old_files(str(tmp_path), 1)
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "other"}
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], timeout=60, check=False)
    ended = next(path for path in tmp_path.iterdir() if path.name.startswith(f"{layout.FILE_PREFIX}rank3-"))
    os.utime(ended, times=(0, 0))
    remove_old_files(str(tmp_path), 0)
    assert not ended.exists()


def test_default_directory_is_that_of_shared_memory():
    assert choose_directory({}) == "/dev/shm"
    assert choose_directory({"HPCCOLL_SHARED_DIR": "/a"}) == "/a"
    assert choose_directory({"HPCCOLL_SHARED_DIR": "/a", "HPCCOLL_RECORDER": "/b"}) == "/b"
