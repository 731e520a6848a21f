"""Comparisons find planted differences in noisy runs, and none in equal ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from hpccoll.compare.comparison import compare_sides
from hpccoll.compare.drift import Control
from hpccoll.compare.evidence import VerdictConditions
from hpccoll.compare.hypothesis_tests import compare_samples, correct_by_holm
from hpccoll.compare.noise import compute_batch_variance, estimate_operation_variances, find_disturbed_operations
from hpccoll.errors import UsageError
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.records import CollectiveRecord, StopReason, Verdict
from tests.unit.compare.synthetic_runs import CONTENDERS, OPERATIONS, make_records, make_side

OWN = tuple(each for each in CONTENDERS if each[0] != "mpi")
SLOWER = {("all_gather", "hpccoll"): 1.1}


def make_samples_longer(record: CollectiveRecord, factor: float) -> CollectiveRecord:
    """Return a record whose samples took `factor` times as long."""
    return make_collective_record(record, [us * factor for us in record.samples_us], StopReason.ITERATIONS, 0)


def list_differences(comparison) -> set[str]:
    """Return the operations that have a verdict, or a row of which has one."""
    return {name.split()[0] for verdict in ("worse", "better") for name in comparison.list_names(Verdict(verdict))}


def test_equal_sides_show_no_difference_although_whole_runs_differ():
    for seed in range(5):
        comparison = compare_sides(make_side("A", make_records(seed)), make_side("B", make_records(100 + seed)))
        assert not list_differences(comparison)
        assert comparison.control is Control.MPI
        assert len(comparison.rows) == 36
        assert len(comparison.controls) == 12


def test_a_slower_operation_is_found_from_one_run_per_side_and_a_faster_one_too():
    sizes = 1024, 4096, 16384, 65536, 262144
    slow, fast = make_records(8, {("all_gather", "hpccoll"): 1.3}, sizes=sizes), make_records(9, sizes=sizes)
    comparison = compare_sides(make_side("A", fast), make_side("B", slow))
    assert comparison.list_names(Verdict.WORSE) == ["all_gather"]
    assert comparison.list_regressions() == ["all_gather"]
    assert compare_sides(make_side("A", fast), make_side("B", slow), tolerance=0.25).list_regressions() == []
    [found] = [each for each in comparison.operations if each.op == "all_gather"]
    assert found.rows == 15
    assert 1 < found.ratio_low < 1.3 < found.ratio_high
    reverse = compare_sides(make_side("A", slow), make_side("B", fast))
    assert reverse.list_names(Verdict.BETTER) == ["all_gather"]
    assert reverse.list_regressions() == []


def test_a_difference_of_a_single_row_is_found_in_turns_with_its_rounds():
    runs: list[list[list[CollectiveRecord]]] = [[], []]
    for seed in range(12):
        for side in range(2):
            records = make_records(seed + 100 * side)
            at = next(at for at, each in enumerate(records) if each.engine == "hpccoll")
            if side:
                records[at] = make_records(seed + 100, {("all_reduce", "hpccoll"): 1.3})[at]
            runs[side].append(records)
    comparison = compare_sides(make_side("A", *runs[0]), make_side("B", *runs[1]), paired=True)
    assert comparison.list_names(Verdict.WORSE) == ["all_reduce 1 KiB hpccoll/ring"]
    row = comparison.rows[0]
    assert row.slower_rounds == 12
    assert row.cliffs_delta > 0.8
    assert row.ratio_low > 1.1
    assert (row.runs_a, row.runs_b) == (12, 12)
    assert (row.samples_a, row.samples_b) == (1200, 1200)


def test_several_runs_per_side_find_what_one_run_does_not():
    runs = [
        [make_records(seed) for seed in range(8)],
        [make_records(50 + seed, {("scatter", "hpccoll"): 1.05}) for seed in range(8)],
    ]
    one = compare_sides(make_side("A", runs[0][0]), make_side("B", runs[1][0]))
    assert not list_differences(one)
    many = compare_sides(make_side("A", *runs[0]), make_side("B", *runs[1]))
    assert many.list_names(Verdict.WORSE) == ["scatter"]


def test_the_drift_is_the_median_over_all_rows_only_if_asked_for():
    a, b = (
        make_records(seed, slower, contenders=OWN) for seed, slower in ((1, None), (2, {("broadcast", "hpccoll"): 1.4}))
    )
    unasked = compare_sides(make_side("A", a), make_side("B", b))
    assert (unasked.control, unasked.drift, list_differences(unasked)) == (Control.NONE, 1.0, set())
    comparison = compare_sides(make_side("A", a), make_side("B", b), control=Control.ROWS)
    assert comparison.list_names(Verdict.WORSE)[0] == "broadcast"
    assert list_differences(comparison) == {"broadcast"}
    assert comparison.drift == pytest.approx(np.exp(-0.02), abs=0.25)


def test_another_mpi_library_is_no_control():
    a, b = make_side("A", make_records(1)), make_side("B", make_records(2), versions={"mpi": "Open MPI 5.0.8"})
    comparison = compare_sides(a, b)
    assert comparison.control is Control.NONE
    assert comparison.differences == ("mpi: A MPICH 5.0.2, B Open MPI 5.0.8",)
    assert compare_sides(a, b, control=Control.MPI).control is Control.MPI


def test_a_collective_of_the_mpi_library_that_takes_another_time_is_no_drift():
    """MPICH's collectives of 256 KiB take one of two times, which differ by 40 %, in a process."""
    b = [
        make_samples_longer(each, 1.4) if each.engine == "mpi" and each.op == "all_gather" else each
        for each in make_records(2)
    ]
    assert not list_differences(compare_sides(make_side("A", make_records(1)), make_side("B", b)))


