"""Who sends what to whom: ranks as discs, arrows that leave from labels with the chunks they carry.

An arrow that ends in a plus is reduced into what is there, one that ends in a tip is copied over it. An arrow has its
sender's colour, only to follow it with the eye: where it starts and ends says the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpccoll.plan.drawing.grid import COLUMNS, GridLayout, get_column_name
from hpccoll.plan.drawing.history import Frame, Message, PlanHistory
from hpccoll.plan.drawing.palette import (
    INK,
    PALE,
    PAPER,
    QUIET,
    has_cut_corner,
    rank_colour,
    rank_line_colour,
    text_colour_on,
)
from hpccoll.plan.drawing.scene import (
    XY,
    Disc,
    FilledPolygons,
    LineSegment,
    OutlinedBox,
    SceneShape,
    TextLabel,
    estimate_text_width,
)
from hpccoll.plan.drawing.text_grid import format_ranges
from hpccoll.plan.operation import Operation

RADIUS, LABEL, HEAD = 9.0, 13.0, 4.5
CROWD = 4  # messages of one rank from which on there is no room for each
SIZE, SMALLEST = 9.5, 6.5  # of a label's words
EN_DASH = "\u2013"


def arrows_height(history: PlanHistory, messages: Sequence[Message]) -> float:
    """Return the height from the top of the discs to the arrows' ends; more where arrows go far and would lie flat."""
    far = max(abs(message.dest - message.source) for message in messages)
    return 2 * RADIUS + 4 + (LABEL if history.chunks > 1 else 0) + 40 + min(4.0 * far, 36.0)


def draw_rank(rank: int, centre: XY, *, idle: bool = False) -> list[SceneShape]:
    """Return a rank's disc; an idle rank's is empty."""
    fill, words = (PAPER, str(rank)) if idle else (rank_colour(rank), str(rank))
    x, y = centre
    shapes: list[SceneShape] = [Disc(centre, RADIUS, fill, PALE if idle else None, 1.25)]
    if has_cut_corner(rank) and not idle:
        shapes.append(FilledPolygons(PAPER, (((x + 3, y - RADIUS), (x + RADIUS, y - RADIUS), (x + RADIUS, y - 3)),)))
    ink = QUIET if idle else text_colour_on(fill)
    return [*shapes, TextLabel((x, y + 3.8), words, 10.5, ink, bold=not idle)]


def draw_arrows(layout: GridLayout, frame: Frame, at: XY, bottom: float) -> list[SceneShape]:
    """Return labels and arrows; those of one rank stand side by side, in the order of the other ends."""
    (left, y), gap = at, HEAD + 2
    start, end = y + 2 * RADIUS + 4, bottom - gap
    leaves = _slots(layout, frame.messages, leaving=True)
    lands = _slots(layout, frame.messages, leaving=False)
    labelled = layout.history.chunks > 1
    width = 1.6 if len(frame.messages) <= CROWD * layout.history.ranks else 0.8
    lines: list[SceneShape] = []
    heads: dict[XY, list[SceneShape]] = {}  # where many arrows land at one point they share one head
    for message, out, into in zip(frame.messages, leaves, lands, strict=True):
        foot, tip = (left + out, start + (LABEL if message.out and labelled else 0)), (left + into, end)
        lines.append(LineSegment(foot, tip, rank_line_colour(message.source), width))
        shared = tip in heads
        if not shared or message.reduces:
            heads[tip] = draw_arrow_end((tip[0], start) if shared else foot, tip, plus=message.reduces)
    labels = [shape for label in _labels(layout, frame.messages, leaves) for shape in label.shapes((left, start))]
    return lines + [shape for each in heads.values() for shape in each] + (labels if labelled else [])


