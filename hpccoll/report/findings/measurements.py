"""Findings on measurements: wrong results, slow implementations, missed bounds and poor scaling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.measure.display.table import format_title
from hpccoll.measure.results.measured_case import Implementation, MeasuredCase
from hpccoll.records import CollectiveRecord
from hpccoll.report.bound_models import BoundModels
from hpccoll.report.curves import CurveGroup, compute_busbw_interval, get_time_interval_s
from hpccoll.report.load import RunMeasurement
from hpccoll.report.number_format import format_bytes_per_s, format_factor, format_seconds
from hpccoll.report.scaling_curves import ScalingCurves, group_scaling_curves
from hpccoll.statistics import Interval, ratio_of_medians
from hpccoll.units import format_count, format_size

# A slowdown is reported if the low end of its confidence interval exceeds AUTO_LIMIT, MPI_LIMIT or ALGORITHM_LIMIT.
AUTO_LIMIT, MPI_LIMIT, ALGORITHM_LIMIT = 1.10, 1.5, 10.0
BOUND_LIMIT = 3.0
MIN_BUSBW_KEPT = 0.5  # a larger job that keeps less than this fraction of the bus bandwidth is reported
_MAX_LISTED = 4
_SELECTABLE = ("hpccoll", "mpi")  # engines whose collectives `auto` can select
_ENGINE_REMEDIES = {
    "gloo": "use hpccoll or another backend of torch.distributed at these sizes; gloo uses TCP within a node, too",
    "nccl": "run once with NCCL_DEBUG=INFO, which prints the transport and the number of channels that NCCL uses",
}
_SLOW_NODE = (
    "one slow link or node slows down all ranks: run hpccoll preflight on these nodes, and check how the added nodes "
    "are connected (another switch?)"
)
_SHARED_RESOURCE = "check what the ranks share: cores (more ranks than cores?), a socket's memory, one network port"


class Lag(NamedTuple):
    """An implementation's median time divided by that of the implementation `fastest` at one message size.

    `ratio` has a confidence interval, and `nbytes` is the message size.
    """

    ratio: Interval
    nbytes: int
    fastest: Implementation

    def __str__(self) -> str:
        size = f" at {format_size(self.nbytes)}" if self.nbytes else ""
        bounds = f"[{self.ratio.low:.3g}, {self.ratio.high:.3g}]"
        return f"{self.ratio.value:.3g}x slower than {self.fastest.label}{size} {bounds}"


Lags: TypeAlias = dict[Implementation, list[Lag]]  # each implementation's slowdowns against the fastest implementation


def find_wrong_results(rows: Iterable[RunMeasurement]) -> Iterator[Finding]:
    """Yield a problem per operation, engine and algorithm with wrong results, and a note if results were unchecked."""
    kept = list(rows)
    wrong: dict[str, list[RunMeasurement]] = {}
    for measured in kept:
        row = measured.record
        if measured.record.wrong:
            library = f" on {measured.run.mpi}" if row.engine == "mpi" and measured.run.mpi else ""
            wrong.setdefault(f"{row.op} by {row.engine} {row.algorithm or ''}".strip() + library, []).append(measured)
    for name, members in wrong.items():
        evidence = "; ".join(
            f"{member.record.wrong} of {member.record.count} elements at {format_size(member.record.nbytes)}, "
            f"{format_count(member.record.ranks, 'rank')} ({member.run.title})"
            for member in members[:_MAX_LISTED]
        )
        remedy = (
            "do not use it here. For hpccoll's algorithms, run `hpccoll verify`; for the MPI library, try another "
            "version or transport; for GPUs, check the memory (dcgmi diag). Then measure again with another --seed"
        )
        yield Finding("results", Severity.PROBLEM, f"wrong results: {name}", evidence, remedy)
    unchecked = [measured for measured in kept if measured.record.wrong is None]
    if unchecked:
        found = f"the results of {len(unchecked)} of {len(kept)} measurements were not checked"
        evidence = ", ".join(sorted({measured.run.title for measured in unchecked})[:_MAX_LISTED])
        yield Finding("results", Severity.NOTE, found, evidence, "measure again without --check 0")


def find_slow_implementations(groups: Iterable[CurveGroup]) -> Iterator[Finding]:
    """Yield findings on implementations that are far slower than the fastest: `auto`, MPI, algorithms and engines."""
    for group in groups:
        if group.setting.ranks < 2:
            continue
        lags: Lags = {}
        for case in group.cases:
            for implementation, lag in _compare_to_fastest(case):
                lags.setdefault(implementation, []).append(lag)
        yield from _find_slow_auto(group, lags)
        yield from _find_slow_mpi(group, lags)
        yield from _find_slow_algorithms(group, lags)
        yield from _find_slow_engines(group, lags)


def _compare_to_fastest(case: MeasuredCase) -> Iterator[tuple[Implementation, Lag]]:
    """Yield each significantly slower implementation with its slowdown against the fastest at one message size.

    Implementations that were measured with another MPI library than the fastest are left out.
    """
    fastest = case.fastest
    if fastest is None or case.records[fastest].time_us.min <= 0:
        return
    for name, record in case.records.items():
        if name != fastest and name.library == fastest.library:
            ratio = ratio_of_medians(record.samples_us, case.records[fastest].samples_us)
            if ratio.low > 1:
                yield name, Lag(ratio, case.nbytes, fastest)


def _select_far_behind(lags: Iterable[Lag], limit: float) -> list[Lag]:
    """Return the slowdowns whose whole confidence interval exceeds `limit`, the largest first."""
    return sorted((lag for lag in lags if lag.ratio.low > limit), key=lambda lag: -lag.ratio.low)


def _describe_lags(group: CurveGroup, lags: Sequence[Lag]) -> str:
    """Return the evidence of a finding: the operation, the job size and the first slowdowns in `lags`."""
    return f"{format_title(group.setting)}, {group.place}: {'; '.join(map(str, lags[:_MAX_LISTED]))}"


def _find_slow_auto(group: CurveGroup, lags: Lags) -> Iterator[Finding]:
    """Yield findings if `auto` is far slower than the fastest implementation at some message size.

    A warning compares `auto` with collectives that it can select, and a note with those of other engines.
    """
    op, sizes = group.setting.op, len(group.sizes)
    for own in (own for implementation, own in lags.items() if implementation.algorithm == "auto"):
        far = _select_far_behind(own, AUTO_LIMIT)
        selectable = [lag for lag in far if lag.fastest.engine in _SELECTABLE]
        others = [lag for lag in far if lag not in selectable]
        if selectable:
            found = f"auto is slower than the fastest algorithm of {op} at {len(selectable)} of {sizes} sizes"
            remedy = f"run hpccoll tune {op} under the same launcher; it measures and stores the fastest algorithms"
            yield Finding("algorithm", Severity.WARNING, found, _describe_lags(group, selectable), remedy)
        if others:
            names = " or ".join(dict.fromkeys(lag.fastest.label for lag in others))
            found = f"{names} is faster than auto at {len(others)} of {sizes} sizes of {op}"
            remedy = (
                f"call {op} of {names} where these sizes matter; auto selects among hpccoll's algorithms and MPI only"
            )
            yield Finding("engine", Severity.NOTE, found, _describe_lags(group, others), remedy)


def _find_slow_mpi(group: CurveGroup, lags: Lags) -> Iterator[Finding]:
    """Yield a note for each MPI library whose own collective is far slower than the fastest at some message size."""
    op = group.setting.op
    for implementation, own in lags.items():
        far = _select_far_behind(own, MPI_LIMIT)
        if implementation.engine == "mpi" and far:
            library = f" of {implementation.library}" if implementation.library else ""
            found = f"the MPI library's {op}{library} is slow at {len(far)} of {len(group.sizes)} sizes"
            algorithms = [lag.fastest.algorithm or "" for lag in far if lag.fastest.engine == "hpccoll"]
            remedy = f"call {op} of {far[0].fastest.label} at these sizes"
            if algorithms:
                listed = ", ".join(dict.fromkeys(algorithms))
                remedy = f"use hpccoll's {op} at these sizes: algorithm {listed}, or auto after hpccoll tune {op}"
            remedy += "; the MPI library may have tuning parameters, too"
            yield Finding("engine", Severity.NOTE, found, _describe_lags(group, far), remedy)


def _find_slow_algorithms(group: CurveGroup, lags: Lags) -> Iterator[Finding]:
    """Yield one note on all algorithms of hpccoll, except `auto`, that are far slower than the fastest at some size."""
    slow = _select_slowest(
        {name: own for name, own in lags.items() if name.engine == "hpccoll" and name.algorithm != "auto"}
    )
    if slow:
        listed = "; ".join(f"{name.label} {lag}" for _, name, lag in slow[:_MAX_LISTED])
        op = group.setting.op
        found = f"some algorithms of {op} are more than {ALGORITHM_LIMIT:.0f}x slower than the fastest at some size"
        evidence = f"{format_title(group.setting)}, {group.place}: {listed}"
        remedy = f"run hpccoll tune {op}, then use algorithm='auto' instead of one algorithm for all sizes"
        yield Finding("algorithm", Severity.NOTE, found, evidence, remedy)


def _find_slow_engines(group: CurveGroup, lags: Lags) -> Iterator[Finding]:
    """Yield a note per engine, except hpccoll and MPI, that is far slower than the fastest at some size."""
    others = {name: own for name, own in lags.items() if name.engine not in _SELECTABLE}
    for _, name, lag in _select_slowest(others):
        limit = f"more than {ALGORITHM_LIMIT:.0f}x slower than the fastest"
        found = f"{name.label}'s {group.setting.op} is {limit} at some size"
        evidence = f"{format_title(group.setting)}, {group.place}: {lag}"
        remedy = _ENGINE_REMEDIES.get(name.engine, f"use {lag.fastest.label} instead of {name.label} at these sizes")
        yield Finding("engine", Severity.NOTE, found, evidence, remedy)


def _select_slowest(lags: Lags) -> list[tuple[float, Implementation, Lag]]:
    """Return each implementation's largest slowdown if it exceeds ALGORITHM_LIMIT, in descending order of slowdown.

    Returns:
        The low end of the slowdown's interval, the implementation, and the slowdown.
    """
    worst = {name: max(own, key=lambda lag: lag.ratio.low) for name, own in lags.items()}
    slow = [(lag.ratio.low, name, lag) for name, lag in worst.items() if lag.ratio.low > ALGORITHM_LIMIT]
    return sorted(slow, key=lambda entry: -entry[0])


def find_missed_bounds(groups: Iterable[CurveGroup], models: BoundModels) -> Iterator[Finding]:
    """Yield a note per operation on several nodes whose fastest time for the largest message far exceeds its bound."""
    for group in groups:
        name = group.cases[-1].fastest if group.setting.nodes > 1 else None
        record = None if name is None else group.cases[-1].records[name]
        bound = None if record is None else models.compute_bound_s(record)
        if name is None or record is None or bound is None:
            continue
        time, low, _ = get_time_interval_s(record)
        if low / bound > BOUND_LIMIT:
            found = f"even the fastest {group.setting.op} takes {format_factor(time / bound)} the lower bound"
            times = f"{name.label} {format_seconds(time)}, bound {format_seconds(bound)}"
            evidence = f"{format_title(group.setting)}, {format_size(group.sizes[-1])}: {times}"
            remedy = (
                "check links and binding: run hpccoll preflight on the same nodes and hpccoll doctor under the same "
                "launcher"
            )
            yield Finding("bound", Severity.NOTE, found, evidence, remedy)


def find_poor_scaling(groups: Sequence[CurveGroup]) -> Iterator[Finding]:
    """Yield a warning per operation whose bus bandwidth for the largest message more than halves on a larger job."""
    for scaling in group_scaling_curves(groups):
        if scaling.sizes and scaling.sizes[-1] > 0:
            yield from _find_bandwidth_drop(scaling, scaling.sizes[-1])


def _find_bandwidth_drop(scaling: ScalingCurves, nbytes: int) -> Iterator[Finding]:
    """Yield a warning for the first job that has less than half of the bus bandwidth of the next smaller job.

    `nbytes` is the message size at which jobs are compared.
    """
    fastest: dict[int, tuple[float, CollectiveRecord]] = {}
    for implementation in scaling.implementations:
        for x, record in scaling.find_records(implementation, nbytes):
            busbw = compute_busbw_interval(record)[0]
            if not record.wrong and (x not in fastest or busbw > fastest[x][0]):
                fastest[x] = (busbw, record)
    for smaller, larger in pairwise(sorted(fastest)):
        before, after = fastest[smaller][1], fastest[larger][1]
        if scaling.over == "nodes" and smaller == 1:  # a network is expected to be slower than a node's memory
            continue
        if compute_busbw_interval(after)[2] < MIN_BUSBW_KEPT * compute_busbw_interval(before)[1]:
            speeds = f"{format_bytes_per_s(fastest[smaller][0])} to {format_bytes_per_s(fastest[larger][0])}"
            change = f"from {smaller} to {larger} {scaling.over}: {speeds}"
            found = f"{scaling.op} loses more than half its bandwidth {change}"
            jobs = [
                f"{format_count(record.ranks, 'rank')} on {format_count(record.nodes, 'node')}"
                for record in (before, after)
            ]
            evidence = f"bus bandwidth of the fastest at {format_size(nbytes)}, {jobs[0]} and {jobs[1]}"
            remedy = _SLOW_NODE if scaling.over == "nodes" else _SHARED_RESOURCE
            yield Finding("scaling", Severity.WARNING, found, evidence, remedy)
            return
