"""Statistical tests of a comparison: a t test against the noise between runs, Mann-Whitney U, and Holm's correction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.plan import Floats

MAX_HALF_WIDTH = 14.0  # of an interval, in logarithms: a factor of a million; few runs imply larger ones


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The probability that a sample of B is above a sample of A (ties count half), and Mann-Whitney's p-value."""

    probability: float
    p_value: float

    @property
    def cliffs_delta(self) -> float:
        """Cliff's delta: 1 if all samples of B are above all samples of A, -1 if below, 0 if neither is likelier."""
        return 2 * self.probability - 1


@dataclass(frozen=True, slots=True)
class CorrectedTests:
    """The corrected p-value of each test, and the significance of its interval.

    The interval of confidence 1 - `interval_significance` excludes a ratio of 1 where the corrected p-value is
    significant.
    """

    p_values: Floats
    interval_significance: Floats


def compare_samples(a: Floats, b: Floats) -> SampleOrder:
    """Return how the samples of B lie relative to the samples of A, by the two-sided Mann-Whitney U test."""
    from scipy.stats import mannwhitneyu  # takes a second to import

    result = mannwhitneyu(b, a, method="asymptotic" if min(len(a), len(b)) > 8 else "auto")
    return SampleOrder(float(result.statistic) / (len(a) * len(b)), float(result.pvalue))


def compute_p_values(log_ratios: Floats, errors: Floats, degrees: Floats) -> Floats:
    """Return two-sided p-values of logarithms of ratios, given their standard errors and degrees of freedom."""
    from scipy.special import stdtr

    return np.asarray(2 * stdtr(degrees, -np.abs(log_ratios) / errors), np.float64)


def compute_interval(log_ratio: float, error: float, degrees: float, confidence: float) -> tuple[float, float]:
    """Return the lower and the upper end of the interval of a ratio that has the given confidence."""
    from scipy.special import stdtrit

    half = min(float(stdtrit(degrees, (1 + confidence) / 2)) * error, MAX_HALF_WIDTH)
    return float(np.exp(log_ratio - half)), float(np.exp(log_ratio + half))


def correct_by_holm(p_values: Floats, significance: float) -> CorrectedTests:
    """Return p-values corrected for their number; tests with a corrected value up to `significance` are significant."""
    count = len(p_values)
    order = np.argsort(p_values, kind="stable")
    stepped = np.minimum(1.0, np.maximum.accumulate(p_values[order] * (count - np.arange(count))))
    steps = np.minimum(np.arange(count), int(np.sum(stepped <= significance)))
    corrected, levels = np.empty(count), np.empty(count)
    corrected[order], levels[order] = stepped, significance / (count - steps)
    return CorrectedTests(corrected, levels)
