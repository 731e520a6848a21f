"""Lower bounds on the time of an operation, from the measured limit of a run or from a machine model.

For messages from 1 MiB on, the bound comes from the hardware limit that `hpccoll bench` measured (the speed of copies
or of exchanges between nodes), like the bound in the verdict of that command. For shorter messages, the bound comes
from a machine model fitted per job (predict/fit.py), whose simulated times are closest to the measured times. A bound
from a fitted model compares an operation with the best performance seen on this machine, not with the hardware's data
sheet. A model or network of --machine replaces the measured limit and the fitted model. A bound in a result record
takes precedence over all other bounds.

The bounds assume message passing. Ranks that access shared memory directly may be faster than the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hpccoll.errors import HpccollError
from hpccoll.measure.hardware_limit import HardwareLimit, compute_lower_bounds, find_network_optimum
from hpccoll.plan import Link, Machine, Operation
from hpccoll.plan.simulation import compute_bounds
from hpccoll.predict.fit import MAX_ERROR, MachineFit, MeasuredRow, fit_machine
from hpccoll.records import CollectiveRecord
from hpccoll.report.axis_scale import thin_values
from hpccoll.report.curves import CurveGroup
from hpccoll.report.load import RunMeasurement
from hpccoll.report.number_format import format_bytes_per_s, format_seconds
from hpccoll.selection import BufferKind
from hpccoll.synthesis import Network, Optimum, make_machine_network
from hpccoll.synthesis.machine_network import MOST_RANKS
from hpccoll.synthesis.optimum import describe_speed
from hpccoll.units import format_size

JobSize: TypeAlias = tuple[int, int]  # ranks, nodes
_MAX_FIT_COST = 1000  # limit of _estimate_fit_cost for the fits of all jobs together: about 5 s
_MIN_JOB_COST, _MAX_JOB_SIZES = 300, 8  # fit cost that every job may have; most message sizes to fit per job
_MANY_RANKS = 256  # simulating a round takes twice as long with this many ranks as with few
_LEAST_SHOWN_S = 1e-9  # a shorter fitted time per call is not shown
_DIRECT_ROUNDS = 2  # in a plan with at most this many rounds, every rank may send to all others


@dataclass(frozen=True, slots=True)
class JobModel:
    """The machine model (latencies, bandwidths) from which a report computes lower bounds on the times of one job."""

    machine: Machine  # the machine model
    source: str  # the name of the model, or a phrase such as `fitted to 40 rows of this job`
    # A fitted model's median relative error at message sizes that the fit left out; None for a named model
    error: float | None = None

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """The parameters of the model for printing, as pairs of a name and a formatted value."""
        within, between = self.machine.within, self.machine.between
        links = _describe_link("within a node", within)
        if between != within:
            links += _describe_link("between nodes", between)
        if self.machine.call_s >= _LEAST_SHOWN_S:
            links.append(("cost of a call", format_seconds(self.machine.call_s)))
        return tuple(links)


@dataclass(frozen=True, slots=True)
class BoundModels:
    """The sources of lower bounds on times, by job size (ranks, nodes)."""

    by_job: Mapping[JobSize, JobModel] = field(default_factory=dict)  # the machine model of each job
    missing: tuple[str, ...] = ()  # a message for each job for which no machine model could be fitted
    # The fastest measured copy within a node, or exchange between nodes, of each job
    limits: Mapping[JobSize, HardwareLimit] = field(default_factory=dict)
    # The network of each job's nodes, if the user gave --machine
    networks: Mapping[JobSize, Network] = field(default_factory=dict)

    def compute_bound_s(self, record: CollectiveRecord) -> float | None:
        """Return a lower bound in seconds on the time of a measured collective; None if no bound is known, or it is 0.

        A bound in the record takes precedence over the job's measured limit, machine model and network.
        """
        if record.bound_us is not None:
            return record.bound_us * 1e-6 or None
        job = record.ranks, record.nodes
        model, limit = self.by_job.get(job), None if record.buffer == BufferKind.CUDA else self.limits.get(job)
        if record.op not in [operation.value for operation in Operation]:
            return None
        machine, optimum = None if model is None else model.machine, self.find_optimum(record)
        bounds = compute_lower_bounds(Operation(record.op), record.nbytes, record.ranks, limit, machine, optimum)
        return bounds.seconds or None

    def find_optimum(self, record: CollectiveRecord) -> Optimum | None:
        """Return the least time per byte, without latency, that the record's collective needs on the job's network.

        The result is None if the network or the bound is unknown.
        """
        network = self.networks.get((record.ranks, record.nodes))
        return None if network is None else find_network_optimum(record, network)

    def describe_share(self, record: CollectiveRecord) -> str:
        """Return a phrase: the speed of the record as a percentage of the speed that the network allows, and the limit.

        The result is empty if the network or the bound is unknown.
        """
        if record.bound_us and record.binding:
            return describe_speed(record.bound_us, record.time_us.p50, "lower bound", record.binding)
        optimum = self.find_optimum(record) if record.bound_us is None and record.nbytes else None
        return "" if optimum is None else optimum.describe_share(record.time_us.p50 * 1e-6, record.nbytes)


def use_named_machine(jobs: Iterable[JobSize], machine: Machine) -> BoundModels:
    """Return the `BoundModels` in which each job has the machine model `machine`, with the job's ranks per node."""
    per_node = {(ranks, nodes): -(-ranks // nodes) for ranks, nodes in jobs}
    models = {job: JobModel(machine.with_ranks_per_node(n), machine.name) for job, n in per_node.items()}
    small = {job: model.machine for job, model in models.items() if job[0] <= MOST_RANKS}
    return BoundModels(models, networks={job: make_machine_network(model, job[0]) for job, model in small.items()})


def fit_machines(
    jobs: Iterable[JobSize], rows: Sequence[MeasuredRow], advance: Callable[[str], None] = lambda _: None
) -> BoundModels:
    """Fit a machine model to the measurements of each job, and return the `BoundModels`. Takes a few seconds.

    Args:
        jobs: the ranks and nodes of each job.
        rows: the measurements of all jobs.
        advance: called after each job with the job's size in words, to show progress.
    """
    models: dict[JobSize, JobModel] = {}
    missing: list[str] = []
    ordered = sorted(set(jobs))
    max_cost = max(_MAX_FIT_COST // max(len(ordered), 1), _MIN_JOB_COST)
    for job in ordered:
        selected = _select_rows_to_fit([row for row in rows if (row.plan.ranks, row.nodes) == job], max_cost)
        description = format_job_size(job)
        try:
            fitted = fit_machine(selected, description)
        except HpccollError as error:
            missing.append(str(error))
            continue
        finally:
            advance(description)
        if refutation := _find_refutation(fitted):
            missing.append(f"{description}: {refutation}")
            continue
        median_error = fitted.compute_median_error(fitted=False)
        models[job] = JobModel(fitted.machine, f"fitted to {len(selected)} rows of this job", median_error)
    return BoundModels(models, tuple(missing))


def _find_refutation(fit: MachineFit) -> str:
    """Return a message on a measured time that is below the fitted model's lower bound; empty if there is none.

    Only algorithms that pass messages count, because shared memory may be faster than the bound.
    """
    for predicted in fit.rows:
        row = predicted.row
        bound = compute_bounds(row.plan.operation, row.plan.ranks, fit.machine, row.nbytes).seconds
        if not row.algorithm.uses_shared_memory and row.seconds < (1 - MAX_ERROR) * bound:
            return (
                f"the fitted machine's bound for {row.algorithm.full_name} of {format_size(row.nbytes)} is "
                f"{format_seconds(bound)}, more than the measured {format_seconds(row.seconds)}"
            )
    return ""


def collect_limits(rows: Iterable[RunMeasurement]) -> dict[JobSize, HardwareLimit]:
    """Return the fastest copy or exchange of bytes that `hpccoll bench` measured, by job size (ranks, nodes)."""
    limits: dict[JobSize, HardwareLimit] = {}
    for row in rows:
        limit, job = HardwareLimit.from_run(row.run.record), (row.record.ranks, row.record.nodes)
        known = limits.get(job)
        if limit is not None and (known is None or limit.us / limit.nbytes < known.us / known.nbytes):
            limits[job] = limit
    return limits


def format_job_size(job: JobSize) -> str:
    """Return a job's size (ranks, nodes) in words, such as `4 ranks on 2 nodes`."""
    ranks, nodes = job
    return f"{ranks} rank{'s' * (ranks > 1)} on {nodes} node{'s' * (nodes > 1)}"


def list_job_sizes(groups: Iterable[CurveGroup]) -> list[JobSize]:
    """Return the size (ranks, nodes) of each job with more than one rank, in ascending order."""
    return sorted({(group.setting.ranks, group.setting.nodes) for group in groups if group.setting.ranks > 1})


def _select_rows_to_fit(rows: Sequence[MeasuredRow], max_cost: float) -> list[MeasuredRow]:
    """Return the measurements of the algorithms that are cheapest to simulate, for the fit of a machine model.

    Args:
        rows: the measurements of one job.
        max_cost: limit of the total cost, in the unit of `_estimate_fit_cost`; at least one algorithm is selected.
    """
    sizes = sorted({row.nbytes for row in rows})
    sizes = [*thin_values(sizes, _MAX_JOB_SIZES), sizes[-1]] if sizes else []
    by_algorithm: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        if row.nbytes in sizes:
            by_algorithm.setdefault(row.algorithm.full_name, []).append(row)
    selected: list[MeasuredRow] = []
    cost = 0.0
    for algorithm_rows in sorted(by_algorithm.values(), key=_estimate_fit_cost):
        cost += _estimate_fit_cost(algorithm_rows)
        if selected and cost > max_cost:
            break
        selected += algorithm_rows
    return selected


def _estimate_fit_cost(rows: Sequence[MeasuredRow]) -> float:
    """Return the estimated cost of simulating an algorithm's measurements, in simulated rounds of a few ranks.

    If each of p ranks sends to all p - 1 others in one round, simulating the round costs as much as p ordinary rounds.
    """
    ranks = rows[0].plan.ranks
    steps = [row.plan.cost.steps if row.plan.cost else ranks for row in rows]
    rounds = sum(count + (ranks if count <= _DIRECT_ROUNDS else 0) for count in steps)
    return rounds * (1 + ranks / _MANY_RANKS)


def _describe_link(name: str, link: Link) -> list[tuple[str, str]]:
    """Return the latency and the peak bandwidth of a link, each as a pair of label and formatted value.

    `name` is the end of the labels, such as `within a node`.
    """
    peak = format_bytes_per_s(1 / link.min_beta) if link.min_beta else "no limit"
    return [(f"alpha {name}", format_seconds(link.alpha_s)), (f"peak bandwidth {name}", peak)]
