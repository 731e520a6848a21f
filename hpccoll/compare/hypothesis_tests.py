"""Statistical tests of a comparison: a t test against the noise between runs, Mann-Whitney U, and Holm's correction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.plan import Floats

MAX_HALF_WIDTH = 14.0  # limit of the half width of an interval, in logarithms: a factor of a million


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """Whether the samples of B tend to be above or below those of A, by the Mann-Whitney U test."""

    probability: float  # that a sample of B is above a sample of A; ties count half
    p_value: float  # two-sided

    @property
    def cliffs_delta(self) -> float:
        """Cliff's delta: 1 if all samples of B are above all samples of A, -1 if below, 0 if they overlap evenly."""
        return 2 * self.probability - 1


@dataclass(frozen=True, slots=True)
class CorrectedTests:
    """The p-values of several tests, corrected for their number, and the confidence that each interval should have."""

    p_values: Floats  # corrected, one per test
    interval_significance: Floats  # 1 - confidence of each test's interval, which fits the corrected p-value


def compare_samples(a: Floats, b: Floats) -> SampleOrder:
    """Return whether the samples `b` tend to be above or below the samples `a`, by the Mann-Whitney U test."""
    from scipy.stats import mannwhitneyu  # takes a second to import

    result = mannwhitneyu(b, a, method="asymptotic" if min(len(a), len(b)) > 8 else "auto")
    return SampleOrder(float(result.statistic) / (len(a) * len(b)), float(result.pvalue))


def compute_p_values(log_ratios: Floats, errors: Floats, degrees: Floats) -> Floats:
    """Return two-sided p-values of t tests of whether ratios differ from 1, one per ratio.

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
    """Return p-values corrected for their number by Holm's method.

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
