"""Line charts as SVG elements. The page's style sheet sets the charts' colors and fonts.

A band and whiskers show the 95 % intervals of each line. Every marker has its values as a <title>, which browsers show
without script. Each part of a line has two shapes, one for a logarithmic and one for a linear vertical axis. One shape
is displayed and has the other in its attribute `data-alt`, and the page's script can swap the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from hpccoll.report.axis_scale import AxisScale, choose_ticks, make_linear_scale, make_log_scale, thin_values
from hpccoll.report.line_styles import LineStyle
from hpccoll.report.number_format import format_bounds

WIDTH, HEIGHT = 560, 350
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 14, 46
_MAX_X_LABELS = 8
_MIN_WHISKER = 2.0  # pixels; a shorter whisker is hidden by the marker


class ChartPoint(NamedTuple):
    """A point of a line: value `y` at `x`, with the confidence interval from `low` to `high`, and a tooltip.

    The tooltip has the values and ends with `remark`.
    """

    x: float
    y: float
    low: float
    high: float
    remark: str = ""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line of a chart: its label in the legend, its color and marker, and its points from left to right."""

    label: str
    style: LineStyle
    points: tuple[ChartPoint, ...]


@dataclass(frozen=True, slots=True)
class LineChart:
    """A chart of several lines, with its axes and captions; lines that come later in `lines` are drawn above others."""

    element_id: str  # unique on the page
    title: str
    description: str  # for screen readers
    x_label: str
    format_x: Callable[[float], str]
    format_y: Callable[[float], str]
    lines: tuple[ChartLine, ...]
    is_log: bool = True  # whether the vertical axis is logarithmic when the page opens
    marks_one: bool = False  # whether to draw a horizontal line at 1
    has_bands: bool = True  # whether to draw the intervals as bands between the points


def render_line_chart(chart: LineChart) -> str:
    """Return the chart as an <svg> element; an empty string if no line has a positive value."""
    # Logarithmic axes can only show points with positive coordinates.
    kept = ((line, tuple(p for p in line.points if min(p.x, p.y, p.low) > 0)) for line in chart.lines)
    lines = [ChartLine(line.label, line.style, points) for line, points in kept if points]
    if not lines:
        return ""
    points = [point for line in lines for point in line.points]
    xs = sorted({point.x for point in points})
    x_scale = make_log_scale(xs, LEFT, WIDTH - RIGHT, 0.03)
    values = [value for point in points for value in (point.low, point.high)] + [1.0] * chart.marks_one
    scales = make_log_scale(values, HEIGHT - BOTTOM, TOP), make_linear_scale(values, HEIGHT - BOTTOM, TOP)
    shown, other = scales if chart.is_log else scales[::-1]
    ident = chart.element_id
    return "\n".join(
        [
            f'<svg id="{ident}" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
            f' aria-labelledby="{ident}-t {ident}-d" tabindex="0">',
            f'<title id="{ident}-t">{escape(chart.title)}</title>',
            f'<desc id="{ident}-d">{escape(chart.description)}</desc>',
            _render_x_axis(chart, x_scale, xs),
            _render_y_axis(chart, shown, "shown"),
            _render_y_axis(chart, other, "other"),
            '<line class="cross" x1="0" x2="0" y1="0" y2="0"/>',
            *(_render_line(chart, line, x_scale, shown, other) for line in lines),
            "</svg>",
        ]
    )


def _render_x_axis(chart: LineChart, x_scale: AxisScale, xs: Sequence[float]) -> str:
    """Return the horizontal axis as SVG elements, with ticks at the values `xs` and labels at some of them."""
    floor = HEIGHT - BOTTOM
    parts = [f'<path class="base" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>']
    parts += [f'<path class="tick" d="M{_format_length(x_scale.position_of(x))} {floor}v4"/>' for x in xs]
    for x in thin_values(xs, _MAX_X_LABELS):
        position = _format_length(x_scale.position_of(x))
        parts.append(f'<text class="x" x="{position}" y="{floor + 18}">{escape(chart.format_x(x))}</text>')
    middle = _format_length((LEFT + WIDTH - RIGHT) / 2)
    parts.append(f'<text class="x label" x="{middle}" y="{HEIGHT - 8}">{escape(chart.x_label)}</text>')
    return "\n".join(parts)


