"""Recorder files of several ranks become the evidence from which `hpccoll report --crash` names the guilty rank."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hpccoll.cli.main import main
from hpccoll.crash import ProcessState, Reason, analyze
from hpccoll.failures.watchdog import Watchdog
from hpccoll.recordings import read_recordings
from hpccoll.recordings.job_evidence import make_evidence, observe_process
from hpccoll.recordings.process_notes import OBSERVATIONS, ObservedState, read_process_state
from hpccoll.records import CrashRecord
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.flight_recorder import FlightRecorder

COMM = 0xABC


def record(directory: Path, rank: int, calls: list[str], ranks: int = 3) -> FlightRecorder:
    """Write the recording of a rank, whose last call has not ended."""
    recorder = FlightRecorder(str(directory), rank, ranks, entries=64)
    made = CallRecorder(recorder)
    made.open(COMM, rank, ranks, tuple(range(ranks)))
    for operation in calls:
        place = made.begin(operation, made.describe(operation, algorithm="ring", count=8, dtype="float32"))
        if made.count < len(calls):
            made.end(place)
    return recorder


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit status, standard output and standard error of `hpccoll report`."""
    status = main(["report", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_report_names_the_rank_with_another_call(tmp_path, capsys):
    for rank in range(3):
        record(tmp_path, rank, ["all_reduce", "barrier" if rank == 1 else "all_reduce"])
    status, out, _ = report(capsys, "--crash", str(tmp_path))
    assert status == 0
    assert "Guilty: rank 1 made another call than the other ranks (its last operation was in call 2 (barrier" in out
    assert "First disagreement, in call 2: ranks 0, 2: all_reduce" in out


def test_json_is_one_record_of_kind_crash(tmp_path, capsys):
    recorders = [record(tmp_path, rank, ["all_reduce"]) for rank in (0, 2)]
    now = time.monotonic_ns()
    for recorder in recorders:
        recorder.write_sign_of_life(now, "")
    (tmp_path / "hpccoll-recorder-foreign").write_bytes(b"x" * 5000)
    status, out, err = report(capsys, "--crash", str(tmp_path), "--json", "-")
    run, line = map(json.loads, out.splitlines())
    assert (status, run["kind"], line["kind"]) == (0, "run", "crash")
    found = CrashRecord.from_dict(line, "here")
    assert (found.reason, found.guilty, found.missing, found.arrived) == ("absent", (1,), (1,), (0, 2))
    assert found.states[0].last is not None
    assert found.states[0].last.arguments["count"] == "8"
    assert "hpccoll-recorder-foreign is no recorder file" in found.problems[0]
    assert "hpccoll-recorder-foreign is no recorder file" in err


@pytest.mark.parametrize("nbytes", [10, 5000, 70_000])
def test_truncated_file_is_named(tmp_path, capsys, nbytes):
    path = Path(record(tmp_path, 0, ["all_reduce"]).path or "")
    path.write_bytes(path.read_bytes()[:nbytes])
    status, _, err = report(capsys, "--crash", str(tmp_path))
    assert status == 2
    assert str(path) in err
    assert "truncated" in err or "no recorder file" in err


def test_missing_directory_and_contradicting_arguments_are_usage_errors(tmp_path, capsys):
    assert report(capsys, "--crash", str(tmp_path / "none"))[0] == 2
    assert report(capsys)[0] == 2
    status, _, err = report(capsys, "file.jsonl", "--crash", str(tmp_path))
    assert status == 2
    assert "leave file.jsonl out" in err


def evidence(directory: Path):
    """Return the evidence in a directory, as after the end of the job."""
    return make_evidence(read_recordings(directory).recordings)


def test_first_observed_death_is_the_cause(tmp_path):
    recorders = [record(tmp_path, rank, ["all_reduce"]) for rank in range(3)]
    now = time.monotonic_ns()
    recorders[0].observe(now + 2_000_000, 1, ObservedState.DEAD)
    recorders[2].observe(now + 1_000_000, 0, ObservedState.DEAD)
    found = analyze(evidence(tmp_path))
    assert (found.reason, found.guilty) == (Reason.DEAD, (0,))


@pytest.mark.parametrize("excuse", ["a rank ended the job before", "its program had ended"])
def test_later_deaths_are_no_cause(tmp_path, excuse):
    recorders = [record(tmp_path, rank, ["all_reduce"] * (1 + (rank > 0))) for rank in range(3)]
    now = time.monotonic_ns()
    recorders[0].observe(now + 2_000_000, 1, ObservedState.DEAD)
    if excuse == "its program had ended":
        recorders[1].write_ending("by sys.exit(0)")
    else:
        recorders[2].write_end_of_job(now)
    assert analyze(evidence(tmp_path)).reason is Reason.INSIDE


def test_rank_without_signs_of_life_was_stopped(tmp_path):
    recorders = [record(tmp_path, rank, ["all_reduce"]) for rank in range(3)]
    now = time.monotonic_ns()
    for rank, recorder in enumerate(recorders):
        recorder.write_sign_of_life(now - (3_000_000_000 if rank == 1 else 0), f"train.py:{rank} in step")
    found = evidence(tmp_path)
    assert (analyze(found).reason, analyze(found).guilty) == (Reason.STOPPED, (1,))
    assert found.ranks[1].location == "train.py:1 in step"


def test_rank_that_ended_the_job_was_not_stopped(tmp_path):
    recorders = [record(tmp_path, rank, ["all_reduce"]) for rank in range(3)]
    now = time.monotonic_ns()
    for rank, recorder in enumerate(recorders):
        recorder.write_sign_of_life(now - (3_000_000_000 if rank == 1 else 0), "")
    recorders[1].write_end_of_job(now)
    assert analyze(evidence(tmp_path)).reason is Reason.INSIDE


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ([(1.0, ObservedState.RUNNING)], Reason.INSIDE),  # it waits for a core
        ([(2.0, ObservedState.STOPPED), (1.0, ObservedState.RUNNING)], Reason.INSIDE),
        ([(2.0, ObservedState.RUNNING), (1.0, ObservedState.STOPPED)], Reason.STOPPED),
        ([(4.0, ObservedState.RUNNING)], Reason.STOPPED),  # it has written a sign of life since
    ],
)
def test_silent_rank_that_another_rank_sees_run_was_not_stopped(tmp_path, seen, reason):
    recorders = [record(tmp_path, rank, ["all_reduce"]) for rank in range(3)]
    now = time.monotonic_ns()
    for rank, recorder in enumerate(recorders):
        recorder.write_sign_of_life(now - (3_000_000_000 if rank == 1 else 0), "")
    for observer, (ago_s, state) in enumerate(seen):
        recorders[2 * observer].observe(now - int(ago_s * 1e9), 1, state)
    assert analyze(evidence(tmp_path)).reason is reason


