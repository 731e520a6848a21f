"""Records: exactly the contract's fields in its order, described by the schema, and nothing that was not handed in."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpccoll.cli.schema import schema as command
from hpccoll.errors import UsageError
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.records import (
    CaseKey,
    CollectiveCase,
    CollectiveRecord,
    ProvenPlanRecord,
    Record,
    RunRecord,
    StopReason,
    Versions,
    make_json_schema,
)
from hpccoll.records.common_fields import COMMON_FIELDS
from hpccoll.records.json_schema import DEFINITIONS

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data"
CONTRACT = [
    *("schema", "kind", "op", "engine", "algorithm", "buffer", "in_place", "nbytes", "count", "dtype", "redop", "root"),
    *("ranks", "nodes", "iterations", "stop", "time_us", "algbw_GBps", "busbw_GBps", "wrong", "bound_us", "samples_us"),
]
ROW = CollectiveCase("all_reduce", "hpccoll", "ring", "host", True, 1_048_576, 262_144, "float32", "sum", None, 4, 1)
RECORD = make_collective_record(ROW, (250.0, 260.0, 240.0), StopReason.BUDGET, 0)
RUN_FIELDS: dict[str, Any] = {
    "command": "hpccoll bench all_reduce",
    "versions": {"hpccoll": "0.1.0", "python": "3.11.9", "mpi": "MPICH 5.0.2", "torch": None},
    "hosts": ("node0", "node0"),
    "cores": (2, 2),
    "ranks": 2,
    "nodes": 1,
    "devices": (),
    "oversubscribed": False,
    "commit": "0123abc",
    "start_time": datetime(2026, 3, 1, 13, 30, tzinfo=timezone(timedelta(hours=1))),
}
RUN = RunRecord.make(**RUN_FIELDS)
PROVEN = ProvenPlanRecord("verify", "all_reduce", "ring", 4, 1, True, (), 6, 6, 24, 1.5, 1.5, 0.01)


@pytest.fixture(scope="module")
def validator():
    jsonschema.Draft202012Validator.check_schema(make_json_schema())
    return jsonschema.Draft202012Validator(make_json_schema())


def written(record):
    """What a reader of the file gets."""
    return json.loads(json.dumps(record, allow_nan=False))


def test_a_collective_has_the_fields_of_the_contract_in_its_order():
    later = ["staging", "stream_us", "selected", "start", "discarded", "clock_residual_us", "binding"]
    assert list(RECORD.as_dict()) == [*CONTRACT, *later]
    assert list(RECORD.as_dict()["time_us"]) == ["min", "p50", "p50_low", "p50_high", "p95", "p99", "max"]


def test_a_collective_says_what_was_measured():
    found = RECORD.as_dict()
    assert found["iterations"] == 3
    assert found["stop"] == "budget"
    assert found["samples_us"] == (250.0, 260.0, 240.0)  # in the order measured
    assert found["time_us"]["p50"] == 250
    assert found["algbw_GBps"] == pytest.approx(1_048_576 / 250e-6 / 1e9)
    assert found["busbw_GBps"] == pytest.approx(1.5 * found["algbw_GBps"])


def test_the_summary_is_that_of_the_samples_as_written():
    record = make_collective_record(ROW, (1.00049, 1.00051, 1.00051), StopReason.ITERATIONS, 0)
    assert record.samples_us == (1.0, 1.001, 1.001)
    assert record.time_us.p50 == 1.001


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, wrong=None, bound_us=12.5, staging="pinned", selected="mpi"),
        make_collective_record(replace(ROW, engine="mpi", algorithm=None), (0.5,) * 120, StopReason.CONVERGED, 3),
        make_collective_record(
            CollectiveCase("scatter", "gloo", None, "cuda", False, 0, 0, "int8", None, 1, 2, 2),
            (1,),
            StopReason.BUDGET,
            0,
        ),
        make_collective_record(
            CollectiveCase("barrier", "mpi", None, "host", True, 0, 0, "uint8", None, None, 2, 1),
            (9,),
            StopReason.BUDGET,
            0,
        ),
    ],
)
def test_collectives_fulfil_the_schema_and_come_back(record, validator):
    validator.validate(written(record.as_dict()))
    assert CollectiveRecord.from_dict(written(record.as_dict()), "") == record


@pytest.mark.parametrize("key", [key for key in CONTRACT if key not in ("schema", "kind")])
def test_the_schema_wants_every_field_of_a_collective(key, validator):
    found = written(RECORD.as_dict())
    del found[key]
    assert not validator.is_valid(found)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("schema", "hpccoll/2"), ("kind", "collectives"), ("op", "allreduce"), ("stop", "tired"), ("wrong", -1)),
        *(("nbytes", 1.5), ("in_place", "yes"), ("samples_us", []), ("staging", "copied"), ("ranks", 0)),
    ],
)
def test_the_schema_refuses_values_that_are_never_written(key, value, validator):
    assert not validator.is_valid(written(RECORD.as_dict()) | {key: value})


def test_a_run_fulfils_the_schema(validator):
    found = written(RUN.as_dict())
    validator.validate(found)
    assert list(found)[:3] == ["schema", "kind", "command"]
    assert found["start_time"] == "2026-03-01T12:30:00+00:00"
    assert found["versions"]["cupy"] is None
    assert found["clock_residual_us"] is None


def test_a_run_takes_only_versions_that_are_listed():
    with pytest.raises(UsageError, match="SECRET_TOKEN"):
        RunRecord.make(**RUN_FIELDS | {"versions": {"python": "3.11", "SECRET_TOKEN": "hunter2"}})


def test_nothing_of_the_environment_gets_into_a_run(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TEST_SECRET", "hunter2hunter2")
    text = json.dumps(RUN.as_dict())
    assert "hunter2" not in text
    assert not [name for name, value in os.environ.items() if len(value) > 12 and value in text]


def test_a_start_without_a_time_zone_is_refused():
    with pytest.raises(UsageError, match="time zone"):
        RunRecord.make(**RUN_FIELDS | {"start_time": datetime(2026, 3, 1)})  # noqa: DTZ001 - that is the point
    assert RunRecord.make(**RUN_FIELDS | {"start_time": datetime.now(UTC)}).ranks == 2


def test_a_plan_fulfils_the_schema_also_where_it_is_not_proven(validator):
    plan = written(PROVEN.as_dict())
    validator.validate(plan)
    unknown = replace(PROVEN, rounds=None, steps=None, messages=None, sent_mean=None, sent_most=None)
    validator.validate(written(replace(unknown, proven=False, failures=("round 3",)).as_dict()))
    assert set(make_json_schema()["$defs"]["plan"]["properties"]) == set(plan) - {"schema", "kind"}
    assert not validator.is_valid({key: value for key, value in plan.items() if key != "proven"})


def test_the_schema_describes_the_versions_that_a_run_may_hold():
    assert set(make_json_schema()["$defs"]["run"]["properties"]["versions"]["properties"]) == set(
        Versions.__struct_fields__
    )


def test_a_row_is_recognised_whatever_run_it_is_from():
    assert ROW.key == CaseKey("all_reduce", "hpccoll", "ring", "host", True, 1_048_576, "float32", "sum", None, 4, 1)
    others = [replace(ROW, ranks=2), replace(ROW, in_place=False), replace(ROW, engine="mpi"), replace(ROW, nbytes=8)]
    assert len({row.key for row in [*others, replace(ROW, root=1), replace(ROW, nodes=2), ROW]}) == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nbytes": None}, "nbytes is 'None': Expected `int`, got `null`"),
        ({"ranks": 0}, "ranks is '0': Expected `int` >= 1"),
        ({"stop": "tired"}, "stop is 'tired': Invalid enum value"),
        ({"op": "allreduce"}, "op is 'allreduce': Invalid enum value"),
        ({"samples_us": [1.0, "x"]}, "samples_us[1] is 'x': Expected `float`, got `str`"),
        ({"time_us": {"min": 1}}, "time_us is \"{'min': 1}\": Object missing required field `p50`"),
    ],
)
def test_a_damaged_record_is_refused_with_place_field_value_and_remedy(change, message):
    with pytest.raises(UsageError) as caught:
        CollectiveRecord.from_dict(written(RECORD.as_dict()) | change, "FILE a.jsonl, line 3")
    assert str(caught.value).startswith(f"FILE a.jsonl, line 3: record of kind collective: {message}")
    assert "hpccoll schema" in str(caught.value)


def test_a_missing_field_is_named():
    found = {key: value for key, value in RECORD.as_dict().items() if key != "nbytes"}
    with pytest.raises(UsageError, match="missing required field `nbytes`"):
        CollectiveRecord.from_dict(found, "")


def test_unknown_keys_of_later_versions_are_ignored():
    assert CollectiveRecord.from_dict(RECORD.as_dict() | {"later": 1}, "") == RECORD


def test_the_command_prints_the_schema():
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0
    assert json.loads(result.output) == make_json_schema()


def without_prose(schema):
    """The schema without descriptions, alternatives in a fixed order, and null as a second type."""
    if isinstance(schema, list):
        return sorted((without_prose(each) for each in schema), key=lambda each: json.dumps(each, sort_keys=True))
    if not isinstance(schema, dict):
        return schema
    if "anyOf" in schema:
        (value, null) = schema["anyOf"]
        assert null == {"type": "null"}
        schema = value | {"type": [value["type"], "null"]}
    return {
        key: without_prose(value) for key, value in schema.items() if not isinstance(value, str) or key != "description"
    }


def test_the_schema_is_the_one_that_users_have():
    assert without_prose(make_json_schema()) == without_prose(json.loads((DATA / "schema-hpccoll-1.json").read_text()))


def recorded():
    """One record of each kind and set of keys that is kept in the repository, with the file that it is from."""
    files = [*DATA.glob("*.jsonl"), *(ROOT / "bench" / "results").rglob("*.jsonl")]
    kinds = {record.kind for record in DEFINITIONS.values()}
    lines = [(file.name, json.loads(line)) for file in files for line in file.read_text().splitlines()]
    return {(line["kind"], *sorted(line)): (name, line) for name, line in lines if line["kind"] in kinds}


OPERATION = {"communicator": "7", "number": 4, "operation": "barrier", "arguments": {"root": "0"}, "finished": False}
TIMES = {
    "ratio": 1.5,
    "ratio_low": 1.25,
    "ratio_high": 1.75,
    "confidence": 0.5,
    "p_value": 0.5,
    "verdict": "worse",
    "regression": True,
    "slower_rounds": None,
}
SITE = {"file": "solver.py", "line": 12, "function": "step"}
EXAMPLES = {
    "selection": {
        "op": "all_reduce",
        "nbytes": 1024,
        "ranks": 4,
        "nodes": 1,
        "dtype": "float32",
        "redop": "sum",
        "buffer": "host",
        "algorithm": "ring",
        "chunks": 1,
        "source": "rules",
        "why": "rule of thumb",
    },
    "bench_summary": {
        "seconds": 61.5,
        "sync_s": 1.25,
        "peak_bytes": 400000000,
        "left_out_sizes": [67108864],
        "stopped": False,
    },
    "estimate": {
        "model": "gpt2",
        "parameters": 124439808,
        "active_parameters": 124439808,
        "strategy": "tp=2",
        "ranks": 2,
        "nodes": 1,
        "machine": "node",
        "batch": 2,
        "sequence": 1024,
        "microbatches": 2,
        "zero": 0,
        "recompute": "none",
        "sequence_parallel": False,
        "schedule": "1f1b",
        "dtype": "bfloat16",
        "optimizer": "adam",
        "fits": True,
        "usable_bytes": 9.0,
        "bytes": dict.fromkeys(
            ("weights", "gradients", "optimizer", "activations", "recomputed", "buffers", "total"), 1.5
        ),
        "flops": {"forward": 1.0, "backward": 2.0, "recomputed": 0},
        "communication_bytes": {"all_reduce": 8.0},
        "communication": [
            {"strategy": "tp", "collective": "all_reduce", "calls": 2, "within": 8.0, "between": 0, "seconds": 0.5}
        ],
        "overlap": {"tp": 1.5},
        "bubble": 0,
        "efficiency": 0.5,
        "compute_s": 1.0,
        "idle_s": 0,
        "exposed_s": {"tp": 0.5},
        "step_s": 1.5,
        "tokens_per_s": 1365.0,
        "mfu": 0.25,
        "limit": "tp",
    },
    "crash": {
        "ranks": 2,
        "missing": [],
        "reason": "mismatch",
        "guilty": [1],
        "suspects": [],
        "call": OPERATION,
        "arrived": [0],
        "absent": [1],
        "disagreement": {
            "communicator": "7",
            "number": 4,
            "differing": ["operation"],
            "groups": [{"ranks": [0], "call": OPERATION}, {"ranks": [1], "call": OPERATION}],
        },
        "states": [
            {
                "rank": 0,
                "host": "a",
                "pid": 1,
                "process": "alive",
                "ending": "",
                "location": "",
                "last": None,
                "since_s": 0.5,
            }
        ],
        "problems": [],
    },
    "barrier": {
        "engine": "hpccoll",
        "algorithm": "tree",
        "pattern": "one_late",
        "spread_us": 2.5,
        "ranks": 2,
        "nodes": 1,
        "rounds": 1,
        "late_rounds": 0,
        "planned_us": [0.0, 2.5],
        "entry_us": [0.0, 2.5],
        "exit_us": [4.5, 3.5],
        "wait_us": [4.5, 1.5],
        "release_order": [1, 0],
        **dict.fromkeys(("entry_spread_us", "completion_us", "exit_skew_us"), written(RECORD.as_dict())["time_us"]),
        "absorbed": 0.5,
        "unsafe": 0,
        "clock_error_us": 0.5,
        "machine": "fit:this run",
        "predicted_us": 1.5,
        "predicted_exit_skew_us": 0.0,
        "completion_samples_us": [2.5],
        "exit_skew_samples_us": [1.5],
    },
    "barrier_summary": {
        "straggler": 1,
        "straggler_node": None,
        "reason": "rank 1 entered last",
        "ranks": 2,
        "nodes": 1,
        "rounds": 240,
        "noise_us": 0.5,
        "threshold_us": 1.5,
        "lateness": [
            {
                "rank": 1,
                "node": "a",
                "last_arrivals": 240,
                "excess_us": 2.5,
                "wait_us": 1.5,
                "wait_deficit_us": 2.5,
                "caused_us": 2.5,
            }
        ],
        "node_lateness": [{"node": "a", "ranks": 2, "last_arrivals": 240, "excess_us": 0.5, "wait_deficit_us": -0.5}],
        "fastest": "hpccoll/tree",
        "most_even": None,
        "barriers": [
            {
                "engine": "hpccoll",
                "algorithm": "tree",
                "completion_us": 2.5,
                "exit_skew_us": 1.5,
                "absorbed": None,
                "unsafe": 0,
                "all_reduce_us": 3.5,
                "bias": -0.5,
            }
        ],
        "all_reduce_us": 2.5,
        "inject_delay": {"rank": 1, "us": 2.5},
        "noise_rank": None,
        "clock": "host",
        "clock_residual_us": 0.5,
        "clock_cost_s": 0.0,
        "oversubscribed": False,
    },
    "demo": {"name": "ring", "ranks": 2, "op": None, "algorithm": None, "before": {"x": [1, 2]}, "after": {}},
    "finding": {
        "area": "mpi",
        "severity": "ok",
        "found": "x",
        "evidence": "y",
        "remedy": None,
        "provides": ["mpi"],
        "hosts": [],
    },
    "preflight_summary": {
        "nodes": ["a", "b"],
        "threshold": 0.8,
        "exclude": ["b"],
        "faults": [
            {"kind": "slow_link", "nodes": ["a", "b"], "found": "x", "ratio": None, "remedy": "y", "exclude": "b"}
        ],
    },
    "lab": {
        "dir": "/tmp/lab",
        "isolation": "flat",
        "why": "",
        "shape": {"nodes": 2, "cpus": 1, "bytes_per_s": None, "latency_s": 0, "shares": [], "subnet": "10.0.0.0/24"},
        "nodes": [
            {
                "name": "node0",
                "address": "10.0.0.1",
                "power": True,
                "link_up": True,
                "bytes_per_s": 1e6,
                "slow_percent": 0.0,
                "state": "idle",
            }
        ],
    },
    "scaling": {
        "op": "all_reduce",
        "nbytes": 8,
        "in_place": True,
        "dtype": "float32",
        "buffer": "host",
        "engine": "mpi",
        "algorithm": None,
        "points": [
            {
                "nodes": 1,
                "ranks": 2,
                "p50_us": 1.0,
                "p50_low_us": 1.0,
                "p50_high_us": 1.5,
                "busbw_GBps": 0,
                "ratio": 1.0,
            }
        ],
    },
    "simulated": {
        "command": "simulate",
        "op": "all_reduce",
        "algorithm": "ring",
        "ranks": 4,
        "nodes": 1,
        "machine": "node",
        "nbytes": 8,
        "chunks": 4,
        "root": None,
        "simulated_ranks": 1,
        "rounds": 6,
        "steps": 6,
        "messages": 24,
        "time_us": 1.5,
        "latency_bound_us": 1,
        "bandwidth_bound_us": 1.0,
        "sent_mean": 12.0,
        "sent_most": 12.0,
        "within": 48.0,
        "between": 0.0,
        "fit": {"fitted": 0.1, "left_out": 0.2},
        "critical_path": {
            "last_rank": 0,
            "waits": 1,
            "waits_between": 0,
            "ends": [{"round": 0, "rank": 1, "source": 0, "nbytes": 2, "between": False, "entered_us": 0.5}],
        },
    },
    "train": {
        "strategy": "dp=2",
        "ranks": 2,
        "dp": 2,
        "tp": 1,
        "pp": 1,
        "step": 1,
        "loss": -0.5,
        "step_s": 0.1,
        "tokens_per_s": 640.0,
        "comm_s": 0.01,
        "exposed_comm_s": 0.01,
        "bubble": None,
        "peak_bytes": 1,
        "grad_norm": 1.0,
    },
    "train_summary": {
        "strategy": "dp=2",
        "ranks": 2,
        "dp": 2,
        "tp": 1,
        "pp": 1,
        "model": "mlp",
        "width": 8,
        "layers": 2,
        "activation": "tanh",
        "parameters": 100,
        "dtype": "float32",
        "device": "cpu",
        "seed": 0,
        "batch": 64,
        "microbatches": 1,
        "schedule": "1f1b",
        "lr": 0.1,
        "steps": 3,
        "resumed_at": None,
        "stop": "complete",
        "loss": 0.5,
        "heads": 2,
        "context": 8,
        "held_out_loss": 0.5,
        "optimizer": "adamw",
        "accuracy": 0.9,
        "median_step_s": 0.1,
        "wrong": 0,
        "max_error": 1e-7,
        "checkpoint": None,
    },
    "train_compare": {
        "strategy": "dp=2",
        "ranks": 2,
        "dp": 2,
        "tp": 1,
        "pp": 1,
        "model": "course",
        "steps": 10,
        "torch": "DistributedDataParallel over gloo",
        "step_s": 0.02,
        "step_low_s": 0.01,
        "step_high_s": 0.03,
        "torch_step_s": 0.04,
        "torch_step_low_s": 0.03,
        "torch_step_high_s": 0.05,
        "ratio": 0.5,
        "ratio_low": 0.25,
        "ratio_high": 0.75,
        "loss_difference": 1e-9,
        "gradient_difference": 1e-7,
    },
    "train_recovery": {
        "strategy": "dp=3",
        "ranks": 3,
        "dp": 3,
        "tp": 1,
        "pp": 1,
        "steps": 20,
        "lost_ranks": [2],
        "lost_hosts": ["node1"],
        "source": "memory",
        "recovery_s": 0.05,
    },
    "compared_row": {
        "op": "all_reduce",
        "engine": "hpccoll",
        "algorithm": "ring",
        "buffer": "host",
        "in_place": True,
        "nbytes": 8,
        "dtype": "float32",
        "redop": "sum",
        "root": None,
        "ranks": 2,
        "nodes": 1,
        "runs_a": 1,
        "runs_b": 1,
        "samples_a": 20,
        "samples_b": 30,
        "p50_a_us": 1.5,
        "p50_b_us": 1.6,
        "slower_probability": 0.6,
        "cliffs_delta": 0.2,
        **TIMES,
    },
    "compared_operation": {
        "op": "all_reduce",
        "buffer": "host",
        "dtype": "float32",
        "ranks": 2,
        "nodes": 1,
        "rows": 12,
        **TIMES,
    },
    "guideline": {
        "guideline": "gather <= all_gather",
        "engine": "mpi",
        "algorithm": None,
        "buffer": "host",
        "in_place": True,
        "nbytes": 8,
        "dtype": "float32",
        "redop": None,
        "ranks": 2,
        "nodes": 1,
        "left_us": 2.5,
        "right_us": 1.5,
        "ratio": 1.5,
        "ratio_low": 1.25,
        "ratio_high": 1.75,
        "confidence": 0.5,
        "p_value": 0.5,
        "verdict": "violated",
    },
    "compare_summary": {
        "a": ["before.jsonl"],
        "b": ["after.jsonl"],
        "runs_a": 1,
        "runs_b": 2,
        "paired": False,
        "control": "mpi",
        "drift": 1.5,
        "noise": 0.5,
        "tolerance": 0.5,
        "worse": ["all_reduce"],
        "better": [],
        "regressions": ["all_reduce"],
        "only_a": [],
        "only_b": ["x"],
        "wrong": [],
        "disturbed": ["all_reduce in 1 of 1 run of A"],
        "differences": ["hosts: A x, B y"],
        "stop": "complete",
    },
    "parity": {
        "name": "0.weight",
        "mesh": "dp=2",
        "quantity": "gradient",
        "step": 1,
        "relative_error": 0.5,
        "tolerance": 1e-5,
        "fault": "factor_dp",
        "explanation": "it is 2 times the right gradient",
    },
    "parity_summary": {
        "mesh": "dp=2",
        "ranks": 2,
        "tensors": 10,
        "wrong": 5,
        "max_error": 0.5,
        "first": "0.weight",
        "quantity": "gradient",
        "step": 1,
        "first_error": 0.5,
        "fault": "factor_dp",
        "explanation": "it is 2 times the right gradient",
        "seen_at": "0.weight",
    },
    "profile": {
        "program": ["solver.py", "large"],
        "ranks": 1,
        "nodes": 1,
        "calls": 12,
        "folded_calls": 0,
        "run_s": 4.0,
        "ideal_s": 3.0,
        "parallel_efficiency": 0.5,
        "load_balance": 1.0,
        "serialisation": 0.75,
        "transfer": 0.75,
        "rank_times": [
            {
                "rank": 0,
                "node": "node0",
                "useful_s": 2.0,
                "wait_s": 1.0,
                "transfer_s": 1.0,
                "calls": 12,
                "has_ended": True,
            }
        ],
        "clock_error_us": 1.5,
        "problems": ["rank 0 has not ended its program"],
    },
    "profile_finding": {
        "cause": "late_rank",
        "found": "rank 0 arrives last",
        "saved_s": 1.0,
        "share": 0.25,
        "rank": 0,
        "node": "node0",
        "node_ranks": [0, 1],
        "lateness": "noise",
        "last_share": 1.0,
        "dest": None,
        "dest_node": None,
        "op": "all_reduce",
        "site": SITE,
        "calls": 12,
        "nbytes": None,
    },
    "profile_site": {"site": SITE, "op": "all_reduce", "calls": 12, "nbytes": 8, "wait_s": 0.5, "transfer_s": 1.0},
    "profile_prediction": {
        "change": "bandwidth=2",
        "description": "2 times the bandwidth",
        "predicted_s": 3.0,
        "recorded_s": 4.0,
        "saving": 0.25,
        "replay_error": 0.5,
        "assumption": "",
    },
    "plan": written(PROVEN.as_dict()),
    "schedule": {
        "command": "verify",
        "schedule": "1f1b",
        "proven": True,
        "failure": None,
        "stages": 2,
        "ranks": 2,
        "microbatches": 3,
        "messages": 6,
        "activations": [2, 1],
        "rank_activations": [2, 1],
        "time": 12.0,
        "idle_time": 3.0,
        "published_idle_time": None,
        "bubble": 0.25,
    },
    "published_schedule": {
        "schema": "hpccoll/1",
        "kind": "published_schedule",
        "command": "verify",
        "file": "ring.xml",
        "proven": True,
        "failure": None,
        "tool": "MSCCL",
        "op": "all_reduce",
        "ranks": 4,
        "chunks": 4,
        "buffered": 1,
        "transfers": 24,
        "redundant": 0,
        "rounds": 6,
        "sent_most": 1.5,
        "no_plan": None,
        "seconds": 0.5,
    },
}


def mutations(value):
    """Yield variants of a JSON value, each with one value replaced or one key left out, at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: each for name, each in value.items() if name != key}
            yield from (value | {key: each} for each in mutations(inner))
    elif isinstance(value, list) and value:
        yield from ([each, *value[1:]] for each in mutations(value[0]))
    yield from (None, True, -1, 0, 2, 0.5, "x", [], {}, [None], {"x": None})


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_declaration_and_both_schemas_accept_and_reject_the_same_records(name):
    before = json.loads((DATA / "schema-hpccoll-1.json").read_text())
    schemas = [jsonschema.Draft202012Validator(each["$defs"][name]) for each in (before, make_json_schema())]
    examples = [line for (kind, *_), (_, line) in recorded().items() if kind == name] + [EXAMPLES.get(name, {})]
    counts: Counter[bool] = Counter()
    for example in filter(None, examples):
        short = {key: value[:2] if key in ("samples_us", "stream_us") else value for key, value in example.items()}
        for changed in (short, *(each for each in mutations(short) if isinstance(each, dict))):
            accepted = {schema.is_valid(changed) for schema in schemas} | {is_accepted(DEFINITIONS[name], changed)}
            assert len(accepted) == 1, changed
            counts[accepted.pop()] += 1
        assert is_accepted(DEFINITIONS[name], example)
    assert counts[True] > 3
    assert counts[False] > 30


