"""Compares two sets of benchmark runs, A (the baseline) and B, and finds differences in time that exceed the noise.

A row is the measurements of one case (operation, size, dtype, engine, algorithm) in all runs. A row's ratio is the
median time of B divided by that of A, after the removal of drift, the change of the machine's speed (drift.py). The
confidence interval of a ratio allows for the noise between runs (noise.py). All rows of one operation are also tested
together, by the median of their ratios, because a slower operation shows in many rows at once.

A verdict other than `no evidence` needs a significant p-value. P-values are corrected for the number of tests: if
nothing differs, a comparison has a verdict other than `no evidence` with at most the probability `SIGNIFICANCE`. The
p-value of a row is the larger of two p-values: that of a t test against the noise between runs, and that of the
Mann-Whitney U test over the samples. The p-value of an operation is that of a t test.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from hpccoll.compare import noise
from hpccoll.compare.drift import Control, choose_control, get_workload
from hpccoll.compare.environments import have_same_mpi, list_differences
from hpccoll.compare.evidence import VerdictConditions, describe_contention, describe_unreliable, make_plan
from hpccoll.compare.hypothesis_tests import (
    SampleOrder,
    compare_samples,
    compute_interval,
    compute_p_values,
    correct_by_holm,
)
from hpccoll.compare.measured_runs import ComparedSide
from hpccoll.compare.results import Comparison
from hpccoll.compare.run_table import RunTable, collect_runs
from hpccoll.errors import UsageError
from hpccoll.plan import Floats
from hpccoll.records import CaseKey, ComparedOperationRecord, ComparedRowRecord, ComparedTimesRecord, Verdict

SIGNIFICANCE = 0.02  # probability of any verdict other than `no evidence` where nothing differs
OPERATION_SHARE = 0.8  # fraction of SIGNIFICANCE for the tests of operations; the rest is for the tests of cases


class OperationGroup(NamedTuple):
    """The fields (operation, buffer, dtype, ranks, nodes) in which all cases that are tested together agree."""

    op: str
    buffer: str
    dtype: str
    ranks: int
    nodes: int


@dataclass(frozen=True, slots=True)
class _TestedColumns:
    """The data of the statistical tests: one column per compared case, or one per operation."""

    # Logarithms of median times of side A without drift, shape (runs, columns); NaN if a measurement is missing
    a: Floats
    b: Floats  # logarithms of median times of side B without drift, shape (runs, columns)
    prior: Floats  # the variance of a median from run to run, estimated from all cases together, shape (columns,)
    prior_degrees: float  # the degrees of freedom of `prior`
    weight: float  # the number of measured runs to which `prior` is equivalent, if a side has several runs
    doubts: Sequence[str]  # why each column allows no verdict; an empty string if it allows one
    # An additional variance of each column's difference, estimated from the other operations
    between: Floats | float = 0.0
    between_degrees: float = 1.0  # the degrees of freedom of `between`


@dataclass(frozen=True, slots=True)
class _Errors:
    """Per column, the squared standard error of log(time of B / time of A), and the variance of this log in a round."""

    squares: Floats  # one for each column, a case or an operation
    degrees: Floats  # degrees of freedom of `squares`
    per_round: Floats  # variance of the difference in one round (one run of A and one of B)


@dataclass(frozen=True, slots=True)
class _TestResults:
    """The results of the statistical tests of a comparison."""

    rows: tuple[ComparedRowRecord, ...]  # the compared cases
    operations: tuple[ComparedOperationRecord, ...]  # the compared operations; empty if no operation has two cases
    doubts: tuple[str, ...]  # the reasons why operations (or cases, if there are no operations) allow no verdict
    spread: noise.Spread  # the noise between runs, estimated from all cases together
    variance: float  # the variance of log(time of B / time of A) in one round, for the noisiest operation
    significance: float  # the significance of the test of one operation, or of one case if there are no operations


def compare_sides(
    a: ComparedSide, b: ComparedSide, *, paired: bool = False, control: Control | None = None, tolerance: float = 0.0
) -> Comparison:
    """Return a `Comparison`: which cases (operation, size, engine, algorithm) and operations are faster or slower in B.

    Args:
        a: the baseline.
        b: the runs that may be better or worse than the baseline.
        paired: whether run k of A and run k of B were measured in succession; runs without a partner are ignored.
        control: the cases that show the machine's speed, by which drift is removed; None lets `choose_control` choose.
        tolerance: the fraction up to which a slowdown is no regression.

    Raises:
        UsageError: the sides have no row in common, or `control` is `mpi` and all rows or none are of engine `mpi`.
    """
    wrong = dict.fromkeys([*a.wrong, *b.wrong])
    keys_a, keys_b, differences = set(a.keys), set(b.keys), tuple(list_differences(a, b))
    common = _list_common([key for key in a.keys if key in keys_b], wrong, differences)
    measured = collect_runs(a, b, common, paired, control or choose_control(common, have_same_mpi(a, b)))
    conditions = VerdictConditions(paired, describe_contention(measured.runs), measured.drift.doubt)
    tested = _test(measured, conditions, tolerance)
    sides = measured.runs[: measured.split], measured.runs[measured.split :]
    return Comparison(
        *(tested.rows, tested.operations, tested.doubts, tolerance),
        controls=tuple(key for key, skip in zip(measured.keys, measured.drift.is_control, strict=True) if skip),
        only_a=tuple(key.name for key in a.keys if key not in keys_b),
        only_b=tuple(key.name for key in b.keys if key not in keys_a),
        wrong=tuple(key.name for key in wrong),
        runs=(len(sides[0]), len(sides[1])),
        paired=paired,
        control=measured.drift.control,
        drift=measured.drift.compute_ratio(measured.split),
        drift_doubt=measured.drift.doubt,
        noise=float(np.sqrt(2 * tested.spread.variance)),
        disturbed=measured.disturbances,
        unreliable=describe_unreliable(sides),
        differences=differences,
        plan=make_plan(sides, paired, tested.variance, tested.significance),
    )


def _list_common(keys: Sequence[CaseKey], wrong: Collection[CaseKey], differences: Sequence[str]) -> list[CaseKey]:
    """Return the cases `keys` without those with wrong results (`wrong`); raise UsageError if none is left.

    The error message contains `differences`, the differences between the machines and versions of A and B.
    """
    right = [key for key in keys if key not in wrong]
    if right:
        return right
    reason = f"; A and B differ in {'; '.join(differences)}" if differences else ""
    if wrong:
        reason += f"; rows with wrong results: {len(wrong)}"
    raise UsageError(
        f"A and B have no row in common{reason}; run `hpccoll bench` with the same operations, sizes, engines, "
        "algorithms and number of ranks for both"
    )


def _test(measured: RunTable, conditions: VerdictConditions, tolerance: float) -> _TestResults:
    """Return the test results of all cases except controls, which show the machine's speed, and of their operations."""
    kept = ~measured.drift.is_control
    keys = [key for key, keep in zip(measured.keys, kept, strict=True) if keep]
    groups = [OperationGroup(*(getattr(key, name) for name in OperationGroup._fields)) for key in keys]
    numbers = np.array([list(dict.fromkeys(groups)).index(group) for group in groups])
    a, b = measured.select(kept)
    usable = measured.usable[:, kept]
    differences = _subtract(a, b, measured.paired)
    spread = noise.estimate_spread(
        differences.values, differences.per_run, numbers, measured.drift.control, measured.paired
    )
    prior = spread.variance + noise.compute_excess(np.nanmean(measured.within[:, kept], axis=0))
    prior = prior + measured.drift.error**2 / 2
    placement = np.where(differences.degrees == 0, noise.PLACEMENT_NOISE**2, 0.0)
    tested = [group for group in dict.fromkeys(groups) if groups.count(group) > 1]
    shares = (OPERATION_SHARE, 1 - OPERATION_SHARE) if tested else (0.0, 1.0)
    orders = [compare_samples(*measured.collect_samples(int(column))) for column in np.flatnonzero(kept)]
    doubts = [conditions.find_doubt(usable[:, [at]], measured.split) for at in range(len(keys))]
    variances = prior + measured.disturbed[kept] + placement
    columns = _TestedColumns(a, b, variances, spread.degrees, noise.PRIOR_DEGREES, doubts)
    row_errors = _estimate_errors(columns, measured.paired)
    times = _test_columns(columns, row_errors, shares[1], orders, measured.paired, tolerance)
    rows = tuple(_make_row(measured, *row) for row in zip(np.flatnonzero(kept).tolist(), orders, times, strict=True))
    variance = float(np.median(row_errors.per_round))
    if not tested:
        return _TestResults(rows, (), _list_doubts(doubts), spread, variance, shares[1] * SIGNIFICANCE / len(keys))
    members = [np.array([other == group for other in groups]) for group in tested]
    joined = _pool_rows_by_operation(measured, keys, members, prior, conditions)
    errors = _estimate_errors(joined, measured.paired)
    spreads = _find_spreads(joined, members, differences.values, row_errors, measured.paired)
    times = _test_columns(joined, errors, OPERATION_SHARE, None, measured.paired, tolerance, spreads)
    operations = tuple(
        ComparedOperationRecord(**group._asdict(), rows=groups.count(group), **asdict(group_times))
        for group, group_times in zip(tested, times, strict=True)
    )
    variance, significance = float(np.max(errors.per_round)), shares[0] * SIGNIFICANCE / len(tested)
    return _TestResults(rows, operations, _list_doubts(joined.doubts), spread, variance, significance)


