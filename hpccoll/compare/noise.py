"""Estimates how much the median of a row varies from run to run, which samples within a run cannot show.

Samples within a run are correlated, and whole runs differ: memory lies elsewhere, other programs run. So the variance
of a median over runs is estimated from several sources, in logarithms of times, and per run:

- the spread of the differences between A and B over rows, as a robust standard deviation. It is the only source where
  each side has one run. It assumes that rows of one operation change alike.
- the variance of a row over the runs of each side, or of paired differences, where there are several runs. Each row's
  own variance is combined with the spread over rows, which counts as much as `PRIOR_DEGREES` further runs.
- the variance of the median within a run, from medians of batches of consecutive samples.
- a lower limit, because a small spread over few rows may be chance.

Sources: Smyth, Statistical Applications in Genetics and Molecular Biology 3 (2004), article 3 (combined variances);
Hunold and Carpen-Amarie, IEEE TPDS 27 (2016), 3617 (medians of MPI benchmarks differ between runs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.compare.drift import Control
from hpccoll.measure.statistics import Samples

Floats = NDArray[np.float64]
PRIOR_DEGREES = 4  # the spread over rows counts as much as this many further runs
MAX_SPREAD_DEGREES = 60  # degrees of freedom of the spread over rows, at most
FEW_ROWS = 8
BATCHES = 10  # batches of consecutive samples of a run
MAD_TO_SD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
MEDIAN_VARIANCE = np.pi / 2  # variance of a median over that of a mean, for normal samples
# Lower limits of the standard deviation of the difference of two runs, in logarithms.
MIN_NOISE, MIN_NOISE_FEW_ROWS, MIN_NOISE_WITH_DRIFT = 0.02, 0.05, 0.15


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance of a row per run as estimated from all rows, and its degrees of freedom."""

    variance: float
    degrees: float


def estimate_spread(
    differences: Floats, runs: Floats, groups: NDArray[np.int64], control: Control, paired: bool
) -> Spread:
    """Return the spread of the differences between A and B over rows, as the variance of one run.

    Args:
        differences: logarithm of the ratio B / A of each row.
        runs: 1/a + 1/b of each row, for a runs of A and b runs of B.
        groups: the operation of each row, as a number.
        control: the control by which drift was removed.
        paired: whether the runs of both sides alternated, so that drift differs little between them.
    """
    count, operations = len(differences), len(set(groups.tolist()))
    by_operation = count - operations >= PRIOR_DEGREES
    groups = groups if by_operation else np.zeros_like(groups)
    residuals = differences.copy()
    for group in set(groups.tolist()):
        residuals[groups == group] -= np.median(differences[groups == group])
    degrees = count - len(set(groups.tolist()))
    measured = 0.0
    if degrees >= PRIOR_DEGREES:
        correction = count / degrees  # residuals from medians of few rows are too small
        measured = (MAD_TO_SD * float(np.median(np.abs(residuals) / np.sqrt(runs)))) ** 2 * correction
    lowest = MIN_NOISE if count >= FEW_ROWS else MIN_NOISE_FEW_ROWS
    if control is Control.NONE and not paired:
        lowest = MIN_NOISE_WITH_DRIFT
    return Spread(measured + lowest**2 / 2, float(np.clip(degrees, PRIOR_DEGREES, MAX_SPREAD_DEGREES)))


def combine_variances(prior: Floats, prior_degrees: float, own: Floats, degrees: Floats) -> tuple[Floats, Floats]:
    """Return variances per run and degrees of freedom, combined from the spread over rows and each row's own runs.

    Args:
        prior: variance per run from the spread over rows, per row.
        prior_degrees: degrees of freedom of `prior` for rows without several runs.
        own: variance per run from the row's own runs; ignored where `degrees` is 0.
        degrees: degrees of freedom of `own`.
    """
    repeated = degrees > 0
    combined = (PRIOR_DEGREES * prior + degrees * np.where(repeated, own, 0.0)) / (PRIOR_DEGREES + degrees)
    return np.where(repeated, combined, prior), np.where(repeated, PRIOR_DEGREES + degrees, prior_degrees)


def compute_own_variance(a: Floats, b: Floats, paired: bool) -> tuple[Floats, Floats]:
    """Return the variance per run of each column within the sides `a` and `b`, and its degrees of freedom.

    Lines of `a` and `b` are runs. If `paired`, lines of the same index were measured one after the other.
    """
    if paired:
        differences = b - a
        degrees = np.maximum((~np.isnan(differences)).sum(axis=0) - 1, 0)
        squares = _sum_squares(differences) / 2
    else:
        degrees = np.maximum((~np.isnan(a)).sum(axis=0) - 1, 0) + np.maximum((~np.isnan(b)).sum(axis=0) - 1, 0)
        squares = _sum_squares(a) + _sum_squares(b)
    return squares / np.maximum(degrees, 1), degrees.astype(np.float64)


def _sum_squares(values: Floats) -> Floats:
    """Return the sum of squared deviations from the mean of each column, without NaN."""
    deviations = values - np.nanmean(values, axis=0)
    return np.asarray(np.nansum(deviations**2, axis=0), np.float64)


def compute_excess(within: Floats) -> Floats:
    """Return how much the variance within runs of each row exceeds that of most rows, which the spread contains."""
    return np.maximum(within - np.median(within), 0.0)


def compute_batch_variance(samples_us: Samples) -> float:
    """Return the variance of the logarithm of the median of a run's samples, from batches of consecutive samples.

    With fewer than 4 samples, return the variance of the logarithms of the samples.
    """
    logs = np.log(np.maximum(np.asarray(samples_us, np.float64), 1e-3))
    if len(logs) < 2 * 2:
        return float(np.var(logs))
    batches = np.array_split(logs, min(BATCHES, len(logs) // 2))
    medians = np.array([np.median(batch) for batch in batches])
    return float(np.var(medians, ddof=1) / len(medians))
