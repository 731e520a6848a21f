"""The sections of scaling: what becomes of a small, a middle and a large message with more ranks or nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpccoll.measure.record import CollectiveRecord
from hpccoll.report.chart import Chart, Line, Point
from hpccoll.report.looks import Look
from hpccoll.report.scale import tell_bytes_per_s, tell_seconds
from hpccoll.report.scaling import Scaling
from hpccoll.report.section import Panel, Section, Table, legend_of, panel_of
from hpccoll.report.series import Name, bus_bytes_per_s, seconds
from hpccoll.units import format_size


def sections(scalings: Sequence[Scaling], looks: dict[Name, Look]) -> list[Section]:
    """Return a section for each scaling that has a size to follow."""
    return [_section(f"sc{at}", scaling, looks) for at, scaling in enumerate(scalings, 1) if scaling.sizes]


def _section(ident: str, scaling: Scaling, looks: dict[Name, Look]) -> Section:
    kind = scaling.kind
    what = [kind.op, kind.dtype, kind.redop or "", "" if kind.root is None else f"root {kind.root}"]
    place = "in-place" if kind.in_place else "out-of-place"
    heading = ", ".join([*(part for part in what if part), f"{kind.buffer} memory", place])
    return Section(
        ident,
        f"Scaling over {scaling.over}: {heading}",
        _intro(scaling),
        tuple(_panels(ident, scaling, looks)),
        legend_of(scaling.names, looks),
        beside=_table(scaling),
        short=f"{kind.op} over {scaling.over}",
    )


def _table(scaling: Scaling) -> Table:
    """Return who is fastest with the largest message, and what is left of the first job's bandwidth."""
    nbytes = scaling.sizes[-1]
    best: dict[int, tuple[float, str, CollectiveRecord]] = {}
    for name in scaling.names:
        for x, record in scaling.at(name, nbytes):
            time = record.time_us.p50
            if not record.wrong and (x not in best or time < best[x][0]):
                best[x] = (time, name.label, record)
    columns = (scaling.over, "fastest", "time", "bus bandwidth", "of the first")
    first: float | None = None
    rows = []
    for x, (time, label, record) in sorted(best.items()):
        speed = bus_bytes_per_s(record)[0]
        first = first or speed
        left = (tell_bytes_per_s(speed), f"{speed / first:.0%}") if speed else ("-", "-")
        rows.append((str(x), label, tell_seconds(time * 1e-6), *left))
    heading = f"Fastest with {format_size(nbytes)}" if nbytes else "Fastest"
    return Table(heading, columns, tuple(rows), frozenset(columns) - {"fastest"})


def _intro(scaling: Scaling) -> str:
    jobs = [(picture.setting.ranks, picture.setting.nodes) for picture in scaling.pictures]
    return f"Jobs: {', '.join(f'{ranks} ranks on {nodes} node' + 's' * (nodes > 1) for ranks, nodes in jobs)}."


def _panels(ident: str, scaling: Scaling, looks: dict[Name, Look]) -> list[Panel]:
    found = []
    for at, nbytes in enumerate(scaling.sizes):
        large = at == len(scaling.sizes) - 1 and nbytes > 0
        told = tell_bytes_per_s if large else tell_seconds
        value: Callable[[CollectiveRecord], tuple[float, float, float]] = bus_bytes_per_s if large else seconds
        what = "Bus bandwidth" if large else "Time"
        heading = f"{what} of {format_size(nbytes)}" if nbytes else what
        lines = tuple(_line(scaling, name, nbytes, looks[name], value) for name in scaling.names)
        about = f"{scaling.kind.op}: {what.lower()} over {scaling.over}. {_intro(scaling)}"
        chart = Chart(f"{ident}s{at}", heading, about, scaling.over, _count, told, lines, log=not large, bands=False)
        panel = panel_of(chart)
        if panel is not None:
            found.append(panel)
    return found


def _line(
    scaling: Scaling,
    name: Name,
    nbytes: int,
    look: Look,
    value: Callable[[CollectiveRecord], tuple[float, float, float]],
) -> Line:
    found = sorted(scaling.at(name, nbytes), key=lambda each: each[0])
    return Line(name.label, look, tuple(Point(x, *value(record), _told(record)) for x, record in found))


def _told(record: CollectiveRecord) -> str:
    return f"{record.row.ranks} ranks on {record.row.nodes} node{'s' * (record.row.nodes > 1)}"


def _count(value: float) -> str:
    return f"{value:.0f}"
