"""Findings on measurements: wrong results, algorithms far behind the best, bounds and growth that are missed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.measure.record import CollectiveRecord
from hpccoll.measure.statistics import Interval, ratio_of_medians
from hpccoll.measure.table import format_title
from hpccoll.report.axis_scale import format_bytes_per_s, format_factor, format_seconds
from hpccoll.report.bound_models import BoundModels
from hpccoll.report.curves import CurveGroup, Implementation, compute_busbw_interval, get_time_interval_s
from hpccoll.report.load import MeasuredRow
from hpccoll.report.scaling_curves import ScalingCurves, group_scaling_curves
from hpccoll.units import format_size

AUTO_BEHIND, MPI_BEHIND, FAR_BEHIND = 1.10, 1.5, 10.0  # times slower than the best, beyond what chance can do
OVER_BOUND = 3.0
FALLS = 0.5  # of the bus bandwidth, from one number of nodes to the next
_MOST_TOLD = 4
_JOINED = (
    "one slow link or node holds up all: hpccoll preflight on these nodes; and look at what joined: a second switch?"
)
_CROWDED = "look at what the ranks share: cores (more ranks than cores?), a socket's memory, one network port"


def find_wrong_results(rows: Iterable[MeasuredRow]) -> Iterator[Finding]:
    """Yield what was found wrong, and whether something was not checked."""
    kept = list(rows)
    bad: dict[str, list[MeasuredRow]] = {}
    for timed in kept:
        row = timed.record.row
        if timed.record.wrong:
            library = f" on {timed.run.mpi}" if row.engine == "mpi" and timed.run.mpi else ""
            bad.setdefault(f"{row.op} by {row.engine} {row.algorithm or ''}".strip() + library, []).append(timed)
    for name, several in bad.items():
        told = [
            f"{each.record.wrong} of {each.record.row.count} elements at {format_size(each.record.row.nbytes)}, "
            f"{each.record.row.ranks} ranks ({each.run.title})"
            for each in several[:_MOST_TOLD]
        ]
        remedy = (
            "do not use it here. For an own algorithm: `hpccoll verify` its plan; for the MPI library: another version "
            "or transport; for GPUs: check the memory (dcgmi diag). Measure again with another --seed"
        )
        yield Finding("results", Severity.PROBLEM, f"wrong results: {name}", "; ".join(told), remedy)
    unchecked = [timed for timed in kept if timed.record.wrong is None]
    if unchecked:
        found = f"{len(unchecked)} of {len(kept)} measurements were not checked"
        evidence = ", ".join(sorted({each.run.title for each in unchecked})[:_MOST_TOLD])
        yield Finding("results", Severity.NOTE, found, evidence, "leave out --check 0")


def find_slow_implementations(pictures: Iterable[CurveGroup]) -> Iterator[Finding]:
    """Yield who is far behind the best: `auto`, the MPI library itself, single algorithms."""
    for picture in pictures:
        if picture.setting.ranks < 2:
            continue
        behind: dict[Implementation, list[tuple[float, int, Implementation, Interval]]] = {}
        for nbytes in picture.sizes:
            for name, leader, ratio in _compare_to_fastest(picture, nbytes):
                behind.setdefault(name, []).append((ratio.low, nbytes, leader, ratio))
        yield from _find_slow_auto(picture, behind)
        yield from _find_slow_mpi(picture, behind)
        yield from _find_slow_algorithms(picture, behind)


def _compare_to_fastest(picture: CurveGroup, nbytes: int) -> Iterator[tuple[Implementation, Implementation, Interval]]:
    """Yield how many times slower than the best each line is, where that is more than chance."""
    best = picture.find_fastest(nbytes)
    if best is None or best[1].time_us.min <= 0:
        return
    for curve in picture.curves:
        record = curve.record_at(nbytes)
        if record is not None and record is not best[1] and curve.implementation.library == best[0].library:
            ratio = ratio_of_medians(record.samples_us, best[1].samples_us)
            if ratio.low > 1:
                yield curve.implementation, best[0], ratio


def _format_lag(each: tuple[float, int, Implementation, Interval]) -> str:
    _, nbytes, leader, ratio = each
    at = f" at {format_size(nbytes)}" if nbytes else ""
    return f"{ratio.value:.3g}x slower than {leader.label}{at} [{ratio.low:.3g}, {ratio.high:.3g}]"


def _find_slow_auto(
    picture: CurveGroup, behind: dict[Implementation, list[tuple[float, int, Implementation, Interval]]]
) -> Iterator[Finding]:
    for name, several in behind.items():
        far = sorted((each for each in several if each[0] > AUTO_BEHIND), reverse=True, key=lambda each: each[0])
        if name.algorithm == "auto" and far:
            found = (
                f"auto does not take the fastest of {picture.setting.op}, at {len(far)} of {len(picture.sizes)} sizes"
            )
            evidence = f"{_name_group(picture)}: {'; '.join(map(_format_lag, far[:_MOST_TOLD]))}"
            remedy = (
                f"measure and store what is fastest here: hpccoll tune {picture.setting.op}, under the same launcher"
            )
            yield Finding("algorithm", Severity.WARNING, found, evidence, remedy)


def _find_slow_mpi(
    picture: CurveGroup, behind: dict[Implementation, list[tuple[float, int, Implementation, Interval]]]
) -> Iterator[Finding]:
    for name, several in behind.items():
        far = sorted((each for each in several if each[0] > MPI_BEHIND), reverse=True, key=lambda each: each[0])
        if name.engine == "mpi" and far:
            known = f" of {name.library}" if name.library else ""
            found = f"the MPI library's {picture.setting.op}{known} is slow at {len(far)} of {len(picture.sizes)} sizes"
            evidence = f"{_name_group(picture)}: {'; '.join(map(_format_lag, far[:_MOST_TOLD]))}"
            remedy = (
                f"take algorithm={far[0][2].algorithm or 'auto'!r} there, or let auto do so (hpccoll tune "
                f"{picture.setting.op}); the library may have settings of its own for it"
            )
            yield Finding("algorithm", Severity.NOTE, found, evidence, remedy)


def _find_slow_algorithms(
    picture: CurveGroup, behind: dict[Implementation, list[tuple[float, int, Implementation, Interval]]]
) -> Iterator[Finding]:
    """Say in one finding which other lines are an order of magnitude behind somewhere."""
    worst = {
        name: max(several, key=lambda each: each[0])
        for name, several in behind.items()
        if name.engine != "mpi" and name.algorithm != "auto"
    }
    far = sorted(((each[0], name, each) for name, each in worst.items() if each[0] > FAR_BEHIND), reverse=True)
    if far:
        told = "; ".join(f"{name.label} {_format_lag(each)}" for _, name, each in far[:_MOST_TOLD])
        found = (
            f"some ways to do {picture.setting.op} are more than {FAR_BEHIND:.0f}x slower than the best at some size"
        )
        evidence = f"{format_title(picture.setting)}, {picture.place}: {told}"
        remedy = "do not fix an algorithm for all sizes: algorithm='auto', after hpccoll tune"
        yield Finding("algorithm", Severity.NOTE, found, evidence, remedy)


def find_missed_bounds(pictures: Iterable[CurveGroup], models: BoundModels) -> Iterator[Finding]:
    """Yield where not even the fastest comes near the model's bound, for the largest message across nodes."""
    for picture in pictures:
        best = picture.find_fastest(picture.sizes[-1]) if picture.setting.nodes > 1 else None
        bound = None if best is None else models.compute_bound_s(best[1])
        if best is None or bound is None:
            continue
        time, low, _ = get_time_interval_s(best[1])
        if low / bound > OVER_BOUND:
            found = f"even the fastest {picture.setting.op} takes {format_factor(time / bound)} the model's bound"
            times = f"{best[0].label} {format_seconds(time)}, bound {format_seconds(bound)}"
            at = f"{format_size(picture.sizes[-1])}: {times}"
            remedy = (
                "look at links and binding: hpccoll preflight on the same nodes, hpccoll doctor under the same launcher"
            )
            yield Finding("bound", Severity.NOTE, found, f"{format_title(picture.setting)}, {at}", remedy)