def test_runs_at_different_speeds_are_disturbed_if_the_speed_does_not_change_all_rows_alike():
    """The cores of a virtual machine took 0.6 to 1.0 of the time for minutes, by a different factor for each row."""
    factors = iter([0.6, 0.8, 1.0] * 100)
    b = [make_samples_longer(each, next(factors)) for each in make_records(2)]
    comparison = compare_sides(make_side("A", make_records(1)), make_side("B", b))
    assert not list_differences(comparison)
    assert comparison.disturbed[-1].startswith("the speed of the machine")
    alike = [make_samples_longer(each, 0.6) for each in make_records(2)]
    assert not compare_sides(make_side("A", make_records(1)), make_side("B", alike)).disturbed


def test_an_operation_during_which_the_speed_of_the_machine_changes_has_no_verdict():
    b = [make_samples_longer(each, 1.3) if each.op == "scatter" else each for each in make_records(2)]
    comparison = compare_sides(make_side("A", make_records(1)), make_side("B", b))
    assert not list_differences(comparison)
    assert re.fullmatch(r"the speed of the machine \(.* changed in scatter by \+\d\d%\)", comparison.disturbed[-1])


def make_rounds(scatter: float) -> tuple[list[list[CollectiveRecord]], list[list[CollectiveRecord]]]:
    """Return the records of eight runs of A, and those of B, which differ by drift and by a factor of scatter alone."""
    runs = [make_records(seed) for seed in range(8)]
    slower = [
        [
            make_samples_longer(each, 1.1 * (scatter if (each.op, each.engine) == ("scatter", "hpccoll") else 1.0))
            for each in run
        ]
        for run in runs
    ]
    return runs, slower


@pytest.mark.parametrize("scatter", [1.0, 1.05])
def test_rounds_between_whose_runs_the_speed_of_the_machine_changed_are_left_out(scatter):
    a, b = make_rounds(scatter)
    for number in (1, 4, 5):
        factors = iter([0.6, 0.8, 1.0] * 100)
        b[number] = [make_samples_longer(each, next(factors)) for each in b[number]]
    comparison = compare_sides(make_side("A", *a), make_side("B", *b), paired=True)
    assert list_differences(comparison) == ({"scatter"} if scatter > 1 else set())
    assert comparison.disturbed == ("the speed of the machine in 3 of 8 rounds",)
    assert {(row.runs_a, row.runs_b) for row in comparison.rows} == {(5, 5)}


def test_an_operation_during_which_the_speed_changed_is_left_out_of_its_round():
    a, b = make_rounds(1.0)
    b[2] = [make_samples_longer(each, 1.3) if each.op == "scatter" else each for each in b[2]]
    comparison = compare_sides(make_side("A", *a), make_side("B", *b), paired=True)
    assert not list_differences(comparison)
    assert comparison.disturbed == ("the speed of the machine in 1 of 8 rounds",)
    assert {(row.op == "scatter", (row.runs_a, row.runs_b)) for row in comparison.rows} == {
        (True, (7, 7)),
        (False, (8, 8)),
    }


def test_rows_of_a_single_run_may_differ_by_the_place_of_their_buffers_in_memory():
    """One workload of shared memory took 1.9 times as long in a few of 100 processes."""
    b = [
        make_samples_longer(each, 1.9) if (each.op, each.nbytes) == ("scatter", 1024) and each.engine != "mpi" else each
        for each in make_records(2)
    ]
    assert not list_differences(compare_sides(make_side("A", make_records(1)), make_side("B", b)))


