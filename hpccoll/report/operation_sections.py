"""Page sections on operations: time, bus bandwidth and ratio to the lower bound, each against the message size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from hpccoll.measure.display.series_styles import LIBRARIES
from hpccoll.measure.display.table import format_ratio, format_title
from hpccoll.measure.results.measured_case import MeasuredCase
from hpccoll.measure.verdict.main_finding import describe_fastest
from hpccoll.records import CollectiveRecord
from hpccoll.report.bound_models import BoundModels
from hpccoll.report.curves import CurveGroup, compute_busbw_interval, get_time_interval_s
from hpccoll.report.line_chart import ChartLine, ChartPoint, LineChart
from hpccoll.report.line_styles import BOUND_STYLE, LineStyles
from hpccoll.report.number_format import format_bounds, format_bytes_per_s, format_factor, format_seconds
from hpccoll.report.page_section import FigurePanel, PageSection, PageTable, make_chart_panel, make_legend
from hpccoll.statistics import is_interval_full
from hpccoll.units import format_size

ValueFunction: TypeAlias = Callable[[CollectiveRecord], tuple[float, float, float] | None]
DASH = "-"
FASTEST_COLUMNS = ("size", "fastest", "time", "against mpi", "over bound")
COLUMNS = (
    *("size", "engine", "algorithm", "median", "95 % interval"),
    *("iterations", "stopped by", "bus bandwidth", "wrong"),
)
_TEXT_COLUMNS = {"fastest", "engine", "algorithm", "stopped by"}


def build_operation_sections(
    groups: Sequence[CurveGroup], styles: Mapping[str, LineStyles], models: BoundModels
) -> list[PageSection]:
    """Return a page section per operation, type and job size, with charts and tables of its measurements.

    If in-place figures exist, out-of-place figures are hidden until the reader opens them. `styles` has the line styles
    by operation.
    """
    by_setting: dict[object, list[CurveGroup]] = {}
    for group in groups:
        by_setting.setdefault(group.setting, []).append(group)
    return [
        _build_section(f"op{number}", places, styles[places[0].setting.op], models)
        for number, places in enumerate(by_setting.values(), 1)
    ]


def _build_section(
    element_id: str, places: Sequence[CurveGroup], styles: LineStyles, models: BoundModels
) -> PageSection:
    """Return the page section of one operation and job size.

    Args:
        element_id: the section's HTML `id`.
        places: the operation's measurements in place and out of place, one group each.
        styles: the line style of each implementation.
        models: lower bounds on the times.
    """
    first, *rest = places
    folded = [panel for group in rest for panel in _build_panels(f"{element_id}o", group, styles, models)]
    ranks, nodes = first.setting.ranks, first.setting.nodes
    return PageSection(
        element_id,
        f"{format_title(first.setting)}, {first.place}",
        describe_fastest(first.cases),
        tuple(_build_panels(element_id, first, styles, models)),
        make_legend({name for group in places for name in group.implementations}, styles),
        tuple(
            PageTable(
                f"All measurements, {group.place}",
                COLUMNS,
                _build_all_rows(group),
                frozenset(COLUMNS) - _TEXT_COLUMNS,
                is_folded=True,
            )
            for group in places
        ),
        tuple(folded),
        "Out of place" if folded else "",
        notes=_describe_optimum(first, models),
        side_table=_build_fastest_table(first, models),
        short_title=f"{first.setting.op}, {ranks} rank{'s' * (ranks > 1)}"
        + (f" on {nodes} nodes" if nodes > 1 else ""),
    )


def _describe_optimum(group: CurveGroup, models: BoundModels) -> tuple[str, ...]:
    """Return a tuple of one sentence on how near the largest message's best time is to the network's bound, or ()."""
    case = max(group.cases, key=lambda case: case.nbytes)
    share = "" if case.fastest is None else models.describe_share(case.records[case.fastest])
    return (f"{format_size(case.nbytes)}: {case.fastest.label} reaches {share}.",) if share and case.fastest else ()


def _build_panels(element_id: str, group: CurveGroup, styles: LineStyles, models: BoundModels) -> list[FigurePanel]:
    """Return the charts of time, bus bandwidth and time divided by the bound, except charts without any value."""
    description = f"{format_title(group.setting)}, {group.place}. {describe_fastest(group.cases)}"

    def divide_by_bound(record: CollectiveRecord) -> tuple[float, float, float] | None:
        """Return the median time and the ends of its interval, divided by the lower bound; None without a bound."""
        bound = models.compute_bound_s(record)
        if bound is None:
            return None
        middle, low, high = get_time_interval_s(record)
        return middle / bound, low / bound, high / bound

    times = (*_build_bound_line(group, models), *_build_lines(group, styles, get_time_interval_s))
    charts = [
        ("t", "Time", format_seconds, times),
        ("b", "Bus bandwidth", format_bytes_per_s, _build_lines(group, styles, compute_busbw_interval)),
        ("m", "Time over the bound", format_factor, _build_lines(group, styles, divide_by_bound)),
    ]
    panels = [
        make_chart_panel(
            LineChart(
                *(f"{element_id}{key}", heading, description, "message size", lambda x: format_size(round(x))),
                *(format_y, lines),
                is_log=key != "b",
                marks_one=key == "m",
            )
        )
        for key, heading, format_y, lines in charts
    ]
    return [panel for panel in panels if panel is not None]


def _build_lines(group: CurveGroup, styles: LineStyles, get_value: ValueFunction) -> tuple[ChartLine, ...]:
    """Return a line per implementation, against the message size: gray lines first, lines of other libraries last.

    `get_value` returns the value to draw and the ends of its interval, or None for a record that has no value.
    """
    lines = []
    for name in group.implementations:
        points = [
            ChartPoint(record.nbytes, *interval, _describe_record(record))
            for record in group.list_curve(name)
            if (interval := get_value(record)) is not None
        ]
        lines.append(ChartLine(name.label, styles[name], tuple(points)))
    return tuple(sorted(lines, key=lambda line: (not line.style.is_muted, line.style.css_class in LIBRARIES)))


def _build_bound_line(group: CurveGroup, models: BoundModels) -> list[ChartLine]:
    """Return a list with the line of the lower bound against the message size; an empty list if no size has a bound."""
    points = []
    for case in group.cases:
        bound = models.compute_bound_s(case.rows[0])
        if bound is not None:
            points.append(ChartPoint(case.nbytes, bound, bound, bound))
    return [ChartLine("the lower bound", BOUND_STYLE, tuple(points))] if points else []


def _describe_record(record: CollectiveRecord) -> str:
    """Return a remark such as `12 iterations`, with the number of wrong elements if there are any."""
    count = len(record.samples_us)
    text = f"{count} iteration{'s' * (count > 1)}"
    return f"{text}, WRONG in {record.wrong} elements" if record.wrong else text


def _build_fastest_table(group: CurveGroup, models: BoundModels) -> PageTable:
    """Return a table of the fastest implementation per message size, without columns that are empty in all rows."""
    rows = [_build_fastest_row(case, models) for case in group.cases]
    required = FASTEST_COLUMNS[:3]
    kept = [
        index
        for index, column in enumerate(FASTEST_COLUMNS)
        if column in required or any(row[index] != DASH for row in rows)
    ]
    columns = tuple(FASTEST_COLUMNS[index] for index in kept)
    cells = tuple(tuple(row[index] for index in kept) for row in rows)
    return PageTable("Fastest at each size", columns, cells, frozenset(columns) - _TEXT_COLUMNS)


def _build_fastest_row(case: MeasuredCase, models: BoundModels) -> tuple[str, ...]:
    """Return the fastest implementation of one message size as a table row with the columns FASTEST_COLUMNS."""
    name = case.fastest
    if name is None:
        return (format_size(case.nbytes), "all wrong", DASH, DASH, DASH)
    record = case.records[name]
    bound, ratio = models.compute_bound_s(record), case.ratio_to_mpi(name)
    against_mpi = DASH if ratio is None else " ".join(format_ratio(ratio))
    seconds = get_time_interval_s(record)[0]
    over_bound = DASH if bound is None else format_factor(seconds / bound)
    return (format_size(case.nbytes), name.label, format_seconds(seconds), against_mpi, over_bound)


def _build_all_rows(group: CurveGroup) -> tuple[tuple[str, ...], ...]:
    """Return a table row per measurement, in order of message size, with a cell per column of COLUMNS."""
    rows = []
    for case in group.cases:
        for (engine, algorithm, library), record in case.records.items():
            busbw = compute_busbw_interval(record)[0]
            rows.append(
                (
                    format_size(case.nbytes),
                    f"{engine} ({library})" if library else engine,
                    algorithm or DASH,
                    *_format_median(record),
                    str(len(record.samples_us)),
                    str(record.stop),
                    format_bytes_per_s(busbw) if busbw > 0 else DASH,
                    "not checked" if record.wrong is None else str(record.wrong),
                )
            )
    return tuple(rows)


def _format_median(record: CollectiveRecord) -> tuple[str, str]:
    """Return the median and its interval as strings with units; an interval of less than 95 % has a question mark."""
    middle, low, high = get_time_interval_s(record)
    is_sure = is_interval_full(record.samples_us)
    return format_seconds(middle), f"{format_bounds(low, high, format_seconds)}{'' if is_sure else ' ?'}"
