"""Estimates how much the median of a row varies from run to run, which samples within a run cannot show.

A row is the measurements of one case: an operation, message size, engine and algorithm.

Samples within a run are correlated, and whole runs differ, because each has its memory at other addresses, and other
programs beside it. The variance of a median from run to run is estimated from several sources, in logarithms of times:

- the spread over rows: how much the difference between A and B varies from row to row, as a robust standard deviation.
  With one run per side, a row has no variance over runs, and the spread over rows takes its place. The spread over rows
  is due to noise alone if all rows of an operation change alike.
- if a side has several runs, the variance of a row over the runs, or over the differences of paired runs. Each row's
  own variance is combined with the spread over rows, which counts as much as `PRIOR_DEGREES` further runs.
- the variance of the median within a run, from medians of batches of consecutive samples.
- if each side has one run, how much the differences of all other operations vary: the rows of one operation are
  measured at about the same time, and a burst of other programs' work affects all of these rows.
- a lower limit, because a small spread over few rows may be due to chance.
- for rows of a single run, a constant: a row of shared memory took 1.9 times as long in a few of 100 processes, because
  its buffers lay elsewhere in memory.

Other programs that take a core from a rank interrupt some of its samples, which then take many times the median. The
rows of an operation are disturbed in a run if clearly more than DISTURBED_SHARE of their samples (by 3 standard
deviations of a Poisson distribution) exceed FAR times the median. On idle cores about 0.2 % of the samples exceed FAR
times the median, and up to 2.6 % where other programs wait for the cores of ranks that have real-time priority. Where
other programs took the cores, medians were wrong by a factor of up to 1.8.

On a virtual machine, the speed of the cores changed by up to 1.5 times for minutes, and by a different factor for each
row. After such a change of speed, the ratios of engine `mpi` between two runs differ from row to row by more than
MAX_CONTROL_SPREAD. If the speed changed while a run measured one operation, the operation's rows of engine `mpi`
changed by more than MAX_CONTROL_CHANGE, as did its other rows. A comparison of several rounds leaves out the rounds or
operations in which the speed changed unevenly, if other rounds remain.

If the rows of an operation change by different factors (by Cochran's Q test), and always with one run per side, the
interval of the operation contains the changes of its rows except the outer tenths, so that an operation has a verdict
only if most of its rows agree.

Sources: Yuen, Biometrika 61 (1974), 165 (trimmed means); Smyth, Statistical Applications in Genetics and Molecular
Biology 3 (2004), article 3 (combined variances); Cochran, Biometrics 10 (1954), 101 (Q); Hunold and Carpen-Amarie,
IEEE TPDS 27 (2016), 3617 (medians of MPI benchmarks differ between runs).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.compare.drift import Control
from hpccoll.plan import Floats
from hpccoll.records import CollectiveRecord
from hpccoll.statistics import SampleValues, compute_robust_deviation

PRIOR_DEGREES = 4  # the spread over rows counts as much as this many further runs of a row
OPERATION_DEGREES = 6  # the spread over rows counts as much as this many further runs of an operation
MAX_SPREAD_DEGREES = 60  # most degrees of freedom that the spread over rows has
FEW_ROWS = 8
SPREAD_SIGNIFICANCE = 0.05  # significance of the test whether rows of an operation change by different factors
OUTER_ROWS = 0.1  # share of an operation's rows at each end that its interval need not contain
MIN_OPERATIONS = 3  # fewest operations from which a spread over operations is computed
CHANCE = 4.0  # a spread over few operations may by chance be this many times the expected variance
BATCHES = 10  # batches of consecutive samples of a run
MEDIAN_VARIANCE = np.pi / 2  # variance of a median over that of a mean, for normal samples
FAR, DISTURBED_SHARE = 5.0, 0.04
TRIMMED = 0.125  # fraction of the runs of a side left out at each end
FEW_RUNS = 5  # the spread of fewer runs per side may be small by chance
SINGLE_RUN_NOISE = 0.05  # standard deviation of the ratio of an operation in two runs, in logarithms
DISTURBED_NOISE = 0.3  # standard deviation of a disturbed median in logarithms
PLACEMENT_NOISE = 0.15  # standard deviation of the median of a row of a single run, whose buffers do not move
MAX_CONTROL_CHANGE = 0.04  # ratio of an operation's rows of engine mpi in two runs at one speed
MIN_CONTROLS = 3  # rows of engine mpi by which the change of one operation is judged
# Lower limits of the standard deviation of log(time in one run / time in another run).
MIN_NOISE, MIN_NOISE_FEW_ROWS, MIN_NOISE_WITH_DRIFT = 0.02, 0.05, 0.15


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance of a case's median time (as a logarithm) from run to run, with the variance's degrees of freedom."""

    variance: float  # estimated from how much the differences between A and B vary over cases
    degrees: float  # degrees of freedom of `variance`


