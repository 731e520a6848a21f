"""The sections of scaling: what becomes of a small, a middle and a large message with more ranks or nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpccoll.measure.record import CollectiveRecord
from hpccoll.report.axis_scale import format_bytes_per_s, format_seconds
from hpccoll.report.curves import Implementation, compute_busbw_interval, get_time_interval_s
from hpccoll.report.line_chart import ChartLine, ChartPoint, LineChart
from hpccoll.report.line_styles import LineStyle
from hpccoll.report.page_section import ChartPanel, PageSection, PageTable, make_chart_panel, make_legend
from hpccoll.report.scaling_curves import ScalingCurves
from hpccoll.units import format_size


def build_scaling_sections(
    scalings: Sequence[ScalingCurves], looks: dict[Implementation, LineStyle]
) -> list[PageSection]:
    """Return a section for each scaling that has a size to follow."""
    return [_build_section(f"sc{at}", scaling, looks) for at, scaling in enumerate(scalings, 1) if scaling.sizes]


def _build_section(ident: str, scaling: ScalingCurves, looks: dict[Implementation, LineStyle]) -> PageSection:
    kind = scaling.key
    what = [kind.op, kind.dtype, kind.redop or "", "" if kind.root is None else f"root {kind.root}"]
    place = "in-place" if kind.in_place else "out-of-place"
    heading = ", ".join([*(part for part in what if part), f"{kind.buffer} memory", place])
    return PageSection(
        ident,
        f"Scaling over {scaling.over}: {heading}",
        _describe_jobs(scaling),
        tuple(_build_panels(ident, scaling, looks)),
        make_legend(scaling.implementations, looks),
        side_table=_build_fastest_table(scaling),
        short_title=f"{kind.op} over {scaling.over}",
    )


def _build_fastest_table(scaling: ScalingCurves) -> PageTable:
    """Return who is fastest with the largest message, and what is left of the first job's bandwidth."""
    nbytes = scaling.sizes[-1]
    best: dict[int, tuple[float, str, CollectiveRecord]] = {}
    for name in scaling.implementations:
        for x, record in scaling.records_at(name, nbytes):
            time = record.time_us.p50
            if not record.wrong and (x not in best or time < best[x][0]):
                best[x] = (time, name.label, record)
    columns = (scaling.over, "fastest", "time", "bus bandwidth", "of the first")
    first: float | None = None
    rows = []
    for x, (time, label, record) in sorted(best.items()):
        speed = compute_busbw_interval(record)[0]
        first = first or speed
        left = (format_bytes_per_s(speed), f"{speed / first:.0%}") if speed else ("-", "-")
        rows.append((str(x), label, format_seconds(time * 1e-6), *left))
    heading = f"Fastest with {format_size(nbytes)}" if nbytes else "Fastest"
    return PageTable(heading, columns, tuple(rows), frozenset(columns) - {"fastest"})


def _describe_jobs(scaling: ScalingCurves) -> str:
    jobs = [(picture.setting.ranks, picture.setting.nodes) for picture in scaling.groups]
    return f"Jobs: {', '.join(f'{ranks} ranks on {nodes} node' + 's' * (nodes > 1) for ranks, nodes in jobs)}."


def _build_panels(ident: str, scaling: ScalingCurves, looks: dict[Implementation, LineStyle]) -> list[ChartPanel]:
    found = []
    for at, nbytes in enumerate(scaling.sizes):
        large = at == len(scaling.sizes) - 1 and nbytes > 0
        told = format_bytes_per_s if large else format_seconds
        value: Callable[[CollectiveRecord], tuple[float, float, float]] = (
            compute_busbw_interval if large else get_time_interval_s
        )
        what = "Bus bandwidth" if large else "Time"
        heading = f"{what} of {format_size(nbytes)}" if nbytes else what
        lines = tuple(_build_line(scaling, name, nbytes, looks[name], value) for name in scaling.implementations)
        about = f"{scaling.key.op}: {what.lower()} over {scaling.over}. {_describe_jobs(scaling)}"
        chart = LineChart(
            f"{ident}s{at}", heading, about, scaling.over, _format_count, told, lines, is_log=not large, has_bands=False
        )
        panel = make_chart_panel(chart)
        if panel is not None:
            found.append(panel)
    return found


def _build_line(
    scaling: ScalingCurves,
    name: Implementation,
    nbytes: int,
    look: LineStyle,
    value: Callable[[CollectiveRecord], tuple[float, float, float]],
) -> ChartLine:
    found = sorted(scaling.records_at(name, nbytes), key=lambda each: each[0])
    return ChartLine(
        name.label, look, tuple(ChartPoint(x, *value(record), _describe_job(record)) for x, record in found)
    )


def _describe_job(record: CollectiveRecord) -> str:
    return f"{record.row.ranks} ranks on {record.row.nodes} node{'s' * (record.row.nodes > 1)}"


def _format_count(value: float) -> str:
    return f"{value:.0f}"
