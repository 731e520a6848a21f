"""The sections of operations: latency, bus bandwidth and the distance to the bound over sizes, and who is fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hpccoll.measure.comparison import compute_ratio
from hpccoll.measure.record import CollectiveRecord
from hpccoll.measure.statistics import CONFIDENCE, median_ranks
from hpccoll.measure.table import format_ratio, format_title
from hpccoll.report.axis_scale import format_bytes_per_s, format_factor, format_interval, format_seconds
from hpccoll.report.bound_models import BoundModels
from hpccoll.report.curves import CurveGroup, Implementation, compute_busbw_interval, get_time_interval_s
from hpccoll.report.line_chart import ChartLine, ChartPoint, LineChart
from hpccoll.report.line_styles import BOUND_STYLE, LineStyle
from hpccoll.report.page_section import ChartPanel, PageSection, PageTable, make_chart_panel, make_legend
from hpccoll.units import format_size

LineStyles: TypeAlias = dict[Implementation, LineStyle]
ValueFunction: TypeAlias = Callable[[CollectiveRecord], tuple[float, float, float] | None]
DASH = "-"
FASTEST_COLUMNS = ("size", "fastest", "time", "against mpi", "over bound")
_TIE = 1.05  # who leads goes on leading in words while nobody is faster by more
ALL_COLUMNS = (
    "size",
    "engine",
    "algorithm",
    "median",
    "95 % interval",
    "iterations",
    "stopped by",
    "bus bandwidth",
    "wrong",
)


def build_operation_sections(
    pictures: Sequence[CurveGroup], looks: LineStyles, models: BoundModels
) -> list[PageSection]:
    """Return a section for each setting; where both places were measured, out of place is folded."""
    found: dict[object, list[CurveGroup]] = {}
    for picture in pictures:
        found.setdefault(picture.setting, []).append(picture)
    return [_build_section(f"op{at}", each, looks, models) for at, each in enumerate(found.values(), 1)]


def _build_section(ident: str, places: Sequence[CurveGroup], looks: LineStyles, models: BoundModels) -> PageSection:
    first, *rest = places
    names = {curve.implementation for picture in places for curve in picture.curves}
    tables = [
        PageTable(
            f"All measurements, {each.place}",
            ALL_COLUMNS,
            _build_all_rows(each),
            _select_number_columns(ALL_COLUMNS),
            is_folded=True,
        )
        for each in places
    ]
    folded = [panel for each in rest for panel in _build_panels(f"{ident}o", each, looks, models)]
    return PageSection(
        ident,
        f"{format_title(first.setting)}, {first.place}",
        _describe_fastest(first),
        tuple(_build_panels(ident, first, looks, models)),
        make_legend(names, looks),
        tuple(tables),
        tuple(folded),
        "Out of place" if folded else "",
        side_table=_build_fastest_table(first, models),
        short_title=_make_short_title(first),
    )


def _make_short_title(picture: CurveGroup) -> str:
    ranks, nodes = picture.setting.ranks, picture.setting.nodes
    return f"{picture.setting.op}, {ranks} rank{'s' * (ranks > 1)}" + (f" on {nodes} nodes" if nodes > 1 else "")


def _describe_fastest(picture: CurveGroup) -> str:
    """Say in a sentence who is fastest where; who is behind by a hair goes on leading."""
    spans: list[tuple[str, int, int]] = []
    for nbytes in picture.sizes:
        best = picture.find_fastest(nbytes)
        if best is None:
            continue
        close = {
            curve.implementation.label
            for curve in picture.curves
            if (record := curve.record_at(nbytes))
            and record.time_us.p50 <= best[1].time_us.p50 * _TIE
            and not record.wrong
        }
        if spans and spans[-1][0] in close:
            spans[-1] = (spans[-1][0], spans[-1][1], nbytes)
        else:
            spans.append((best[0].label, nbytes, nbytes))
    if not spans:
        return "No result was right."
    if picture.sizes == (0,):
        return f"Fastest: {spans[0][0]}."
    told = [
        f"{label} {'at' if low == high else 'from'} {format_size(low)}"
        + (f" to {format_size(high)}" if low != high else "")
        for label, low, high in spans
    ]
    return f"Fastest, within {_TIE - 1:.0%}: {', '.join(told)}."


def _build_panels(ident: str, picture: CurveGroup, looks: LineStyles, models: BoundModels) -> list[ChartPanel]:
    about = f"{format_title(picture.setting)}, {picture.place}. {_describe_fastest(picture)}"

    def over(record: CollectiveRecord) -> tuple[float, float, float] | None:
        bound = models.compute_bound_s(record)
        return None if bound is None else tuple(each / bound for each in get_time_interval_s(record))  # type: ignore[return-value]

    known = _build_bound_line(picture, models)
    panels = [
        ("t", "Time", format_seconds, _build_lines(picture, looks, get_time_interval_s, known), False),
        ("b", "Bus bandwidth", format_bytes_per_s, _build_lines(picture, looks, compute_busbw_interval), False),
        ("m", "Time over the model's bound", format_factor, _build_lines(picture, looks, over), True),
    ]
    found = [
        make_chart_panel(
            LineChart(
                f"{ident}{key}",
                heading,
                about,
                "message size",
                _format_rounded_size,
                told,
                lines,
                is_log=key != "b",
                marks_one=unity,
            )
        )
        for key, heading, told, lines, unity in panels
    ]
    return [panel for panel in found if panel is not None]


def _format_rounded_size(nbytes: float) -> str:
    return format_size(round(nbytes))


def _build_lines(
    picture: CurveGroup, looks: LineStyles, value: ValueFunction, more: Sequence[ChartLine] = ()
) -> tuple[ChartLine, ...]:
    """Return the lines of a picture, those without a colour undermost, the peers on top."""
    found = []
    for curve in picture.curves:
        points = [
            ChartPoint(record.row.nbytes, *values, _describe_record(record))
            for record in curve.records
            if (values := value(record)) is not None
        ]
        found.append(ChartLine(curve.implementation.label, looks[curve.implementation], tuple(points)))
    found.sort(key=lambda line: (not line.look.is_muted, line.look.css_class.startswith("peer")))
    return (*more, *found)


def _build_bound_line(picture: CurveGroup, models: BoundModels) -> list[ChartLine]:
    """Return the line of the bound, drawn below the others; empty where no machine is known."""
    points = []
    for nbytes in picture.sizes:
        records = [record for curve in picture.curves if (record := curve.record_at(nbytes))]
        bound = models.compute_bound_s(records[0])
        if bound is not None:
            points.append(ChartPoint(nbytes, bound, bound, bound))
    return [ChartLine("the model's bound", BOUND_STYLE, tuple(points))] if points else []


def _describe_record(record: CollectiveRecord) -> str:
    made = len(record.samples_us)
    told = f"{made} iteration{'s' * (made > 1)}"
    return f"{told}, WRONG in {record.wrong} elements" if record.wrong else told


def _build_fastest_table(picture: CurveGroup, models: BoundModels) -> PageTable:
    """Return who is fastest at each size; without the columns that have nothing to say."""
    rows = [_build_fastest_row(picture, nbytes, models) for nbytes in picture.sizes]
    kept = [
        at
        for at in range(len(FASTEST_COLUMNS))
        if at <= FASTEST_COLUMNS.index("time") or any(row[at] != DASH for row in rows)
    ]
    columns = tuple(FASTEST_COLUMNS[at] for at in kept)
    return PageTable(
        "Fastest at each size",
        columns,
        tuple(tuple(row[at] for at in kept) for row in rows),
        _select_number_columns(columns),
    )


def _build_fastest_row(picture: CurveGroup, nbytes: int, models: BoundModels) -> tuple[str, ...]:
    best = picture.find_fastest(nbytes)
    if best is None:
        return (format_size(nbytes), "none was right", DASH, DASH, DASH)
    name, record = best
    reference, bound = picture.find_mpi_record(nbytes, name.library), models.compute_bound_s(record)
    ratio = None if reference is None or reference is record else compute_ratio(record, reference)
    against = DASH if ratio is None else " ".join(format_ratio(ratio))
    over = DASH if bound is None else format_factor(get_time_interval_s(record)[0] / bound)
    return (format_size(nbytes), name.label, format_seconds(get_time_interval_s(record)[0]), against, over)


def _build_all_rows(picture: CurveGroup) -> tuple[tuple[str, ...], ...]:
    rows = []
    for nbytes in picture.sizes:
        for curve in picture.curves:
            record = curve.record_at(nbytes)
            if record is None:
                continue
            wrong = "not checked" if record.wrong is None else str(record.wrong)
            engine = (
                f"{curve.implementation.engine} ({curve.implementation.library})"
                if curve.implementation.library
                else curve.implementation.engine
            )
            head = (format_size(nbytes), engine, curve.implementation.algorithm or DASH)
            made = (str(len(record.samples_us)), str(record.stop))
            rows.append((*head, *_format_median(record), *made, _format_busbw(record), wrong))
    return tuple(rows)


def _format_median(record: CollectiveRecord) -> tuple[str, str]:
    """Return the median and its interval, with a ? where that covers less than 95 %."""
    middle, low, high = get_time_interval_s(record)
    sure = median_ranks(len(record.samples_us))[1] >= CONFIDENCE
    return format_seconds(middle), f"{format_interval(low, high, format_seconds)}{'' if sure else ' ?'}"


def _format_busbw(record: CollectiveRecord) -> str:
    speed = compute_busbw_interval(record)[0]
    return format_bytes_per_s(speed) if speed > 0 else DASH


def _select_number_columns(columns: Sequence[str]) -> frozenset[str]:
    words = ("fastest", "engine", "algorithm", "stopped by")
    return frozenset(column for column in columns if column not in words)
