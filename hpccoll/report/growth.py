"""The sections of scaling: what becomes of a small, a middle and a large message with more ranks or nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpccoll.measure.record import CollectiveRecord
from hpccoll.report.chart import Chart, Line, Point
from hpccoll.report.looks import Look
from hpccoll.report.scale import tell_bytes_per_s, tell_seconds
from hpccoll.report.scaling import Scaling
from hpccoll.report.section import Panel, Section, legend_of, panel_of
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
        short=f"{kind.op} over {scaling.over}",
    )


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
