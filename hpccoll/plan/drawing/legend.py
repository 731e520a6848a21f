"""The key below a picture: only the signs that its history uses, side by side and then in further lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hpccoll.plan.drawing.arrows import HEAD, RADIUS, draw_arrow_end, draw_rank
from hpccoll.plan.drawing.grid import CellPainter, GridLayout, cell_size, numbered_piece_size
from hpccoll.plan.drawing.history import PlanHistory
from hpccoll.plan.drawing.palette import COLOURS, INK, QUIET
from hpccoll.plan.drawing.scene import XY, LineSegment, SceneShape, TextLabel, estimate_text_width
from hpccoll.plan.operation import Operation

SIZE, HIGH, APART, ABOVE = 10.0, 25.0, 24.0, 18.0
DrawSample = Callable[[XY], list[SceneShape]]  # given the left end of its middle line


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A sign as it looks, its size, and what it means."""

    sample: DrawSample
    width: float
    height: float
    words: str


def draw_legend(layout: GridLayout, at: XY, width: float) -> tuple[list[SceneShape], float]:
    """Return the key's shapes, its upper left corner at `at`, and its height when it may be `width` wide."""
    shapes: list[SceneShape] = []
    x, line = 0.0, 0
    for entry in _entries(layout):
        needs = entry.width + 7 + estimate_text_width(entry.words, SIZE)
        if x and x + needs > width:
            x, line = 0.0, line + 1
        middle = at[1] + (line + 0.5) * HIGH + ABOVE
        shapes += entry.sample((at[0] + x, middle))
        words = at[0] + x + entry.width + 7, middle + 0.36 * SIZE
        shapes.append(TextLabel(words, entry.words, SIZE, QUIET, "start"))
        x += needs + APART
    return shapes, (line + 1) * HIGH + ABOVE


def _entries(layout: GridLayout) -> Iterator[LegendEntry]:
    history = layout.history
    messages = [message for frame in history.frames for message in frame.messages]
    yield _cell(layout, _meaning(history), owners=range(history.ranks))
    if history.ranks > len(COLOURS):
        first = len(COLOURS)
        words = f"a cut corner: ranks from {first} on"
        yield LegendEntry(lambda at: draw_rank(first, (at[0] + RADIUS, at[1])), 2 * RADIUS, 2 * RADIUS, words)
    if any(message.reduces for message in messages):
        yield _arrow("reduced into what is there", plus=True)
    if any(not message.reduces for message in messages):
        barrier = history.operation is Operation.BARRIER
        yield _arrow("tells all it has heard" if barrier else "copied", plus=False)
    if messages:
        yield _cell(layout, "changed in this round", changed=True)
    ends = "has heard of every rank" if history.operation is Operation.BARRIER else "wanted here, and complete"
    yield _cell(layout, ends, done=True)


def _meaning(history: PlanHistory) -> str:
    if history.operation is Operation.BARRIER:
        return "the ranks that this one knows to have arrived"
    if history.accumulates:
        return "a chunk, and the ranks whose contributions are in it"
    special = {
        Operation.ALL_TO_ALL: "a block, from whom \u2192 for whom",
        Operation.SCATTER: "a block, and for whom it is",
        Operation.BROADCAST: "a chunk, and whose it is",
    }
    return special.get(history.operation, "a block, and whose it is")


def _cell(
    layout: GridLayout, words: str, owners: range = range(0), *, changed: bool = False, done: bool = False
) -> LegendEntry:
    history = layout.history
    if history.accumulates and owners:
        piece = numbered_piece_size(history.ranks)
        width, height = cell_size(piece, len(owners))
        sized_up = replace(layout, piece=piece, numbered=True)
    else:
        sized_up, (width, height) = layout, (min(layout.cell[0], 34.0), min(layout.cell[1], 17.0))

    def sample(at: XY) -> list[SceneShape]:
        brush = CellPainter(sized_up)
        box = at[0], at[1] - height / 2, width, height
        brush.cell(box, changed=changed, done=done)
        if owners and history.accumulates:
            brush.pieces(box, list(owners))
        elif owners:
            brush.tile(box, owners[0], len(owners) - 1)
        return list(brush.shapes())

    return LegendEntry(sample, width, height, words)


def _arrow(words: str, *, plus: bool) -> LegendEntry:
    def sample(at: XY) -> list[SceneShape]:
        end = at[0] + 26 - HEAD, at[1]
        return [LineSegment(at, end, INK, 1.3), *draw_arrow_end(at, end, plus=plus)]

    return LegendEntry(sample, 26, 10, words)
