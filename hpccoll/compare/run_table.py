"""Tables of the logarithms of median times in all runs of a comparison, without drift and disturbed measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.compare import noise
from hpccoll.compare.drift import MAX_CONTROL_SPREAD, MIN_ROWS, Control, Drift, measure_drift
from hpccoll.compare.measured_runs import ComparedSide, MeasuredRun
from hpccoll.errors import UsageError
from hpccoll.plan import Floats
from hpccoll.records import CaseKey
from hpccoll.statistics import compute_robust_deviation
from hpccoll.units import format_count


@dataclass(frozen=True, slots=True)
class RunTable:
    """The median times of all cases in all runs of both sides, without drift, with marks of disturbed measurements.

    Arrays have the shape (runs, cases), with A's runs first.
    """

    keys: tuple[CaseKey, ...]  # the cases
    runs: tuple[MeasuredRun, ...]  # the runs of A, then those of B
    split: int  # the number of runs of A
    within: Floats  # variance of each median within its run
    drift: Drift  # the change of the machine's speed from run to run
    adjusted: Floats  # logarithms of medians without drift; NaN if disturbed and other runs of the case are not
    usable: NDArray[np.bool_]  # measurements, neither missing nor disturbed, that can give a verdict
    disturbed: Floats  # additional variance per run of cases that are disturbed in all runs of a side, shape (cases,)
    disturbances: tuple[str, ...]  # descriptions of disturbances, for messages
    paired: bool  # whether run k of A and run k of B were measured in succession

    def select(self, kept: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return the logarithms of medians of A and of B, shape (runs, cases), for the cases that `kept` marks."""
        a, b = np.split(self.adjusted[:, kept], [self.split])
        return a, b

    def collect_samples(self, column: int) -> tuple[Floats, Floats]:
        """Return all samples of the case number `column` of A and of B, in microseconds, without drift."""
        sides: tuple[list[Floats], list[Floats]] = ([], [])
        for at, run in enumerate(self.runs):
            if not np.isnan(self.adjusted[at, column]):
                samples = np.asarray(run.rows[self.keys[column]].samples_us, np.float64)
                sides[at >= self.split].append(samples * np.exp(-self.drift.table[at, column]))
        return np.concatenate(sides[0]), np.concatenate(sides[1])


def collect_runs(a: ComparedSide, b: ComparedSide, keys: Sequence[CaseKey], paired: bool, control: Control) -> RunTable:
    """Return the times of the cases `keys` in all runs of both sides, without the drift that `control` shows.

    If `paired`, run k of A and run k of B were measured in succession, and runs without a partner are left out.
    """
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
    drift = measure_drift(control, keys, medians, split, paired)
    operations = [noise.find_disturbed_operations(run.rows.values()) for run in runs]
    disturbed = np.array([[key.op in names for key in keys] for names in operations])
    disturbed |= np.array([[run.is_unreliable] for run in runs])
    disturbances = _describe_disturbances(operations, split)
    adjusted = medians - drift.table
    if paired or len(runs) == 2:
        log_ratios = adjusted[split:] - adjusted[:split]
        if drift.doubt and drift.is_control.any():
            of_controls = np.nanmedian(log_ratios[:, drift.is_control], axis=1, keepdims=True)
            log_ratios = log_ratios - np.nan_to_num(of_controls)
        disturbances += _mark_uneven_speed(disturbed, keys, log_ratios, drift.is_control)
    adjusted, variance = _leave_out_disturbed(adjusted, disturbed, split, paired)
    usable = ~np.isnan(adjusted) & ~disturbed
    return RunTable(tuple(keys), runs, split, within, drift, adjusted, usable, variance, disturbances, paired)


