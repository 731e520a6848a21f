"""How far measurements are from what no plan of messages can be faster than, on a machine that is known or fitted.

`hpccoll bench` records no bound, since it knows no machine. Here there is one: either what the user names (a data
sheet, a TOML file), or the machine that predict/fit.py finds behind the measured rows of the same job: the alpha, beta
and gamma with which the simulated plans come closest to them. A fitted bound says how much of what this machine has
shown it can do an operation makes use of, not what its data sheet promises. A record that has a bound keeps it.

The bounds are those of messages: ranks that load and store in shared memory may be faster, below 1x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hpccoll.errors import HpccollError
from hpccoll.measure.record import CollectiveRecord
from hpccoll.plan import Link, Machine, Operation
from hpccoll.plan.simulation import compute_bounds
from hpccoll.predict.fit import MeasuredRow, fit_machine
from hpccoll.report.axis_scale import format_bytes_per_s, format_seconds
from hpccoll.report.curves import CurveGroup

JobSize: TypeAlias = tuple[int, int]  # ranks, nodes
_MOST_WORK = 1000  # rounds of few ranks, over all rows that are fitted and all jobs: some five seconds
_LEAST_SHARE, _MOST_SIZES = 300, 8  # of which each job has at least so many; sizes of a job that are looked at
_MANY_RANKS = 256  # from which on a round costs noticeably more the more ranks it has
_DIRECT = 2  # rounds in which every rank may send to every other
_WORST_FIT = 0.5  # median error beyond which the fitted machine explains nothing


@dataclass(frozen=True, slots=True)
class JobModel:
    """A machine for one job, where it is from, and by how much it misses sizes that were not fitted (None: no fit)."""

    machine: Machine
    source: str
    error: float | None = None

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Its parameters as names and values."""
        near, wide = self.machine.within, self.machine.between
        nodes = [("between nodes", wide)] if wide != near else []
        links = [line for name, link in (("within a node", near), *nodes) for line in _describe_link(name, link)]
        call = (
            [("a call, before its first message", format_seconds(self.machine.call_s))] if self.machine.call_s else []
        )
        return (*links, *call)


@dataclass(frozen=True, slots=True)
class BoundModels:
    """The machine of each job, and why there is none for others."""

    by_job: Mapping[JobSize, JobModel] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def compute_bound_s(self, record: CollectiveRecord) -> float | None:
        """Return the least time of a measurement's operation and size; None where no machine is known."""
        if record.bound_us is not None:
            return record.bound_us * 1e-6 or None
        row = record.row
        model = self.by_job.get((row.ranks, row.nodes))
        if model is None or row.op not in [operation.value for operation in Operation]:
            return None
        return compute_bounds(Operation(row.op), row.ranks, model.machine, row.nbytes).seconds or None


def use_named_machine(jobs: Iterable[JobSize], machine: Machine) -> BoundModels:
    """Return the machine that the user named, for each job as many ranks a node as it had."""
    return BoundModels({(n, m): JobModel(machine.with_ranks_per_node(-(-n // m)), machine.name) for n, m in jobs})


def fit_machines(
    jobs: Iterable[JobSize], rows: Sequence[MeasuredRow], advance: Callable[[str], None] = lambda _: None
) -> BoundModels:
    """Return the machines that come closest to the measured rows of each job.

    Args:
        jobs: those to find machines for.
        rows: of all files.
        advance: called for each job that is done.
    """
    found: dict[JobSize, JobModel] = {}
    missing: list[str] = []
    several = sorted(set(jobs))
    share = max(_MOST_WORK // max(len(several), 1), _LEAST_SHARE)
    for job in several:
        mine = _select_rows_to_fit([row for row in rows if (row.plan.ranks, row.nodes) == job], share)
        where = f"{job[0]} rank{'s' * (job[0] > 1)} on {job[1]} node{'s' * (job[1] > 1)}"
        try:
            fitted = fit_machine(mine, where)
        except HpccollError as error:
            missing.append(str(error))
            continue
        finally:
            advance(where)
        error_left_out = fitted.median_error(fitted=False)
        if error_left_out > _WORST_FIT:
            missing.append(f"{where}: no machine explains the times: the fitted one misses by {error_left_out:.0%}")
            continue
        source = f"fitted to {len(mine)} rows of this job"
        found[job] = JobModel(fitted.machine, source, error_left_out)
    return BoundModels(found, tuple(missing))


def list_job_sizes(pictures: Iterable[CurveGroup]) -> list[JobSize]:
    """Return the jobs that communicated anything, in order of size."""
    return sorted({(p.setting.ranks, p.setting.nodes) for p in pictures if p.setting.ranks > 1})


def _select_rows_to_fit(rows: Sequence[MeasuredRow], most: float) -> list[MeasuredRow]:
    """Return as many rows as can be fitted in reasonable time: some sizes, whole algorithms, the cheapest first."""
    sizes = sorted({row.nbytes for row in rows})
    every = max(-(-len(sizes) // _MOST_SIZES), 1)
    by_algorithm: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        if row.nbytes in sizes[::every] or row.nbytes == sizes[-1]:
            by_algorithm.setdefault(row.algorithm.full_name, []).append(row)
    kept: list[MeasuredRow] = []
    work = 0.0
    for mine in sorted(by_algorithm.values(), key=_estimate_fit_cost):
        work += _estimate_fit_cost(mine)
        if kept and work > most:
            break
        kept += mine
    return kept


def _estimate_fit_cost(rows: Sequence[MeasuredRow]) -> float:
    """Return what simulating these rows costs, in rounds; where few rounds move everything, each has many messages."""
    steps = [row.plan.cost.steps if row.plan.cost else row.plan.ranks for row in rows]
    rounds = sum(many + (row.plan.ranks if many <= _DIRECT else 0) for many, row in zip(steps, rows, strict=True))
    return rounds * (1 + rows[0].plan.ranks / _MANY_RANKS)


def _describe_link(name: str, link: Link) -> list[tuple[str, str]]:
    best = format_bytes_per_s(1 / link.least_beta) if link.least_beta else "no limit"
    return [(f"alpha {name}", format_seconds(link.alpha_s)), (f"bandwidth {name}, at best", best)]
