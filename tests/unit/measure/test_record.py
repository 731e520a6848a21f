"""Records: exactly the contract's fields in its order, described by the schema, and nothing that was not handed in."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import jsonschema
import pytest
from click.testing import CliRunner

from hpccoll.cli.schema import schema as command
from hpccoll.cli.verify import VerifyResult
from hpccoll.errors import UsageError
from hpccoll.measure.record import VERSIONS, CaseKey, CollectiveRecord, Row, RunRecord
from hpccoll.measure.schema import schema
from hpccoll.measure.stopping import StopReason

CONTRACT = [
    *("schema", "kind", "op", "engine", "algorithm", "buffer", "in_place", "nbytes", "count", "dtype", "redop", "root"),
    *("ranks", "nodes", "iterations", "stop", "time_us", "algbw_GBps", "busbw_GBps", "wrong", "bound_us", "samples_us"),
]
ROW = Row("all_reduce", "hpccoll", "ring", "host", True, 1_048_576, 262_144, "float32", "sum", None, 4, 1)
RECORD = CollectiveRecord(ROW, (250.0, 260.0, 240.0), StopReason.BUDGET, 0)
RUN = RunRecord(
    command="hpccoll bench all_reduce",
    versions={"hpccoll": "0.1.0", "python": "3.11.9", "mpi": "MPICH 5.0.2", "torch": None},
    hosts=("node0", "node0"),
    cores=(2, 2),
    ranks=2,
    nodes=1,
    devices=(),
    oversubscribed=False,
    commit="0123abc",
    start_time=datetime(2026, 3, 1, 13, 30, tzinfo=timezone(timedelta(hours=1))),
)
VERIFY_RESULT = VerifyResult("all_reduce", "ring", 4, 1, True, (), 6, 6, 24, 1.5, 1.5, 0.01)


@pytest.fixture(scope="module")
def validator():
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


def written(record):
    """What a reader of the file gets."""
    return json.loads(json.dumps(record, allow_nan=False))


def test_a_collective_has_the_fields_of_the_contract_in_its_order():
    assert list(RECORD.as_dict()) == [*CONTRACT, "staging", "stream_us"]
    assert list(RECORD.as_dict()["time_us"]) == ["min", "p50", "p50_low", "p50_high", "p95", "p99", "max"]


def test_a_collective_says_what_was_measured():
    found = RECORD.as_dict()
    assert found["iterations"] == 3
    assert found["stop"] == "budget"
    assert found["samples_us"] == [250.0, 260.0, 240.0]  # in the order measured
    assert found["time_us"]["p50"] == 250
    assert found["algbw_GBps"] == pytest.approx(1_048_576 / 250e-6 / 1e9)
    assert found["busbw_GBps"] == pytest.approx(1.5 * found["algbw_GBps"])


def test_the_summary_is_that_of_the_samples_as_written():
    record = CollectiveRecord(ROW, (1.00049, 1.00051, 1.00051), StopReason.ITERATIONS, 0)
    assert record.samples_us == (1.0, 1.001, 1.001)
    assert record.time_us.p50 == 1.001


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        replace(RECORD, wrong=None, bound_us=12.5, staging="pinned"),
        CollectiveRecord(replace(ROW, engine="mpi", algorithm=None), (0.5,) * 120, StopReason.CONVERGED, 3),
        CollectiveRecord(
            Row("scatter", "gloo", None, "cuda", False, 0, 0, "int8", None, 1, 2, 2), (1,), StopReason.BUDGET, 0
        ),
        CollectiveRecord(
            Row("barrier", "mpi", None, "host", True, 0, 0, "uint8", None, None, 2, 1), (9,), StopReason.BUDGET, 0
        ),
    ],
)
def test_collectives_fulfil_the_schema_and_come_back(record, validator):
    validator.validate(written(record.as_dict()))
    assert CollectiveRecord.from_dict(written(record.as_dict())) == record


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
        replace(RUN, versions={"python": "3.11", "SECRET_TOKEN": "hunter2"})


def test_nothing_of_the_environment_gets_into_a_run(monkeypatch):
    monkeypatch.setenv("HPCCOLL_TEST_SECRET", "hunter2hunter2")
    text = json.dumps(RUN.as_dict())
    assert "hunter2" not in text
    assert not [name for name, value in os.environ.items() if len(value) > 12 and value in text]


def test_a_start_without_a_time_zone_is_refused():
    with pytest.raises(UsageError, match="time zone"):
        replace(RUN, start_time=datetime(2026, 3, 1))  # noqa: DTZ001 - that is the point
    assert replace(RUN, start_time=datetime.now(UTC)).ranks == 2


def test_a_plan_fulfils_the_schema_also_where_it_is_not_proven(validator):
    plan = written(VERIFY_RESULT.record())
    validator.validate(plan)
    unknown = replace(VERIFY_RESULT, rounds=None, steps=None, messages=None, sent_mean=None, sent_most=None)
    validator.validate(written(replace(unknown, proven=False, failures=("round 3",)).record()))
    assert set(schema()["$defs"]["plan"]["properties"]) == set(plan) - {"schema", "kind"}
    assert not validator.is_valid({key: value for key, value in plan.items() if key != "proven"})


def test_the_schema_describes_the_versions_that_a_run_may_hold():
    assert set(schema()["$defs"]["run"]["properties"]["versions"]["properties"]) == set(VERSIONS)


def test_a_row_is_recognised_whatever_run_it_is_from():
    assert ROW.key == CaseKey("all_reduce", "hpccoll", "ring", "host", True, 1_048_576, "float32", "sum", None, 4)
    assert replace(ROW, nodes=2).key == ROW.key
    others = [replace(ROW, ranks=2), replace(ROW, in_place=False), replace(ROW, engine="mpi"), replace(ROW, nbytes=8)]
    assert len({row.key for row in [*others, replace(ROW, root=1), ROW]}) == 6


def test_records_that_are_damaged_are_refused():
    found = RECORD.as_dict()
    with pytest.raises(UsageError, match="'nbytes'"):
        CollectiveRecord.from_dict({key: value for key, value in found.items() if key != "nbytes"})
    with pytest.raises(UsageError, match="tired"):
        CollectiveRecord.from_dict(found | {"stop": "tired"})
    with pytest.raises(UsageError, match="damaged"):
        CollectiveRecord.from_dict(found | {"samples_us": None})
    with pytest.raises(UsageError, match="allreduce"):
        CollectiveRecord.from_dict(found | {"op": "allreduce"})


def test_keys_of_later_versions_are_left_out():
    assert CollectiveRecord.from_dict(RECORD.as_dict() | {"later": 1}) == RECORD


def test_the_command_prints_the_schema():
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0
    assert json.loads(result.output) == schema()
