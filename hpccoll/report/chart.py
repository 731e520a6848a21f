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

from hpccoll.report.looks import Look
from hpccoll.report.scale import Scale, linear_scale, log_scale, tell_span, thinned, ticks

WIDTH, HEIGHT = 560, 350
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 14, 46
_MOST_X = 8
_SHORT = 2.0  # pixels: an interval that is not higher than this is hidden by its marker


class Point(NamedTuple):
    """A value with its interval at `x`; `told` is what is said of it beyond its values."""

    x: float
    y: float
    low: float
    high: float
    told: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its name, its look, its points from left to right."""

    label: str
    look: Look
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
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

    ident: str
    title: str
    about: str
    x_label: str
    x_told: Callable[[float], str]
    y_told: Callable[[float], str]
    lines: tuple[Line, ...]
    log: bool = True
    unity: bool = False
    bands: bool = True


def svg(chart: Chart) -> str:
    """Return the picture as an <svg> element; empty where no line has a point above zero."""
    lines = [Line(line.label, line.look, drawn) for line in chart.lines if (drawn := _drawable(line))]
    if not lines:
        return ""
    points = [point for line in lines for point in line.points]
    xs = sorted({point.x for point in points})
    across = log_scale(xs, LEFT, WIDTH - RIGHT, 0.03)
    values = [value for point in points for value in (point.low, point.high)] + [1.0] * chart.unity
    logs, lins = log_scale(values, HEIGHT - BOTTOM, TOP), linear_scale(values, HEIGHT - BOTTOM, TOP)
    shown, other = (logs, lins) if chart.log else (lins, logs)
    named = f'aria-labelledby="{chart.ident}-t {chart.ident}-d"'
    return "\n".join(
        [
            f'<svg id="{chart.ident}" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" {named} tabindex="0">',
            f'<title id="{chart.ident}-t">{escape(chart.title)}</title>',
            f'<desc id="{chart.ident}-d">{escape(chart.about)}</desc>',
            _horizontal(chart, across, xs),
            _vertical(chart, shown, "shown"),
            _vertical(chart, other, "other"),
            '<line class="cross" x1="0" x2="0" y1="0" y2="0"/>',
            *(_line(chart, line, across, shown, other) for line in lines),
            "</svg>",
        ]
    )


def _drawable(line: Line) -> tuple[Point, ...]:
    """Return the points that have a place on logarithmic axes."""
    return tuple(point for point in line.points if min(point.x, point.y, point.low) > 0)


def _horizontal(chart: Chart, across: Scale, xs: Sequence[float]) -> str:
    """Return the horizontal axis: a tick at each measured place, words at some."""
    floor = HEIGHT - BOTTOM
    parts = [f'<path class="base" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>']
    parts += [f'<path class="tick" d="M{_n(across.at(x))} {floor}v4"/>' for x in xs]
    parts += [
        f'<text class="x" x="{_n(across.at(x))}" y="{floor + 18}">{escape(chart.x_told(x))}</text>'
        for x in thinned(xs, _MOST_X)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="x label" x="{_n(middle)}" y="{HEIGHT - 8}">{escape(chart.x_label)}</text>')
    return "\n".join(parts)


def _vertical(chart: Chart, up: Scale, css: str) -> str:
    """Return the grid and the words of one vertical scale."""
    parts = [f'<g class="y {css}">']
    for value in ticks(up):
        y = _n(up.at(value))
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y}" dy=".32em">{escape(chart.y_told(value)) if value else "0"}</text>')
    if chart.unity:
        parts.append(f'<path class="unity" d="M{LEFT} {_n(up.at(1.0))}H{WIDTH - RIGHT}"/>')
    return "".join([*parts, "</g>"])


def _line(chart: Chart, line: Line, across: Scale, shown: Scale, other: Scale) -> str:
    """Return a line with its band, whiskers and markers, on both vertical scales."""
    parts = [f'<g class="line {line.look.css}" data-name="{escape(line.label)}">']
    for css, shape in (("band", _band), ("bars", _bars), ("path", _path)):
        if css != "path" and (line.look.css in ("bound", "quiet") or (css == "band" and not chart.bands)):
            continue
        path = shape(line.points, across, shown)
        if path:
            parts.append(f'<path class="{css}" d="{path}" data-alt="{shape(line.points, across, other)}"/>')
    if line.look.marker:
        parts += [_mark(chart, line, point, across, shown, other) for point in line.points]
    return "".join([*parts, "</g>"])


def _path(points: Sequence[Point], across: Scale, up: Scale) -> str:
    return "M" + "L".join(f"{_n(across.at(point.x))} {_n(up.at(point.y))}" for point in points)


def _band(points: Sequence[Point], across: Scale, up: Scale) -> str:
    if len(points) < 2:
        return ""
    there = [f"{_n(across.at(point.x))} {_n(up.at(point.high))}" for point in points]
    back = [f"{_n(across.at(point.x))} {_n(up.at(point.low))}" for point in reversed(points)]
    return f"M{'L'.join([*there, *back])}z"


def _bars(points: Sequence[Point], across: Scale, up: Scale) -> str:
    """Return a whisker a point; none where all are hidden by the markers."""
    ends = [(_n(across.at(point.x)), up.at(point.low), up.at(point.high)) for point in points]
    if all(abs(low - high) < _SHORT for _, low, high in ends) and up.log:
        return ""
    return "".join(f"M{x} {_n(low)}V{_n(high)}" for x, low, high in ends)


def _mark(chart: Chart, line: Line, point: Point, across: Scale, shown: Scale, other: Scale) -> str:
    x, head = _n(across.at(point.x)), chart.x_told(point.x)
    values = chart.y_told(point.y)
    if point.low != point.high:
        values += f" {tell_span(point.low, point.high, chart.y_told)}"
    told = f"{line.label}, {head}: {values}{'; ' + point.told if point.told else ''}"
    place, alt = (f"translate({x} {_n(up.at(point.y))})" for up in (shown, other))
    about = f'data-head="{escape(head)}" data-says="{escape(values)}" data-y="{point.y:.6g}"'
    return (
        f'<path class="mark" d="{line.look.marker}" transform="{place}" data-alt="{alt}" {about}>'
        f"<title>{escape(told)}</title></path>"
    )


def _n(value: float) -> str:
    """A length in at most two decimals, without trailing zeros."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text
