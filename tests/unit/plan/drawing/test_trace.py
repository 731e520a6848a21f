"""Timelines and traces: every rank on its own track, every message from its sender's slice to its receiver's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.plan import Machine, Operation, Plan, check, simulate
from hpccoll.plan.drawing.trace import format_trace_json, make_trace
from hpccoll.plan.simulation import Timeline, build_round_timeline, build_simulated_timeline

MACHINE = Machine.flat(2e-6, 1e-9, 1e-10)
EVERY = [pytest.param(each, n, id=f"{each.full_name}-{n}") for each in list_algorithms() for n in (1, 3, 8)]


def make_plan(name: str, ranks: int, chunks: int = 1) -> Plan:
    """Return the plan of an algorithm, given as `operation/name`."""
    operation, _, algorithm = name.partition("/")
    return get_algorithm(Operation.from_name(operation), algorithm).plan(ranks, 0, chunks)


def check_timeline(timeline: Timeline) -> list[dict[str, Any]]:
    """Check the properties that every trace must have; return its events."""
    whole = json.loads(format_trace_json(timeline))
    assert whole == json.loads(json.dumps(make_trace(timeline)))
    events: list[dict[str, Any]] = whole["traceEvents"]
    end = whole["otherData"]["duration_us"]
    busy: dict[int, float] = {}
    for event in events:
        assert event["pid"] == 0
        assert 0 <= event["tid"] < timeline.ranks
        if event["ph"] == "X":
            assert event["dur"] > 0
            assert event["ts"] >= busy.get(event["tid"], 0.0) - 1e-3  # a rank does one thing at a time
            busy[event["tid"]] = event["ts"] + event["dur"]
            assert event["ts"] + event["dur"] <= end + 1e-3
        elif event["ph"] != "M":
            assert 0 <= event["ts"] <= end
            inside = [x for x in events if x["ph"] == "X" and x["tid"] == event["tid"]]
            assert any(x["ts"] <= event["ts"] <= x["ts"] + x["dur"] for x in inside)
    starts = {event["id"]: event["ts"] for event in events if event["ph"] == "s"}
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert all(starts[number] < ends[number] for number in starts)
    return events


@pytest.mark.parametrize(("each", "n"), EVERY)
def test_every_algorithm_has_a_trace_with_all_its_messages(each, n):
    plan = each.plan(n, n - 1, 2)
    events = check_timeline(build_round_timeline(plan))
    assert sum(event["ph"] == "s" for event in events) == check(plan).messages
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {
        f"rank {rank}" for rank in range(n)
    }


def test_every_round_has_the_same_length():
    timeline = build_round_timeline(make_plan("all_reduce/ring", 5))
    assert timeline.duration_us == 8
    assert len(timeline.slices) == 8 * 5
    assert {each.duration_us for each in timeline.slices} == {1.0}


def test_slices_say_what_a_rank_does():
    first = build_round_timeline(make_plan("all_reduce/ring", 5)).slices[0]
    assert (first.rank, first.name) == (0, "round 1")
    assert set(str(first.args["does"]).split("; ")) == {"sends chunk 4 to 1", "reduces chunk 3 from 4"}
    news = build_round_timeline(make_plan("barrier/dissemination", 5)).slices[0]
    assert set(str(news.args["does"]).split("; ")) == {"tells 1", "hears from 4"}


@pytest.mark.parametrize("name", ["all_reduce/ring", "all_reduce/double_tree", "gather/tree", "barrier/tree"])
@pytest.mark.parametrize("count", [0, 3, 1000])
def test_a_simulated_run_ends_when_the_simulation_does(name, count):
    plan = make_plan(name, 6, 2)
    timeline = build_simulated_timeline(plan, MACHINE, count)
    expected = simulate(plan, MACHINE, count, full=True).seconds
    assert timeline.duration_us == pytest.approx(expected * 1e6)
    check_timeline(timeline)