def _render_y_axis(chart: LineChart, y_scale: AxisScale, css_class: str) -> str:
    """Return the grid lines and labels of a vertical axis as an SVG group.

    `css_class` is `shown` for the axis that the page displays, and `other` for the hidden axis, which is logarithmic if
    the displayed one is linear, and vice versa.
    """
    parts = [f'<g class="y {css_class}">']
    for value in choose_ticks(y_scale):
        y = _format_length(y_scale.position_of(value))
        label = escape(chart.format_y(value)) if value else "0"
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y}" dy=".32em">{label}</text>')
    if chart.marks_one:
        y = _format_length(y_scale.position_of(1.0))
        parts.append(f'<path class="unity" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
    return "".join([*parts, "</g>"])


def _render_line(chart: LineChart, line: ChartLine, x_scale: AxisScale, shown: AxisScale, other: AxisScale) -> str:
    """Return a line with its markers and its confidence intervals (band and whiskers) as an SVG group.

    Each element has the shape for the vertical axis `shown`, and in `data-alt` the shape for the axis `other`.
    """
    parts = [f'<g class="line {line.style.css_class}" data-name="{escape(line.label)}">']
    hides_intervals = line.style.css_class == "bound" or line.style.is_muted
    for css_class, trace in (("band", _trace_band), ("bars", _trace_whiskers), ("path", _trace_line)):
        if css_class != "path" and (hides_intervals or (css_class == "band" and not chart.has_bands)):
            continue
        path = trace(line.points, x_scale, shown)
        if path:
            parts.append(f'<path class="{css_class}" d="{path}" data-alt="{trace(line.points, x_scale, other)}"/>')
    if line.style.marker:
        parts += [_render_marker(chart, line, point, x_scale, shown, other) for point in line.points]
    return "".join([*parts, "</g>"])


def _format_position(x: float, y: float, x_scale: AxisScale, y_scale: AxisScale) -> str:
    """Return the pixel coordinates of the value `y` at `x` as the string `X Y`, for SVG paths."""
    return f"{_format_length(x_scale.position_of(x))} {_format_length(y_scale.position_of(y))}"


def _trace_line(points: Sequence[ChartPoint], x_scale: AxisScale, y_scale: AxisScale) -> str:
    """Return the `d` attribute of an SVG path through the points."""
    return "M" + "L".join(_format_position(point.x, point.y, x_scale, y_scale) for point in points)


def _trace_band(points: Sequence[ChartPoint], x_scale: AxisScale, y_scale: AxisScale) -> str:
    """Return the `d` attribute of an SVG path around the points' confidence intervals; empty for a single point."""
    if len(points) < 2:
        return ""
    upper = [_format_position(point.x, point.high, x_scale, y_scale) for point in points]
    lower = [_format_position(point.x, point.low, x_scale, y_scale) for point in reversed(points)]
    return f"M{'L'.join([*upper, *lower])}z"


def _trace_whiskers(points: Sequence[ChartPoint], x_scale: AxisScale, y_scale: AxisScale) -> str:
    """Return the `d` attribute of an SVG path with a vertical bar (whisker) per point from `low` to `high`.

    The result is an empty string if the axis is logarithmic and markers would hide all whiskers.
    """
    ends = [(x_scale.position_of(p.x), y_scale.position_of(p.low), y_scale.position_of(p.high)) for p in points]
    if all(abs(low - high) < _MIN_WHISKER for _, low, high in ends) and y_scale.log:
        return ""
    return "".join(f"M{_format_length(x)} {_format_length(low)}V{_format_length(high)}" for x, low, high in ends)


def _render_marker(
    chart: LineChart, line: ChartLine, point: ChartPoint, x_scale: AxisScale, shown: AxisScale, other: AxisScale
) -> str:
    """Return the marker of a point of `line` as an SVG element with a tooltip.

    The marker is at its position on the vertical axis `shown`; its attribute `data-alt` has the position on `other`.
    """
    heading, values = chart.format_x(point.x), chart.format_y(point.y)
    if point.low != point.high:
        values += f" {format_bounds(point.low, point.high, chart.format_y)}"
    title = f"{line.label}, {heading}: {values}{'; ' + point.remark if point.remark else ''}"
    place, alt = (f"translate({_format_position(point.x, point.y, x_scale, scale)})" for scale in (shown, other))
    tooltip = f'data-head="{escape(heading)}" data-says="{escape(values)}" data-y="{point.y:.6g}"'
    return (
        f'<path class="mark" d="{line.style.marker}" transform="{place}" data-alt="{alt}" {tooltip}>'
        f"<title>{escape(title)}</title></path>"
    )


def _format_length(value: float) -> str:
    """Return a length in pixels with at most two decimals and no trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text
