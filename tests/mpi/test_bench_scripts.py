"""The scripts of bench/ run on real ranks and write what they promise. Nothing here depends on how fast they are."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from hpccoll.measure.results.result_file import read_records
from hpccoll.records import make_json_schema
from hpccoll.statistics import Interval
from tests.record_schema import require_valid

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = {
    "mpi_engine": "8,1K",
    "executables": "8,1K,16K",
    "call_overhead": "8",
    "polling": "8",
    "recorder": "8",
    "mpi4py_dropin": "8,1K",
}
few_ranks = pytest.mark.needs_ranks(1, 3)  # with more ranks than cores, small messages would take minutes
NUMBER = {"type": "number"}
RATIO = {"type": "object", "required": ["value", "low", "high", "coverage"], "additionalProperties": NUMBER}
MUST = {"type": "object", "required": ["text", "holds"], "properties": {"holds": {"type": "boolean"}}}
COMPARISON = {
    "type": "object",
    "additionalProperties": False,
    "required": ["time_us", "ratio", "musts", "wrong", "others_cores", "samples_us"],
    "properties": {
        "schema": {"const": "hpccoll/1"},
        "kind": {"const": "comparison"},
        **{name: {"type": "string", "minLength": 1} for name in ("script", "case", "side", "baseline")},
        **{name: {"type": "integer", "minimum": 1} for name in ("ranks", "nbytes", "batch", "iterations")},
        "time_us": make_json_schema()["$defs"]["collective"]["properties"]["time_us"],
        "ratio": {"anyOf": [RATIO, {"type": "null"}]},
        "musts": {"type": "array", "items": MUST},
        "wrong": {"enum": [0, None]},
        "others_cores": {"type": "number", "minimum": 0},
        "samples_us": {"type": "array", "items": NUMBER, "minItems": 1},
    },
}


@pytest.fixture(scope="module")
def finished():
    """The results of `run` by script and options, because two tests read the same records."""
    return {}


@pytest.fixture
def run(comm, tmp_path, monkeypatch, finished):
    """Run a script on every rank, in this process; return its exit status and, on rank 0, the path of its records."""
    path = tmp_path / "result.jsonl"

    def call(name, *options):
        if (name, options) in finished:
            return finished[name, options]
        monkeypatch.syspath_prepend(str(BENCH))
        monkeypatch.setattr(
            sys, "argv", [str(BENCH / f"{name}.py"), "--json", str(path), "--seconds", "0.001", *options]
        )
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(BENCH / f"{name}.py"), run_name="__main__")
        finished[name, options] = ended.value.code, path if comm.rank == 0 else None
        return finished[name, options]

    return call


@few_ranks
@pytest.mark.slow
@pytest.mark.full_except_on(2)
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_measures_and_writes_its_records(comm, run, name):
    status, path = run(name, "--sizes", SCRIPTS[name])
    assert status == 0
    if path is None:
        return
    first, *records = read_records(path).records
    require_valid(first)
    assert f"bench/{name}.py" in first["command"]
    assert {"load_average", "processor"} <= set(first)
    compared = [record for record in records if record["kind"] == "comparison"]
    for record in compared:
        jsonschema.validate(record, COMPARISON)
        assert record["ranks"] == comm.size
        assert record["iterations"] == len(record["samples_us"])
        assert record["time_us"]["p50"] == pytest.approx(np.median(record["samples_us"]))
        assert (record["ratio"] is None) == (record["side"] == record["baseline"])
    cases = {(record["case"], record["nbytes"], record["batch"]) for record in compared}
    for case in cases:
        sides = [r["side"] for r in compared if (r["case"], r["nbytes"], r["batch"]) == case]
        assert "(A/A)" in sides[1], "the second side shows the noise"
        assert len(sides) == len(set(sides)) >= 3
    sizes = {record["nbytes"] for record in compared}
    assert {"8": 8, "8,1K": 1024, "8,1K,16K": 16384}[SCRIPTS[name]] in sizes


@few_ranks
@pytest.mark.slow
@pytest.mark.full_except_on(2)
def test_the_summary_shows_the_numbers_of_the_records(run, capsys, monkeypatch):
    _, path = run("call_overhead", "--sizes", "8")
    if path is None:
        return
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["summary.py", str(path)])
    monkeypatch.syspath_prepend(str(BENCH))
    with pytest.raises(SystemExit):
        runpy.run_path(str(BENCH / "summary.py"), run_name="__main__")
    shown = capsys.readouterr().out
    for record in map(json.loads, path.read_text().splitlines()):
        if record["kind"] == "comparison":
            assert f" {record['time_us']['p50']:,.2f}" in shown or record["time_us"]["p50"] >= 1e3


def test_a_wrong_result_and_a_missed_must_are_told_apart(comm, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from compare import Bench, Case, Must, Side, all_reduce_check

    x = np.zeros(3, np.float32)
    broken = Side("broken", lambda: x.fill(-1))
    unused: Any = None  # these cases do not call hpccoll
    bench = Bench("test", comm, unused, (12,), 0.001, 0, 0)
    case = bench.run(Case("sum", 12, 1, [Side("a", comm.Barrier), Side("a again", comm.Barrier), broken]))
    assert broken.wrong is None, "nothing was checked"
    case.check = all_reduce_check(comm, x)
    bench.run(case)
    assert broken.wrong == 3 * comm.size
    slow, close = Must("as fast", "a"), Must("close", "a", share=0.05, us=1.0, both_ways=True)
    case.sides[0].samples_us, case.sides[1].samples_us = [10.0] * 30, [10.0] * 30
    for seen, expected in (([10.9] * 30, (False, True)), ([11.2] * 30, (False, False)), ([5.0] * 30, (True, False))):
        broken.samples_us = seen
        assert (case.holds(broken, slow), case.holds(broken, close)) == expected
        assert case.holds(broken, Must("at most 1 us more", "a", us=1.0)) == (seen[0] <= 11.0)
    case.sides[1].samples_us = [9.0] * 15 + [12.0] * 15  # noise that is larger than the difference
    broken.samples_us = [11.0] * 30
    assert case.holds(broken, slow)


@pytest.mark.needs_ranks(1, 2)
def test_the_communication_of_a_step_has_a_true_interval(comm, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCH))
    torch_backend, compare = (importlib.import_module(name) for name in ("torch_backend", "compare"))
    names = torch_backend.GLOO, torch_backend.OWN, torch_backend.ALONE
    case = compare.Case("DDP step", 8, 1, [compare.Side(name, bool) for name in names])
    alone = np.array([100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0])
    slower = np.array([31.0, 32.0, 33.0, 34.0, 35.0, 36.0, 37.0])
    for side, more in zip(case.sides, (2 * slower, slower, 0 * slower), strict=True):
        side.samples_us = list(alone + more)
    bench = compare.Bench("torch_backend", comm, None, (8,), 1.0, 0, 0)
    record = torch_backend.make_communication_record(bench, case)
    (must,) = record["musts"]
    assert (record["gloo_us"], record["hpccoll_us"], must["holds"]) == (68.0, 34.0, True)
    expected = Interval(2.0, 62 / 37, 74 / 31, 1 - 2 * 2 * 0.5**7)
    assert must["ratio"] == pytest.approx(asdict(expected))
    case.side(torch_backend.OWN).samples_us = list(alone)
    record = torch_backend.make_communication_record(bench, case)
    assert record["hpccoll_us"] == 1.0, "a difference of less than 1 us counts as 1 us"


@pytest.mark.needs_ranks(1, 2)
def test_the_hidden_share_of_the_communication_is_compared_with_a_model(comm, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCH))
    script, compare = (importlib.import_module(name) for name in ("train_overlap", "compare"))
    times = {script.ALONE: 900.0, script.LINK: 400.0, script.OVERLAPPED: 1000.0, script.AFTERWARDS: 1300.0}
    sides = [compare.Side(name, bool, samples_us=[us] * 3) for name, us in times.items()]
    case = compare.Case("DP step", 8, 1, sides)
    bench = compare.Bench("train_overlap", comm, None, (8,), 1.0, 0, 0)
    record = script.make_overlap_record(bench, case)
    assert record["hidden"] == {script.OVERLAPPED: 0.75, script.AFTERWARDS: 0.0}
    # The last of 8 buckets starts when the backward pass ends, after 600 us, and takes 50 us.
    assert record["largest_hidden"] == pytest.approx(0.875)
    assert record["musts"][0]["holds"]
    case.side(script.OVERLAPPED).samples_us = [1200.0] * 3
    assert not script.make_overlap_record(bench, case)["musts"][0]["holds"]
