"""The grid that shows the contents of all ranks after a round, with a column per rank and a cell per chunk.

In reductions and barriers, a cell shows the contribution of each rank as a coloured piece (a small box) at a fixed
position. In operations that only move blocks, a cell is a tile (one box) with the name of its block. A cell has a grey
rim if its chunk changed in the round that the grid shows, and a black frame if its output chunk is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from hpccoll.plan.drawing.history import Frame, PlanHistory
from hpccoll.plan.drawing.palette import EMPTY, GLOW, INK, PAPER, has_cut_corner, rank_colour, text_colour_on
from hpccoll.plan.drawing.scene import (
    XY,
    Box,
    FilledBoxes,
    FilledPolygons,
    OutlinedBox,
    SceneShape,
    TextLabel,
    estimate_text_width,
)
from hpccoll.plan.operation import Operation
from hpccoll.plan.step import NO_CHUNK

PER_LINE = 8  # most contributions side by side in a cell
MOST_LINES = 16  # chunks per column; a rank with more chunks has several columns
NUMBERED_PIECE = 12.0, 14.0  # width and height of a piece in which a rank number of two digits fits
MOST_NUMBERED = 1100  # most pieces (boxes of ranks) of a frame in which pieces show their rank numbers
COLUMNS = ("in", "out", "work")  # columns of an all-to-all: input, output (n chunks each), blocks in transit
GAP, BETWEEN, LEAST_PITCH, NODE_GAP = 4.0, 16.0, 50.0, 22.0


@dataclass(frozen=True, slots=True)
class GridLayout:
    """The sizes in pixels of a grid that shows the contents of all chunks of all ranks, one cell per chunk.

    `cell` is the (width, height) of a cell, and `piece` the (width, height) of the box for one rank's contribution in a
    cell. Each rank has `lines` lines of cells: chunk c is in line c mod `lines`. If `numbered` is true, each coloured
    piece of a cell shows the number of its rank.
    """

    history: PlanHistory
    piece: XY
    cell: XY
    lines: int
    columns: int
    numbered: bool

    @property
    def width(self) -> float:
        """The width in pixels of the cells of one rank."""
        return self.columns * (self.cell[0] + GAP) - GAP

    @property
    def pitch(self) -> float:
        """The distance in pixels between the left edges of neighbouring ranks of a node."""
        return max(self.width + BETWEEN, LEAST_PITCH)

    @property
    def height(self) -> float:
        """The height of the whole grid in pixels."""
        return self.lines * (self.cell[1] + GAP) - GAP

    def corner(self, rank: int, chunk: int) -> XY:
        """Return the upper left corner of a chunk's cell, in pixels relative to the upper left corner of the grid."""
        left = self.middle(rank) - self.width / 2
        return left + chunk // self.lines * (self.cell[0] + GAP), chunk % self.lines * (self.cell[1] + GAP)

    def middle(self, rank: int) -> float:
        """Return the x of the middle of a rank's column, in pixels from the grid's left edge."""
        return (rank + 0.5) * self.pitch + self.node_of(rank) * NODE_GAP

    @property
    def full_width(self) -> float:
        """The width in pixels of the grid with all ranks."""
        return self.history.plan.ranks * self.pitch + max(len(self.history.nodes) - 1, 0) * NODE_GAP

    def node_of(self, rank: int) -> int:
        """Return the index of a rank's node, counted from 0; always 0 if the drawing shows no nodes."""
        ends = list(accumulate(self.history.nodes))
        return sum(end <= rank for end in ends[:-1])


