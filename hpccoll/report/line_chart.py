"""Lines over sizes or ranks as SVG, to stand in a page: no script, no colours, no fonts of its own.

The page's style sheet colours the classes, light or dark. Each line has its 95 % interval as a band and as whiskers,
and every marker its values as a <title>, which browsers show without any script. The picture holds its geometry on
both vertical scales: the attributes are of the one shown first, data-alt has the other, and the page's script swaps
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from hpccoll.report.axis_scale import (
    AxisScale,
    choose_ticks,
    format_interval,
    make_linear_scale,
    make_log_scale,
    thin_values,
)
from hpccoll.report.line_styles import LineStyle

WIDTH, HEIGHT = 560, 350
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 14, 46
_MOST_X = 8
_SHORT = 2.0  # pixels: an interval that is not higher than this is hidden by its marker


class ChartPoint(NamedTuple):
    """A value with its interval at `x`; `told` is what is said of it beyond its values."""

    x: float
    y: float
    low: float
    high: float
    remark: str = ""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line: its name, its look, its points from left to right."""

    label: str
    look: LineStyle
    points: tuple[ChartPoint, ...]


@dataclass(frozen=True, slots=True)
class LineChart:
    """A picture of lines.

    Args:
        ident: of its elements; no other picture of the page has it.
        title: what is shown.
        about: what can be read from it, in words, for those who do not see it.
        x_label: what lies below.
        x_told: how a place on the horizontal axis is written.
        y_told: how a value is written.
        lines: those that are drawn, the first ones undermost.
        log: whether the vertical axis is logarithmic at first.
        unity: whether to mark where the value is 1.
        bands: whether intervals are drawn between the points, too: where these are close.
    """

    element_id: str
    title: str
    description: str
    x_label: str
    format_x: Callable[[float], str]
    format_y: Callable[[float], str]
    lines: tuple[ChartLine, ...]
    is_log: bool = True
    marks_one: bool = False
    has_bands: bool = True


def render_line_chart(chart: LineChart) -> str:
    """Return the picture as an <svg> element; empty where no line has a point above zero."""
    lines = [
        ChartLine(line.label, line.look, drawn) for line in chart.lines if (drawn := _select_positive_points(line))
    ]
    if not lines:
        return ""
    points = [point for line in lines for point in line.points]
    xs = sorted({point.x for point in points})
    across = make_log_scale(xs, LEFT, WIDTH - RIGHT, 0.03)
    values = [value for point in points for value in (point.low, point.high)] + [1.0] * chart.marks_one
    logs, lins = make_log_scale(values, HEIGHT - BOTTOM, TOP), make_linear_scale(values, HEIGHT - BOTTOM, TOP)
    shown, other = (logs, lins) if chart.is_log else (lins, logs)
    named = f'aria-labelledby="{chart.element_id}-t {chart.element_id}-d"'
    return "\n".join(
        [
            f'<svg id="{chart.element_id}" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" {named}'
            ' tabindex="0">',
            f'<title id="{chart.element_id}-t">{escape(chart.title)}</title>',
            f'<desc id="{chart.element_id}-d">{escape(chart.description)}</desc>',
            _render_x_axis(chart, across, xs),
            _render_y_axis(chart, shown, "shown"),
            _render_y_axis(chart, other, "other"),
            '<line class="cross" x1="0" x2="0" y1="0" y2="0"/>',
            *(_render_line(chart, line, across, shown, other) for line in lines),
            "</svg>",
        ]
    )


def _select_positive_points(line: ChartLine) -> tuple[ChartPoint, ...]:
    """Return the points that have a place on logarithmic axes."""
    return tuple(point for point in line.points if min(point.x, point.y, point.low) > 0)


