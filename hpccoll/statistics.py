"""Summaries of repeated timings by order statistics, without assuming a distribution.

Timings are skewed and multimodal, so summaries have no mean and no standard deviation. Of n independent samples, the
number below the true median is binomial(n, 1/2); so the r-th smallest and the r-th largest enclose the median with a
known probability, whatever the distribution. This module computes the probability from the exact binomial distribution.
A normal approximation of the binomial would give wider intervals and fail below 6 samples. Outliers are not removed.

With fewer than 6 samples there is no 95 % interval of the median. The interval of n < 6 samples is their range, from
the smallest to the largest, and its `coverage` is 1 - 2**(1-n): 75 % for 3 samples, 93.75 % for 5.

Sources: Hoefler and Belli, SC'15, section 3; David and Nagaraja, Order Statistics, section 7.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import UsageError
from hpccoll.records import FEWEST_FOR_P99, TimeSummary

SampleValues: TypeAlias = Sequence[float] | NDArray[np.floating[Any]]
CONFIDENCE = 0.95
MAD_TO_SD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
MAX_UNCERTAINTY = 0.10  # half the width of a median's interval, divided by the median; larger ones are doubtful


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate `value` with an interval, from `low` to `high`, that contains the true value.

    The probability that the interval contains the true value is at least `coverage`.
    """

    value: float
    low: float
    high: float
    coverage: float


def summarize(samples_us: SampleValues) -> TimeSummary:
    """Return a record of the minimum, median with 95 % interval, p95, p99 and maximum of timings in microseconds.

    The 99th percentile, p99, is None for fewer than FEWEST_FOR_P99 samples. Raises UsageError if there are no samples,
    or one is negative, infinite or not a number.
    """
    ordered = _sort_samples(samples_us)
    median = _find_median(ordered, CONFIDENCE)
    p95, p99 = (float(np.quantile(ordered, q, method="inverted_cdf")) for q in (0.95, 0.99))
    return TimeSummary(
        min=float(ordered[0]),
        p50=median.value,
        p50_low=median.low,
        p50_high=median.high,
        p95=p95,
        p99=p99 if len(ordered) >= FEWEST_FOR_P99 else None,
        max=float(ordered[-1]),
    )


def median_interval(samples: SampleValues, confidence: float = CONFIDENCE) -> Interval:
    """Return the median as an `Interval` that contains the true median with a probability of at least `confidence`.

    With too few samples, the interval is the range of the samples, and its coverage is below `confidence`.
    Raises UsageError if there are no samples, or one is negative, infinite or not a number.
    """
    return _find_median(_sort_samples(samples), confidence)


def ratio_of_medians(numerator: SampleValues, denominator: SampleValues) -> Interval:
    """Return median(numerator) / median(denominator) as an `Interval` that contains the true ratio.

    Each median gets an interval of confidence 1 - (1 - CONFIDENCE) / 2, and the bounds of the ratio are the quotients
    of opposite ends of these intervals. The ratio's interval is wider than a bootstrap interval, but valid for any
    distribution, for few samples, and for two sets of samples that depend on each other, as in interleaved runs.
    Raises UsageError if there are no samples, a sample is invalid, or the denominator's interval reaches zero.
    """
    single = 1 - (1 - CONFIDENCE) / 2
    above, below = median_interval(numerator, single), median_interval(denominator, single)
    if below.low <= 0:
        raise UsageError(f"a ratio to a median of {below.value:.3g} us in [{below.low:.3g}, ..] has no bounds")
    coverage = max(0.0, above.coverage + below.coverage - 1)
    return Interval(above.value / below.value, above.low / below.high, above.high / below.low, coverage)


@lru_cache(maxsize=4096)
def median_ranks(n: int, confidence: float = CONFIDENCE) -> tuple[int, float]:
    """Return the rank r of the samples that bound the true median, and the probability that they do.

    The r-th smallest and the r-th largest of `n` samples are the bounds. `r` is the largest number with a probability
    of at least `confidence`, or 1 if no number has such a probability.
    """
    from scipy.special import bdtr, bdtrik  # scipy.stats takes a second to import

    rank = max(math.ceil(bdtrik((1 - confidence) / 2, n, 0.5)), 1)
    return rank, max(0.0, float(1 - 2 * bdtr(rank - 1, n, 0.5)))


def compute_robust_deviation(values: SampleValues) -> float:
    """Return the standard deviation of values, estimated such that a minority of outliers hardly changes the result.

    The estimate is the median absolute deviation from the median, scaled for normally distributed values; NaNs are
    ignored.
    """
    array = np.asarray(values, np.float64)
    return MAD_TO_SD * float(np.nanmedian(np.abs(array - np.nanmedian(array))))


def is_interval_full(samples: SampleValues) -> bool:
    """Whether there are enough samples for a 95 % interval of their median."""
    return median_ranks(len(samples))[1] >= CONFIDENCE


def _find_median(ordered: NDArray[np.float64], confidence: float) -> Interval:
    """Return the median of sorted samples with an interval that contains the true one with probability `confidence`."""
    rank, coverage = median_ranks(len(ordered), confidence)
    return Interval(float(np.median(ordered)), float(ordered[rank - 1]), float(ordered[-rank]), coverage)


def _sort_samples(samples: SampleValues) -> NDArray[np.float64]:
    """Return a sorted copy of the samples; raise UsageError if there are none, or one is negative, infinite or NaN."""
    array = np.sort(np.asarray(samples, np.float64), axis=None)
    if not len(array):
        raise UsageError("a summary needs at least one sample; ask for at least one with --iterations")
    if not (np.isfinite(array).all() and array[0] >= 0):
        raise UsageError(f"timings from {array[0]} to {array[-1]} us: each must be a finite number and not negative")
    return array
