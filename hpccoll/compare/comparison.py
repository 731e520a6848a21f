"""Compares the runs of two sides, A (the baseline) and B: which differences in time are not due to noise.

Rows are matched by what they measure. A row's ratio is the median time of B over that of A, after common drift has been
removed (drift.py). Its interval includes the noise between runs (noise.py). All rows of one operation are also tested
together, by the median of their ratios, because a slower operation shows in many rows at once.

A verdict other than `no evidence` needs a p-value, corrected for the number of tests, of at most `SIGNIFICANCE` for
all tests of a comparison together. The p-value of a row is the larger one of two: that of a t test against the noise
between runs, and that of Mann-Whitney U over the samples. The p-value of an operation is that of a t test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.compare import noise
from hpccoll.compare.drift import MIN_ROWS, Control, Drift, choose_control, get_workload, measure_drift
from hpccoll.compare.environments import have_same_mpi, list_differences
from hpccoll.compare.hypothesis_tests import (
    SampleOrder,
    compare_samples,
    compute_interval,
    compute_p_values,
    correct_by_holm,
)
from hpccoll.compare.measured_runs import ComparedSide, MeasuredRun, RowKey
from hpccoll.compare.results import (
    ComparedOperation,
    ComparedRow,
    ComparedTimes,
    Comparison,
    OperationGroup,
    Verdict,
)
from hpccoll.errors import UsageError
from hpccoll.units import format_count

Floats = NDArray[np.float64]
SIGNIFICANCE = 0.02  # probability of any verdict other than `no evidence` where nothing differs
OPERATION_SHARE = 0.8  # share of the significance for the tests of operations; the rest is for the tests of rows


@dataclass(frozen=True, slots=True)
class _TestedColumns:
    """Logarithms of medians without drift: lines are runs, columns are rows or operations, NaN is not measured.

    `prior` and `prior_degrees` are the variance per run that the spread over rows implies, and its degrees of freedom.
    `weight` is the number of runs that `prior` counts as where a side has several runs.
    `between` is the variance over operations of the difference of two runs, with its degrees of freedom.
    """

    a: Floats
    b: Floats
    prior: Floats
    prior_degrees: float
    weight: float
    between: Floats | float = 0.0
    between_degrees: float = 1.0


@dataclass(frozen=True, slots=True)
class _MeasuredRuns:
    """The runs of both sides as tables of logarithms: lines are runs, first those of A, and columns are rows."""

    keys: tuple[RowKey, ...]
    runs: tuple[MeasuredRun, ...]
    split: int  # the number of runs of A
    within: Floats  # variance of each median within its run
    drift: Drift
    adjusted: (
        Floats  # logarithms of medians without drift; NaN where a row is disturbed and other runs can stand for it
    )
    disturbed: Floats  # additional variance per run of rows that are disturbed in all runs of a side
    disturbances: tuple[str, ...]
    paired: bool

    def select(self, kept: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return the tables of A and of B with the columns `kept`; pairs are complete or missing."""
        a, b = np.split(self.adjusted[:, kept], [self.split])
        return a, b

    def collect_samples(self, column: int) -> tuple[Floats, Floats]:
        """Return all samples of a row of A and of B in microseconds, without drift."""
        sides: tuple[list[Floats], list[Floats]] = ([], [])
        for at, run in enumerate(self.runs):
            if not np.isnan(self.adjusted[at, column]):
                samples = np.asarray(run.rows[self.keys[column]].samples_us, np.float64)
                sides[at >= self.split].append(samples * np.exp(-self.drift.table[at, column]))
        return np.concatenate(sides[0]), np.concatenate(sides[1])


