"""The drawing of the messages of a round: a disc per rank, and an arrow per message, labelled with its chunks.

An arrow ends in a plus if its data is reduced into the receiver's chunk, and in an arrowhead if its data overwrites the
chunk. The colour of an arrow is the colour of the sending rank and has no other meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hpccoll.plan.drawing import palette
from hpccoll.plan.drawing.grid import COLUMNS, GridLayout, get_column_name
from hpccoll.plan.drawing.history import Frame, PlanHistory
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
from hpccoll.plan.messages import PlanMessage
from hpccoll.plan.operation import Operation
from hpccoll.units import format_ranges

RADIUS, LABEL_HEIGHT, HEAD = 9.0, 13.0, 4.5
MOST_SEPARATE = 4  # a rank with more messages has one common end for its arrows
LABEL_SIZE, SMALLEST_SIZE = 9.5, 6.5  # pixels of the font of labels
EN_DASH = "\u2013"


def arrows_height(history: PlanHistory, messages: Sequence[PlanMessage]) -> float:
    """Return the height in pixels of the part of a drawing with rank discs and the arrows of `messages`.

    The height is larger if messages go to more distant ranks.
    """
    longest = max(abs(message.dest - message.source) for message in messages)
    return 2 * RADIUS + 4 + (LABEL_HEIGHT if history.chunks > 1 else 0) + 40 + min(4.0 * longest, 36.0)


def draw_rank(rank: int, centre: XY, *, idle: bool = False) -> list[SceneShape]:
    """Return the shapes of a rank at `centre`: a disc with the rank's number, hollow if `idle`.

    Discs of ranks 8 to 15, 24 to 31, and so on have a cut corner unless idle, because ranks r and r + 8 share a colour.
    """
    fill = palette.PAPER if idle else palette.rank_colour(rank)
    x, y = centre
    shapes: list[SceneShape] = [Disc(centre, RADIUS, fill, palette.PALE if idle else None, 1.25)]
    if palette.has_cut_corner(rank) and not idle:
        corner = (x + 3, y - RADIUS), (x + RADIUS, y - RADIUS), (x + RADIUS, y - 3)
        shapes.append(FilledPolygons(palette.PAPER, (corner,)))
    ink = palette.QUIET if idle else palette.text_colour_on(fill)
    return [*shapes, TextLabel((x, y + 3.8), str(rank), 10.5, ink, bold=not idle)]


def draw_arrows(layout: GridLayout, frame: Frame, at: XY, bottom: float) -> list[SceneShape]:
    """Return the labels and arrows of a frame's messages; arrows of a rank are side by side, sorted by the peer's rank.

    Each rank is drawn above its column of the grid `layout`. `at` is the x of the grid's left edge and the y of the top
    of the rank discs; `bottom` is the y at which the arrows end.
    """
    (left, y), gap = at, HEAD + 2
    start, end = y + 2 * RADIUS + 4, bottom - gap
    starts = _arrow_positions(layout, frame.messages, at_source=True)
    ends = _arrow_positions(layout, frame.messages, at_source=False)
    labelled = layout.history.chunks > 1
    width = 1.6 if len(frame.messages) <= MOST_SEPARATE * layout.history.plan.ranks else 0.8
    lines: list[SceneShape] = []
    heads: dict[XY, list[SceneShape]] = {}  # arrows that end at the same point have one common head
    for message, start_x, end_x in zip(frame.messages, starts, ends, strict=True):
        foot = left + start_x, start + (LABEL_HEIGHT if message.send and labelled else 0)
        tip = left + end_x, end
        lines.append(LineSegment(foot, tip, palette.rank_line_colour(message.source), width))
        shared = tip in heads
        if not shared or message.reduces:
            heads[tip] = draw_arrow_end((tip[0], start) if shared else foot, tip, plus=message.reduces)
    listed = _list_labels(layout, frame, starts) if labelled else ()
    labels = [shape for x, words, size in listed for shape in _draw_label(left + x, start, words, size)]
    return lines + [shape for shapes in heads.values() for shape in shapes] + labels


def _arrow_positions(layout: GridLayout, messages: Sequence[PlanMessage], *, at_source: bool) -> list[float]:
    """Return the x at which each message's arrow starts (`at_source`) or ends, relative to the grid's left edge."""
    ends: dict[int, list[tuple[int, int]]] = {}
    for index, message in enumerate(messages):
        rank, peer = (message.source, message.dest) if at_source else (message.dest, message.source)
        ends.setdefault(rank, []).append((peer, index))
    positions = [0.0] * len(messages)
    for rank, arrows in ends.items():
        if at_source:
            spacing = (layout.pitch - 4 if layout.history.chunks > 1 else 2 * RADIUS) / len(arrows)
        else:
            spacing = min((layout.pitch - 4) / len(arrows), 3 * HEAD) if len(arrows) <= MOST_SEPARATE else 0.0
        for place, (_, index) in enumerate(sorted(arrows)):
            positions[index] = layout.middle(rank) + (place - (len(arrows) - 1) / 2) * spacing
    return positions


def _draw_label(x: float, y: float, words: str, width: float) -> list[SceneShape]:
    """Return the shapes of a label, a box with the text `words`; the middle of the box's top edge is at (x, y).

    The box is `width` pixels wide, and the text is made smaller if it does not fit.
    """
    size = min(LABEL_SIZE, LABEL_SIZE * (width - 3) / estimate_text_width(words, LABEL_SIZE))
    box = OutlinedBox((x - width / 2, y, width, LABEL_HEIGHT), palette.PAPER, palette.INK, 0.9, 3)
    return [box, TextLabel((x, y + LABEL_HEIGHT / 2 + 0.36 * size), words, size, palette.INK)]


def _list_labels(layout: GridLayout, frame: Frame, starts: Sequence[float]) -> Iterator[tuple[float, str, float]]:
    """Yield (x of the middle, text, width in pixels) of a label for each message of `frame`.

    A sender gets a single label for all its messages if all have the same chunks or there is no room for several
    labels. `starts` has the x at which each message's arrow starts.
    """
    for rank in range(layout.history.plan.ranks):
        own = [(m.send, x) for m, x in zip(frame.messages, starts, strict=True) if m.source == rank and m.send]
        room = (layout.pitch - 4) / max(len(own), 1)
        names = {send: _format_chunks(layout, send, room) for send, _ in own}
        if len(names) == 1 and len(own) > 1:
            spread = max(x for _, x in own) - min(x for _, x in own)
            words = _format_chunks(layout, own[0][0], layout.pitch - 4)
            width = max(spread + 6, estimate_text_width(words, LABEL_SIZE) + 6)
            yield layout.middle(rank), words, width
        elif any(estimate_text_width(words, SMALLEST_SIZE) + 4 > room for words in names.values()):
            yield layout.middle(rank), f"{len(own)} msgs", layout.pitch - 6
        else:
            for send, x in own:
                width = min(estimate_text_width(names[send], LABEL_SIZE) + 6, room - 1)
                yield x, names[send], width


def _format_chunks(layout: GridLayout, chunks: Sequence[int], room: float) -> str:
    """Return text with the numbers of `chunks`, or with their count if the numbers are wider than `room` pixels."""
    if layout.history.plan.operation is Operation.ALL_TO_ALL:
        lines = layout.lines
        parts = {name: [c % lines for c in chunks if get_column_name(c, lines) == name] for name in COLUMNS}
        words = ", ".join(f"{name} {format_ranges(part, EN_DASH)}" for name, part in parts.items() if part)
    else:
        words = f"c{format_ranges(chunks, EN_DASH)}"
    fits = estimate_text_width(words, LABEL_SIZE) + 6 <= room
    return words if fits or len(chunks) == 1 else f"{len(chunks)} ch."


def draw_arrow_end(start: XY, end: XY, *, plus: bool) -> list[SceneShape]:
    """Return the shapes at the end of an arrow from `start` to `end`: a circled plus (if `plus`), or an arrowhead."""
    (x, y), arm = end, HEAD - 1.5
    if plus:
        cross = [
            LineSegment((x - arm, y), (x + arm, y), palette.INK, 1.2),
            LineSegment((x, y - arm), (x, y + arm), palette.INK, 1.2),
        ]
        return [Disc(end, HEAD, palette.PAPER, palette.INK, 1.2), *cross]
    length = math.hypot(x - start[0], y - start[1]) or 1.0
    along, across = ((x - start[0]) / length, (y - start[1]) / length), 0.5 * HEAD
    tip = (x + 0.8 * HEAD * along[0], y + 0.8 * HEAD * along[1])
    back = (x - 1.2 * HEAD * along[0], y - 1.2 * HEAD * along[1])
    sides = [(back[0] - s * across * 1.4 * along[1], back[1] + s * across * 1.4 * along[0]) for s in (1, -1)]
    return [FilledPolygons(palette.INK, ((tip, sides[0], sides[1]),))]
