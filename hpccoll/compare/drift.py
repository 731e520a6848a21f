"""Removes common drift from the times of two sides: differences in speed that are not due to the compared software.

On a shared machine, a whole run can be 10 to 30 % slower than the next. The drift of a run is the median deviation of
the control's rows from their median over all runs. The control is one of:

- `mpi`: the rows of engine `mpi`, which `hpccoll bench` times in turns with hpccoll's algorithms. A change of the speed
  of the MPI library appears as the opposite change of all other rows.
- `rows`: all rows. A change that affects all rows alike cannot be told from drift.
- `none`: nothing is removed.

A single row is no control: on one machine, MPI's reduce_scatter of 256 KiB took either 32 or 46 us in a process, while
the times of hpccoll in all these processes differed by 3 %.
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
    """The common drift per run, for each row, in logarithms of times, with the control that it was taken from."""

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
    is_control = np.array([control is Control.MPI and key.case.engine == MPI_ENGINE for key in keys])
    if control is Control.NONE:
        return Drift(control, np.zeros_like(logs), is_control)
    if control is Control.MPI and (is_control.all() or not is_control.any()):
        which = "all rows that A and B have in common are" if is_control.all() else "A and B have no row"
        raise UsageError(
            f"--control mpi: {which} of engine mpi; use --control rows, or measure with --engine mpi,hpccoll"
        )
    rows = logs[:, is_control if control is Control.MPI else ~is_control]
    drift = np.nanmedian(rows - np.nanmedian(rows, axis=0), axis=1, keepdims=True)
    return Drift(control, np.nan_to_num(np.broadcast_to(drift, logs.shape)), is_control)


def get_workload(key: RowKey) -> RowKey:
    """Return the row's key without engine and algorithm: the rows of one workload are measured in turns."""
    return RowKey(key.case._replace(engine="", algorithm=None), key.nodes)