def estimate_spread(
    differences: Floats, runs: Floats, groups: NDArray[np.int64], control: Control, paired: bool
) -> Spread:
    """Return a `Spread`: how a case's median varies from run to run, by the differences of B / A between cases.

    The variance is that of the logarithm of the median.

    Args:
        differences: logarithm of the ratio B / A of each case.
        runs: 1/m + 1/n of each case, which has m runs of A and n runs of B.
        groups: the operation of each case, as a number.
        control: the cases by which the machine's drift was removed.
        paired: whether the runs of both sides alternated, so that drift differs little between them.
    """
    count, operations = len(differences), len(set(groups.tolist()))
    by_operation = count - operations >= PRIOR_DEGREES
    groups = groups if by_operation else np.zeros_like(groups)  # one group of all cases includes operations' spread
    residuals = differences.copy()
    for group in set(groups.tolist()):
        residuals[groups == group] -= np.median(differences[groups == group])
    degrees = count - len(set(groups.tolist()))
    measured = 0.0
    scaled = residuals / np.sqrt(runs)
    if degrees >= FEW_ROWS:
        correction = count / degrees  # residuals from the median of few cases underestimate the noise
        measured = compute_robust_deviation(np.concatenate([scaled, -scaled])) ** 2 * correction
    elif degrees:
        measured = float(np.sum(scaled**2)) / degrees
    lowest = MIN_NOISE if count >= FEW_ROWS else MIN_NOISE_FEW_ROWS
    if control is Control.NONE and not paired:
        lowest = MIN_NOISE_WITH_DRIFT
    return Spread(measured + lowest**2 / 2, float(np.clip(degrees, 1, MAX_SPREAD_DEGREES)))


def combine_variances(
    prior: Floats, prior_degrees: float, own: Floats, degrees: Floats, weight: float
) -> tuple[Floats, Floats]:
    """Return each case's variance from run to run, by the spread over all cases and by the case's own runs.

    If a case's own runs differ more than the spread over cases implies, only its own runs count: cases of one run can
    change together, which the spread over cases does not show.

    Args:
        prior: each case's variance from run to run, estimated from the spread over cases.
        prior_degrees: degrees of freedom of `prior` for cases without several runs.
        own: each case's variance from run to run, estimated from its own runs; ignored where `degrees` is 0.
        degrees: degrees of freedom of `own`.
        weight: the number of measured runs to which `prior` is equivalent.

    Returns:
        The variances, and their degrees of freedom.
    """
    repeated = degrees > 0
    combined = (weight * prior + degrees * np.where(repeated, own, 0.0)) / (weight + degrees)
    alone = repeated & (own > prior)
    variance = np.where(repeated, np.where(alone, own, combined), prior)
    return variance, np.where(alone, degrees, np.where(repeated, weight + degrees, prior_degrees))


def average_runs(table: Floats) -> tuple[Floats, Floats, Floats]:
    """Return each column's trimmed mean over runs, its variance from run to run, and the variance's degrees of freedom.

    The mean leaves out the fraction TRIMMED of the values at each end, so that a few runs that other programs slowed do
    not count. The variance is Yuen's estimate, from the values that remain. NaN values are left out. The degrees of
    freedom are 0 for one run. `table` has shape (runs, columns).
    """
    averages, variances, degrees = np.full(table.shape[1], np.nan), np.zeros(table.shape[1]), np.zeros(table.shape[1])
    for column, values in enumerate(table.T):
        ordered = np.sort(values[~np.isnan(values)])
        count = len(ordered)
        cut = int(TRIMMED * count)
        left = count - 2 * cut
        if count:
            averages[column] = ordered[cut : count - cut].mean()
        if left > 1:
            winsorized = np.clip(ordered, ordered[cut], ordered[count - cut - 1])
            squares = float(((winsorized - winsorized.mean()) ** 2).sum())
            variances[column], degrees[column] = count * squares / (left * (left - 1)), left - 1
    return averages, variances, degrees


