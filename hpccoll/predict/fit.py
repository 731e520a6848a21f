"""Finds the machine behind measured times: the alpha, beta and gamma with which simulation comes closest to them.

The sizes are dealt out in turn: half of them are fitted, the other half only predicted, so that the error is that of
prediction. What is minimised is the sum over rows of |log(simulated / measured)|, softened near zero, so that a row of
microseconds counts as much as one of milliseconds and a row that was disturbed does not draw the others with it.

Between ranks of one host a byte does not cost the same in every message: small ones go through a buffer, large ones
in pieces, and what no cache holds is slower. So the link within a node is fitted in bands of message size, each with
its own beta, and a call costs something before its first message. (Source of the idea: Kielmann, Bal and Verstoep,
Fast measurement of LogP parameters, 2000.)

A simulated time is the longest of many paths, each linear in the parameters. So it is simulated for its slopes, the
linear model is fitted, and both again until nothing moves. Cost: some thirty simulations a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from hpccoll.algorithms.registry import Algorithm
from hpccoll.errors import UsageError
from hpccoll.plan import Link, Machine, Plan, simulate
from hpccoll.predict.pipelined import simulate_pipelined
from hpccoll.units import KiB, MiB

Floats: TypeAlias = NDArray[np.float64]
BAND_BORDERS = (16 * KiB, 256 * KiB, 4 * MiB)  # where a band of message sizes ends and the next begins
_FEWEST_SIZES = 4
_ROUNDS, _STEP, _SOFT = 4, 1e-3, 0.1
_LEAST, _MOST = 1e-16, 1e3  # seconds: of any parameter


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row that was measured: an algorithm's plan for `count` elements of `itemsize`, S in bytes, and its median."""

    algorithm: Algorithm
    plan: Plan
    nodes: int
    count: int
    itemsize: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A measured row and what the fitted machine predicts for it; `fitted` where it was among those fitted."""

    row: MeasuredRow
    seconds: float
    fitted: bool

    @property
    def error(self) -> float:
        """How far the prediction is off, as a fraction of what was measured."""
        return abs(self.seconds / self.row.seconds - 1)


@dataclass(frozen=True, slots=True)
class MachineFit:
    """The machine that was found, and every row beside its prediction."""

    machine: Machine
    rows: tuple[PredictedRow, ...]

    def median_error(self, *, fitted: bool) -> float:
        """Return the median error of the rows that were fitted, or of those that were left out."""
        return float(np.median([row.error for row in self.rows if row.fitted is fitted]))


def fit_machine(rows: Sequence[MeasuredRow], where: str) -> MachineFit:
    """Fit a machine to every other size of `rows`, and predict the others.

    Args:
        rows: of one job: the same ranks on the same nodes.
        where: what to call them in messages, such as the file.

    Raises:
        UsageError: rows of several jobs, or of too few sizes.
    """
    sizes = sorted({row.nbytes for row in rows})
    if len(sizes) < _FEWEST_SIZES:
        found = f"{len(rows)} rows of {len(sizes)} sizes that the engine hpccoll measured on 2 ranks or more"
        raise UsageError(
            f"{where}: a fit takes {_FEWEST_SIZES} sizes above 0 bytes; found {found}; run `hpccoll bench`"
        )
    jobs = sorted({(row.plan.ranks, row.nodes) for row in rows})
    if len(jobs) > 1:
        listed = "; ".join(f"{ranks} ranks on {nodes} nodes" for ranks, nodes in jobs)
        raise UsageError(f"{where}: holds several jobs ({listed}); a fit takes the rows of one")
    known = set(sizes[::2])
    fences = any(row.algorithm.uses_shared_memory for row in rows)
    shape = _Shape(*jobs[0], max(sizes), fences)
    values = _fitted(shape, [row for row in rows if row.nbytes in known])
    machine = shape.machine(values, f"fit:{where}")
    found_rows = (PredictedRow(row, _simulated(row, machine), row.nbytes in known) for row in rows)
    return MachineFit(machine, tuple(found_rows))


class _Shape:
    """Which parameters there are: call, gamma, a fence's, and the links within and between nodes, in bands."""

    def __init__(self, ranks: int, nodes: int, largest: int, fences: bool) -> None:
        self.ranks_per_node, self.fences = -(-ranks // nodes), fences
        self.borders = tuple(border for border in BAND_BORDERS if border < largest)
        one = 2 + len(self.borders)
        self.near = one if self.ranks_per_node > 1 else 0
        near = [3e-6, *[2e-10] * (one - 1)] if self.near else []
        wide = [3e-5, *[1e-9] * (one - 1)] if nodes > 1 else []
        self.start = np.array([1e-6, 1e-10, *([3e-6] if fences else []), *near, *wide])

    def machine(self, values: Floats, name: str) -> Machine:
        """Return the machine that has these parameters; a link that no rank used costs what the other does."""
        call, gamma, *rest = values.tolist()
        fence = rest.pop(0) if self.fences else None
        links = [self._link(each) for each in (rest[: self.near], rest[self.near :]) if each]
        return Machine(name, self.ranks_per_node, links[0], links[-1], 1, gamma, (), call, fence)

    def _link(self, values: list[float]) -> Link:
        bands = tuple(zip(self.borders, values[2:], strict=True))
        return replace(Link.one_port(*values[:2]), bands=bands)


def _fitted(shape: _Shape, rows: Sequence[MeasuredRow]) -> Floats:
    """Return the parameters, shape (K,), that come closest to the rows."""
    measured = np.array([row.seconds for row in rows])
    values = shape.start
    for _ in range(_ROUNDS):
        slopes = np.array([_slopes(shape, row, values) for row in rows])  # (rows, K)

        def misses(logs: Floats, slopes: Floats = slopes) -> Floats:
            return np.asarray(np.log(slopes @ np.exp(logs) / measured))

        limits = (np.log(_LEAST), np.log(_MOST))
        found = least_squares(misses, np.log(values), loss="soft_l1", f_scale=_SOFT, bounds=limits)
        before, values = values, np.exp(found.x)
        if np.allclose(before, values, rtol=10 * _STEP):
            break
    return values


def _slopes(shape: _Shape, row: MeasuredRow, values: Floats) -> Floats:
    """Return by how much a row's simulated time grows with each parameter, shape (K,).

    The time is homogeneous in the parameters: slopes times parameters give it back.
    """
    here = _simulated(row, shape.machine(values, ""))
    slopes = np.empty_like(values)
    for at, value in enumerate(values):
        more = values.copy()
        more[at] = value * (1 + _STEP)
        slopes[at] = (_simulated(row, shape.machine(more, "")) - here) / (value * _STEP)
    return np.maximum(slopes, 0.0)


def _simulated(row: MeasuredRow, machine: Machine) -> float:
    if row.algorithm.is_hybrid:
        return simulate_pipelined(row.plan, machine, row.count, row.itemsize).seconds
    return simulate(row.plan, machine, row.count, row.itemsize, trace=False).seconds
