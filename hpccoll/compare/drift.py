"""Removes drift from the times of two sides: changes of the machine's speed, which the compared software did not cause.

On a shared machine, a whole run can be 10 to 30 % slower than the next run. A row is the measurements of one case
(operation, size, engine, algorithm) in all runs. The control is a set of rows whose times show the machine's speed.
Each row of the control deviates in a run from the row's median over all runs; the run's drift is the median of these
deviations. The control is one of these sets of rows:

- `mpi`: the rows of engine `mpi`, which `hpccoll bench` times in turns with hpccoll's algorithms. If the MPI library
  itself becomes faster, all other rows appear slower.
- `rows`: all rows, only if the user asks for this control. With `rows`, a change of all rows alike counts as drift.
- `none`: no rows; drift is not removed.

With the control `mpi`, drift is removed only if all of these conditions hold:

- There are at least MIN_ROWS rows of engine `mpi`. A single row cannot measure drift: on one machine, MPI's
  reduce_scatter of 256 KiB took either 32 or 46 us in a process, while the times of hpccoll in the same processes
  differed by only 3 %.
- If there are fewer than MIN_RUNS_FOR_GAIN runs per side, all rows of engine `mpi` must show about the same drift
  (MAX_CONTROL_SPREAD). On a busy machine, other programs slow each row by a different factor.
- If there are more runs per side, the removal of drift must make the runs more alike: it must reduce the variance from
  run to run of the median over all other rows by at least the share MIN_GAIN. If A and B run in rounds, this
  variance is that of the difference between a round's two medians.

With at least MIN_RUNS_FOR_CHOICE runs per side, each workload may have a drift of its own, from its own row of engine
`mpi`, if this makes the runs more alike than the common drift does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import UsageError
from hpccoll.plan import Floats
from hpccoll.records import CaseKey
from hpccoll.statistics import compute_robust_deviation

MPI_ENGINE = "mpi"
MIN_ROWS = 5  # rows of engine `mpi` that a drift needs; the median of fewer rows follows one or two of them
MAX_CONTROL_SPREAD = 0.07  # standard deviation over rows of the ratios of engine mpi in two runs at one speed
MIN_GAIN = 0.2  # share of the variance between runs that the removal of drift must explain
UNEXPLAINED = "without it, runs do not become more alike"
MIN_RUNS_FOR_CHOICE = 6  # runs per side that show whether the drift differs from workload to workload
MIN_RUNS_FOR_GAIN = 3  # runs per side that show whether the removal of drift makes runs alike


class Control(StrEnum):
    """Which cases of a comparison are its control, that is, show how fast the machine was during each run."""

    MPI = "mpi"  # cases of the MPI library's own collectives
    ROWS = "rows"  # all cases
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Drift:
    """The change of the machine's speed from run to run, which is removed from the times before they are compared.

    If the change of speed cannot be measured reliably, `doubt` states the reason, and nothing is removed from the
    times.
    """

    control: Control  # the cases from which the drift was measured
    table: Floats  # the drift in logarithms of times, shape (runs, cases), first the runs of A
    is_control: NDArray[np.bool_]  # for each case, whether it shows the machine's speed and is therefore not compared
    doubt: str = ""  # why nothing was removed; empty if the drift is established
    error: float = 0.0  # standard error of the drift between two runs

    def compute_ratio(self, split: int) -> float:
        """Return how many times as slow the machine was in the runs of B as in those of A: the median over cases.

        The first `split` runs are those of A.
        """
        return float(np.exp(np.median(self.table[split:].mean(axis=0) - self.table[:split].mean(axis=0))))


def choose_control(keys: Sequence[CaseKey], same_mpi: bool) -> Control:
    """Return the control of a comparison: MPI (the cases of the MPI library's own collectives) or NONE.

    The MPI library's cases are chosen if `keys` has other cases, too, and both sides used the same MPI library
    (`same_mpi`), so that the library's times should be equal.
    """
    own = [key for key in keys if key.engine != MPI_ENGINE]
    return Control.MPI if own and len(own) < len(keys) and same_mpi else Control.NONE


def measure_drift(control: Control, keys: Sequence[CaseKey], logs: Floats, split: int, paired: bool) -> Drift:
    """Return the change of the machine's speed from run to run (drift), from the times of the control's cases.

    Args:
        control: the cases whose common change is taken for drift.
        keys: all cases.
        logs: logarithms of the median times, shape (runs, cases), first the runs of A.
        split: the number of runs of A.
        paired: whether run k of A and run k of B were measured in succession.

    Raises:
        UsageError: the control is `mpi`, and either all cases or none are of engine `mpi`.
    """
    is_control = np.array([control is Control.MPI and key.engine == MPI_ENGINE for key in keys])
    if control is Control.NONE:
        return Drift(control, np.zeros_like(logs), is_control, "no rows show the speed of the machine")
    if control is Control.MPI and (is_control.all() or not is_control.any()):
        which = "all rows that A and B have in common are" if is_control.all() else "A and B have no row"
        raise UsageError(
            f"--control mpi: {which} of engine mpi; use --control rows, or measure with --engine mpi,hpccoll"
        )
    rows = logs[:, is_control if control is Control.MPI else ~is_control]
    deviations = rows - np.nanmedian(rows, axis=0)
    drift = np.nan_to_num(np.nanmedian(deviations, axis=1, keepdims=True))
    table = np.broadcast_to(drift, logs.shape)
    spread = 2 * compute_robust_deviation(deviations - drift)  # standard deviation of the ratio of two runs
    error = spread * (np.pi / 2 / rows.shape[1]) ** 0.5
    if control is Control.ROWS:
        return Drift(control, table, is_control, error=error)
    return _establish_mpi_drift(Drift(control, table, is_control, error=error), keys, logs, spread, split, paired)


def _establish_mpi_drift(
    mpi_drift: Drift, keys: Sequence[CaseKey], logs: Floats, spread: float, split: int, paired: bool
) -> Drift:
    """Return `mpi_drift`, or a drift per workload if this is more precise, or zero drift if `mpi_drift` is in doubt.

    A workload is the cases that differ only in engine and algorithm. `spread` shows how much the cases of engine `mpi`
    disagree: it is the standard deviation of their ratios between two runs. `keys`, `logs`, `split` and `paired` are
    those of `measure_drift`.
    """
    control, table, is_control = mpi_drift.control, mpi_drift.table, mpi_drift.is_control
    others, drift = logs[:, ~is_control], table[:, :1]
    if paired:
        runs, speeds = others[split:] - others[:split], drift[split:] - drift[:split]
    else:
        runs, speeds = others - np.nanmean(others, axis=0), drift - drift.mean()
    fewest = min(split, len(logs) - split)
    doubt = _find_doubt(int(is_control.sum()), spread, runs, speeds, fewest)
    if doubt:
        return Drift(control, np.zeros_like(logs), is_control, doubt)
    finer = _measure_by_workload(keys, logs, is_control, table)
    if fewest >= MIN_RUNS_FOR_CHOICE and _is_finer(
        finer - table, logs - table, keys, is_control, split if paired else 0
    ):
        return Drift(control, finer, is_control)
    return mpi_drift


def _measure_by_workload(
    keys: Sequence[CaseKey], logs: Floats, is_control: NDArray[np.bool_], common: Floats
) -> Floats:
    """Return each case's drift, shape (runs, cases), as measured by the case of engine `mpi` with the same workload.

    Controls, and cases whose workload has no case of engine `mpi`, have the drift in `common`. `logs` are logarithms of
    median times.
    """
    controls = {get_workload(key): at for at, key in enumerate(keys) if is_control[at]}
    table = np.array(common)
    for column, key in enumerate(keys):
        at = controls.get(get_workload(key))
        if at is not None and not is_control[column]:  # ratios of controls show where the speed changed unevenly
            deviations = logs[:, at] - np.nanmedian(logs[:, at])
            table[:, column] = np.where(np.isnan(deviations), common[:, column], deviations)
    return table


def _is_finer(more: Floats, logs: Floats, keys: Sequence[CaseKey], is_control: NDArray[np.bool_], split: int) -> bool:
    """Whether the removal of additional drift reduces the run-to-run variance of medians by the share MIN_GAIN or more.

    Args:
        more: the additional drift in logarithms, shape (runs, cases).
        logs: the logarithms of times without the common drift, shape (runs, cases).
        keys: all cases; each median is taken over the cases of one operation.
        is_control: for each case, whether it shows the machine's speed, and is therefore left out.
        split: the number of runs of A if runs are paired, otherwise 0.
    """
    sums = []
    for table in (logs, logs - more):
        lines = table[split:] - table[:split] if split else table - np.nanmean(table, axis=0)
        total = 0.0
        for op in {key.op for key in keys}:
            rows = lines[:, [key.op == op and not skip for key, skip in zip(keys, is_control, strict=True)]]
            medians = np.array([np.median(row[~np.isnan(row)]) for row in rows if not np.isnan(row).all()])
            total += float(np.sum((medians - medians.mean()) ** 2)) if len(medians) else 0.0
        sums.append(total)
    return sums[1] <= (1 - MIN_GAIN) * sums[0]


def _find_doubt(controls: int, spread: float, runs: Floats, speeds: Floats, fewest: int) -> str:
    """Return the reason not to remove the drift, as the end of a sentence; empty if the drift may be removed.

    Args:
        controls: the number of cases of engine `mpi`.
        spread: how much the cases of engine `mpi` disagree: the standard deviation of their ratios between two runs.
        runs: for each case of other engines, the difference between the two runs of each pair or, if runs are not
            paired, between each run and the mean of all runs; logarithms of times, shape (pairs or runs, cases).
        speeds: the drift in each pair or run.
        fewest: the number of runs of A or of B, whichever is smaller.
    """
    if controls < MIN_ROWS:
        return f"only {controls} row{'s' * (controls > 1)} of engine mpi, {MIN_ROWS} are needed"
    if fewest < MIN_RUNS_FOR_GAIN:
        return f"rows of engine mpi differ by {spread:.0%} in it" if spread > MAX_CONTROL_SPREAD else ""
    common = np.nanmedian(runs, axis=1, keepdims=True)  # over rows, so that a change of one operation hardly counts
    sums = [
        [float(np.nansum((values - center) ** 2)) for values in (common, common - speeds) for center in [mean(values)]]
        for mean in (np.nanmean, lambda _: 0.0)  # B differs from A by the mean effect, or not at all
    ]
    return "" if any(after <= (1 - MIN_GAIN) * before for before, after in sums) else UNEXPLAINED


def get_workload(key: CaseKey) -> CaseKey:
    """Return a case without its engine and algorithm (a workload); the cases of one workload are measured in turns."""
    return key._replace(engine="", algorithm=None)