def find_disturbed_operations(records: Iterable[CollectiveRecord]) -> set[str]:
    """Return a run's operations that other programs disturbed: too many of their samples are far above the median.

    `records` are all measurements of the run. The first sample of each measurement is ignored.
    """
    far: Counter[str] = Counter()
    samples: Counter[str] = Counter()
    for record in records:
        later = np.asarray(record.samples_us[1:], np.float64)
        far[record.op] += int(np.sum(later > FAR * record.time_us.p50))
        samples[record.op] += len(later)
    expected = {op: DISTURBED_SHARE * count for op, count in samples.items()}
    return {op for op, count in far.items() if count > expected[op] + 3 * expected[op] ** 0.5}


def estimate_operation_variances(differences: Floats, expected: Floats) -> Floats:
    """Return, for each operation, an additional variance of its difference, estimated from all other operations.

    The result is the variance of the other operations' differences minus CHANCE * mean of `expected`, but at least 0.

    An operation's own difference is left out, so that its change does not add to the noise against which it is tested.
    The estimate is robust: a change of a single other operation has little effect. The result is 0 for fewer than
    MIN_OPERATIONS operations.

    Args:
        differences: logarithm of the ratio B / A of each operation.
        expected: the variance of each difference that the noise between runs explains.
    """
    if len(differences) < MIN_OPERATIONS:
        return np.zeros(len(differences))
    spreads = [compute_robust_deviation(np.delete(differences, at)) for at in range(len(differences))]
    return np.maximum(0.0, np.square(spreads) - CHANCE * float(np.mean(expected)))


def add_variances(
    first: Floats, degrees: Floats, second: Floats | float, second_degrees: Floats | float
) -> tuple[Floats, Floats]:
    """Return the sums of two independent variances, with degrees of freedom by Satterthwaite's approximation.

    `degrees` are the degrees of freedom of `first`, and `second_degrees` those of `second`.
    """
    total = first + second
    return total, total**2 / (first**2 / degrees + second**2 / second_degrees)


def find_spread(differences: Floats, expected: Floats, single: bool) -> tuple[float, float] | None:
    """Return the lowest and highest difference of an operation's cases without the outer tenths; None if it is noise.

    Args:
        differences: logarithm of the ratio B / A of each case.
        expected: the variance of each difference by noise; Cochran's Q tests whether the cases differ by more.
        single: whether each side has a single run. With one run per side, only the range shows the noise, so the range
            is always returned.
    """
    from scipy.special import chdtri

    degrees = len(differences) - 1
    explained = float(chdtri(degrees, SPREAD_SIGNIFICANCE)) / degrees * float(np.mean(expected))
    if not single and np.var(differences, ddof=1) <= explained:
        return None
    low, high = np.quantile(differences, (OUTER_ROWS, 1 - OUTER_ROWS))
    return float(low), float(high)


def compute_excess(within: Floats) -> Floats:
    """Return how much each case's variance within runs exceeds the median of all cases; 0 if it does not."""
    return np.maximum(within - np.median(within), 0.0)


def compute_batch_variance(samples_us: SampleValues) -> float:
    """Return the variance of log(median of the samples), estimated from medians of batches of consecutive samples.

    With fewer than 4 samples, returns the variance of the logarithms of the samples.
    """
    logs = np.log(np.maximum(np.asarray(samples_us, np.float64), 1e-3))
    if len(logs) < 2 * 2:
        return float(np.var(logs))
    batches = np.array_split(logs, min(BATCHES, len(logs) // 2))
    medians = np.array([np.median(batch) for batch in batches])
    return float(np.var(medians, ddof=1) / len(medians))