def test_few_rows_without_a_control_need_a_large_difference():
    few: dict[str, Any] = {"contenders": OWN[:1], "operations": ("scatter",), "sizes": (1024,)}
    b = make_side("B", make_records(2, {("scatter", "hpccoll"): 1.5}, **few))
    comparison = compare_sides(make_side("A", make_records(1, **few)), b)
    assert comparison.control is Control.NONE
    assert comparison.operations == ()
    assert not list_differences(comparison)
    assert comparison.rows[0].ratio_low < 1 < comparison.rows[0].ratio_high


def test_rows_of_one_side_only_and_wrong_rows_are_listed_and_not_compared():
    a, b = make_records(1), make_records(2)
    b[1] = replace(b[1], wrong=3)
    comparison = compare_sides(make_side("A", a[:-2]), make_side("B", b[1:]))
    assert comparison.wrong == ("all_reduce 1 KiB hpccoll/ring",)
    assert comparison.only_a == ("all_reduce 1 KiB mpi",)
    assert len(comparison.only_b) == 2
    assert len(comparison.rows) == 33


def test_runs_with_different_rows_are_compared_row_by_row():
    a, b = make_records(1), make_records(2)
    comparison = compare_sides(make_side("A", a[:20], a[20:]), make_side("B", b))
    assert len(comparison.rows) == 36
    assert {(row.runs_a, row.runs_b) for row in comparison.rows} == {(1, 1)}
    pairs = compare_sides(make_side("A", a[:20], a[20:]), make_side("B", b), paired=True)
    assert len(pairs.rows) == 15


def interrupt(records: list[CollectiveRecord]) -> list[CollectiveRecord]:
    """Return records of a run that other programs interrupted for a tenth of the samples."""
    return [replace(each, samples_us=(each.samples_us[0], *(9e3,) * 10, *each.samples_us[11:])) for each in records]


@pytest.mark.parametrize("lacking", ["A", "B"])
def test_a_row_that_one_run_of_a_pair_lacks_is_left_out_of_this_pair(lacking):
    a, b = ([make_records(seed) for seed in range(3)] for _ in range(2))
    key = a[0][1].key
    del (a if lacking == "A" else b)[1][1]
    comparison = compare_sides(make_side("A", *a), make_side("B", *b), paired=True)
    (row,) = [each for each in comparison.rows if each.key == key]
    assert (row.runs_a, row.runs_b, row.samples_a, row.samples_b) == (2, 2, 200, 200)
    assert row.p50_a_us == pytest.approx((a[0][1].time_us.p50 + a[2][1].time_us.p50) / 2)
    assert {(each.runs_a, each.runs_b) for each in comparison.rows if each != row} == {(3, 3)}


def test_a_row_that_no_pair_of_runs_has_is_not_compared():
    a, b = ([make_records(seed) for seed in range(2)] for _ in range(2))
    key = a[0][1].key
    del a[0][1], b[1][1]
    comparison = compare_sides(make_side("A", *a), make_side("B", *b), paired=True)
    assert key not in [each.key for each in comparison.rows]
    assert len(comparison.rows) == 35


def test_a_row_whose_only_pair_was_interrupted_is_compared_without_runs_that_have_no_partner():
    a, b = [make_records(seed) for seed in range(2)], [interrupt(make_records(0)), make_records(1)]
    key = a[0][1].key
    del b[1][1]
    comparison = compare_sides(make_side("A", *a), make_side("B", *b), paired=True)
    (row,) = [each for each in comparison.rows if each.key == key]
    assert (row.runs_a, row.runs_b, row.samples_a, row.samples_b) == (1, 1, 100, 100)


def test_sides_without_a_common_row_are_refused_with_what_differs():
    b = make_side("B", make_records(2, ranks=4), ranks=4)
    with pytest.raises(UsageError, match="no row in common; A and B differ in ranks: A 2, B 4"):
        compare_sides(make_side("A", make_records(1)), b)


def test_the_mpi_control_needs_other_rows():
    mpi = CONTENDERS[:1]
    sides = [make_side(name, make_records(seed, contenders=mpi)) for name, seed in (("A", 1), ("B", 2))]
    assert compare_sides(*sides).control is Control.NONE
    with pytest.raises(UsageError, match="--control rows"):
        compare_sides(*sides, control=Control.MPI)
    own = [make_side(name, make_records(seed, contenders=OWN)) for name, seed in (("A", 1), ("B", 2))]
    with pytest.raises(UsageError, match="no row of engine mpi"):
        compare_sides(*own, control=Control.MPI)


