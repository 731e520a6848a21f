"""A picture before it is written: shapes on a page, in pixels, y downwards. SVG, PNG and GIF write the same scene."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Box: TypeAlias = tuple[float, float, float, float]  # x, y, width, height
XY: TypeAlias = tuple[float, float]
_THIN, _BROAD = " ,.:;()-/|ijlIft\u2013", "mwMW\u2192"
_NARROW, _USUAL, _WIDE = 0.37, 0.64, 0.98  # widths of letters, in ems


@dataclass(frozen=True, slots=True)
class FilledBoxes:
    """Rectangles of one colour: pieces of data."""

    fill: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class FilledPolygons:
    """Filled polygons of one colour: arrow heads, cut corners."""

    fill: str
    polygons: tuple[tuple[XY, ...], ...]


@dataclass(frozen=True, slots=True)
class OutlinedBox:
    """A rectangle with an outline, rounded by `radius`."""

    box: Box
    fill: str | None
    stroke: str | None = None
    width: float = 1
    radius: float = 0


@dataclass(frozen=True, slots=True)
class LineSegment:
    """A straight line."""

    start: XY
    end: XY
    stroke: str
    width: float = 1


@dataclass(frozen=True, slots=True)
class Disc:
    """A circle."""

    centre: XY
    radius: float
    fill: str
    stroke: str | None = None
    width: float = 1


@dataclass(frozen=True, slots=True)
class TextLabel:
    """A line of text; `at` is where its baseline starts, has its middle, or ends."""

    at: XY
    words: str
    size: float
    fill: str
    anchor: str = "middle"
    bold: bool = False


SceneShape: TypeAlias = FilledBoxes | FilledPolygons | OutlinedBox | LineSegment | Disc | TextLabel


@dataclass(frozen=True, slots=True)
class Scene:
    """A page and what is on it, from back to front."""

    width: float
    height: float
    title: str
    description: str
    shapes: tuple[SceneShape, ...]


def estimate_text_width(words: str, size: float) -> float:
    """Return about how wide `words` is in DejaVu Sans; rather a little more than less."""
    return size * sum(_NARROW if c in _THIN else _WIDE if c in _BROAD else _USUAL for c in words)
