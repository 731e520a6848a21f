"""Which runs allow a verdict, and which further runs `hpccoll compare` asks for otherwise."""

from __future__ import annotations

import shlex
from typing import Any

import numpy as np
import pytest

from hpccoll.compare.comparison import compare_sides
from hpccoll.compare.evidence import compute_rounds, make_plan
from hpccoll.compare.measured_runs import ComparedSide, order_by_turns
from hpccoll.compare.noise import find_spread
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.records import CollectiveRecord, StopReason, Verdict
from tests.unit.compare.synthetic_runs import make_records, make_run, make_side

SLOWER = {("scatter", "hpccoll"): 1.5}
CONTENDED = {"oversubscribed": True}


def list_verdicts(a: ComparedSide, b: ComparedSide, *, paired: bool = False) -> list[str]:
    comparison = compare_sides(a, b, paired=paired)
    return comparison.list_names(Verdict.WORSE) + comparison.list_names(Verdict.BETTER)


def scatter_samples(record: CollectiveRecord) -> CollectiveRecord:
    """Return a record whose median is uncertain by a factor."""
    samples = [us * (1 + 2 * (at % 2)) for at, us in enumerate(record.samples_us[:10])]
    return make_collective_record(record, samples, StopReason.ITERATIONS, 0)


def test_single_runs_on_shared_cores_give_no_verdict():
    fast, slow = make_records(1), make_records(2, SLOWER)
    assert "scatter" in list_verdicts(make_side("A", fast), make_side("B", slow))
    comparison = compare_sides(make_side("A", fast, **CONTENDED), make_side("B", slow, **CONTENDED))
    assert comparison.doubts == ("ranks share cores, so runs must alternate",)
    assert comparison.lacks_evidence
    assert all(each.ratio_low <= 1 <= each.ratio_high for each in comparison.operations)


def test_rounds_on_shared_cores_give_a_verdict():
    a = make_side("A", *(make_records(seed, sizes=(1024, 16384)) for seed in range(8)), **CONTENDED)
    b = make_side("B", *(make_records(50 + seed, SLOWER, sizes=(1024, 16384)) for seed in range(8)), **CONTENDED)
    assert "scatter" in list_verdicts(a, b, paired=True)
    for side in (a, b):
        del side.runs[5:]
    assert not list_verdicts(a, b, paired=True)


def test_runs_beside_busy_programs_count_as_shared():
    run, busy = make_run(make_records(1)), make_run(make_records(1))
    busy.busy_cores = 1.04
    assert not run.contention
    assert busy.contention == "other programs kept 1.0 cores busy"


def test_unreliable_times_give_no_verdict():
    a, b = make_records(1), [scatter_samples(each) for each in make_records(2, SLOWER)]
    comparison = compare_sides(make_side("A", a), make_side("B", b))
    assert comparison.unreliable == ("1 of 1 run of B",)
    assert comparison.doubts == ("no run of a side is reliable and undisturbed",)
    longer = shlex.split(comparison.plan.format_command(8))
    assert longer[:4] == ["hpccoll", "compare", "--rounds", "8"]
    assert longer[-1] == "mpirun -n 2 hpccoll bench --budget 3"


def test_few_rows_that_disagree_give_no_verdict():
    """Two runs of the same software, in which three rows took 0.83, 1.39 and 6.4 times as long."""
    few: dict[str, Any] = {"operations": ("scatter",), "contenders": (("mpi", None), ("hpccoll", "auto"))}
    factors = iter((1.0, 0.83, 1.0, 1.39, 1.0, 6.4))
    b = [
        make_collective_record(each, [us * factor for us in each.samples_us], StopReason.ITERATIONS, 0)
        for each, factor in zip(make_records(2, **few), factors, strict=True)
    ]
    comparison = compare_sides(make_side("A", make_records(1, **few)), make_side("B", b))
    [operation] = comparison.operations
    assert operation.verdict is Verdict.NO_EVIDENCE
    assert operation.ratio_low < 0.83
    assert operation.ratio_high > 6
    assert comparison.drift == 1.0
    assert comparison.drift_doubt == "only 3 rows of engine mpi, 5 are needed"


def test_the_spread_of_rows_counts_where_noise_does_not_explain_it():
    differences = np.array([0.0, 0.1, 0.2])
    assert find_spread(differences, np.full(3, 0.01), single=False) is None
    assert find_spread(differences, np.full(3, 1e-4), single=False) == pytest.approx((0.02, 0.18))
    assert find_spread(differences, np.full(3, 0.01), single=True) == pytest.approx((0.02, 0.18))


def test_the_number_of_rounds_follows_from_the_noise():
    few, many = compute_rounds(0.02**2, 0.01, 0.05), compute_rounds(0.1**2, 0.01, 0.05)
    assert few is not None
    assert many is not None
    assert few < 10
    assert 60 < many < 100
    assert compute_rounds(1.0, 0.01, 0.05) is None


def test_the_command_of_a_side_is_that_of_its_run_without_files():
    command = "hpccoll bench scatter --json out.jsonl --overwrite -n 20 --csv=x.csv"
    plan = make_plan([[make_run(make_records(1), command=command, ranks=3)]] * 2, False, 0.0, 0.01)
    assert plan.commands == ("mpirun -n 3 hpccoll bench scatter -n 20",) * 2


def test_runs_are_in_turns_if_no_round_begins_before_the_last_one_has_run():
    def make(*minutes: int) -> ComparedSide:
        runs = [make_run(make_records(1), start_time=f"2026-11-24T15:{at:02}:00+00:00") for at in minutes]
        return ComparedSide("A", runs)

    assert order_by_turns(make(4, 1, 5), make(3, 2, 6))
    assert order_by_turns(make(1, 3), make(2, 4))
    assert not order_by_turns(make(1), make(2))
    assert not order_by_turns(make(1, 2, 3), make(4, 5, 6))
    assert not order_by_turns(make(1, 3), make(2))
    assert not order_by_turns(make_side("A", make_records(1)), make_side("B", make_records(2)))
