"""Page sections on scaling: time and bandwidth of a small, a middle and a large message by rank or node count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpccoll.records import CollectiveRecord
from hpccoll.report.bound_models import format_job_size
from hpccoll.report.curves import compute_busbw_interval, get_time_interval_s
from hpccoll.report.line_chart import ChartLine, ChartPoint, LineChart
from hpccoll.report.line_styles import LineStyles
from hpccoll.report.number_format import format_bytes_per_s, format_seconds
from hpccoll.report.page_section import FigurePanel, PageSection, PageTable, make_chart_panel, make_legend
from hpccoll.report.scaling_curves import ScalingCurves
from hpccoll.units import format_size


def build_scaling_sections(scalings: Sequence[ScalingCurves], styles: Mapping[str, LineStyles]) -> list[PageSection]:
    """Return a page section for each operation of which some message size was measured on all job sizes.

    `styles` has the line styles by operation.
    """
    return [
        _build_section(f"sc{number}", scaling, styles[scaling.op])
        for number, scaling in enumerate(scalings, 1)
        if scaling.sizes
    ]


def _build_section(element_id: str, scaling: ScalingCurves, styles: LineStyles) -> PageSection:
    """Return the page section on how one operation's time and bandwidth depend on the number of ranks or nodes."""
    setting, place = scaling.groups[0].setting, scaling.groups[0].place
    parts = [setting.op, setting.dtype, setting.redop or "", "" if setting.root is None else f"root {setting.root}"]
    heading = ", ".join([*(part for part in parts if part), f"{setting.buffer} memory", place])
    return PageSection(
        element_id,
        f"Scaling over {scaling.over}: {heading}",
        _describe_jobs(scaling),
        tuple(_build_panels(element_id, scaling, styles)),
        make_legend(scaling.implementations, styles),
        side_table=_build_fastest_table(scaling),
        short_title=f"{scaling.op} over {scaling.over}",
    )


def _build_fastest_table(scaling: ScalingCurves) -> PageTable:
    """Return a table of the fastest implementation per job size, for the largest message."""
    nbytes = scaling.sizes[-1]
    fastest: dict[int, tuple[float, str, CollectiveRecord]] = {}
    for implementation in scaling.implementations:
        for x, record in scaling.find_records(implementation, nbytes):
            time = record.time_us.p50
            if not record.wrong and (x not in fastest or time < fastest[x][0]):
                fastest[x] = (time, implementation.label, record)
    columns = (scaling.over, "fastest", "time", "bus bandwidth", "relative to first")
    first_busbw: float | None = None
    rows = []
    for x, (time, label, record) in sorted(fastest.items()):
        busbw = compute_busbw_interval(record)[0]
        first_busbw = first_busbw or busbw
        bandwidth = (format_bytes_per_s(busbw), f"{busbw / first_busbw:.0%}") if busbw else ("-", "-")
        rows.append((str(x), label, format_seconds(time * 1e-6), *bandwidth))
    heading = f"Fastest with {format_size(nbytes)}" if nbytes else "Fastest"
    return PageTable(heading, columns, tuple(rows), frozenset(columns) - {"fastest"})


def _describe_jobs(scaling: ScalingCurves) -> str:
    """Return a sentence that lists the ranks and nodes of all jobs."""
    jobs = [format_job_size((group.setting.ranks, group.setting.nodes)) for group in scaling.groups]
    return f"Jobs: {', '.join(jobs)}."


def _build_panels(element_id: str, scaling: ScalingCurves, styles: LineStyles) -> list[FigurePanel]:
    """Return a chart per message size: bus bandwidth for the largest size, time for the others."""
    panels = []
    for index, nbytes in enumerate(scaling.sizes):
        is_largest = index == len(scaling.sizes) - 1 and nbytes > 0
        quantity = "Bus bandwidth" if is_largest else "Time"
        chart = LineChart(
            f"{element_id}s{index}",
            f"{quantity} of {format_size(nbytes)}" if nbytes else quantity,
            f"{scaling.op}: {quantity.lower()} over {scaling.over}. {_describe_jobs(scaling)}",
            scaling.over,
            "{:.0f}".format,
            format_bytes_per_s if is_largest else format_seconds,
            _build_lines(scaling, nbytes, styles, compute_busbw_interval if is_largest else get_time_interval_s),
            is_log=not is_largest,
            has_bands=False,
        )
        panel = make_chart_panel(chart)
        if panel is not None:
            panels.append(panel)
    return panels


def _build_lines(
    scaling: ScalingCurves,
    nbytes: int,
    styles: LineStyles,
    get_value: Callable[[CollectiveRecord], tuple[float, float, float]],
) -> tuple[ChartLine, ...]:
    """Return a line per implementation against the number of ranks or nodes, at the message size `nbytes`.

    `get_value` returns the value to draw and the ends of its interval.
    """
    lines = []
    for implementation in scaling.implementations:
        points = tuple(
            ChartPoint(x, *get_value(record), format_job_size((record.ranks, record.nodes)))
            for x, record in sorted(scaling.find_records(implementation, nbytes), key=lambda point: point[0])
        )
        lines.append(ChartLine(implementation.label, styles[implementation], points))
    return tuple(lines)
