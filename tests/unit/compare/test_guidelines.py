"""Guidelines: replaceable operations, monotony, significance."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
from msgspec.structs import replace
from scipy.stats import t

from hpccoll.compare.guidelines import (
    GUIDELINE_NOISE,
    GUIDELINES,
    RUN_DEGREES,
    check_guidelines,
)
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.plan import Operation
from hpccoll.records import GuidelineRecord, GuidelineVerdict, StopReason
from tests.unit.compare.synthetic_runs import CASE, make_records, make_side

MPI = (("mpi", None),)
ALL = ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast", "gather", "scatter")


def check_slower(slower=None, tolerance=0.0, **options):
    """Check guidelines on records in which some operations are slower."""
    records = make_records(3, {(op, "mpi"): factor for op, factor in (slower or {}).items()}, **options)
    return check_guidelines(make_side("A", records), tolerance)


def test_every_operation_of_a_guideline_exists():
    names = {operation.value for operation in Operation}
    assert all({left, *right} <= names and left not in right for left, right in GUIDELINES)


def test_equal_operations_fulfil_all_guidelines():
    checked = check_slower(contenders=MPI, operations=ALL)
    assert len(checked) == 3 * 12 + 2 * len(ALL)  # those with all_to_all and with scans are not measured
    assert not [each for each in checked if each.verdict is GuidelineVerdict.VIOLATED]


def test_an_operation_slower_than_its_replacement_violates_its_guidelines():
    checked = check_slower({"gather": 2.0, "all_reduce": 3.5}, contenders=MPI, operations=ALL)
    violated = {each.guideline for each in checked if each.verdict is GuidelineVerdict.VIOLATED}
    assert violated >= {"gather <= all_gather", "all_reduce <= reduce + broadcast"}
    assert all(text.split()[0] in ("gather", "all_reduce") for text in violated)
    [one] = [each for each in checked if each.guideline == "gather <= all_gather" and each.nbytes == 1024]
    assert 1.4 < one.ratio_low < one.ratio < one.ratio_high
    assert one.right_us == pytest.approx(one.left_us / one.ratio)
    tolerant = check_slower({"gather": 2.0, "all_reduce": 3.5}, 2.0, contenders=MPI, operations=ALL)
    assert not [each for each in tolerant if each.verdict is GuidelineVerdict.VIOLATED]


def test_a_small_message_that_takes_longer_than_a_larger_one_violates_monotony():
    records = make_records(3, contenders=MPI, operations=("gather",))
    slow = make_records(4, {("gather", "mpi"): 30.0}, contenders=MPI, operations=("gather",))
    checked = check_guidelines(make_side("A", [slow[0], *records[1:]]))
    assert [(each.guideline, each.verdict.value) for each in checked] == [
        ("gather <= gather of the next larger size", "violated"),
        ("gather <= gather of the next larger size", "holds"),
    ]


def test_only_auto_and_other_libraries_are_checked_across_operations():
    checked = check_slower(operations=("gather", "all_gather"))
    replaced = {each.algorithm for each in checked if each.guideline == "gather <= all_gather"}
    assert replaced == {None, "auto"}


def test_an_operation_that_runs_only_in_place_stands_for_both_places():
    out = make_records(3, contenders=MPI, operations=("scatter",), sizes=(1024,), in_place=False)
    within = make_records(3, contenders=MPI, operations=("broadcast",), sizes=(1024,))
    [found] = check_guidelines(make_side("A", [*out, *within]))
    assert found.guideline == "scatter <= broadcast"


def test_an_operation_in_place_does_not_replace_one_out_of_place():
    out = make_records(3, contenders=MPI, operations=("gather",), sizes=(1024,), in_place=False)
    within = make_records(3, contenders=MPI, operations=("all_gather",), sizes=(1024,))
    assert not check_guidelines(make_side("A", [*out, *within]))


def test_several_runs_narrow_the_interval():
    options: dict[str, Any] = {"contenders": MPI, "operations": ("gather", "all_gather"), "sizes": (1024,)}
    runs = [make_records(seed, **options) for seed in range(16)]
    [one], [many] = (check_guidelines(make_side("A", *some)) for some in (runs[:1], runs))
    assert many.ratio_high / many.ratio_low < one.ratio_high / one.ratio_low


@pytest.mark.parametrize(("count", "verdict"), [(3, "no evidence"), (20, "violated")])
def test_three_samples_are_too_few_for_a_violation(count, verdict):
    checked = check_slower(
        {"gather": 10.0}, contenders=MPI, operations=("gather", "all_gather"), sizes=(1024,), count=count
    )
    assert [each.verdict.value for each in checked] == [verdict]


def check_samples(**samples_us: list[float]) -> list[GuidelineRecord]:
    """Return the guidelines of operations of one size with the given samples."""
    rows = [(replace(CASE, op=op, redop="sum" if op == "all_reduce" else None), us) for op, us in samples_us.items()]
    records = [make_collective_record(row, us, StopReason.ITERATIONS, 0) for row, us in rows]
    return check_guidelines(make_side("A", records))


@pytest.mark.parametrize(("p_value", "verdict"), [(0.009, "violated"), (0.011, "no evidence")])
def test_the_test_of_medians_asks_only_whether_the_left_side_is_slower(p_value, verdict):
    """Without spread within the run, the error follows from the noise of a run alone."""
    error = GUIDELINE_NOISE * (1 + 2 * 0.5**2) ** 0.5  # of the left median, and of the sum of two equal ones
    slower_us = 20e3 * exp(error * t.isf(p_value / 3, RUN_DEGREES))
    found, *others = check_samples(all_reduce=[slower_us] * 20, reduce_scatter=[10e3] * 20, all_gather=[10e3] * 20)
    assert [each.p_value for each in others] == [1, 1]  # so Holm multiplies the p-value of the first by 3
    assert found.p_value == pytest.approx(p_value, rel=1e-4)
    assert found.verdict.value == verdict
    assert (found.ratio_low > 1) == (verdict == "violated")


def test_the_test_of_samples_asks_only_whether_the_left_side_is_slower():
    [found] = check_samples(gather=[95.0, 96.0, 97.0, 98.0], all_gather=[5.0, 6.0, 7.0, 8.0])
    assert found.p_value == pytest.approx(1 / 70)  # of the 70 orders of 4 and 4 samples, one is so extreme


def test_a_slower_median_violates_nothing_if_most_samples_are_faster():
    [found] = check_samples(gather=[1.0, 1.1, 50.0, 51.0, 52.0], all_gather=[4.0, 4.1, 4.2, 90.0, 91.0])
    assert found.ratio > 10
    assert found.p_value == 1