def compare_sides(
    a: ComparedSide, b: ComparedSide, *, paired: bool = False, control: Control | None = None
) -> Comparison:
    """Return which rows and operations of B are faster or slower than those of A.

    Args:
        a: the baseline.
        b: the runs that may be better or worse than the baseline.
        paired: whether the k-th runs of A and B were measured one after the other; runs without a partner are ignored.
        control: the control by which drift is removed; None selects it by `choose_control`.

    Raises:
        UsageError: the sides have no row in common, or `control` is `mpi` and only one kind of row is there.
    """
    wrong = dict.fromkeys([*a.wrong, *b.wrong])
    keys_a, keys_b, differences = set(a.keys), set(b.keys), tuple(list_differences(a, b))
    common = [key for key in a.keys if key in keys_b and key not in wrong]
    if not common:
        raise UsageError(_explain_nothing_common(differences, len(wrong)))
    measured = _collect(a, b, common, paired, control or choose_control(common, have_same_mpi(a, b)))
    rows, operations, spread = _test(measured)
    table_a, table_b = np.split(measured.drift.table, [measured.split])
    return Comparison(
        rows=rows,
        operations=operations,
        controls=tuple(key for key, skip in zip(measured.keys, measured.drift.is_control, strict=True) if skip),
        only_a=tuple(key for key in a.keys if key not in keys_b),
        only_b=tuple(key for key in b.keys if key not in keys_a),
        wrong=tuple(wrong),
        runs=(len(table_a), len(table_b)),
        paired=paired,
        control=measured.drift.control,
        drift=float(np.exp(np.median(table_b.mean(axis=0) - table_a.mean(axis=0)))),
        noise=float(np.sqrt(2 * spread.variance)),
        disturbed=measured.disturbances,
        differences=differences,
    )


def _explain_nothing_common(differences: Sequence[str], wrong: int) -> str:
    """Return the message of the error that no row can be compared."""
    reason = f"; A and B differ in {'; '.join(differences)}" if differences else ""
    if wrong:
        reason += f"; rows with wrong results: {wrong}"
    return (
        f"A and B have no row in common{reason}; run `hpccoll bench` with the same operations, sizes, engines, "
        "algorithms and number of ranks for both"
    )


def _collect(a: ComparedSide, b: ComparedSide, keys: Sequence[RowKey], paired: bool, control: Control) -> _MeasuredRuns:
    """Return the logarithms of the medians of rows `keys` in all runs, with the drift that `control` shows."""
    pairs = min(len(a.runs), len(b.runs)) if paired else max(len(a.runs), len(b.runs))
    runs = (*a.runs[:pairs], *b.runs[:pairs])
    medians, within = np.full((2, len(runs), len(keys)), np.nan)
    for at, run in enumerate(runs):
        for column, key in enumerate(keys):
            if key in run.rows:
                record = run.rows[key]
                medians[at, column] = np.log(max(record.time_us.p50, 1e-3))
                within[at, column] = noise.compute_batch_variance(record.samples_us)
    split = min(len(a.runs), pairs)
    if paired:
        is_missing = np.tile(np.isnan(medians[:split] + medians[split:]), (2, 1))
        medians[is_missing], within[is_missing] = np.nan, np.nan
    kept = ~(np.isnan(medians[:split]).all(axis=0) | np.isnan(medians[split:]).all(axis=0))
    if not kept.any():
        raise UsageError("no pair of runs of A and B has a row in common; leave out --paired")
    keys = [key for key, keep in zip(keys, kept, strict=True) if keep]
    medians, within = medians[:, kept], within[:, kept]
    drift = measure_drift(control, keys, medians)
    operations = [noise.find_disturbed_operations(run.rows.values()) for run in runs]
    disturbed = np.array([[key.case.op in found for key in keys] for found in operations])
    disturbances = _describe_disturbances(operations, split)
    adjusted = medians - drift.table
    if paired or len(runs) == 2:
        disturbances += _mark_uneven_speed(disturbed, keys, adjusted[split:] - adjusted[:split], drift.is_control)
    adjusted, variance = _leave_out_disturbed(adjusted, disturbed, split, paired)
    return _MeasuredRuns(tuple(keys), runs, split, within, drift, adjusted, variance, disturbances, paired)


