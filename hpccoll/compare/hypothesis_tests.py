"""The tests of a comparison: a t test against the noise between runs, the Mann-Whitney U test, Holm's correction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.plan import Floats

MAX_HALF_WIDTH = 14.0  # limit of the half width of an interval, in logarithms: a factor of a million


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The probability that a sample of B is above a sample of A, and the p-value of the Mann-Whitney U test."""

    probability: float  # a tie of two samples counts half
    p_value: float  # two-sided

    @property
    def cliffs_delta(self) -> float:
        """Cliff's delta: 1 if all samples of B are above all samples of A, -1 if below, 0 if they overlap evenly."""
        return 2 * self.probability - 1


@dataclass(frozen=True, slots=True)
class CorrectedTests:
    """The p-values of tests, corrected for the number of tests, and the significance level of each test's interval."""

    p_values: Floats  # corrected, one per test
    interval_significance: Floats  # with this, an interval excludes 1 if the corrected p-value is significant


def compare_samples(a: Floats, b: Floats) -> SampleOrder:
    """Return the probability that a sample of `b` is above one of `a`, with the p-value of the Mann-Whitney U test."""
    from scipy.stats import mannwhitneyu  # takes a second to import

    result = mannwhitneyu(b, a, method="asymptotic" if min(len(a), len(b)) > 8 else "auto")
    return SampleOrder(float(result.statistic) / (len(a) * len(b)), float(result.pvalue))


def compute_p_values(log_ratios: Floats, errors: Floats, degrees: Floats) -> Floats:
    """Return, for each ratio, the two-sided p-value of a t test whether the ratio differs from 1.

    Args:
        errors: the standard errors of `log_ratios`.
        degrees: the degrees of freedom of the errors.
    """
    from scipy.special import stdtr

    return np.asarray(2 * stdtr(degrees, -np.abs(log_ratios) / errors), np.float64)


def compute_interval(log_ratio: float, error: float, degrees: float, confidence: float) -> tuple[float, float]:
    """Return the lower and the upper end of a ratio's confidence interval by the t distribution.

    Args:
        error: the standard error of `log_ratio`.
        degrees: the degrees of freedom of the error.
        confidence: the confidence, such as 0.95.
    """
    from scipy.special import stdtrit

    half = min(float(stdtrit(degrees, (1 + confidence) / 2)) * error, MAX_HALF_WIDTH)
    return float(np.exp(log_ratio - half)), float(np.exp(log_ratio + half))


def correct_by_holm(p_values: Floats, significance: float) -> CorrectedTests:
    """Return p-values corrected by Holm's method for the number of tests, and the significance of each test's interval.

    Tests with a corrected p-value of at most `significance` are significant: if nothing differs, the probability that
    any test is significant is at most `significance`.
    """
    count = len(p_values)
    order = np.argsort(p_values, kind="stable")
    stepped = np.minimum(1.0, np.maximum.accumulate(p_values[order] * (count - np.arange(count))))
    steps = np.minimum(np.arange(count), int(np.sum(stepped <= significance)))
    corrected, levels = np.empty(count), np.empty(count)
    corrected[order], levels[order] = stepped, significance / (count - steps)
    return CorrectedTests(corrected, levels)
