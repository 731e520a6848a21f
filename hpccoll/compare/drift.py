"""Removes common drift from the times of two sides: differences in speed that are not due to the compared software.

On a shared machine, a whole run can be 10 to 30 % slower than the next. `hpccoll bench` times engine `mpi` in turns
with hpccoll's algorithms, so the time of engine `mpi` shows how fast the machine was while a row was measured. The
drift of a row in a run is the deviation of the control's time from its mean over all runs. The control is one of:

- `mpi`: the row of engine `mpi` of the same workload (operation, size, dtype, buffer, root). The drift of a row without
  such a control is the median deviation of all rows of engine `mpi`. A change of the speed of the MPI library appears
  as the opposite change of all other rows.
- `rows`: the median deviation of all rows. A change that affects all rows alike cannot be told from drift.
- `none`: nothing is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.compare.measured_runs import RowKey
from hpccoll.errors import UsageError

Table: TypeAlias = NDArray[np.float64]  # one line per run, one column per row of the comparison; NaN if not measured
MPI_ENGINE = "mpi"
MIN_ROWS = 5  # with fewer rows, the median over rows would contain the effect that is looked for


class Control(StrEnum):
    """The rows whose times show how fast the machine was."""

    MPI = "mpi"
    ROWS = "rows"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Drift:
    """The common drift per run and row, in logarithms of times, with the control that it was taken from."""

    control: Control
    table: Table
    is_control: NDArray[np.bool_]  # per row, whether the row is a control and therefore not compared


def choose_control(keys: Sequence[RowKey], same_mpi: bool) -> Control:
    """Return the best control that rows `keys` allow; `same_mpi` tells whether both sides use the same MPI library."""
    own = [key for key in keys if key.case.engine != MPI_ENGINE]
    if own and len(own) < len(keys) and same_mpi:
        return Control.MPI
    return Control.ROWS if len(keys) >= MIN_ROWS else Control.NONE


def measure_drift(control: Control, keys: Sequence[RowKey], logs: Table) -> Drift:
    """Return the common drift of `logs`, the logarithms of the median times of all runs of both sides.

    Raises UsageError if the control is `mpi`, and either all rows or none are of engine `mpi`.
    """
    deviations = logs - np.nanmean(logs, axis=0)
    none = np.zeros(len(keys), np.bool_)
    if control is Control.NONE:
        return Drift(control, np.zeros_like(logs), none)
    if control is Control.ROWS:
        return Drift(control, np.repeat(np.nanmedian(deviations, axis=1, keepdims=True), len(keys), axis=1), none)
    is_control = np.array([key.case.engine == MPI_ENGINE for key in keys])
    if is_control.all() or not is_control.any():
        which = "all rows that A and B have in common are" if is_control.all() else "A and B have no row"
        raise UsageError(
            f"--control mpi: {which} of engine mpi; use --control rows, or measure with --engine mpi,hpccoll"
        )
    columns = {get_workload(key): at for at, key in enumerate(keys) if is_control[at]}
    table = np.repeat(np.nanmedian(deviations[:, is_control], axis=1, keepdims=True), len(keys), axis=1)
    for at, key in enumerate(keys):
        if get_workload(key) in columns:
            local = deviations[:, columns[get_workload(key)]]
            table[:, at] = np.where(np.isnan(local), table[:, at], local)
    return Drift(control, np.nan_to_num(table), is_control)


def get_workload(key: RowKey) -> RowKey:
    """Return the row's key without engine and algorithm: the rows of one workload are measured in turns."""
    return RowKey(key.case._replace(engine="", algorithm=None), key.nodes)
