"""A matrix of values as SVG: nodes against nodes, a cell darker the better, what is slow or broken in another colour.

Colours say how a value stands to what the best quarter of all reaches: at it or better they go from pale to dark blue,
below it from yellow to red, so that one slow link is seen among thousands. (One slow node of four makes half of all
links slow: their median would say nothing.) A broken one is hatched and crossed. Up to 16 nodes each
cell bears its value; up to 64 it is a shape of its own, with its values as a <title>; beyond that the cells are the
pixels of a picture, since a million shapes are more than a browser bears.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import quantiles

_WIDTH, MOST_WRITTEN, _MOST_SHAPES, _MOST_NAMES = 560, 16, 64, 40
_LARGEST = 80.0  # pixels: a cell of a small matrix
_ROOMY = 34.0  # pixels: a cell with room for the unit below the number
_LEGEND, _LETTER, _LONGEST = 44, 7.2, 14
# Shares of what the best quarter reaches, and the colours there: brightness falls steadily on both sides of 1.
_STOPS = (
    (0.1, (122, 16, 33)),
    (0.35, (200, 54, 42)),
    (0.6, (240, 138, 60)),
    (0.8, (252, 205, 120)),
    (0.95, (232, 238, 246)),
    (1.0, (200, 220, 240)),
    (1.3, (86, 152, 212)),
    (2.0, (22, 82, 150)),
)


@dataclass(frozen=True, slots=True)
class HeatMapCell:
    """A value in a row and a column (None: none), how it is called and what is said of it."""

    row: int
    column: int
    value: float | None
    name: str
    details: str
    is_broken: bool


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A matrix; `tell` writes a value, `high_is_good` says which values are the better ones."""

    element_id: str
    title: str
    description: str
    names: tuple[str, ...]
    cells: tuple[HeatMapCell, ...]
    format_value: Callable[[float], str]
    higher_is_better: bool


def interpolate_color(share: float) -> tuple[int, int, int]:
    """Return the colour of a value that is `share` times the usual one, above 1 the better."""
    inside = min(max(share, _STOPS[0][0]), _STOPS[-1][0])
    for (low, one), (high, other) in pairwise(_STOPS):
        if inside <= high:
            part = (math.log(inside) - math.log(low)) / (math.log(high) - math.log(low))
            red, green, blue = (round(a + part * (b - a)) for a, b in zip(one, other, strict=True))
            return red, green, blue
    return _STOPS[-1][1]


def render_heat_map(heat: HeatMap) -> str:
    """Return the matrix as an <svg> element."""
    margin = min(max((len(name) for name in heat.names), default=1), _LONGEST) * _LETTER + 12
    side = min((_WIDTH - margin - 4) / max(len(heat.names), 1), _LARGEST)
    top = margin * 0.75 + 4
    height = top + side * len(heat.names) + _LEGEND
    values = [cell.value for cell in heat.cells if cell.value is not None]
    usual = _compute_reference_value(values, heat.higher_is_better) if values else 1.0
    named = f'aria-labelledby="{heat.element_id}-t {heat.element_id}-d"'
    draw = _render_cells if len(heat.names) <= _MOST_SHAPES else _render_pixels
    return "\n".join(
        [
            f'<svg id="{heat.element_id}" class="heat" viewBox="0 0 {_WIDTH} {height:.1f}" role="img" {named}>',
            f'<title id="{heat.element_id}-t">{escape(heat.title)}</title>',
            f'<desc id="{heat.element_id}-d">{escape(heat.description)}</desc>',
            *_render_node_names(heat, margin, top, side),
            *draw(heat, margin, top, side, usual),
            *_render_color_legend(heat, margin, height - _LEGEND + 14, usual, bool(values)),
            "</svg>",
        ]
    )


def _compute_reference_value(values: Sequence[float], high_is_good: bool) -> float:
    """Return what the best quarter of the values reaches."""
    if len(values) == 1:
        return values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return high if high_is_good else low


def _render_node_names(heat: HeatMap, margin: float, top: float, side: float) -> list[str]:
    """Return the names of rows and columns; some of them where there are too many."""
    every = max(-(-len(heat.names) // _MOST_NAMES), 1)
    size = min(max(side * 0.8, 7.0), 12.0)
    parts = []
    for at, name in list(enumerate(heat.names))[::every]:
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 4]}…{name[-3:]}"
        middle = at * side + side / 2
        y, x = top + middle, margin + middle
        parts.append(f'<text class="row" x="{margin - 7:.1f}" y="{y:.1f}" dy=".35em" style="font-size:{size:.1f}px">')
        parts.append(f"{escape(short)}</text>")
        turned = f'transform="translate({x:.1f} {top - 7:.1f}) rotate(-45)" style="font-size:{size:.1f}px"'
        parts.append(f'<text class="col" {turned}>{escape(short)}</text>')
    return parts


