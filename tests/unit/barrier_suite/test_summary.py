"""The summary: the late rank and its node, the costs of barriers, and the answers for people."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from hpccoll.barrier_suite.barrier_row import make_barrier_record
from hpccoll.barrier_suite.display import format_answers, format_first_answer, list_tables
from hpccoll.barrier_suite.round_times import RoundTimes
from hpccoll.barrier_suite.straggler import find_straggler
from hpccoll.barrier_suite.summary import make_summary, name_nodes
from hpccoll.records import BarrierKey, BarrierRecord, InjectedDelay

NODES = ("a", "a", "b", "b")


def make_times(late_us: list[float], *, completion_us: float = 10.0, unsafe: bool = False) -> RoundTimes:
    random = np.random.default_rng(0)
    planned = 1e-3 * np.arange(48)[:, None] * np.ones(len(late_us))
    entry = planned + 1e-6 * (np.array(late_us) + random.random(planned.shape))
    leave = entry.max(axis=1, keepdims=True) + 1e-6 * (completion_us + random.random(planned.shape))
    return RoundTimes(planned, entry, np.minimum(leave, entry + 1e-7) if unsafe else leave)


NO_OPTIONS = {"inject_delay": None, "noise_rank": None}


def make_row(
    name: str,
    pattern: str = "none",
    late_us: float = 0.0,
    even_us: float | None = None,
    *,
    unplanned: bool = False,
    **times,
) -> BarrierRecord:
    even_s = None if even_us is None else even_us * 1e-6
    found = make_times([0, 0, 0, late_us], **times)
    planned = found.planned + 1e-6 * np.array([0, 0, 0, 0 if unplanned else late_us])
    return make_barrier_record(
        BarrierKey("mpi", name, pattern, 4),
        replace(found, planned=planned),
        spread_s=late_us * 1e-6,
        nodes=2,
        clock_error_s=1e-6,
        even_completion_s=even_s,
        all_reduce_s=[2e-5] if pattern == "none" else None,
    )


def summarize(late_us: list[float], rows: list[BarrierRecord] | None = None, nodes: tuple[str, ...] = NODES):
    conditions = {"clock": "hca3", "clock_residual_us": 0.5, "clock_cost_s": 1.0, "oversubscribed": False}
    rows = [make_row("barrier")] if rows is None else rows
    return make_summary(rows, find_straggler(make_times(late_us), 3e-7), nodes, 16.0, **conditions, **NO_OPTIONS)


def test_one_late_rank_is_named_with_its_node():
    summary = summarize([0, 0, 50, 0])
    assert (summary.straggler, summary.straggler_node) == (2, None)
    assert [each.node for each in summary.lateness] == list(NODES)
    assert summary.lateness[2].caused_us == pytest.approx(50, abs=1)  # per round
    assert format_first_answer(summary).startswith("who is late?    rank 2 on b: rank 2 entered last in 48 of 48")


def test_a_node_whose_ranks_are_all_late_is_named():
    summary = summarize([50, 50, 0, 0])
    assert summary.straggler in (0, 1)
    assert summary.straggler_node == "a"
    assert [(each.node, each.ranks, each.last_arrivals) for each in summary.node_lateness] == [
        ("a", 2, 48),
        ("b", 2, 0),
    ]
    assert "like every rank of node a" in format_first_answer(summary)


def test_a_node_is_named_only_if_it_has_several_ranks_and_all_of_them_are_late():
    assert summarize([50, 50, 0, 0], nodes=("a",) * 4).straggler_node is None
    assert summarize([50, 0, 0, 0], nodes=("a", "b", "c", "d")).straggler_node is None
    others_too = summarize([50, 60, 50, 0, 0, 0], nodes=("a", "a", "b", "b", "c", "c"))
    assert (others_too.straggler, others_too.straggler_node) == (1, None)


def test_the_costs_name_the_fastest_and_the_most_even_barrier_and_the_bias():
    rows = [make_row("slow", completion_us=30.0), make_row("fast")]
    rows += [make_row("fast", "one_late", 10.0, rows[1].completion_us.p50, completion_us=5.0)]
    summary = summarize([0, 0, 0, 0], rows)
    slow, fast = summary.barriers
    assert summary.fastest == "mpi/fast"
    assert summary.most_even in ("mpi/slow", "mpi/fast")
    assert fast.completion_us == pytest.approx(11, abs=1)
    assert slow.bias == fast.bias == pytest.approx(20 / 16 - 1)
    assert slow.absorbed is None
    assert fast.absorbed == pytest.approx(0.5, abs=0.1)  # 5 of 10 us


def test_a_barrier_that_is_not_safe_is_said_first():
    rows = [make_row("good"), make_row("bad"), make_row("bad", "one_late", 50.0, 10.0, unsafe=True)]
    summary = summarize([0, 0, 0, 0], rows)
    assert [each.unsafe for each in summary.barriers] == [0, 48]
    answer = next(line for line in format_answers(summary, rows) if line.startswith("is it safe?"))
    assert answer.endswith("NO: ranks left before the last rank had entered, in 48 rounds: mpi/bad")
    assert "is it safe?     yes" in format_answers(summary, rows[:1])[1]


def test_late_rounds_are_said_unless_the_user_asked_for_a_late_rank():
    rows = [make_row("a", "one_late", 50.0, 10.0, unplanned=True)]
    summary = summarize([0, 0, 0, 0], rows)
    assert "in 100% of the rounds a rank entered late" in format_answers(summary, rows)[2]
    injected = structs.replace(summary, inject_delay=InjectedDelay(1, 50.0))
    assert "entered late" not in format_answers(injected, rows)[2]


def test_tables_of_ranks_are_shown_for_a_single_barrier():
    rows = [make_row("barrier"), make_row("barrier", "one_late", 50.0, 10.0)]
    titles = [table.title for table in list_tables(summarize([0, 0, 0, 0], rows), rows)]
    assert sum("mpi/barrier, arrival pattern" in title for title in titles) == 2
    more = [*rows, make_row("other")]
    assert not any("arrival pattern none:" in t.title for t in list_tables(summarize([0, 0, 0, 0], more), more))


def test_nothing_is_said_of_absorption_if_most_rounds_do_not_follow_the_pattern():
    planned, unplanned = (make_row("a", "one_late", 50.0, 10.0, unplanned=each) for each in (False, True))
    assert (planned.late_rounds, unplanned.late_rounds) == (0, 48)
    assert planned.absorbed == pytest.approx(0, abs=0.05)
    assert unplanned.absorbed is None


def test_a_completion_below_zero_by_the_error_of_the_clock_counts_as_zero():
    times = make_times([0, 0, 0, 0])
    early = RoundTimes(times.planned, times.entry, np.tile(times.entry.max(axis=1, keepdims=True), 4) - 1e-7)
    record = make_barrier_record(BarrierKey("mpi", "a", "none", 4), early, spread_s=0.0, nodes=1, clock_error_s=1e-6)
    assert set(record.completion_samples_us) == {0.0}
    assert record.unsafe == 0


def test_nodes_that_share_a_host_have_numbers():
    assert name_nodes(["x", "x", "y"], [0, 0, 1]) == ("x", "x", "y")
    assert name_nodes(["x", "x", "x"], [0, 1, 1]) == ("x:0", "x:1", "x:1")