def _leave_out_disturbed(logs: Floats, disturbed: NDArray[np.bool_], split: int, paired: bool) -> tuple[Floats, Floats]:
    """Return `logs` with NaN for disturbed measurements, and an additional variance per column.

    Disturbed measurements of a column are kept if one of the sides has no others. Such columns get the additional
    variance. If each side has a single undisturbed run of a column, the column also gets the variance if another
    operation of this run is disturbed, because other programs may have slowed the whole run.
    """
    usable = ~np.isnan(logs) & ~disturbed
    if paired:
        usable = np.tile(usable[:split] & usable[split:], (2, 1))
    replaceable = usable[:split].any(axis=0) & usable[split:].any(axis=0)
    kept = np.where(replaceable & ~usable, np.nan, logs)
    single = (usable[:split].sum(axis=0) == 1) & (usable[split:].sum(axis=0) == 1)
    suspect = single & (usable & disturbed.any(axis=1, keepdims=True)).any(axis=0)
    return kept, np.where(replaceable & ~suspect, 0.0, noise.DISTURBED_NOISE**2)


def _describe_disturbances(operations: Sequence[set[str]], split: int) -> tuple[str, ...]:
    """Return a string for each side and operation that is disturbed, such as `all_reduce in 1 of 8 runs of B`."""
    found = []
    for name, runs in (("A", operations[:split]), ("B", operations[split:])):
        counts = Counter(op for disturbed in runs for op in sorted(disturbed))
        found += [f"{op} in {count} of {format_count(len(runs), 'run')} of {name}" for op, count in counts.items()]
    return tuple(found)


def _mark_uneven_speed(
    disturbed: NDArray[np.bool_], keys: Sequence[RowKey], ratios: Floats, is_control: NDArray[np.bool_]
) -> tuple[str, ...]:
    """Mark rows of pairs of runs as disturbed if the machine's speed changed by different factors for different rows.

    Args:
        disturbed: the table to mark, one line per run: those of A, then those of B.
        keys: all rows.
        ratios: differences of the logarithms of medians without drift, one line per pair of runs.
        is_control: for each row, whether it is of engine `mpi`.

    Returns:
        Descriptions for messages: one if any row was marked, otherwise none.
    """
    found = [_find_uneven_speed(keys, each, is_control, len(ratios) > 1) for each in ratios]
    disturbed |= np.tile([rows for rows, _ in found], (2, 1))
    uneven = [signs for _, signs in found if signs]
    if not uneven:
        return ()
    if len(ratios) > 1:
        return (f"the speed of the machine in {len(uneven)} of {len(ratios)} rounds",)
    return (f"the speed of the machine (times of engine mpi changed {', '.join(uneven[0])})",)


def _find_uneven_speed(
    keys: Sequence[RowKey], ratios: Floats, is_control: NDArray[np.bool_], replaceable: bool
) -> tuple[NDArray[np.bool_], list[str]]:
    """Return the rows that a change of the machine's speed between two runs disturbed, and descriptions of the change.

    Args:
        keys: all rows.
        ratios: differences of the logarithms of medians without drift; NaN where a run lacks the row.
        is_control: for each row, whether it is of engine `mpi`.
        replaceable: whether other pairs of runs remain. If so, a change of an operation's rows of engine `mpi` marks
            the operation. Otherwise it marks all rows, and only if the operation's other rows changed likewise.
    """
    known = ~np.isnan(ratios)
    uneven = np.zeros(len(keys), np.bool_)
    signs: list[str] = []
    if (is_control & known).sum() < MIN_ROWS:
        return uneven, signs
    spread = noise.compute_robust_deviation(ratios[is_control & known])
    if spread > noise.MAX_CONTROL_SPREAD:
        uneven[:] = True
        signs = [f"differently from row to row by {spread:.0%}"]
    for op in dict.fromkeys(key.case.op for key in keys):
        rows = known & np.array([key.case.op == op for key in keys])
        of_mpi, own = ratios[rows & is_control], ratios[rows & ~is_control]
        if len(of_mpi) >= noise.MIN_CONTROLS and len(own):
            change = float(np.median(of_mpi))
            common = min(change * np.sign(np.median(own)), abs(np.median(own)))
            if (abs(change) if replaceable else common) > noise.MAX_CONTROL_CHANGE:
                uneven |= rows if replaceable else True
                signs.append(f"in {op} by {change:+.0%}")
    return uneven, signs


