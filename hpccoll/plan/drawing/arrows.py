"""Who sends what to whom: ranks as discs, arrows that leave from labels with the chunks they carry.

An arrow that ends in a plus is reduced into what is there, one that ends in a tip is copied over it. An arrow has its
sender's colour, only to follow it with the eye: where it starts and ends says the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpccoll.plan.drawing.frames import Frame, Message, Story
from hpccoll.plan.drawing.grid import COLUMNS, Grid, column_name
from hpccoll.plan.drawing.palette import INK, PALE, PAPER, QUIET, colour, ink_on, is_cut, line_colour
from hpccoll.plan.drawing.scene import Disc, Line, Panel, Point, Polygons, Shape, Text, text_width
from hpccoll.plan.drawing.text import ranges
from hpccoll.plan.operation import Operation

RADIUS, LABEL, HEAD = 9.0, 13.0, 4.5
CROWD = 4  # messages of one rank from which on there is no room for each
SIZE, SMALLEST = 9.5, 6.5  # of a label's words
EN_DASH = "\u2013"


def arrows_height(story: Story, messages: Sequence[Message]) -> float:
    """Return the height from the top of the discs to the arrows' ends; more where arrows go far and would lie flat."""
    far = max(abs(message.dest - message.source) for message in messages)
    return 2 * RADIUS + 4 + (LABEL if story.chunks > 1 else 0) + 40 + min(4.0 * far, 36.0)


def badge(rank: int, centre: Point, *, idle: bool = False) -> list[Shape]:
    """Return a rank's disc; an idle rank's is empty."""
    fill, words = (PAPER, str(rank)) if idle else (colour(rank), str(rank))
    x, y = centre
    shapes: list[Shape] = [Disc(centre, RADIUS, fill, PALE if idle else None, 1.25)]
    if is_cut(rank) and not idle:
        shapes.append(Polygons(PAPER, (((x + 3, y - RADIUS), (x + RADIUS, y - RADIUS), (x + RADIUS, y - 3)),)))
    ink = QUIET if idle else ink_on(fill)
    return [*shapes, Text((x, y + 3.8), words, 10.5, ink, bold=not idle)]


def draw_arrows(layout: Grid, frame: Frame, at: Point, bottom: float) -> list[Shape]:
    """Return labels and arrows; those of one rank stand side by side, in the order of the other ends."""
    (left, y), gap = at, HEAD + 2
    start, end = y + 2 * RADIUS + 4, bottom - gap
    leaves = _slots(layout, frame.messages, leaving=True)
    lands = _slots(layout, frame.messages, leaving=False)
    labelled = layout.story.chunks > 1
    width = 1.6 if len(frame.messages) <= CROWD * layout.story.ranks else 0.8
    lines: list[Shape] = []
    heads: dict[Point, list[Shape]] = {}  # where many arrows land at one point they share one head
    for message, out, into in zip(frame.messages, leaves, lands, strict=True):
        foot, tip = (left + out, start + (LABEL if message.out and labelled else 0)), (left + into, end)
        lines.append(Line(foot, tip, line_colour(message.source), width))
        shared = tip in heads
        if not shared or message.reduces:
            heads[tip] = head((tip[0], start) if shared else foot, tip, plus=message.reduces)
    labels = [shape for label in _labels(layout, frame.messages, leaves) for shape in label.shapes((left, start))]
    return lines + [shape for each in heads.values() for shape in each] + (labels if labelled else [])


def _slots(layout: Grid, messages: Sequence[Message], *, leaving: bool) -> list[float]:
    """Return for each message where it leaves (or lands), from the grid's left edge."""
    ends: dict[int, list[tuple[int, int]]] = {}
    for index, message in enumerate(messages):
        here, other = (message.source, message.dest) if leaving else (message.dest, message.source)
        ends.setdefault(here, []).append((other, index))
    slots = [0.0] * len(messages)
    for rank, mine in ends.items():
        if leaving:
            room = (layout.pitch - 4 if layout.story.chunks > 1 else 2 * RADIUS) / len(mine)
        else:
            room = min((layout.pitch - 4) / len(mine), 3 * HEAD) if len(mine) <= CROWD else 0.0
        for place, (_, index) in enumerate(sorted(mine)):
            slots[index] = layout.middle(rank) + (place - (len(mine) - 1) / 2) * room
    return slots