def is_accepted(declaration, line):
    try:
        declaration.from_dict(line, "")
    except UsageError:
        return False
    return True


def test_every_recorded_line_is_read():
    for name, line in recorded().values():
        DEFINITIONS[line["kind"]].from_dict(line, name)


def list_undescribed(schema, path):
    for name, field in schema.get("properties", {}).items():
        if "description" not in field:
            yield f"{path}.{name}"
        yield from list_undescribed(field, f"{path}.{name}")
        yield from list_undescribed(field.get("items", {}), f"{path}.{name}")


def test_the_schema_describes_every_field():
    definitions = make_json_schema()["$defs"]
    assert not [path for name, definition in definitions.items() for path in list_undescribed(definition, name)]


def test_a_field_has_its_own_description_rather_than_that_of_its_type():
    definitions = make_json_schema()["$defs"]
    for name, field, described in (
        ("barrier", "entry_spread_us", "Time from the first to the last entry."),
        ("compared_row", "verdict", "Whether B is faster (better), slower (worse), or neither is shown."),
    ):
        assert definitions[name]["properties"][field]["description"] == described
    assert definitions["collective"]["properties"]["time_us"]["description"].startswith("Minimum, maximum and percent")


def test_every_common_description_is_used():
    assert set(COMMON_FIELDS) <= set(re.findall(r'"(\w+)": \{', json.dumps(make_json_schema())))


def test_every_kind_of_record_class_is_in_the_schema():
    def list_subclasses(cls: type[Record]) -> list[type[Record]]:
        return [each for child in cls.__subclasses__() for each in (child, *list_subclasses(child))]

    kinds = {cls.kind for cls in list_subclasses(Record) if "kind" in vars(cls)}
    assert {"profile", "profile_finding", "profile_site", "profile_prediction", "train_recovery"} < kinds
    assert kinds == {record.kind for record in DEFINITIONS.values()}
