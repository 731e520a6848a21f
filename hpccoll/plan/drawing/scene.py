"""Scenes: pages of shapes, with coordinates in pixels and y growing downwards.

The SVG, PNG and GIF writers all render the same scenes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Box: TypeAlias = tuple[float, float, float, float]  # x, y, width, height
XY: TypeAlias = tuple[float, float]
_THIN_LETTERS, _BROAD_LETTERS = " ,.:;()-/|ijlIft\u2013", "mwMW\u2192"
_NARROW, _USUAL, _WIDE = 0.37, 0.64, 0.98  # widths of letters, in ems


@dataclass(frozen=True, slots=True)
class FilledBoxes:
    """Filled rectangles of one colour that a scene (a page of shapes) draws, such as the boxes in grid cells."""

    fill: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class FilledPolygons:
    """Filled polygons of one colour that a scene (a page of shapes) draws, such as arrow heads."""

    fill: str
    polygons: tuple[tuple[XY, ...], ...]


@dataclass(frozen=True, slots=True)
class OutlinedBox:
    """A rectangle of a drawing with an optional fill and outline, and corners rounded by `radius` pixels."""

    box: Box
    fill: str | None
    stroke: str | None = None
    width: float = 1
    radius: float = 0


@dataclass(frozen=True, slots=True)
class LineSegment:
    """A straight line of a drawing."""

    start: XY
    end: XY
    stroke: str
    width: float = 1


@dataclass(frozen=True, slots=True)
class Disc:
    """A filled circle of a drawing, with an optional outline."""

    centre: XY
    radius: float
    fill: str
    stroke: str | None = None
    width: float = 1


@dataclass(frozen=True, slots=True)
class TextLabel:
    """A line of text in a drawing; `at` is the start, the middle or the end of its baseline, depending on `anchor`."""

    at: XY
    words: str
    size: float
    fill: str
    anchor: str = "middle"
    bold: bool = False


SceneShape: TypeAlias = FilledBoxes | FilledPolygons | OutlinedBox | LineSegment | Disc | TextLabel


@dataclass(frozen=True, slots=True)
class Scene:
    """A drawing: the size of the page and the shapes on it, listed from back to front."""

    width: float
    height: float
    title: str
    description: str
    shapes: tuple[SceneShape, ...]


def estimate_text_width(words: str, size: float) -> float:
    """Return a generous estimate of the width in pixels of `words` in the font DejaVu Sans at `size` pixels."""
    return size * sum(_NARROW if c in _THIN_LETTERS else _WIDE if c in _BROAD_LETTERS else _USUAL for c in words)