def _test(measured: _MeasuredRuns) -> tuple[tuple[ComparedRow, ...], tuple[ComparedOperation, ...], noise.Spread]:
    """Test all rows that are not controls, and all operations with at least two such rows."""
    kept = ~measured.drift.is_control
    keys = [key for key, keep in zip(measured.keys, kept, strict=True) if keep]
    groups = [OperationGroup(k.case.op, k.case.buffer, k.case.dtype, k.case.ranks, k.nodes) for k in keys]
    numbers = np.array([list(dict.fromkeys(groups)).index(group) for group in groups])
    a, b = measured.select(kept)
    found = _subtract(a, b, measured.paired)
    spread = noise.estimate_spread(found.values, found.per_run, numbers, measured.drift.control, measured.paired)
    prior = spread.variance + noise.compute_excess(np.nanmean(measured.within[:, kept], axis=0))
    disturbed = measured.disturbed[kept]
    placement = np.where(found.degrees == 0, noise.PLACEMENT_NOISE**2, 0.0)
    tested = [group for group in dict.fromkeys(groups) if groups.count(group) > 1]
    shares = (OPERATION_SHARE, 1 - OPERATION_SHARE) if tested else (0.0, 1.0)
    orders = [compare_samples(*measured.collect_samples(int(column))) for column in np.flatnonzero(kept)]
    times = _test_columns(
        _TestedColumns(a, b, prior + disturbed + placement, spread.degrees, noise.PRIOR_DEGREES),
        shares[1],
        orders,
        measured.paired,
    )
    rows = tuple(_make_row(measured, *each) for each in zip(np.flatnonzero(kept).tolist(), orders, times, strict=True))
    if not tested:
        return rows, (), spread
    members = [np.array([each == group for each in groups]) for group in tested]
    joined_a, joined_b, variances = _join_operations(a, b, prior, [(rows, keys) for rows in members])
    variances += [disturbed[rows].max() for rows in members]
    found = _subtract(joined_a, joined_b, measured.paired)
    between = noise.estimate_operation_variances(found.values, variances * found.per_run)
    weights = spread.degrees, noise.OPERATION_DEGREES
    columns = _TestedColumns(joined_a, joined_b, variances, *weights, between, max(len(tested) - 2, 1))
    operation_times = _test_columns(columns, shares[0], None, measured.paired)
    operations = tuple(
        ComparedOperation(group, groups.count(group), each) for group, each in zip(tested, operation_times, strict=True)
    )
    return rows, operations, spread


@dataclass(frozen=True, slots=True)
class _Differences:
    """The average of B minus that of A per column, 1/a + 1/b for a runs of A and b of B, and the variance per run."""

    values: Floats
    per_run: Floats
    variance: Floats
    degrees: Floats


def _subtract(a: Floats, b: Floats, paired: bool) -> _Differences:
    """Return the differences of B and A; if `paired`, they are averages of the differences of lines (runs)."""
    counts = [(~np.isnan(side)).sum(axis=0) for side in (a, b)]
    per_run = 1 / counts[0] + 1 / counts[1]
    if paired:
        values, variance, degrees = noise.average_runs(b - a)
        return _Differences(values, per_run, variance / 2, degrees)
    (of_a, variance_a, degrees_a), (of_b, variance_b, degrees_b) = noise.average_runs(a), noise.average_runs(b)
    degrees = degrees_a + degrees_b
    variance = (degrees_a * variance_a + degrees_b * variance_b) / np.maximum(degrees, 1)
    return _Differences(of_b - of_a, per_run, variance, degrees)


