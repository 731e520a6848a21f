"""The history of a plan as text: the messages of each round, then a grid with a row per rank and a column per chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hpccoll.plan.drawing.grid import format_tile_label
from hpccoll.plan.drawing.history import Frame, PlanHistory
from hpccoll.plan.messages import PlanMessage
from hpccoll.plan.moves import TransferKind
from hpccoll.plan.operation import Operation
from hpccoll.plan.step import NO_CHUNK
from hpccoll.units import format_ranges

LINE_WIDTH = 116  # characters
MOST_PLACES = 8  # up to this many ranks, a cell has a fixed place for each rank's contribution
LONGEST_LIST = 11  # most characters of the ranges of ranks in a cell


def format_text_grid(history: PlanHistory) -> str:
    """Return the rounds of a plan as ASCII pictures of the ranks' chunks, in lines of at most about 120 characters."""
    lines = [f"{history.plan.name}: {history.subtitle}", *_legend_lines(history)]
    for frame in history.frames:
        lines += ["", *_frame_lines(history, frame)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _legend_lines(history: PlanHistory) -> Iterator[str]:
    """Yield the lines that explain the cells of the text grid and the marks in the cells."""
    operation, done = history.plan.operation, "required and complete"
    if operation is Operation.BARRIER:
        done = "knows that every rank has arrived"
        yield "A cell names the ranks known to have arrived."
    elif history.accumulates:
        yield "A cell names the ranks whose contributions it contains; messages with + are reduced, others are copied."
    elif operation is Operation.ALL_TO_ALL:
        yield f"A cell names a block: sender > receiver. Chunks from {history.plan.ranks} on are the output."
    else:
        yield f"A cell names the {'receiver' if operation is Operation.SCATTER else 'sender'} of its block."
    yield f"> changed in this round, * {done}{', - empty' * (not history.accumulates)}."


def _frame_lines(history: PlanHistory, frame: Frame) -> Iterator[str]:
    """Yield the lines of a frame (a round): title, fences, messages and grid; a wide grid is split into several."""
    title = f"round {frame.number}" if frame.number else "start"
    yield f"{title}, {frame.phase}" if frame.phase else title
    yield from _arrange_in_columns([f"{format_ranges(group)} wait for each other" for group in frame.fences])
    messages = sorted(frame.messages, key=lambda message: (message.source, message.dest))
    yield from _arrange_in_columns([_format_message(history, message) for message in messages])
    n, chunks = frame.done.shape
    cells = [[_format_cell(history, frame, rank, chunk) for chunk in range(chunks)] for rank in range(n)]
    names = [f"c{chunk}" if history.chunks else "" for chunk in range(chunks)]
    width = max(*(len(cell) for row in cells for cell in row), *(len(name) + 1 for name in names))
    margin = len(f"  rank {n - 1} ")
    grids = -(-len(names) // max((LINE_WIDTH - margin) // (width + 1), 1))
    columns = -(-len(names) // grids)
    for first in range(0, len(names), columns):
        shown = slice(first, first + columns)
        if history.chunks:
            yield _format_row("", [f" {name}" for name in names[shown]], margin, width)
        for rank, row in enumerate(cells):
            yield _format_row(f"  rank {rank}", row[shown], margin, width)


def _format_row(name: str, cells: Sequence[str], margin: int, width: int) -> str:
    """Return a row of the grid: its name in `margin` characters, then each cell in `width` characters."""
    return name.ljust(margin) + " ".join(cell.ljust(width) for cell in cells)


def _format_message(history: PlanHistory, message: PlanMessage) -> str:
    """Return a message as text such as `0 -> 1 +c3 (load)`: source, destination, chunks (+ if reduced), and kind."""
    plus = "+" * message.reduces
    chunks = f"{plus}c{format_ranges(message.send)}" if message.send and history.chunks > 1 else plus
    via = "" if message.via is TransferKind.MESSAGE else f"({message.via.value})"
    return " ".join(part for part in (f"{message.source} -> {message.dest}", chunks, via) if part)


def _arrange_in_columns(items: Sequence[str]) -> Iterator[str]:
    """Yield lines with the items side by side in columns of equal width."""
    width = max((len(item) for item in items), default=0) + 3
    columns = max((LINE_WIDTH - 2) // width, 1)
    for first in range(0, len(items), columns):
        yield "  " + "".join(item.ljust(width) for item in items[first : first + columns])


def _format_cell(history: PlanHistory, frame: Frame, rank: int, chunk: int) -> str:
    """Return the text of a grid cell: `>` if the chunk changed, the content, and `*` if the chunk is complete."""
    owners = np.nonzero(frame.counts[rank, chunk])[0].tolist()
    if frame.origin[rank, chunk] == NO_CHUNK:
        content = "-"
    elif not history.accumulates:
        content = format_tile_label(history, owners[0], int(frame.origin[rank, chunk])).replace("\u2192", ">")
    elif history.plan.ranks <= MOST_PLACES:
        content = "".join(str(r) if r in owners else "." for r in range(history.plan.ranks))
    else:
        content = _format_owners(owners, history.plan.ranks)
    mark = ">" if frame.changed[rank, chunk] else " "
    return f"{mark}{content}{'*' if frame.done[rank, chunk] else ' '}"


def _format_owners(owners: Sequence[int], ranks: int) -> str:
    """Return the contributing ranks as text such as `0-3,6`, or as `5 of 16` if the list is too long for a cell."""
    if len(owners) == ranks:
        return "all"
    listed = format_ranges(owners)
    return listed if len(listed) <= LONGEST_LIST else f"{len(owners)} of {ranks}"
