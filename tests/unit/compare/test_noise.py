"""The noise between runs: how samples, runs and tests are counted."""

from __future__ import annotations

import numpy as np
import pytest

from hpccoll.compare.comparison import SIGNIFICANCE, compare_sides
from hpccoll.compare.drift import Control, measure_drift
from hpccoll.compare.noise import (
    DISTURBED_NOISE,
    FAR,
    compute_batch_variance,
    compute_excess,
    estimate_spread,
    find_disturbed_operations,
)
from hpccoll.compare.run_table import _find_uneven_speed, _leave_out_disturbed
from hpccoll.measure.results.collective_record import make_collective_record
from hpccoll.records import CollectiveRecord, StopReason, Verdict
from tests.unit.compare.synthetic_runs import CASE, CONTENDERS, OPERATIONS, make_records, make_side


def make_row(samples_us: list[float]) -> CollectiveRecord:
    return make_collective_record(CASE, samples_us, StopReason.ITERATIONS, 0)


def test_first_samples_do_not_disturb_an_operation():
    first, later = [2 * FAR, 1.0, 1.0, 1.0, 1.0], [1.0, 2 * FAR, 1.0, 1.0, 1.0]
    assert not find_disturbed_operations([make_row(first)] * 10)
    assert find_disturbed_operations([make_row(later)] * 10) == {"all_reduce"}


def test_a_share_of_long_samples_that_chance_explains_is_no_disturbance():
    """Of 100 samples, 4 are expected and up to 10 explained by chance."""
    for count, is_disturbed in ((5, False), (10, False), (11, True)):
        row = make_row([1.0] * (101 - count) + [2 * FAR] * count)
        assert bool(find_disturbed_operations([row])) == is_disturbed


def test_the_variance_of_a_median_follows_from_the_medians_of_ten_batches():
    samples_us = np.exp(np.arange(20.0))  # the logarithms of the medians are 0.5, 2.5, ... 18.5
    assert compute_batch_variance(samples_us.tolist()) == pytest.approx(np.var(np.arange(0, 20, 2), ddof=1) / 10)


def test_only_the_variance_beyond_that_of_most_rows_is_in_excess():
    assert compute_excess(np.array([1.0, 2.0, 5.0])).tolist() == [0, 0, 3]


@pytest.mark.parametrize(
    ("rows", "control", "noise"),
    [(8, Control.MPI, 0.02), (7, Control.MPI, 0.05), (8, Control.NONE, 0.15)],
)
def test_rows_that_agree_exactly_still_have_the_least_noise_of_their_number_and_control(rows, control, noise):
    spread = estimate_spread(np.zeros(rows), np.full(rows, 2.0), np.zeros(rows, np.int64), control, paired=False)
    assert spread.variance == noise**2 / 2  # of one run; `noise` is the standard deviation of a difference of two
    assert spread.degrees == rows - 1


@pytest.mark.parametrize("is_enough", [False, True])
def test_five_rows_of_engine_mpi_show_the_speed_of_the_machine_and_four_do_not(is_enough):
    sizes = (8, 16, 32, 64, 128)[: 4 + is_enough]
    keys = [
        row.key for row in make_records(0, operations=("scatter",), sizes=sizes, contenders=CONTENDERS[:2], count=1)
    ]
    logs = np.array([[0.0], [0.1]]) * np.ones(len(keys))
    drift = measure_drift(Control.MPI, keys, logs, 1, paired=False)
    assert drift.doubt == ("" if is_enough else "only 4 rows of engine mpi, 5 are needed")
    uneven, signs = _find_uneven_speed(keys, logs[1], drift.is_control, replaceable=False)
    assert signs == (["in scatter by +10%"] if is_enough else [])
    assert uneven.tolist() == [is_enough] * len(keys)


@pytest.mark.parametrize("is_other_disturbed", [False, True])
def test_a_single_run_of_each_side_is_uncertain_if_another_operation_of_it_is_disturbed(is_other_disturbed):
    disturbed = np.array([[False, is_other_disturbed], [False, False]])
    kept, variance = _leave_out_disturbed(np.ones((2, 2)), disturbed, split=1, paired=False)
    assert not np.isnan(kept).any()
    assert variance.tolist() == [DISTURBED_NOISE**2 * is_other_disturbed] * 2


def test_drift_is_removed_from_samples():
    everything = {(op, engine): 1.2 for op in OPERATIONS for engine in ("mpi", "hpccoll")}
    found = compare_sides(make_side("a", make_records(0)), make_side("b", make_records(0, everything)))
    assert found.drift == pytest.approx(1.2, rel=1e-3)
    assert [each.slower_probability for each in found.rows] == pytest.approx([0.5] * len(found.rows), abs=0.01)


def test_a_verdict_is_given_if_and_only_if_the_corrected_p_value_is_significant():
    slower = {("scatter", "hpccoll"): 1.16}
    found = compare_sides(
        make_side("a", *(make_records(seed) for seed in range(3))),
        make_side("b", *(make_records(seed, slower) for seed in range(10, 13))),
    )
    times = found.records
    assert any(SIGNIFICANCE < each.p_value < 4 * SIGNIFICANCE for each in times)
    for each in times:
        assert (each.verdict is not Verdict.NO_EVIDENCE) == (each.p_value <= SIGNIFICANCE)
