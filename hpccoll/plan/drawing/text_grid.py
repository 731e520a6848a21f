"""The history of a plan as text: in each round the messages, then a grid with a line a rank and a column a chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hpccoll.plan.drawing.grid import format_tile_label
from hpccoll.plan.drawing.history import Frame, Message, PlanHistory
from hpccoll.plan.moves import TransferKind
from hpccoll.plan.operation import Operation
from hpccoll.plan.step import NO_PEER

WIDE = 116  # characters a line
ONE_EACH = 8  # ranks up to which each has its own place in a cell
LONGEST = 11  # characters of a cell that lists ranges of ranks


def format_text_grid(history: PlanHistory) -> str:
    """Return `history` as lines of at most about 120 characters, in ASCII."""
    lines = [f"{history.name}: {history.subtitle}", *_key(history)]
    for frame in history.frames:
        lines += ["", *_frame(history, frame)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _key(history: PlanHistory) -> Iterator[str]:
    if history.operation is Operation.BARRIER:
        yield "A cell names the ranks that this one knows to have arrived."
    elif history.accumulates:
        yield "A cell names the ranks whose contributions are in it; messages with + are reduced into what is there."
    elif history.operation is Operation.ALL_TO_ALL:
        yield f"A cell names a block: from whom > for whom. Chunks from {history.ranks} on are the output."
    else:
        yield f"A cell names {'for whom a block is' if history.operation is Operation.SCATTER else 'whose data it is'}."
    ends = "has heard of every rank" if history.operation is Operation.BARRIER else "is wanted there and complete"
    yield f"> has changed in this round, * {ends}{', - is empty' * (not history.accumulates)}."


def _frame(history: PlanHistory, frame: Frame) -> Iterator[str]:
    title = f"round {frame.number}" if frame.number else "start"
    yield f"{title}, {frame.phase}" if frame.phase else title
    yield from _flowed([f"{format_ranges(group)} wait for each other" for group in frame.fences])
    yield from _flowed([_message(history, m) for m in sorted(frame.messages, key=lambda m: (m.source, m.dest))])
    cells = [[_cell(history, frame, r, c) for c in range(frame.done.shape[1])] for r in range(history.ranks)]
    wide = max(len(cell) for row in cells for cell in row)
    names = [_name(history, c) for c in range(frame.done.shape[1])]
    wide = max(wide, *(len(name) + 1 for name in names))
    side = len(f"  rank {history.ranks - 1} ")
    parts = -(-len(names) // max((WIDE - side) // (wide + 1), 1))
    columns = -(-len(names) // parts)
    for first in range(0, len(names), columns):
        part = slice(first, first + columns)
        if history.chunks:
            yield _row("", [f" {name}" for name in names[part]], side, wide)
        for rank, row in enumerate(cells):
            yield _row(f"  rank {rank}", row[part], side, wide)


def _row(name: str, cells: Sequence[str], side: int, wide: int) -> str:
    return name.ljust(side) + " ".join(cell.ljust(wide) for cell in cells)


def _name(history: PlanHistory, chunk: int) -> str:
    return f"c{chunk}" if history.chunks else ""


def _message(history: PlanHistory, message: Message) -> str:
    plus = "+" * message.reduces
    chunks = f"{plus}c{format_ranges(message.out)}" if message.out and history.chunks > 1 else plus
    by = "" if message.via is TransferKind.MESSAGE else f"({message.via.value})"
    return " ".join(part for part in (f"{message.source} -> {message.dest}", chunks, by) if part)


def _flowed(items: Sequence[str]) -> Iterator[str]:
    """Items side by side in columns of equal width."""
    wide = max((len(item) for item in items), default=0) + 3
    columns = max((WIDE - 2) // wide, 1)
    for first in range(0, len(items), columns):
        yield "  " + "".join(item.ljust(wide) for item in items[first : first + columns])


def _cell(history: PlanHistory, frame: Frame, rank: int, chunk: int) -> str:
    owners = np.nonzero(frame.counts[rank, chunk])[0].tolist()
    if frame.origin[rank, chunk] == NO_PEER:
        content = "-"
    elif not history.accumulates:
        content = format_tile_label(history, owners[0], int(frame.origin[rank, chunk])).replace("\u2192", ">")
    elif history.ranks <= ONE_EACH:
        content = "".join(str(r) if r in owners else "." for r in range(history.ranks))
    else:
        content = _listed(owners, history.ranks)
    mark = ">" if frame.changed[rank, chunk] else " "
    return f"{mark}{content}{'*' if frame.done[rank, chunk] else ' '}"


def _listed(owners: Sequence[int], ranks: int) -> str:
    """The owners as ranges, or how many they are where that is long."""
    if len(owners) == ranks:
        return "all"
    listed = format_ranges(owners)
    return listed if len(listed) <= LONGEST else f"{len(owners)} of {ranks}"


def format_ranges(numbers: Sequence[int], dash: str = "-") -> str:
    """Return `numbers` in order, runs shortened: 0-3,7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}{dash}{p[-1]}" for p in parts)