def _slots(layout: GridLayout, messages: Sequence[Message], *, leaving: bool) -> list[float]:
    """Return for each message where it leaves (or lands), from the grid's left edge."""
    ends: dict[int, list[tuple[int, int]]] = {}
    for index, message in enumerate(messages):
        here, other = (message.source, message.dest) if leaving else (message.dest, message.source)
        ends.setdefault(here, []).append((other, index))
    slots = [0.0] * len(messages)
    for rank, mine in ends.items():
        if leaving:
            room = (layout.pitch - 4 if layout.history.chunks > 1 else 2 * RADIUS) / len(mine)
        else:
            room = min((layout.pitch - 4) / len(mine), 3 * HEAD) if len(mine) <= CROWD else 0.0
        for place, (_, index) in enumerate(sorted(mine)):
            slots[index] = layout.middle(rank) + (place - (len(mine) - 1) / 2) * room
    return slots


@dataclass(frozen=True, slots=True)
class _MessageLabel:
    """What is sent, in a box of `width` around `middle`."""

    middle: float
    words: str
    width: float

    def shapes(self, at: XY) -> list[SceneShape]:
        """Return the box and its words; `at` is the grid's left edge, and the top of the labels."""
        x, y = at[0] + self.middle, at[1]
        size = min(SIZE, SIZE * (self.width - 3) / estimate_text_width(self.words, SIZE))
        box = OutlinedBox((x - self.width / 2, y, self.width, LABEL), PAPER, INK, 0.9, 3)
        return [box, TextLabel((x, y + LABEL / 2 + 0.36 * size), self.words, size, INK)]


def _labels(layout: GridLayout, messages: Sequence[Message], leaves: Sequence[float]) -> Iterator[_MessageLabel]:
    """One label a message; one for all of a rank's messages where they carry the same, or are too many."""
    for rank in range(layout.history.ranks):
        mine = [(message, at) for message, at in zip(messages, leaves, strict=True) if message.source == rank]
        mine = [(message, at) for message, at in mine if message.out]
        room = (layout.pitch - 4) / max(len(mine), 1)
        told = {message.out: _told(layout, message.out, room) for message, _ in mine}
        if len(told) == 1 and len(mine) > 1:
            spread = max(at for _, at in mine) - min(at for _, at in mine)
            words = _told(layout, mine[0][0].out, layout.pitch - 4)
            yield _MessageLabel(layout.middle(rank), words, max(spread + 6, estimate_text_width(words, SIZE) + 6))
        elif any(estimate_text_width(words, SMALLEST) + 4 > room for words in told.values()):
            yield _MessageLabel(layout.middle(rank), f"{len(mine)} msgs", layout.pitch - 6)
        else:
            for message, at in mine:
                words = told[message.out]
                yield _MessageLabel(at, words, min(estimate_text_width(words, SIZE) + 6, room - 1))


def _told(layout: GridLayout, chunks: Sequence[int], room: float) -> str:
    """Name chunks as the grid does, or say how many they are."""
    if layout.history.operation is Operation.ALL_TO_ALL:
        parts = {
            name: [c % layout.lines for c in chunks if get_column_name(c, layout.lines) == name] for name in COLUMNS
        }
        words = ", ".join(f"{name} {format_ranges(each, EN_DASH)}" for name, each in parts.items() if each)
    else:
        words = f"c{format_ranges(chunks, EN_DASH)}"
    return words if estimate_text_width(words, SIZE) + 6 <= room or len(chunks) == 1 else f"{len(chunks)} ch."


def draw_arrow_end(start: XY, end: XY, *, plus: bool) -> list[SceneShape]:
    """Return the end of an arrow: a circled plus, or a tip."""
    (x, y), arm = end, HEAD - 1.5
    if plus:
        cross = [LineSegment((x - arm, y), (x + arm, y), INK, 1.2), LineSegment((x, y - arm), (x, y + arm), INK, 1.2)]
        return [Disc(end, HEAD, PAPER, INK, 1.2), *cross]
    length = math.hypot(x - start[0], y - start[1]) or 1.0
    along, across = ((x - start[0]) / length, (y - start[1]) / length), 0.5 * HEAD
    tip = (x + 0.8 * HEAD * along[0], y + 0.8 * HEAD * along[1])
    back = (x - 1.2 * HEAD * along[0], y - 1.2 * HEAD * along[1])
    sides = [(back[0] - s * across * 1.4 * along[1], back[1] + s * across * 1.4 * along[0]) for s in (1, -1)]
    return [FilledPolygons(INK, ((tip, sides[0], sides[1]),))]