def _compare_to_reference(heat: HeatMap, value: float, usual: float) -> float:
    return value / usual if heat.higher_is_better else usual / value


def _render_cells(heat: HeatMap, margin: float, top: float, side: float, usual: float) -> list[str]:
    size = 'width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"'
    parts = [
        f'<pattern id="{heat.element_id}-x" {size}>'
        '<rect class="under" width="6" height="6"/><path class="hatch" d="M0 0V6"/></pattern>'
    ]
    known = {(cell.row, cell.column) for cell in heat.cells}
    for row in range(len(heat.names)):
        for column in range(len(heat.names)):
            if (row, column) not in known:
                place = f'x="{margin + column * side:.2f}" y="{top + row * side:.2f}"'
                css = "self" if row == column else "none"
                parts.append(f'<rect class="{css}" {place} width="{side:.2f}" height="{side:.2f}"/>')
    return parts + [_render_cell(heat, cell, margin, top, side, usual) for cell in heat.cells]


def _render_cell(heat: HeatMap, cell: HeatMapCell, margin: float, top: float, side: float, usual: float) -> str:
    x, y = margin + cell.column * side, top + cell.row * side
    about = f'data-head="{escape(cell.name)}" data-says="{escape(cell.details)}"'
    place = f'x="{x:.2f}" y="{y:.2f}" width="{side:.2f}" height="{side:.2f}"'
    title = f"<title>{escape(cell.name)}: {escape(cell.details)}</title>"
    middle_of = f'x="{x + side / 2:.2f}" y="{y + side / 2:.2f}"'
    if cell.value is None:
        filled = f'class="broken" style="fill:url(#{heat.element_id}-x)"' if cell.is_broken else 'class="none"'
        cross = f'<text class="in bad" {middle_of} dy=".35em">&#215;</text>' if cell.is_broken else ""
        return f"<rect {filled} {place} {about}>{title}</rect>{cross}"
    red, green, blue = interpolate_color(_compare_to_reference(heat, cell.value, usual))
    words = ""
    if len(heat.names) <= MOST_WRITTEN:
        ink = "pale" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "dark"
        number, _, unit = heat.format_value(cell.value).partition(" ")
        size = min(side / 4.2, 13.0)
        lift = ' dy="-.05em"' if side > _ROOMY else ' dy=".35em"'
        words = f'<text class="in {ink}" {middle_of}{lift} style="font-size:{size:.1f}px">{escape(number)}'
        if side > _ROOMY:
            words += (
                f'<tspan x="{x + side / 2:.2f}" dy="1.15em" style="font-size:{size * 0.8:.1f}px">{escape(unit)}</tspan>'
            )
        words += "</text>"
    return f'<rect class="cell" style="fill:rgb({red} {green} {blue})" {place} {about}>{title}</rect>{words}'


def _render_pixels(heat: HeatMap, margin: float, top: float, side: float, usual: float) -> list[str]:
    """Return the matrix as a PNG with one pixel a cell, that the page carries itself."""
    from PIL import Image

    count = len(heat.names)
    image = Image.new("RGB", (count, count), (128, 134, 142))
    for cell in heat.cells:
        seen = (255, 0, 60) if cell.value is None else interpolate_color(_compare_to_reference(heat, cell.value, usual))
        image.putpixel((cell.column, cell.row), seen)
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    place = f'x="{margin:.1f}" y="{top:.1f}" width="{count * side:.1f}" height="{count * side:.1f}"'
    return [f'<image class="pixels" {place} preserveAspectRatio="none" href="data:image/png;base64,{data}"/>']


def _render_color_legend(heat: HeatMap, x: float, y: float, usual: float, any_value: bool) -> list[str]:
    """Return the key of the colours, with values at some."""
    if not any_value:
        return []
    width = (_WIDTH - x - 4) / len(_STOPS)
    parts = []
    for at, (share, (red, green, blue)) in enumerate(_STOPS):
        value = usual * share if heat.higher_is_better else usual / share
        left = x + at * width
        parts.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="9" style="fill:rgb({red} {green} {blue})">'
            f"<title>{escape(heat.format_value(value))}</title></rect>"
        )
        if at % 2 == 1:
            words = escape(heat.format_value(value))
            parts.append(f'<text class="x" x="{left + width / 2:.1f}" y="{y + 23:.1f}">{words}</text>')
    return parts
