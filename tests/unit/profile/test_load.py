"""Files of a rank: damaged ones are refused with a remedy, and full memory file systems are avoided."""

from __future__ import annotations

import json
import re
import sys
import time
from _thread import start_new_thread
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpccoll.errors import UsageError
from hpccoll.profile import RecordingOptions, layout, read_profile, recorder, run_program
from hpccoll.profile.anonymous import write_anonymous
from hpccoll.profile.recorder import ProfileRecorder

NO_PEER = layout.NOT_GIVEN


def record(directory, calls=3, sites=1):
    """Record calls of rank 0 of 1, whose sites are 0, 1, ...; of these, only `sites` are described."""
    recording = ProfileRecorder(RecordingOptions(str(directory), capacity=64), 0, 1)
    recording.trace.find_comm(None)
    recording.begin()
    for _ in range(sites):
        recording.describe_site(sys._getframe())
    for call in range(calls):
        now = time.perf_counter_ns()
        recording.trace.write(0, now, now + 1, 8, 0, 0, NO_PEER, 0, call, layout.EntryFlag.COLLECTIVE)
    return recording


def test_calls_of_sites_that_are_not_yet_in_the_names_are_left_out(tmp_path):
    recording = record(tmp_path, calls=3, sites=1)
    entries = read_profile(str(tmp_path)).ranks[0].entries  # while the program runs
    recording.end()
    assert entries["site"].tolist() == [0]


def test_a_wait_has_one_entry_per_operation_that_it_completes(tmp_path):
    recording, works = record(tmp_path, calls=1), [object(), object(), object()]
    now = time.perf_counter_ns()
    recording.trace.write_wait(7, now, now + 1, works)
    recording.trace.write_wait(7, now, now + 1, [])
    recording.trace.is_active = False
    recording.trace.write_wait(7, now, now + 1, works)
    recording.trace.is_active = True
    recording.end()
    waits = np.frombuffer((tmp_path / "rank-0.calls").read_bytes(), layout.ENTRY, offset=layout.HEADER.size)[1:]
    assert waits["request"].tolist() == [id(work) for work in works]
    complete, more = layout.EntryFlag.COMPLETE, layout.EntryFlag.COMPLETE | layout.EntryFlag.MORE
    assert waits["flags"].tolist() == [complete, more, more]
    for name, value in (
        ("op", 7),
        ("begin_ns", now),
        ("end_ns", now + 1),
        ("site", 0),
        ("peer", NO_PEER),
        ("nbytes", 0),
    ):
        assert set(waits[name].tolist()) == {value}


def test_damaged_calls_are_refused(tmp_path):
    record(tmp_path).end()
    calls = tmp_path / "rank-0.calls"
    whole = calls.read_bytes()
    header = layout.HEADER.unpack_from(whole)
    no_capacity = layout.HEADER.pack(*header[:2], 0, *header[3:]) + whole[layout.HEADER.size :]
    for damaged in (whole[:-1], whole[: layout.HEADER.size], no_capacity, b"", b"x" * 200):
        calls.write_bytes(damaged)
        with pytest.raises(UsageError, match="record the job again"):
            read_profile(str(tmp_path))
    calls.write_bytes(whole)
    assert len(read_profile(str(tmp_path)).ranks[0].entries) == 1


def test_a_damaged_first_line_is_refused(tmp_path):
    record(tmp_path).end()
    (tmp_path / "rank-0.names").write_text("[1]\n")
    with pytest.raises(UsageError, match="is no file of a profile"):
        read_profile(str(tmp_path))


def test_calls_are_in_the_directory_if_the_memory_file_system_has_no_space(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "_MEMORY_FILES", str(tmp_path / "missing" / "hpccoll-"))
    recording = record(tmp_path / "job", calls=1)
    assert (tmp_path / "job" / "rank-0.calls").exists()
    recording.end()
    assert len(read_profile(str(tmp_path / "job")).ranks[0].entries) == 1


def test_an_anonymous_copy_of_a_job_that_runs(tmp_path):
    recording = record(tmp_path / "job", calls=1)
    with (tmp_path / "job" / "rank-0.names").open("a") as names:
        names.write('{"kind": "si')  # a killed process may leave a part of a line
    write_anonymous(str(tmp_path / "job"), str(tmp_path / "copy"))
    recording.end()
    text = (tmp_path / "copy" / "rank-0.names").read_text()
    assert Path(__file__).stem not in text
    assert json.loads(text.splitlines()[0])["host"] == "host0"
    assert len(read_profile(str(tmp_path / "copy")).ranks[0].entries) == 1


def test_a_directory_without_a_profile_has_no_anonymous_copy(tmp_path):
    with pytest.raises(UsageError, match=re.escape("is no profile")):
        write_anonymous(str(tmp_path / "missing"), str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_a_call_in_a_thread_of_torch_has_the_line_of_the_main_thread(tmp_path):
    recording = record(tmp_path)
    found: list[int] = []
    module: dict[str, Any] = {"__name__": "torch.autograd", "sys": sys}
    exec("def call(describe, found): found.append(describe(sys._getframe()))", module)
    module["call"](recording.describe_site, found)
    assert found.pop() == -1  # the site is a frame further out
    start_new_thread(module["call"], (recording.describe_site, found))
    limit_s = time.monotonic() + 10
    while not found and time.monotonic() < limit_s:
        time.sleep(1e-3)
    recording.end()
    sites = [json.loads(line) for line in (tmp_path / "rank-0.names").read_text().splitlines()]
    function = next(line["function"] for line in sites if line["kind"] == "site" and line["id"] == found[0])
    assert function == "test_a_call_in_a_thread_of_torch_has_the_line_of_the_main_thread"


def test_a_directory_without_a_recording_is_refused(tmp_path):
    options = RecordingOptions(str(tmp_path / "job.hpccoll"))
    with pytest.raises(UsageError, match="is a directory without a file __main__"):
        run_program([str(tmp_path)], is_module=False, uses_drop_in=False, options=options)