def test_rank_that_goes_on_after_a_stop_was_not_stopped(tmp_path):
    recorders = [record(tmp_path, rank, ["all_reduce"]) for rank in range(3)]
    now = time.monotonic_ns()
    recorders[0].observe(now - 1_000_000_000, 1, ObservedState.STOPPED)
    for recorder in recorders:
        recorder.write_sign_of_life(now, "")
    assert analyze(evidence(tmp_path)).reason is Reason.INSIDE


def test_one_rank_explains_different_calls(tmp_path):
    recorders = [record(tmp_path, rank, ["barrier" if rank == 1 else "scan"]) for rank in range(3)]
    watchdogs = [Watchdog(recorder, "", None, lambda: None) for recorder in recorders]
    texts = [watchdog.explain_mismatch() for watchdog in watchdogs]
    assert "Guilty: rank 1 made another call" in (texts[0] or "")
    assert texts[1:] == [None, None]


def test_state_of_a_process(tmp_path):
    """A running process that has not mapped the file is another process with the same number."""
    assert read_process_state(os.getpid()) == "R"
    recorder = record(tmp_path, 0, ["all_reduce"])
    (own,) = read_recordings(tmp_path).recordings
    assert observe_process(own) is ProcessState.ALIVE
    copy = tmp_path / "copy" / Path(own.path).name
    copy.parent.mkdir()
    copy.write_bytes(Path(own.path).read_bytes())
    (copied,) = read_recordings(copy.parent).recordings
    assert observe_process(copied) is ProcessState.DEAD
    assert recorder.path == own.path


def test_notes_keep_the_first_observations_only(tmp_path):
    writer = record(tmp_path, 0, [])
    for rank in range(OBSERVATIONS + 5):
        writer.observe(1 + rank, rank, ObservedState.RUNNING)
        writer.observe(2 + rank, rank, ObservedState.STOPPED)
    writer.write_sign_of_life(5, "x" * 1000)
    (own,) = read_recordings(tmp_path).recordings
    assert [each.rank for each in own.notes.observations] == list(range(OBSERVATIONS))
    assert {each.state for each in own.notes.observations} == {ObservedState.STOPPED}
    assert (own.notes.alive_ns, len(own.notes.location), own.notes.ended_job_ns) == (5, 500, None)
    assert own.pid == os.getpid()
