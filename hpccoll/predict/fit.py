"""Fits a machine model to measured times by choosing the alpha, beta and gamma with the closest simulated times.

Alpha is the latency of a message, beta the time per byte sent, and gamma the time per byte reduced. The fit uses every
second message size; the prediction errors at the other sizes show how good the machine model is. The fit minimises the
sum over measurements of |log(simulated / measured)|, smoothed near zero, so that times of microseconds count as much as
times of milliseconds, and outliers have little influence.

Between ranks of one host the cost of a byte depends on the message size: small messages go through a buffer, large ones
are sent in pieces, and messages larger than the caches are slower. A fitted link has one beta per band of message
sizes, and a call has a fixed cost before its first message. The idea of bands is from Kielmann, Bal and Verstoep, Fast
measurement of LogP parameters, 2000.

A simulated time is the time of the longest path of dependent messages, and the time of each path is linear in the
parameters. The fit computes the derivatives of the times by simulation, solves the linearised model, and repeats both
until the parameters converge. A fit takes about thirty simulations per measurement.

A band of message sizes whose fitted time per byte is at its lower limit has no effect on the measured times, and is
joined with the next band. A fit is refused where a latency or a time per byte still ends at a limit, because a machine
with this value is impossible, or where the median error at the message sizes that the fit left out exceeds MAX_ERROR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from hpccoll.algorithms import Algorithm
from hpccoll.errors import UsageError
from hpccoll.plan import Floats, Link, Machine, Plan, simulate
from hpccoll.predict.forecast import simulate_pipelined
from hpccoll.units import KiB, MiB, format_count

BAND_BORDERS = (16 * KiB, 256 * KiB, 4 * MiB)  # message sizes that separate the bands
_MIN_SIZES = 4
_MAX_ITERATIONS, _RELATIVE_STEP, _SMOOTHING = 4, 1e-3, 0.1
_MIN_PARAMETER, _MAX_PARAMETER = 1e-16, 1e3  # limits of a fitted parameter in seconds; some costs are practically 0
_MIN_ALPHA_S, _MIN_BETA_S = 1e-8, 1e-12  # limits of a link: 10 ns, 1000 GB/s
_AT_LIMIT = 1.01  # a parameter within this factor of its limit is at its limit
MAX_ERROR = 0.5  # a fitted machine with a larger median error on the sizes left out is refused


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A measurement that a machine model is fitted to: a plan, its algorithm, the message and the median seconds.

    `nodes` is the number of nodes of the measured job.
    """

    algorithm: Algorithm
    plan: Plan
    nodes: int
    count: int  # elements of a rank's vector, or of one block
    itemsize: int  # bytes of an element
    nbytes: int  # message size (S of nccl-tests)
    seconds: float


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A measurement, the seconds that the fitted machine model predicts for it, and whether the fit used it."""

    row: MeasuredRow
    seconds: float  # the predicted time
    fitted: bool  # whether the fit used the measurement

    @property
    def error(self) -> float:
        """The absolute error of the prediction, as a fraction of the measured time."""
        return abs(self.seconds / self.row.seconds - 1)


@dataclass(frozen=True, slots=True)
class MachineFit:
    """The machine model that a fit found, and the times that this model predicts for all measurements."""

    machine: Machine
    rows: tuple[PredictedRow, ...]

    def compute_median_error(self, *, fitted: bool) -> float:
        """Return the median relative error of the predictions, for measurements that the fit used or for others.

        If `fitted` is true, the measurements that the fit used count, else those that the fit left out.
        """
        return float(np.median([row.error for row in self.rows if row.fitted is fitted]))


def fit_machine(rows: Sequence[MeasuredRow], source: str) -> MachineFit:
    """Return a `MachineFit`: a model fitted to the measurements at every second message size, and all predictions.

    Args:
        rows: measurements of one job, with the same ranks on the same nodes.
        source: the name of the measurements, such as a file name, for error messages and the model's name.

    Raises UsageError if `rows` come from several jobs, have too few message sizes, or fit no possible machine.
    """
    sizes = sorted({row.nbytes for row in rows})
    if len(sizes) < _MIN_SIZES:
        usable = f"{len(rows)} rows of {len(sizes)} sizes that the engine hpccoll measured on 2 ranks or more"
        raise UsageError(f"{source}: a fit takes {_MIN_SIZES} sizes above 0 bytes; found {usable}; run `hpccoll bench`")
    jobs = sorted({(row.plan.ranks, row.nodes) for row in rows})
    if len(jobs) > 1:
        listed = "; ".join(f"{format_count(ranks, 'rank')} on {format_count(nodes, 'node')}" for ranks, nodes in jobs)
        raise UsageError(f"{source}: holds several jobs ({listed}); a fit takes the rows of one")
    fitted_sizes = set(sizes[::2])
    has_fences = any(row.algorithm.uses_shared_memory for row in rows)
    parameters = _ParameterLayout(*jobs[0], max(sizes), has_fences)
    fitted_rows = [row for row in rows if row.nbytes in fitted_sizes]
    values = _fit_parameters(parameters, fitted_rows)
    while (border := parameters.find_idle_band(values)) is not None:
        parameters = parameters.without_border(border)
        values = _fit_parameters(parameters, fitted_rows)
    machine = parameters.make_machine(values, f"fit:{source}")
    predictions = (PredictedRow(row, _simulate_seconds(row, machine), row.nbytes in fitted_sizes) for row in rows)
    fit = MachineFit(machine, tuple(predictions))
    _require_possible(fit, parameters.list_limited(values), source)
    return fit


def _require_possible(fit: MachineFit, limited: Sequence[str], source: str) -> None:
    """Raise UsageError if a fitted machine is impossible, or badly predicts the sizes that the fit left out.

    `limited` has the names of the parameters of links whose fitted value is a limit; no real machine has such a value.
    """
    remedy = (
        "measure on idle cores, with more sizes and algorithms (`hpccoll bench --algorithm all`), or name a machine"
    )
    error = fit.compute_median_error(fitted=False)
    if error > MAX_ERROR:
        raise UsageError(
            f"{source}: the fitted machine misses sizes that were not fitted by {error:.0%}, more than "
            f"{MAX_ERROR:.0%}; {remedy}"
        )
    if limited:
        raise UsageError(
            f"{source}: no possible machine fits these times: {' and '.join(limited)} ended at the limit of what a fit "
            f"may find; {remedy}"
        )


def fit_barriers(rows: Sequence[MeasuredRow], source: str) -> Machine:
    """Return a machine model that is fitted to measurements of barriers: the costs of a call, a message and a fence.

    A fence is a wait of the ranks of one node for each other. Barriers send no bytes, so the bandwidths of the fitted
    model are meaningless. `rows` has measurements, at least one, of one job with the same ranks on the same nodes;
    `source` is the name of the measurements.
    """
    has_fences = any(row.algorithm.uses_shared_memory for row in rows)
    parameters = _ParameterLayout(rows[0].plan.ranks, rows[0].nodes, 0, has_fences)
    return parameters.make_machine(_fit_parameters(parameters, rows), f"fit:{source}")


class _ParameterLayout:
    """The order, limits and start values of the K parameters that a fit varies.

    The K parameters are the cost of a call, gamma, the cost of a fence (a wait of the ranks of a node for each other),
    and then alpha and the betas of each link. Fences and links that no measurement uses have no parameters.

    Args:
        largest: largest measured message size in bytes.
        has_fences: whether algorithms with fences were measured.
        borders: message sizes in bytes that separate bands of message sizes, each of which has a beta of its own.
    """

    def __init__(
        self, ranks: int, nodes: int, largest: int, has_fences: bool, borders: tuple[int, ...] = BAND_BORDERS
    ) -> None:
        self.job = ranks, nodes, largest, has_fences
        self.ranks_per_node, self.has_fences = -(-ranks // nodes), has_fences
        self.borders = tuple(border for border in borders if border < largest)
        per_link = 2 + len(self.borders)
        self.within_count = per_link if self.ranks_per_node > 1 else 0
        within = [3e-6, *[2e-10] * (per_link - 1)] if self.within_count else []
        between = [3e-5, *[1e-9] * (per_link - 1)] if nodes > 1 else []
        costs = [1e-6, 1e-10, *([3e-6] if has_fences else [])]
        self.start = np.array([*costs, *within, *between])
        links = [name for name, start in (("within nodes", within), ("between nodes", between)) if start]
        self.link_names = [(f"alpha {name}", *[f"bandwidth {name}"] * (per_link - 1)) for name in links]
        least = [least for _ in links for least in (_MIN_ALPHA_S, *[_MIN_BETA_S] * (per_link - 1))]
        self.least = np.array([*[_MIN_PARAMETER] * len(costs), *least])

    def without_border(self, border: int) -> _ParameterLayout:
        """Return a layout with one band of message sizes in place of the two bands beside `border` (bytes)."""
        return _ParameterLayout(*self.job, tuple(kept for kept in self.borders if kept != border))

    def find_idle_band(self, values: Floats) -> int | None:
        """Return a border to remove because a band of message sizes beside it has no effect, or None.

        A band of message sizes has no effect if its beta is at the lower limit. The result is in bytes: the upper
        border of the band or, for the last band, its lower border. `values` are the fitted parameters, shape (K,).
        """
        if not self.borders:
            return None
        per_link = 2 + len(self.borders)
        links = (values <= _AT_LIMIT * self.least)[len(values) - per_link * len(self.link_names) :]
        idle = links.reshape(-1, per_link)[:, 1:].any(axis=0)
        return self.borders[min(int(idle.argmax()), len(self.borders) - 1)] if idle.any() else None

    def list_limited(self, values: Floats) -> list[str]:
        """Return the names of the parameters of links that are at a limit; `values` has shape (K,)."""
        at_limit = (values <= _AT_LIMIT * self.least) | (values >= _MAX_PARAMETER / _AT_LIMIT)
        names = [name for link in self.link_names for name in link]
        return list(dict.fromkeys(name for name, at in zip(names, at_limit[-len(names) :], strict=True) if at))

    def make_machine(self, values: Floats, name: str) -> Machine:
        """Return the machine model `name` with parameters `values`, shape (K,).

        If `values` has parameters for links within nodes only, or between nodes only, they apply to both kinds of link.
        """
        call, gamma, *rest = values.tolist()
        fence = rest.pop(0) if self.has_fences else None
        link_values = (rest[: self.within_count], rest[self.within_count :])
        links = [self._make_link(one_link) for one_link in link_values if one_link]
        return Machine(name, self.ranks_per_node, links[0], links[-1], 1, gamma, (), call, fence)

    def _make_link(self, values: list[float]) -> Link:
        """Return the link with parameters `values`: alpha in seconds, then seconds per byte for each band of sizes."""
        bands = tuple(zip(self.borders, values[2:], strict=True))
        return replace(Link.one_port(*values[:2]), bands=bands)


def _fit_parameters(parameters: _ParameterLayout, rows: Sequence[MeasuredRow]) -> Floats:
    """Return the parameters, shape (K,), whose simulated times are closest to the measured times."""
    measured = np.array([row.seconds for row in rows])
    values = parameters.start
    limits = (np.log(parameters.least), np.log(_MAX_PARAMETER))
    for _ in range(_MAX_ITERATIONS):
        derivatives = np.array([_compute_derivatives(parameters, row, values) for row in rows])  # (rows, K)

        def compute_log_errors(log_values: Floats, derivatives: Floats = derivatives) -> Floats:
            """Return log(predicted / measured time) of each measurement if the parameters are exp(`log_values`).

            `derivatives` are those of the simulated times with respect to the K parameters, shape (measurements, K).
            `log_values` has shape (K,).
            """
            return np.asarray(np.log(derivatives @ np.exp(log_values) / measured))

        start = np.clip(np.log(values), limits[0] + _RELATIVE_STEP, limits[1] - _RELATIVE_STEP)
        solution = least_squares(compute_log_errors, start, loss="soft_l1", f_scale=_SMOOTHING, bounds=limits)
        previous, values = values, np.exp(solution.x)
        if np.allclose(previous, values, rtol=10 * _RELATIVE_STEP):
            break
    return values


def _compute_derivatives(parameters: _ParameterLayout, row: MeasuredRow, values: Floats) -> Floats:
    """Return the derivatives of a measurement's simulated time with respect to the parameters, shape (K,).

    Runs one simulation more than there are parameters. A simulated time is homogeneous of degree one in the parameters,
    so the time is the dot product of parameters and derivatives. `values` are the parameters, shape (K,).
    """
    seconds = _simulate_seconds(row, parameters.make_machine(values, ""))
    derivatives = np.empty_like(values)
    for k, value in enumerate(values):
        changed = values.copy()
        changed[k] = value * (1 + _RELATIVE_STEP)
        changed_seconds = _simulate_seconds(row, parameters.make_machine(changed, ""))
        derivatives[k] = (changed_seconds - seconds) / (value * _RELATIVE_STEP)
    return np.maximum(derivatives, 0.0)


def _simulate_seconds(row: MeasuredRow, machine: Machine) -> float:
    """Return the simulated time in seconds of a measurement's plan with the machine model `machine`."""
    if row.algorithm.is_two_level:
        return simulate_pipelined(row.plan, machine, row.count, row.itemsize).seconds
    return simulate(row.plan, machine, row.count, row.itemsize, trace=False).seconds