def find_poor_scaling(pictures: Sequence[CurveGroup]) -> Iterator[Finding]:
    """Yield where the largest message's bus bandwidth falls from one number of nodes or ranks to the next."""
    for scaling in group_scaling_curves(pictures):
        if scaling.sizes and scaling.sizes[-1] > 0:
            yield from _find_bandwidth_drop(scaling, scaling.sizes[-1])


def _find_bandwidth_drop(scaling: ScalingCurves, nbytes: int) -> Iterator[Finding]:
    best: dict[int, tuple[float, CollectiveRecord]] = {}
    for name in scaling.implementations:
        for x, record in scaling.records_at(name, nbytes):
            if not record.wrong:
                speed = compute_busbw_interval(record)[0]
                best[x] = max(best.get(x, (0.0, record)), (speed, record), key=lambda each: each[0])
    at = sorted(best)
    for one, other in pairwise(at):
        before, after = best[one][1], best[other][1]
        if scaling.over == "nodes" and one == 1:  # a network is slower than a node's memory: that is no finding
            continue
        if compute_busbw_interval(after)[2] < FALLS * compute_busbw_interval(before)[1]:
            speeds = f"{format_bytes_per_s(best[one][0])} to {format_bytes_per_s(best[other][0])}"
            found = (
                f"{scaling.key.op} loses more than half its bandwidth from {one} to {other} {scaling.over}: {speeds}"
            )
            jobs = [f"{each.row.ranks} ranks on {each.row.nodes} nodes" for each in (before, after)]
            evidence = f"bus bandwidth of the fastest at {format_size(nbytes)}, {jobs[0]} and {jobs[1]}"
            remedy = _JOINED if scaling.over == "nodes" else _CROWDED
            yield Finding("scaling", Severity.WARNING, found, evidence, remedy)
            return


def _name_group(group: CurveGroup) -> str:
    return f"{format_title(group.setting)}, {group.place}"