def _leave_out_disturbed(logs: Floats, disturbed: NDArray[np.bool_], split: int, paired: bool) -> tuple[Floats, Floats]:
    """Return `logs` with NaN for disturbed measurements, and an additional variance per case.

    If all measurements of a case on one side are disturbed, they are kept, and the case gets the additional variance. A
    case with only one undisturbed run on each side also gets the additional variance if another case is disturbed in
    one of the two runs, because other programs may have slowed the whole run.

    Args:
        logs: logarithms of medians, shape (runs, cases), first the runs of A.
        disturbed: which measurements other programs disturbed, shape (runs, cases).
        split: the number of runs of A.
        paired: whether run k of A and run k of B were measured in succession.
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
    """Return a string for each side and operation that is disturbed, such as `all_reduce in 1 of 8 runs of B`.

    `operations` has the disturbed operations of each run; the first `split` runs are those of A.
    """
    parts = []
    for name, runs in (("A", operations[:split]), ("B", operations[split:])):
        counts = Counter(op for disturbed in runs for op in sorted(disturbed))
        parts += [f"{op} in {count} of {format_count(len(runs), 'run')} of {name}" for op, count in counts.items()]
    return tuple(parts)


def _mark_uneven_speed(
    disturbed: NDArray[np.bool_], keys: Sequence[CaseKey], log_ratios: Floats, is_control: NDArray[np.bool_]
) -> tuple[str, ...]:
    """Mark the measurements of a round as disturbed if the control cases changed by different factors in it.

    No measurement is marked if this is so in most rounds, because that is ordinary noise.

    Args:
        disturbed: the marks, changed in place, shape (runs, cases), first the runs of A.
        keys: all cases.
        log_ratios: logarithm of the ratio B / A of the medians without drift, shape (pairs of runs, cases).
        is_control: for each case, whether it is a control: a case of engine `mpi`, whose time depends on the machine
            only.

    Returns:
        Descriptions for messages: one if any measurement was marked, otherwise none.
    """
    speeds = [_find_uneven_speed(keys, log_ratio, is_control, len(log_ratios) > 1) for log_ratio in log_ratios]
    uneven = [signs for _, signs in speeds if signs]
    if not uneven or 2 * len(uneven) > len(log_ratios) > 1:  # if most rounds are uneven, that is ordinary noise
        return ()
    disturbed |= np.tile([rows for rows, _ in speeds], (2, 1))
    if len(log_ratios) > 1:
        return (f"the speed of the machine in {len(uneven)} of {len(log_ratios)} rounds",)
    return (f"the speed of the machine (times of engine mpi changed {', '.join(uneven[0])})",)


def _find_uneven_speed(
    keys: Sequence[CaseKey], log_ratios: Floats, is_control: NDArray[np.bool_], replaceable: bool
) -> tuple[NDArray[np.bool_], list[str]]:
    """Return which cases are disturbed by a change of the machine's speed between two runs, and describe the change.

    Args:
        keys: all cases.
        log_ratios: for each case, the logarithm of the ratio B / A of the medians without drift; NaN if one of the two
            runs lacks the case.
        is_control: for each case, whether it is a control: a case of engine `mpi`, whose time depends on the machine
            only.
        replaceable: whether other pairs of runs remain. If other pairs remain, an operation is disturbed as soon as the
            times of its cases of engine `mpi` have changed. If no other pair remains, all cases are disturbed as soon
            as the cases of engine `mpi` and the other cases of one operation have changed alike.
    """
    known = ~np.isnan(log_ratios)
    uneven = np.zeros(len(keys), np.bool_)
    signs: list[str] = []
    if (is_control & known).sum() < MIN_ROWS:
        return uneven, signs
    spread = compute_robust_deviation(log_ratios[is_control & known])
    if spread > MAX_CONTROL_SPREAD:
        uneven[:] = True
        signs = [f"differently from row to row by {spread:.0%}"]
    for op in dict.fromkeys(key.op for key in keys):
        rows = known & np.array([key.op == op for key in keys])
        of_mpi, own = log_ratios[rows & is_control], log_ratios[rows & ~is_control]
        if len(of_mpi) >= noise.MIN_CONTROLS and len(own):
            change = float(np.median(of_mpi))
            common = min(change * np.sign(np.median(own)), abs(np.median(own)))
            if (abs(change) if replaceable else common) > noise.MAX_CONTROL_CHANGE:
                uneven |= rows if replaceable else True
                signs.append(f"in {op} by {change:+.0%}")
    return uneven, signs
