"""Conversion of scenes to SVG of plain shapes and text, without scripts; equal scenes give equal bytes."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby

from hpccoll.plan.drawing.scene import (
    XY,
    Disc,
    FilledBoxes,
    FilledPolygons,
    LineSegment,
    OutlinedBox,
    Scene,
    SceneShape,
    TextLabel,
)

FONT = "DejaVu Sans, Verdana, Geneva, sans-serif"


def render_svg(scene: Scene) -> str:
    """Return `scene` as the text of an SVG document."""
    size = f'width="{_n(scene.width)}" height="{_n(scene.height)}" viewBox="0 0 {_n(scene.width)} {_n(scene.height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" role="img">'
    about = [f"<title>{escape(scene.title)}</title>", f"<desc>{escape(scene.description)}</desc>"]
    body = [line for style, group in groupby(scene.shapes, _style) for line in _group(style, list(group))]
    return "\n".join([head, *about, *body, "</svg>"]) + "\n"


def _n(value: float) -> str:
    """Return a number as a string with at most two decimals and no trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"


def _style(shape: SceneShape) -> str:
    """Return a string with a shape's SVG attributes for colours, line width and font, but not its position."""
    match shape:
        case TextLabel(_, _, size, fill, anchor, bold):
            weight = ' font-weight="bold"' if bold else ""
            return f'font-size="{_n(size)}" fill="{fill}" text-anchor="{anchor}"{weight}'
        case LineSegment(_, _, stroke, width):
            return f'stroke="{stroke}" stroke-width="{_n(width)}"'
        case OutlinedBox(_, fill, stroke, width) | Disc(_, _, fill, stroke, width):
            rim = f' stroke="{stroke}" stroke-width="{_n(width)}"' if stroke else ""
            return f'fill="{fill or "none"}"{rim}'
        case FilledBoxes(fill) | FilledPolygons(fill):
            return f'fill="{fill}"'


def _group(style: str, shapes: list[SceneShape]) -> Iterator[str]:
    """Yield the SVG lines of shapes of equal style: a `<g>` element that has the attributes `style`, or one shape."""
    if len(shapes) == 1:
        yield _element(shapes[0], f" {style}")
        return
    yield f"<g {style}>"
    yield from (_element(shape, "") for shape in shapes)
    yield "</g>"


def _element(shape: SceneShape, style: str) -> str:
    """Return a shape's SVG element as text; `style`, which may be empty, is added to the element's attributes."""
    match shape:
        case TextLabel((x, y), words):
            return f'<text x="{_n(x)}" y="{_n(y)}"{style}>{escape(words)}</text>'
        case LineSegment(start, end):
            return f'<path d="M{_pair(start)}L{_pair(end)}"{style}/>'
        case OutlinedBox((x, y, w, h), _, _, _, radius):
            corner = f' rx="{_n(radius)}"' if radius else ""
            return f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}"{corner}{style}/>'
        case Disc((x, y), radius):
            return f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"{style}/>'
        case FilledBoxes(_, boxes):
            path = "".join(f"M{_pair((x, y))}h{_n(w)}v{_n(h)}h{_n(-w)}z" for x, y, w, h in boxes)
            return f'<path d="{path}"{style}/>'
        case FilledPolygons(_, polygons):
            path = "".join(f"M{'L'.join(_pair(point) for point in points)}z" for points in polygons)
            return f'<path d="{path}"{style}/>'


def _pair(point: XY) -> str:
    """Return a point as the string `X Y` for SVG."""
    return f"{_n(point[0])} {_n(point[1])}"