def _render_x_axis(chart: LineChart, across: AxisScale, xs: Sequence[float]) -> str:
    """Return the horizontal axis: a tick at each measured place, words at some."""
    floor = HEIGHT - BOTTOM
    parts = [f'<path class="base" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>']
    parts += [f'<path class="tick" d="M{_format_length(across.position_of(x))} {floor}v4"/>' for x in xs]
    parts += [
        f'<text class="x" x="{_format_length(across.position_of(x))}" y="{floor + 18}">'
        f"{escape(chart.format_x(x))}</text>"
        for x in thin_values(xs, _MOST_X)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="x label" x="{_format_length(middle)}" y="{HEIGHT - 8}">{escape(chart.x_label)}</text>')
    return "\n".join(parts)


def _render_y_axis(chart: LineChart, up: AxisScale, css: str) -> str:
    """Return the grid and the words of one vertical scale."""
    parts = [f'<g class="y {css}">']
    for value in choose_ticks(up):
        y = _format_length(up.position_of(value))
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{y}" dy=".32em">{escape(chart.format_y(value)) if value else "0"}</text>'
        )
    if chart.marks_one:
        parts.append(f'<path class="unity" d="M{LEFT} {_format_length(up.position_of(1.0))}H{WIDTH - RIGHT}"/>')
    return "".join([*parts, "</g>"])


def _render_line(chart: LineChart, line: ChartLine, across: AxisScale, shown: AxisScale, other: AxisScale) -> str:
    """Return a line with its band, whiskers and markers, on both vertical scales."""
    parts = [f'<g class="line {line.look.css_class}" data-name="{escape(line.label)}">']
    for css, shape in (("band", _trace_band), ("bars", _trace_whiskers), ("path", _trace_line)):
        if css != "path" and (line.look.css_class in ("bound", "quiet") or (css == "band" and not chart.has_bands)):
            continue
        path = shape(line.points, across, shown)
        if path:
            parts.append(f'<path class="{css}" d="{path}" data-alt="{shape(line.points, across, other)}"/>')
    if line.look.marker:
        parts += [_render_marker(chart, line, point, across, shown, other) for point in line.points]
    return "".join([*parts, "</g>"])


def _trace_line(points: Sequence[ChartPoint], across: AxisScale, up: AxisScale) -> str:
    return "M" + "L".join(
        f"{_format_length(across.position_of(point.x))} {_format_length(up.position_of(point.y))}" for point in points
    )


def _trace_band(points: Sequence[ChartPoint], across: AxisScale, up: AxisScale) -> str:
    if len(points) < 2:
        return ""
    there = [
        f"{_format_length(across.position_of(point.x))} {_format_length(up.position_of(point.high))}"
        for point in points
    ]
    back = [
        f"{_format_length(across.position_of(point.x))} {_format_length(up.position_of(point.low))}"
        for point in reversed(points)
    ]
    return f"M{'L'.join([*there, *back])}z"


def _trace_whiskers(points: Sequence[ChartPoint], across: AxisScale, up: AxisScale) -> str:
    """Return a whisker a point; none where all are hidden by the markers."""
    ends = [
        (_format_length(across.position_of(point.x)), up.position_of(point.low), up.position_of(point.high))
        for point in points
    ]
    if all(abs(low - high) < _SHORT for _, low, high in ends) and up.log:
        return ""
    return "".join(f"M{x} {_format_length(low)}V{_format_length(high)}" for x, low, high in ends)


def _render_marker(
    chart: LineChart, line: ChartLine, point: ChartPoint, across: AxisScale, shown: AxisScale, other: AxisScale
) -> str:
    x, head = _format_length(across.position_of(point.x)), chart.format_x(point.x)
    values = chart.format_y(point.y)
    if point.low != point.high:
        values += f" {format_interval(point.low, point.high, chart.format_y)}"
    told = f"{line.label}, {head}: {values}{'; ' + point.remark if point.remark else ''}"
    place, alt = (f"translate({x} {_format_length(up.position_of(point.y))})" for up in (shown, other))
    about = f'data-head="{escape(head)}" data-says="{escape(values)}" data-y="{point.y:.6g}"'
    return (
        f'<path class="mark" d="{line.look.marker}" transform="{place}" data-alt="{alt}" {about}>'
        f"<title>{escape(told)}</title></path>"
    )


def _format_length(value: float) -> str:
    """A length in at most two decimals, without trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text