@dataclass(frozen=True, slots=True)
class _Label:
    """What is sent, in a box of `width` around `middle`."""

    middle: float
    words: str
    width: float

    def shapes(self, at: Point) -> list[Shape]:
        """Return the box and its words; `at` is the grid's left edge, and the top of the labels."""
        x, y = at[0] + self.middle, at[1]
        size = min(SIZE, SIZE * (self.width - 3) / text_width(self.words, SIZE))
        box = Panel((x - self.width / 2, y, self.width, LABEL), PAPER, INK, 0.9, 3)
        return [box, Text((x, y + LABEL / 2 + 0.36 * size), self.words, size, INK)]


def _labels(layout: Grid, messages: Sequence[Message], leaves: Sequence[float]) -> Iterator[_Label]:
    """One label a message; one for all of a rank's messages where they carry the same, or are too many."""
    for rank in range(layout.story.ranks):
        mine = [(message, at) for message, at in zip(messages, leaves, strict=True) if message.source == rank]
        mine = [(message, at) for message, at in mine if message.out]
        room = (layout.pitch - 4) / max(len(mine), 1)
        told = {message.out: _told(layout, message.out, room) for message, _ in mine}
        if len(told) == 1 and len(mine) > 1:
            spread = max(at for _, at in mine) - min(at for _, at in mine)
            words = _told(layout, mine[0][0].out, layout.pitch - 4)
            yield _Label(layout.middle(rank), words, max(spread + 6, text_width(words, SIZE) + 6))
        elif any(text_width(words, SMALLEST) + 4 > room for words in told.values()):
            yield _Label(layout.middle(rank), f"{len(mine)} msgs", layout.pitch - 6)
        else:
            for message, at in mine:
                words = told[message.out]
                yield _Label(at, words, min(text_width(words, SIZE) + 6, room - 1))


def _told(layout: Grid, chunks: Sequence[int], room: float) -> str:
    """Name chunks as the grid does, or say how many they are."""
    if layout.story.operation is Operation.ALL_TO_ALL:
        parts = {name: [c % layout.lines for c in chunks if column_name(c, layout.lines) == name] for name in COLUMNS}
        words = ", ".join(f"{name} {ranges(each, EN_DASH)}" for name, each in parts.items() if each)
    else:
        words = f"c{ranges(chunks, EN_DASH)}"
    return words if text_width(words, SIZE) + 6 <= room or len(chunks) == 1 else f"{len(chunks)} ch."


def head(start: Point, end: Point, *, plus: bool) -> list[Shape]:
    """Return the end of an arrow: a circled plus, or a tip."""
    (x, y), arm = end, HEAD - 1.5
    if plus:
        cross = [Line((x - arm, y), (x + arm, y), INK, 1.2), Line((x, y - arm), (x, y + arm), INK, 1.2)]
        return [Disc(end, HEAD, PAPER, INK, 1.2), *cross]
    length = math.hypot(x - start[0], y - start[1]) or 1.0
    along, across = ((x - start[0]) / length, (y - start[1]) / length), 0.5 * HEAD
    tip = (x + 0.8 * HEAD * along[0], y + 0.8 * HEAD * along[1])
    back = (x - 1.2 * HEAD * along[0], y - 1.2 * HEAD * along[1])
    sides = [(back[0] - s * across * 1.4 * along[1], back[1] + s * across * 1.4 * along[0]) for s in (1, -1)]
    return [Polygons(INK, ((tip, sides[0], sides[1]),))]