def _join_operations(
    a: Floats, b: Floats, prior: Floats, members: Sequence[tuple[NDArray[np.bool_], Sequence[RowKey]]]
) -> tuple[Floats, Floats, Floats]:
    """Return one column per operation for A and for B, the medians over its rows, and the variances per run.

    Rows of one workload use the same buffers at the same time, so the number of workloads is taken for the number of
    independent rows.
    """
    center = (np.nanmedian(a, axis=0) + np.nanmedian(b, axis=0)) / 2
    columns = []
    for rows, keys in members:
        workloads = len({get_workload(key) for key, member in zip(keys, rows, strict=True) if member})
        variance = float(np.median(prior[rows])) * noise.MEDIAN_VARIANCE / workloads
        columns.append((_median_over(a - center, rows), _median_over(b - center, rows), variance))
    joined_a, joined_b, variances = zip(*columns, strict=True)
    return np.stack(joined_a, axis=1), np.stack(joined_b, axis=1), np.array(variances)


def _median_over(table: Floats, rows: NDArray[np.bool_]) -> Floats:
    """Return the median over `rows` of each line of `table`; NaN where a line has none of the rows."""
    lines = table[:, rows]
    return np.array([np.median(line[~np.isnan(line)]) if not np.isnan(line).all() else np.nan for line in lines])


def _test_columns(
    columns: _TestedColumns, share: float, orders: Sequence[SampleOrder] | None, paired: bool
) -> list[ComparedTimes]:
    """Return the comparison of each column; all tests together have the significance `share` * SIGNIFICANCE."""
    found = _subtract(columns.a, columns.b, paired)
    single = found.degrees == 0
    prior = columns.prior, columns.prior_degrees
    variance, degrees = noise.combine_variances(*prior, found.variance, found.degrees, columns.weight)
    variance = variance * found.per_run
    summed = noise.add_variances(variance, degrees, columns.between, columns.between_degrees)
    errors, degrees = np.sqrt(np.where(single, summed[0], variance)), np.where(single, summed[1], degrees)
    p_values = compute_p_values(found.values, errors, degrees)
    if orders is not None:
        p_values = np.maximum(p_values, [order.p_value for order in orders])
    tests = correct_by_holm(p_values, share * SIGNIFICANCE)
    slower = (columns.b - columns.a > 0).sum(axis=0).tolist() if paired else [None] * len(errors)
    times = []
    for at, difference in enumerate(found.values.tolist()):
        confidence = float(1 - tests.interval_significance[at])
        low, high = compute_interval(difference, errors[at], degrees[at], confidence)
        verdict = Verdict.NO_EVIDENCE
        if tests.p_values[at] <= share * SIGNIFICANCE:
            verdict = Verdict.WORSE if difference > 0 else Verdict.BETTER
        corrected = min(1.0, float(tests.p_values[at]) / share)
        ratio = float(np.exp(difference))
        times.append(ComparedTimes(ratio, low, high, confidence, corrected, verdict, slower[at]))
    return times


def _make_row(measured: _MeasuredRuns, column: int, order: SampleOrder, times: ComparedTimes) -> ComparedRow:
    """Return a compared row with the measured medians of both sides, which still contain drift."""
    key = measured.keys[column]
    sides = measured.runs[: measured.split], measured.runs[measured.split :]
    used = np.split(~np.isnan(measured.adjusted[:, column]), [measured.split])
    records = [
        [run.rows[key] for run, use in zip(side, uses, strict=True) if use]
        for side, uses in zip(sides, used, strict=True)
    ]
    a_us, b_us = (float(np.mean([record.time_us.p50 for record in side])) for side in records)
    samples = tuple(sum(len(record.samples_us) for record in side) for side in records)
    runs = len(records[0]), len(records[1])
    return ComparedRow(key, a_us, b_us, runs, (samples[0], samples[1]), order, times)