def test_holm_is_between_bonferroni_and_no_correction():
    tests = correct_by_holm(np.array([0.03, 0.001, 0.04, 0.3]), 0.05)
    assert tests.p_values == pytest.approx([0.09, 0.004, 0.09, 0.3])
    assert tests.interval_significance == pytest.approx([0.05 / 3, 0.05 / 4, 0.05 / 3, 0.05 / 3])
    every = correct_by_holm(np.array([0.02, 0.01]), 0.05)
    assert every.p_values == pytest.approx([0.02, 0.02])
    assert every.interval_significance == pytest.approx([0.05, 0.025])


def test_the_order_of_samples_counts_ties_as_half():
    order = compare_samples(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    assert order.probability == 0.875
    assert order.cliffs_delta == 0.75
    assert compare_samples(np.arange(20.0), np.arange(20.0) + 100).p_value < 1e-6


def test_batches_see_the_correlation_of_samples():
    generator = np.random.default_rng(1)
    independent = np.exp(generator.normal(0, 0.1, 1000))
    correlated = np.exp(np.repeat(generator.normal(0, 0.1, 20), 50))
    assert compute_batch_variance(correlated) > 10 * compute_batch_variance(independent)
    assert compute_batch_variance([2.0]) == 0


def test_runs_that_other_programs_interrupt_are_left_out_or_have_wide_intervals():
    quiet = [make_records(seed) for seed in range(4)]
    busy = interrupt(make_records(9))
    slow = [
        make_collective_record(each, [1.4 * us for us in each.samples_us], StopReason.ITERATIONS, 0)
        if each.op == "all_gather" and each.engine == "hpccoll"
        else each
        for each in busy
    ]
    single = compare_sides(make_side("A", quiet[0]), make_side("B", slow))
    assert not list_differences(single)
    assert "all_gather in 1 of 1 run of B" in single.disturbed
    partly = [each if each.op == "scatter" else calm for each, calm in zip(busy, make_records(9, SLOWER), strict=True)]
    assert not list_differences(compare_sides(make_side("A", quiet[0]), make_side("B", partly)))
    several = compare_sides(make_side("A", *quiet[:2]), make_side("B", *quiet[2:], slow))
    assert "all_gather in 1 of 3 runs of B" in several.disturbed
    assert not list_differences(several)
    assert {(row.runs_a, row.runs_b) for row in several.rows} == {(2, 2)}
    pairs = compare_sides(make_side("A", *quiet[:2]), make_side("B", quiet[2], slow), paired=True)
    assert {(row.runs_a, row.runs_b) for row in pairs.rows} == {(1, 1)}


def test_a_few_long_samples_are_no_disturbance():
    records = make_records(1)
    assert find_disturbed_operations(records) == set()
    first = [replace(each, samples_us=(1e4, *each.samples_us[1:])) for each in make_records(1, count=20)]
    assert find_disturbed_operations(first) == set()
    longer = [replace(each, samples_us=(*each.samples_us[:-10], *(1e4,) * 10)) for each in records[:12]]
    assert find_disturbed_operations([*longer, *records[12:]]) == {"all_reduce"}


def test_an_operation_needs_a_larger_change_if_the_others_change_differently():
    def compare(*factors: float):
        slower = {(op, "hpccoll"): factor for op, factor in zip(OPERATIONS, factors, strict=True)}
        return compare_sides(make_side("A", make_records(1)), make_side("B", make_records(2, slower)))

    assert not list_differences(compare(1.08, 1.16, 1.3, 1.45))
    assert compare(1.25, 1.25, 1.25, 1.25).list_names(Verdict.WORSE) >= list(OPERATIONS)


def test_a_changed_operation_does_not_hide_itself():
    of_first, of_second, of_changed = estimate_operation_variances(np.array([0.01, -0.01, 0.2]), np.full(3, 1e-6))
    assert 10 * of_changed < min(of_first, of_second)
    assert estimate_operation_variances(np.array([0.01, 0.2]), np.full(2, 1e-6)).tolist() == [0, 0]


def test_a_row_of_single_runs_has_no_verdict():
    """A row of shared memory took 1.9 times as long in a few of 100 processes."""
    a, b = make_records(1), make_records(2)
    b[1] = make_samples_longer(b[1], 10)
    comparison = compare_sides(make_side("A", a), make_side("B", b))
    assert not list_differences(comparison)
    single = VerdictConditions(paired=False, contention="", doubt="").find_doubt(np.ones((2, 1), np.bool_), split=1)
    assert single == "a row needs 3 undisturbed runs per side, 1 here"