def _list_doubts(doubts: Sequence[str]) -> tuple[str, ...]:
    """Return the different reasons in `doubts`, without repetitions and empty strings."""
    return tuple(dict.fromkeys(doubt for doubt in doubts if doubt))


def _find_spreads(
    joined: _TestedColumns, members: Sequence[NDArray[np.bool_]], differences: Floats, row_errors: _Errors, paired: bool
) -> list[tuple[float, float] | None]:
    """Return, per operation, the range of its cases' differences, which the operation's interval must contain.

    Args:
        joined: the data of the tests, with one column per operation.
        members: for each operation, which cases belong to it.
        differences: logarithm of the ratio B / A of each case.
        row_errors: the uncertainty of `differences`.
        paired: whether run k of A and run k of B were measured in succession.

    Returns:
        The lowest and highest difference, or None for an operation whose cases differ by noise only.
    """
    single = _subtract(joined.a, joined.b, paired).degrees == 0
    return [
        noise.find_spread(differences[rows], row_errors.squares[rows], bool(alone))
        for rows, alone in zip(members, single, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Differences:
    """The mean of log(time of B / time of A) in each column (a case or an operation), and the variance of one run."""

    values: Floats  # mean of B minus mean of A
    per_run: Floats  # 1/a + 1/b for a runs of A and b runs of B
    variance: Floats  # variance of one run
    degrees: Floats  # degrees of freedom of `variance`; 0 for single runs


def _subtract(a: Floats, b: Floats, paired: bool) -> _Differences:
    """Return, per column, the mean of B minus the mean of A or, if `paired`, the mean of the pairs' differences.

    `a` and `b` are logarithms of times, shape (runs, columns).
    """
    counts = [(~np.isnan(side)).sum(axis=0) for side in (a, b)]
    per_run = 1 / counts[0] + 1 / counts[1]
    if paired:
        values, variance, degrees = noise.average_runs(b - a)
        return _Differences(values, per_run, variance / 2, degrees)
    (of_a, variance_a, degrees_a), (of_b, variance_b, degrees_b) = noise.average_runs(a), noise.average_runs(b)
    degrees = degrees_a + degrees_b
    variance = (degrees_a * variance_a + degrees_b * variance_b) / np.maximum(degrees, 1)
    return _Differences(of_b - of_a, per_run, variance, degrees)


def _pool_rows_by_operation(
    measured: RunTable,
    keys: Sequence[CaseKey],
    members: Sequence[NDArray[np.bool_]],
    prior: Floats,
    conditions: VerdictConditions,
) -> _TestedColumns:
    """Return the data of the tests of operations: one column per operation, with the median of its cases in each run.

    Cases that differ only in engine and algorithm (a workload) are measured together, so the tests assume that
    workloads are independent, but not that cases are. `members` says for each operation which of the cases `keys`
    belong to it; `prior` is the variance of one run of each case.
    """
    kept = ~measured.drift.is_control
    a, b = measured.select(kept)
    usable, disturbed = measured.usable[:, kept], measured.disturbed[kept]
    center = (np.nanmedian(a, axis=0) + np.nanmedian(b, axis=0)) / 2
    joined_a, joined_b, variances, doubts = [], [], [], []
    for rows in members:
        workloads = len({get_workload(key) for key, member in zip(keys, rows, strict=True) if member})
        joined_a.append(_median_over(a - center, rows))
        joined_b.append(_median_over(b - center, rows))
        variance = float(np.median(prior[rows])) * noise.MEDIAN_VARIANCE / workloads + disturbed[rows].max()
        variances.append(variance)
        doubts.append(conditions.find_doubt(usable[:, rows], measured.split, workloads))
    table_a, table_b = np.stack(joined_a, axis=1), np.stack(joined_b, axis=1)
    differences = _subtract(table_a, table_b, measured.paired)
    between = noise.estimate_operation_variances(differences.values, np.array(variances) * differences.per_run)
    few = np.minimum(*[np.count_nonzero(~np.isnan(table), axis=0) for table in (table_a, table_b)]) < noise.FEW_RUNS
    return _TestedColumns(
        table_a,
        table_b,
        np.array(variances) + few * noise.SINGLE_RUN_NOISE**2 / 2,
        max(len(keys) - len(members), 1.0),
        noise.OPERATION_DEGREES,
        doubts,
        between,
        max(len(members) - 2, 1),
    )


def _median_over(table: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """Return each run's median over the chosen columns of `table`, shape (runs,); NaN for a run without values there.

    `table` has shape (runs, columns), and `chosen` says which columns (cases) are chosen.
    """
    lines = table[:, chosen]
    return np.array([np.median(line[~np.isnan(line)]) if not np.isnan(line).all() else np.nan for line in lines])


def _estimate_errors(columns: _TestedColumns, paired: bool) -> _Errors:
    """Return the uncertainty of the difference between B and A in each column.

    `paired` says whether run k of A and run k of B were measured in succession.
    """
    differences = _subtract(columns.a, columns.b, paired)
    single = differences.degrees == 0
    prior = columns.prior, columns.prior_degrees
    per_run, degrees = noise.combine_variances(*prior, differences.variance, differences.degrees, columns.weight)
    variance = per_run * differences.per_run
    summed = noise.add_variances(variance, degrees, columns.between, columns.between_degrees)
    squares, degrees = np.where(single, summed[0], variance), np.where(single, summed[1], degrees)
    doubtful = np.array([bool(doubt) for doubt in columns.doubts])
    squares = squares + doubtful * noise.DISTURBED_NOISE**2
    degrees = np.where(doubtful, np.minimum(degrees, noise.PRIOR_DEGREES), degrees)
    return _Errors(squares, degrees, 2 * per_run)


def _test_columns(
    columns: _TestedColumns,
    errors: _Errors,
    share: float,
    orders: Sequence[SampleOrder] | None,
    paired: bool,
    tolerance: float,
    spreads: Sequence[tuple[float, float] | None] = (),
) -> list[ComparedTimesRecord]:
    """Return the ratio B / A of each column with its interval, p-value and verdict.

    All tests together have the significance `share` * SIGNIFICANCE. `orders` has the comparison of each case's samples,
    or is None for operations. The interval of a column is widened to contain the column's range in `spreads`, if it has
    one. A column whose range includes zero (no change) gets no verdict. `paired` and `tolerance` are those of
    `compare_sides`.
    """
    values = _subtract(columns.a, columns.b, paired).values
    standard_errors, doubtful = np.sqrt(errors.squares), np.array([bool(doubt) for doubt in columns.doubts])
    ranges = [spread or (value, value) for spread, value in zip(spreads or [None] * len(values), values, strict=True)]
    undecided = doubtful | np.array([low <= 0 <= high for low, high in ranges])
    p_values = np.where(undecided, 1.0, compute_p_values(values, standard_errors, errors.degrees))
    if orders is not None:
        p_values = np.maximum(p_values, [order.p_value for order in orders])
    tests = correct_by_holm(p_values, share * SIGNIFICANCE)
    slower = (columns.b - columns.a > 0).sum(axis=0).tolist() if paired else [None] * len(values)
    times = []
    for at, difference in enumerate(values.tolist()):
        confidence = float(1 - tests.interval_significance[at])
        low, high = compute_interval(difference, standard_errors[at], errors.degrees[at], confidence)
        low, high = min(low, float(np.exp(ranges[at][0]))), max(high, float(np.exp(ranges[at][1])))
        if doubtful[at]:
            low, high = min(low, 1.0), max(high, 1.0)
        verdict = Verdict.NO_EVIDENCE
        if tests.p_values[at] <= share * SIGNIFICANCE:
            verdict = Verdict.WORSE if difference > 0 else Verdict.BETTER
        corrected, ratio = min(1.0, float(tests.p_values[at]) / share), float(np.exp(difference))
        regression = verdict is Verdict.WORSE and low > 1 + tolerance
        times.append(ComparedTimesRecord(ratio, low, high, confidence, corrected, verdict, regression, slower[at]))
    return times


def _make_row(measured: RunTable, column: int, order: SampleOrder, times: ComparedTimesRecord) -> ComparedRowRecord:
    """Return the record of one compared case, with the measured medians of both sides, from which drift is not removed.

    `column` is the index of the case in `measured`.
    """
    key = measured.keys[column]
    sides = measured.runs[: measured.split], measured.runs[measured.split :]
    used = np.split(~np.isnan(measured.adjusted[:, column]), [measured.split])
    records = [
        [run.rows[key] for run, use in zip(side, uses, strict=True) if use]
        for side, uses in zip(sides, used, strict=True)
    ]
    a_us, b_us = (float(np.mean([record.time_us.p50 for record in side])) for side in records)
    samples_a, samples_b = (sum(len(record.samples_us) for record in side) for side in records)
    return ComparedRowRecord(
        **key._asdict(),
        **asdict(times),
        runs_a=len(records[0]),
        runs_b=len(records[1]),
        samples_a=samples_a,
        samples_b=samples_b,
        p50_a_us=a_us,
        p50_b_us=b_us,
        slower_probability=order.probability,
        cliffs_delta=order.cliffs_delta,
    )
