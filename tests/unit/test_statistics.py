"""Summaries, intervals and ratios: known results, and the share of intervals that contain the true value."""

from __future__ import annotations

from math import comb, floor, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.errors import UsageError
from hpccoll.statistics import median_interval, median_ranks, ratio_of_medians, summarize


def covered_exactly(n: int, rank: int) -> float:
    """P(rank-th smallest <= median <= rank-th largest), counted."""
    return float(sum(comb(n, k) for k in range(rank, n - rank + 1)) / 2**n)


def test_a_summary_of_known_samples():
    samples = np.arange(100, 0, -1.0)  # 100, 99, ..., 1
    found = summarize(samples)
    assert (found.min, found.p50, found.p95, found.p99, found.max) == (1, 50.5, 95, 99, 100)
    assert (found.p50_low, found.p50_high) == (40, 61)  # tables of the sign test: ranks 40 and 61 of 100


def test_p99_is_stated_from_a_hundred_samples_on():
    assert summarize(range(99)).p99 is None
    assert summarize(range(100)).p99 == 98


def test_nothing_is_removed_from_the_samples():
    samples = [1.0] * 50 + [1e6]
    assert summarize(samples).max == 1e6
    assert summarize([1.0] * 10 + [1e6]).p95 == 1e6  # 95 % of 11 samples are 10.45: the eleventh


@pytest.mark.parametrize(("n", "rank"), [(6, 1), (8, 1), (9, 2), (20, 6), (25, 8), (50, 18), (100, 40)])
def test_ranks_are_those_of_published_tables(n, rank):
    assert median_ranks(n)[0] == rank


@given(st.integers(1, 300), st.sampled_from([0.9, 0.95, 0.975, 0.99]))
def test_the_interval_covers_what_it_says_and_no_tighter_one_would(n, confidence):
    rank, coverage = median_ranks(n, confidence)
    assert coverage == pytest.approx(covered_exactly(n, rank), abs=1e-12)
    assert coverage >= confidence or rank == 1
    if 2 * (rank + 1) <= n + 1:
        assert covered_exactly(n, rank + 1) < confidence


@given(st.integers(6, 500))
def test_the_interval_lies_within_the_normal_approximation_of_hoefler_and_belli(n):
    low = floor((n - 1.959964 * sqrt(n)) / 2)
    assert median_ranks(n)[0] >= low


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_few_samples_have_no_interval_of_95_percent_and_say_so(n):
    found = median_interval(range(n))
    assert (found.low, found.high) == (0, n - 1)
    assert found.coverage == pytest.approx(1 - 2.0 ** (1 - n))
    assert found.coverage < 0.95
    assert median_interval(range(6)).coverage >= 0.95


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [1.0, float("inf")], [-1.0, 2.0]])
def test_impossible_samples_are_refused(samples):
    with pytest.raises(UsageError):
        summarize(samples)


@pytest.mark.parametrize("n", [7, 20, 53])
def test_intervals_of_skewed_timings_cover_the_median(n):
    draws = np.random.default_rng(20251).lognormal(0, 1, (4000, n))  # true median 1
    intervals = [median_interval(row) for row in draws]
    share = np.mean([found.low <= 1 <= found.high for found in intervals])
    stated = intervals[0].coverage
    assert abs(share - stated) < 4 * sqrt(stated * (1 - stated) / 4000)


def test_a_ratio_of_known_medians():
    slow, fast = [20.0] * 20, [10.0] * 20
    found = ratio_of_medians(slow, fast)
    assert (found.value, found.low, found.high) == (2, 2, 2)
    assert found.coverage >= 0.95


def test_the_ends_of_a_ratio_are_those_that_differ_most():
    above, below = np.arange(10, 30.0), np.arange(100, 120.0)
    each = 0.975
    a, b = median_interval(above, each), median_interval(below, each)
    found = ratio_of_medians(above, below)
    assert (found.low, found.high) == (a.low / b.high, a.high / b.low)
    assert found.low < found.value < found.high


def test_intervals_of_ratios_cover_the_ratio_at_least_as_often_as_stated():
    rng = np.random.default_rng(7)
    above, below = rng.exponential(3 / log(2), (2000, 30)), rng.lognormal(0, 0.5, (2000, 30))  # medians 3 and 1
    found = [ratio_of_medians(a, b) for a, b in zip(above, below, strict=True)]
    assert np.mean([one.low <= 3 <= one.high for one in found]) >= 0.95


def test_a_ratio_of_few_samples_says_what_it_is_worth():
    assert ratio_of_medians([1.0, 2.0], [1.0, 2.0]).coverage == 0
    assert ratio_of_medians([1.0] * 6, [1.0] * 6).coverage < 0.95
    assert ratio_of_medians([1.0] * 7, [1.0] * 7).coverage >= 0.95


def test_a_ratio_to_nothing_is_refused():
    with pytest.raises(UsageError, match="no bounds"):
        ratio_of_medians([1.0] * 9, [0.0] * 9)
