"""Sides of a comparison are read from files and directories; a file may hold several runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpccoll.compare.environments import list_differences
from hpccoll.compare.measured_runs import read_side
from hpccoll.errors import UsageError
from tests.unit.compare.synthetic_runs import make_records, write_run

SMALL: dict[str, Any] = {"operations": ("scatter",), "sizes": (8, 16), "count": 5}


def test_a_directory_is_several_runs_and_a_resumed_file_is_one(tmp_path):
    first = make_records(1, **SMALL)
    for name in ("1.jsonl", "2.jsonl"):
        write_run(tmp_path / name, first)
    assert [len(run.rows) for run in read_side("A", [tmp_path]).runs] == [8, 8]
    resumed = tmp_path / "resumed.jsonl"
    lines = (tmp_path / "1.jsonl").read_text().splitlines(keepends=True)
    resumed.write_text("".join([*lines[:4], lines[0], *lines[4:]]))
    [run] = read_side("A", [resumed]).runs
    assert len(run.rows) == 8
    resumed.write_text("".join([*lines, *lines]))
    assert [len(run.rows) for run in read_side("A", [resumed]).runs] == [8, 8]


def test_a_torn_last_line_is_reported_and_the_rest_is_read(tmp_path):
    file = tmp_path / "torn.jsonl"
    write_run(file, make_records(1, **SMALL))
    file.write_text(file.read_text()[:-30])
    side = read_side("A", [file])
    assert len(side.runs[0].rows) == 7
    assert "cut short" in side.torn[0]


def test_files_without_measurements_are_refused(tmp_path):
    file = tmp_path / "run.jsonl"
    file.write_text(json.dumps({"schema": "hpccoll/1", "kind": "run"}) + "\n")
    with pytest.raises(UsageError, match="no measurement in it; name a file that"):
        read_side("B", [file])
    with pytest.raises(UsageError, match=r"B .*missing.jsonl: cannot read it"):
        read_side("B", [tmp_path / "missing.jsonl"])
    file.write_text("time,us\n1,2\n")
    with pytest.raises(UsageError, match="not a record of schema"):
        read_side("B", [file])


def test_differences_of_machine_versions_and_ranks_are_listed(tmp_path):
    records = make_records(1, **SMALL)
    a = read_side("A", [write_run(tmp_path / "a.jsonl", records, commit="1")])
    versions = {"mpi": "MPICH 5.0.2", "torch": "2.13.0"}
    b = read_side("B", [write_run(tmp_path / "b.jsonl", records, hosts=["n1", "n2"], cores=[2, 4], versions=versions)])
    assert list_differences(a, a) == []
    assert list_differences(a, b) == ["hosts: A vm, B n1, n2", "cores: A unknown, B 2, 4", "torch: A unknown, B 2.13.0"]