def lay_out_grid(history: PlanHistory) -> GridLayout:
    """Return the grid sizes that all frames of `history` share, with cells large enough for their labels."""
    n, chunks = history.plan.ranks, history.frames[0].counts.shape[1]
    lines = n if history.plan.operation is Operation.ALL_TO_ALL else min(chunks, MOST_LINES)
    columns = -(-chunks // lines)
    if not history.accumulates:
        widest = max((len(format_tile_label(history, r, c)) for r in range(n) for c in range(chunks)), default=1)
        cell = max(24.0, round(estimate_text_width("0" * widest, 10)) + 6.0), 17.0
        return GridLayout(history, cell, cell, lines, columns, numbered=True)
    numbered = n * n * chunks <= MOST_NUMBERED
    piece = NUMBERED_PIECE if numbered else (6.0, 8.0)
    return GridLayout(history, piece, cell_size(piece, n), lines, columns, numbered)


def cell_size(piece: XY, n: int) -> XY:
    """Return the width and height in pixels of a cell with n boxes of size `piece`, one pixel apart."""
    across, down = min(n, PER_LINE), -(-n // PER_LINE)
    return across * (piece[0] + 1) + 1, down * (piece[1] + 1) + 1


def format_tile_label(history: PlanHistory, rank: int, chunk: int) -> str:
    """Return the label of the data block that was in chunk `chunk` of rank `rank` before the first round.

    The label names the sender of the block, the receiver (in a scatter), or both (in an all-to-all).
    """
    if history.plan.operation is Operation.ALL_TO_ALL:
        return f"{rank}\u2192{chunk % history.plan.ranks}"
    return str(chunk * history.plan.ranks // history.chunks if history.plan.operation is Operation.SCATTER else rank)


def get_column_name(chunk: int, lines: int) -> str:
    """Return the column of an all-to-all's drawing that shows chunk `chunk`: in, out or work.

    Each column of a rank has `lines` chunks.
    """
    return COLUMNS[min(chunk // lines, len(COLUMNS) - 1)]


def draw_grid(layout: GridLayout, frame: Frame, at: XY) -> list[SceneShape]:
    """Return the shapes of the grid that shows `frame`; the upper left corner of the grid is `at`, in pixels."""
    painter = CellPainter(layout)
    n, chunks = frame.done.shape
    for rank in range(n):
        for chunk in range(chunks):
            x, y = layout.corner(rank, chunk)
            box = at[0] + x, at[1] + y, *layout.cell
            painter.add_cell(box, changed=bool(frame.changed[rank, chunk]), done=bool(frame.done[rank, chunk]))
            if frame.origin[rank, chunk] == NO_CHUNK:
                continue
            owners = np.nonzero(frame.counts[rank, chunk])[0].tolist()
            if layout.history.accumulates:
                painter.add_pieces(box, owners)
            else:
                painter.add_tile(box, owners[0], int(frame.origin[rank, chunk]))
    return list(painter.shapes())


class CellPainter:
    """Collects the shapes of many grid cells and groups them by colour, which makes the SVG file shorter."""

    def __init__(self, layout: GridLayout) -> None:
        self._layout = layout
        self._rims: list[SceneShape] = []
        self._backgrounds: list[Box] = []
        self._filled: dict[str, list[Box]] = {}
        self._cuts: list[tuple[XY, ...]] = []
        self._frames: list[SceneShape] = []
        self._words: dict[str, list[SceneShape]] = {}

    def add_cell(self, box: Box, *, changed: bool, done: bool) -> None:
        """Add the background of a cell (x, y, width, height), with a grey rim if `changed` and a black frame if `done`.

        A chunk is changed if the round wrote it, and done if it has the data that the collective promises as output.
        """
        x, y, w, h = box
        if changed:
            self._rims.append(OutlinedBox((x - 2.5, y - 2.5, w + 5, h + 5), GLOW, radius=2.5))
        self._backgrounds.append(box)
        if done:
            self._frames.append(OutlinedBox((x - 0.25, y - 0.25, w + 0.5, h + 0.5), None, INK, 1.75))

    def add_pieces(self, box: Box, owners: list[int]) -> None:
        """Add a coloured box to a cell for each rank in `owners` that contributed.

        The box of a rank has the same position in all cells.
        """
        (w, h), numbered = self._layout.piece, self._layout.numbered
        size = 9.5 if self._layout.history.plan.ranks <= 10 else 8.5  # two digits need smaller letters
        for owner in owners:
            x = box[0] + 1 + owner % PER_LINE * (w + 1)
            y = box[1] + 1 + owner // PER_LINE * (h + 1)
            self._paint((x, y, w, h), owner, str(owner) if numbered else "", min(h, size))

    def add_tile(self, box: Box, owner: int, chunk: int) -> None:
        """Add a labelled box for the data block that was in chunk `chunk` of rank `owner` before the first round."""
        label = format_tile_label(self._layout.history, owner, chunk)
        scattered = self._layout.history.plan.operation is Operation.SCATTER
        x, y, w, h = box
        self._paint((x + 1, y + 1, w - 2, h - 2), int(label) if scattered else owner, label, 10)

    def _paint(self, box: Box, owner: int, words: str, size: float) -> None:
        """Add a box with the text `words` (`size` pixels high) in the colour of rank `owner`.

        The boxes of some ranks have a cut corner (`has_cut_corner`).
        """
        x, y, w, h = box
        fill = rank_colour(owner)
        self._filled.setdefault(fill, []).append(box)
        if has_cut_corner(owner):
            cut = 0.45 * min(w, h)
            self._cuts.append(((x + w - cut, y), (x + w, y), (x + w, y + cut)))
        if words:
            ink = text_colour_on(fill)
            text = TextLabel((x + w / 2, y + h / 2 + 0.36 * size), words, size, ink)
            self._words.setdefault(ink, []).append(text)

    def shapes(self) -> Iterator[SceneShape]:
        """Yield the collected shapes in drawing order: the shapes in the back first."""
        yield from self._rims
        yield FilledBoxes(EMPTY, tuple(self._backgrounds))
        for fill in sorted(self._filled):
            yield FilledBoxes(fill, tuple(self._filled[fill]))
        if self._cuts:
            yield FilledPolygons(PAPER, tuple(self._cuts))
        yield from self._frames
        for ink in sorted(self._words):
            yield from self._words[ink]
