"""Heat maps as SVG elements: a matrix of nodes by nodes that makes one slow or broken link among thousands visible.

Colors compare each value with the quartile that bounds the best quarter of all values: blue is at least as good, yellow
to red is worse. The median of all values would be a bad reference, because one slow node of four slows down half of all
links. Cells of broken links are hatched and crossed. With up to 16 nodes, every cell shows its value. With up to 64
nodes, every cell is an SVG shape with a <title>. With more than 64 nodes, the matrix is a bitmap with one pixel per
cell, because browsers cannot handle a million shapes.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

import numpy as np

from hpccoll.report.axis_scale import thin_values

_WIDTH = 560
MAX_LABELED_NODES, _MAX_SHAPE_NODES, _MAX_NODE_NAMES = 16, 64, 40
_MAX_SIDE = 80.0  # pixels
_MIN_SIDE_WITH_UNIT = 34.0  # pixels; the cells of a larger side have room for the unit below the number
_LEGEND_HEIGHT, _LETTER_WIDTH, _MAX_NAME = 44, 7.2, 14
# Pairs (ratio, color) for a value divided by the best quartile; colors get darker as the ratio departs from 1.
_COLOR_STOPS = (
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
    """A cell of a heat map: the value of the link from one node to another."""

    row: int  # index of the sending node
    column: int  # index of the receiving node
    value: float | None  # the value, such as a bandwidth; None if unknown
    name: str  # the first part of the tooltip, such as `node1 to node2`
    details: str  # the second part of the tooltip
    is_broken: bool  # whether the link could not be measured, which a hatched cell shows


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A matrix of values, such as bandwidths, from the nodes of its rows to the nodes of its columns.

    `names` are the nodes' names. Cells of pairs without a measurement may be missing. `higher_is_better` is True for
    bandwidths and False for latencies, which determines the colors.
    """

    element_id: str  # unique on the page
    title: str
    description: str  # for screen readers
    names: tuple[str, ...]
    cells: tuple[HeatMapCell, ...]
    format_value: Callable[[float], str]
    higher_is_better: bool


@dataclass(frozen=True, slots=True)
class _HeatMapLayout:
    """The matrix's left and top position and the width of a cell, in pixels, and the reference value of the colors."""

    left: float
    top: float
    side: float
    reference: float


def interpolate_color(ratio: float) -> tuple[int, int, int]:
    """Return the red, green and blue (0 to 255) of a value that is `ratio` times as good as the reference value."""
    stops, colors = zip(*_COLOR_STOPS, strict=True)
    channels = zip(*colors, strict=True)
    red, green, blue = (round(float(np.interp(math.log(ratio), np.log(stops), channel))) for channel in channels)
    return red, green, blue


def render_heat_map(heat: HeatMap) -> str:
    """Return the heat map as an <svg> element."""
    left = min(max((len(name) for name in heat.names), default=1), _MAX_NAME) * _LETTER_WIDTH + 12
    side = min((_WIDTH - left - 4) / max(len(heat.names), 1), _MAX_SIDE)
    values = [cell.value for cell in heat.cells if cell.value is not None]
    # The best quartile separates the best quarter of the values from the rest.
    reference = float(np.quantile(values, 0.75 if heat.higher_is_better else 0.25)) if values else 1.0
    layout = _HeatMapLayout(left, left * 0.75 + 4, side, reference)
    height = layout.top + side * len(heat.names) + _LEGEND_HEIGHT
    render_cells = _render_shapes if len(heat.names) <= _MAX_SHAPE_NODES else _render_pixels
    ident = heat.element_id
    return "\n".join(
        [
            f'<svg id="{ident}" class="heat" viewBox="0 0 {_WIDTH} {height:.1f}" role="img"'
            f' aria-labelledby="{ident}-t {ident}-d">',
            f'<title id="{ident}-t">{escape(heat.title)}</title>',
            f'<desc id="{ident}-d">{escape(heat.description)}</desc>',
            *_render_node_names(heat, layout),
            *render_cells(heat, layout),
            *(_render_color_legend(heat, layout, height - _LEGEND_HEIGHT + 14) if values else []),
            "</svg>",
        ]
    )


def _render_node_names(heat: HeatMap, layout: _HeatMapLayout) -> list[str]:
    """Return the labels of rows and columns as SVG elements, at most _MAX_NODE_NAMES of each."""
    size = min(max(layout.side * 0.8, 7.0), 12.0)
    parts = []
    for index, name in thin_values(list(enumerate(heat.names)), _MAX_NODE_NAMES):
        short = name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 4]}…{name[-3:]}"
        middle = index * layout.side + layout.side / 2
        y, x = layout.top + middle, layout.left + middle
        style = f'style="font-size:{size:.1f}px"'
        rotated = f'transform="translate({x:.1f} {layout.top - 7:.1f}) rotate(-45)"'
        parts.append(f'<text class="row" x="{layout.left - 7:.1f}" y="{y:.1f}" dy=".35em" {style}>')
        parts.append(f"{escape(short)}</text>")
        parts.append(f'<text class="col" {rotated} {style}>{escape(short)}</text>')
    return parts


