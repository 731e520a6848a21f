"""The legend below a drawing, which explains only the symbols that occur in the drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hpccoll.plan.drawing.arrows import HEAD, RADIUS, draw_arrow_end, draw_rank
from hpccoll.plan.drawing.grid import NUMBERED_PIECE, CellPainter, GridLayout, cell_size
from hpccoll.plan.drawing.history import PlanHistory
from hpccoll.plan.drawing.palette import COLOURS, INK, QUIET
from hpccoll.plan.drawing.scene import XY, LineSegment, SceneShape, TextLabel, estimate_text_width
from hpccoll.plan.operation import Operation

SIZE, LINE_HEIGHT, BETWEEN, ABOVE = 10.0, 25.0, 24.0, 18.0


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """An entry of the legend: a function that draws the symbol, the symbol's size in pixels, and its meaning."""

    draw: Callable[[XY], list[SceneShape]]  # draws at a point, the middle of the symbol's left edge
    width: float
    height: float
    words: str


def draw_legend(layout: GridLayout, at: XY, width: float) -> tuple[list[SceneShape], float]:
    """Return the shapes of the legend and its height in pixels.

    `at` is the upper left corner of the legend, and `width` the largest width of its lines in pixels.
    """
    shapes: list[SceneShape] = []
    x, line = 0.0, 0
    for entry in _entries(layout):
        needs = entry.width + 7 + estimate_text_width(entry.words, SIZE)
        if x and x + needs > width:
            x, line = 0.0, line + 1
        middle = at[1] + (line + 0.5) * LINE_HEIGHT + ABOVE
        shapes += entry.draw((at[0] + x, middle))
        words = at[0] + x + entry.width + 7, middle + 0.36 * SIZE
        shapes.append(TextLabel(words, entry.words, SIZE, QUIET, "start"))
        x += needs + BETWEEN
    return shapes, (line + 1) * LINE_HEIGHT + ABOVE


def _entries(layout: GridLayout) -> Iterator[LegendEntry]:
    """Yield an entry for each kind of symbol that occurs in the drawing."""
    history = layout.history
    is_barrier = history.plan.operation is Operation.BARRIER
    messages = [message for frame in history.frames for message in frame.messages]
    yield _cell_entry(layout, _cell_meaning(history), owners=range(history.plan.ranks))
    if history.plan.ranks > len(COLOURS):
        first = len(COLOURS)
        words = f"a cut corner: ranks from {first} on"
        yield LegendEntry(lambda at: draw_rank(first, (at[0] + RADIUS, at[1])), 2 * RADIUS, 2 * RADIUS, words)
    if any(message.reduces for message in messages):
        yield _arrow_entry("reduced", plus=True)
    if any(not message.reduces for message in messages):
        yield _arrow_entry("passes on all arrivals it knows of" if is_barrier else "copied", plus=False)
    if messages:
        yield _cell_entry(layout, "changed in this round", changed=True)
    done = "knows that every rank has arrived" if is_barrier else "required and complete"
    yield _cell_entry(layout, done, done=True)


def _cell_meaning(history: PlanHistory) -> str:
    """Return the legend text that describes the contents of a grid cell."""
    if history.plan.operation is Operation.BARRIER:
        return "the ranks known to have arrived"
    if history.accumulates:
        return "a chunk, with the ranks that contributed"
    special = {
        Operation.ALL_TO_ALL: "a block, sender \u2192 receiver",
        Operation.SCATTER: "a block, with its receiver",
        Operation.BROADCAST: "a chunk, with its sender",
    }
    return special.get(history.plan.operation, "a block, with its sender")


def _cell_entry(
    layout: GridLayout, words: str, owners: range = range(0), *, changed: bool = False, done: bool = False
) -> LegendEntry:
    """Return the legend entry, with text `words`, of a sample cell that has contributions of the ranks `owners`.

    The sample cell may be marked as `changed` in the round or `done` (complete).
    """
    history = layout.history
    if history.accumulates and owners:
        width, height = cell_size(NUMBERED_PIECE, len(owners))
        shown = replace(layout, piece=NUMBERED_PIECE, numbered=True)
    else:
        shown, (width, height) = layout, (min(layout.cell[0], 34.0), min(layout.cell[1], 17.0))

    def draw_sample(at: XY) -> list[SceneShape]:
        """Return the shapes of the sample cell, whose left edge is at `at`."""
        painter = CellPainter(shown)
        box = at[0], at[1] - height / 2, width, height
        painter.add_cell(box, changed=changed, done=done)
        if owners and history.accumulates:
            painter.add_pieces(box, list(owners))
        elif owners:
            painter.add_tile(box, owners[0], len(owners) - 1)
        return list(painter.shapes())

    return LegendEntry(draw_sample, width, height, words)


def _arrow_entry(words: str, *, plus: bool) -> LegendEntry:
    """Return the legend entry, with text `words`, of a sample arrow that ends in a plus (if `plus`) or an arrowhead."""

    def draw_sample(at: XY) -> list[SceneShape]:
        """Return the shapes of the sample arrow, which starts at `at`."""
        end = at[0] + 26 - HEAD, at[1]
        return [LineSegment(at, end, INK, 1.3), *draw_arrow_end(at, end, plus=plus)]

    return LegendEntry(draw_sample, 26, 10, words)