def _choose_color(heat: HeatMap, layout: _HeatMapLayout, value: float) -> tuple[int, int, int]:
    """Return the red, green and blue (0 to 255) of a cell with a value, by comparison with the best quartile."""
    return interpolate_color(value / layout.reference if heat.higher_is_better else layout.reference / value)


def _render_shapes(heat: HeatMap, layout: _HeatMapLayout) -> list[str]:
    """Return SVG elements: a hatch pattern, then a <rect> per cell, including the diagonal and cells without value."""
    attributes = 'width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"'
    parts = [
        f'<pattern id="{heat.element_id}-x" {attributes}>'
        '<rect class="under" width="6" height="6"/><path class="hatch" d="M0 0V6"/></pattern>'
    ]
    measured = {(cell.row, cell.column) for cell in heat.cells}
    for row in range(len(heat.names)):
        for column in range(len(heat.names)):
            if (row, column) not in measured:
                css_class = "self" if row == column else "none"
                parts.append(f'<rect class="{css_class}" {_format_rect(layout, row, column)}/>')
    return parts + [_render_cell(heat, cell, layout) for cell in heat.cells]


def _format_rect(layout: _HeatMapLayout, row: int, column: int) -> str:
    """Return the SVG attributes of a cell's position and size."""
    x, y = layout.left + column * layout.side, layout.top + row * layout.side
    return f'x="{x:.2f}" y="{y:.2f}" width="{layout.side:.2f}" height="{layout.side:.2f}"'


def _render_cell(heat: HeatMap, cell: HeatMapCell, layout: _HeatMapLayout) -> str:
    """Return a cell as SVG elements with its tooltip, and with its value as text if there is room."""
    tooltip = f'data-head="{escape(cell.name)}" data-says="{escape(cell.details)}"'
    rect = f"{_format_rect(layout, cell.row, cell.column)} {tooltip}"
    title = f"<title>{escape(cell.name)}: {escape(cell.details)}</title>"
    x, y = (layout.left + (cell.column + 0.5) * layout.side, layout.top + (cell.row + 0.5) * layout.side)
    if cell.value is None:
        fill = f'class="broken" style="fill:url(#{heat.element_id}-x)"' if cell.is_broken else 'class="none"'
        cross = f'<text class="in bad" x="{x:.2f}" y="{y:.2f}" dy=".35em">&#215;</text>' if cell.is_broken else ""
        return f"<rect {fill} {rect}>{title}</rect>{cross}"
    red, green, blue = _choose_color(heat, layout, cell.value)
    label = ""
    if len(heat.names) <= MAX_LABELED_NODES:
        ink = "pale" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "dark"
        number, _, unit = heat.format_value(cell.value).partition(" ")
        size = min(layout.side / 4.2, 13.0)
        has_unit = layout.side > _MIN_SIDE_WITH_UNIT
        style = f'dy="{"-.05em" if has_unit else ".35em"}" style="font-size:{size:.1f}px"'
        label = f'<text class="in {ink}" x="{x:.2f}" y="{y:.2f}" {style}>{escape(number)}'
        if has_unit:
            label += f'<tspan x="{x:.2f}" dy="1.15em" style="font-size:{size * 0.8:.1f}px">{escape(unit)}</tspan>'
        label += "</text>"
    return f'<rect class="cell" style="fill:rgb({red} {green} {blue})" {rect}>{title}</rect>{label}'


def _render_pixels(heat: HeatMap, layout: _HeatMapLayout) -> list[str]:
    """Return the matrix as a list of one SVG <image>, an embedded PNG with one pixel per cell."""
    from PIL import Image

    count = len(heat.names)
    image = Image.new("RGB", (count, count), (128, 134, 142))
    for cell in heat.cells:
        color = (255, 0, 60) if cell.value is None else _choose_color(heat, layout, cell.value)
        image.putpixel((cell.column, cell.row), color)
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    size = f"{count * layout.side:.1f}"
    place = f'x="{layout.left:.1f}" y="{layout.top:.1f}" width="{size}" height="{size}"'
    return [f'<image class="pixels" {place} preserveAspectRatio="none" href="data:image/png;base64,{data}"/>']


def _render_color_legend(heat: HeatMap, layout: _HeatMapLayout, y: float) -> list[str]:
    """Return the color legend, with values at every second color, as SVG elements at the vertical position `y`."""
    width = (_WIDTH - layout.left - 4) / len(_COLOR_STOPS)
    parts = []
    for index, (ratio, (red, green, blue)) in enumerate(_COLOR_STOPS):
        value = layout.reference * ratio if heat.higher_is_better else layout.reference / ratio
        label = escape(heat.format_value(value))
        x = layout.left + index * width
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="9" style="fill:rgb({red} {green} {blue})">'
            f"<title>{label}</title></rect>"
        )
        if index % 2 == 1:
            parts.append(f'<text class="x" x="{x + width / 2:.1f}" y="{y + 23:.1f}">{label}</text>')
    return parts
