"""Translates the instructions of a program into rows of numbers, which native/interpreter.h describes and C code runs.

Neighbouring instructions on equally long ranges form a group. The C code runs a group tile by tile, so that data stays
in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from hpccoll.lowering import (
    OWN,
    Copy,
    Instruction,
    MemoryKind,
    MemoryRange,
    NodeFence,
    Receive,
    Reduce,
    Send,
    Wait,
)

COPY, REDUCE, DIVIDE, CLAIM, TILE, FENCE = range(6)  # the codes of native/interpreter.h
_RECEIVE, _SEND, _WAIT, _ROUND = range(6, 10)
SOURCE, RESULT, SCRATCH, FIRST_SHARED = range(4)  # the numbers of memories; those of the node's ranks follow
_NUMBERS: Final = (SOURCE, RESULT, SCRATCH, SCRATCH)  # of this rank's memories, in the order of MemoryKind
TILE_BYTES: Final = 128 * 2**10  # fits the second-level cache with its operands
LEAST_CLAIM_BYTES: Final = 4 * 2**10  # of a range whose cache lines are claimed; shorter ones gain nothing
Row: TypeAlias = tuple[int, int, int, int, int, int, int, int]
Locate: TypeAlias = Callable[[MemoryRange], tuple[int, int]]  # the number of a memory, and the offset in bytes


def make_rows(
    instructions: Iterable[Instruction], locate: Locate, itemsize: int, round_starts: Sequence[int] = ()
) -> tuple[list[Row], int]:
    """Return a list of the rows that carry out the instructions, in order, and the number of sends and receives.

    Args:
        locate: returns the number of the memory that contains a range, and the byte offset of the range there.
        round_starts: the numbers of the instructions with which rounds begin, if the flight recorder notes rounds.
    """
    rows: list[Row] = []
    local: list[Reduce | Copy] = []
    requests: dict[int, int] = {}
    received: dict[int, int] = {}  # the bytes of the messages to receive
    starts = round_starts if len(round_starts) > 1 else ()
    rounds = {start: number + (len(starts) << 32) for number, start in enumerate(starts)}

    for index, step in enumerate(instructions):
        if index in rounds or not isinstance(step, Reduce | Copy):
            rows += _take_groups(local, locate, itemsize)
        if index in rounds:
            rows.append((_ROUND, 0, 0, 0, 0, 0, 0, rounds[index]))
        match step:
            case Send(peer, place):
                requests[index] = len(requests)
                rows.append((_SEND, *locate(place), peer, requests[index], 0, 0, place.count * itemsize))
            case Receive(peer, place):
                requests[index], received[index] = len(requests), place.count * itemsize
                rows.append((_RECEIVE, 0, 0, peer, requests[index], *locate(place), received[index]))
            case Wait(start):
                rows.append((_WAIT, 0, 0, 0, requests[start], 0, 0, received.get(start, 0)))
            case NodeFence():
                rows.append((FENCE, 0, 0, 0, 0, 0, 0, 0))
            case Reduce() | Copy():
                local.append(step)
    rows += _take_groups(local, locate, itemsize)
    if rounds:
        rows.append((_ROUND, 0, 0, 0, 0, 0, 0, 0))
    return rows, len(requests)


def _take_groups(local: list[Reduce | Copy], locate: Locate, itemsize: int) -> list[Row]:
    """Return the rows for the instructions in the list `local`, and empty the list."""
    rows: list[Row] = []
    for group in _split_groups(local):
        if len(group) > 1:
            rows.append((TILE, 0, 0, 0, 0, 0, 0, len(group)))
        rows += [_make_row(instruction, locate, itemsize) for instruction in group]
    local.clear()
    return rows


def _split_groups(instructions: Sequence[Reduce | Copy]) -> list[list[Reduce | Copy]]:
    """Return the instructions as a list of groups of neighbours, each of which can run tile by tile."""
    groups: list[list[Reduce | Copy]] = []
    for instruction in instructions:
        if groups and _can_tile_together(groups[-1], instruction):
            groups[-1].append(instruction)
        else:
            groups.append([instruction])
    return groups


def claim_reads(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with a CLAIM row after each read of shared memory that this rank never writes.

    A CLAIM invalidates other cores' copies of the cache lines just read, so that another core can write them faster
    (native/copies.h). The CLAIM joins the group of the row that reads the range, so that it runs while the lines are in
    the cache. Reads of fewer than LEAST_CLAIM_BYTES get no CLAIM.
    """
    written = [row for row in rows if row[0] in (COPY, REDUCE) and row[5] >= FIRST_SHARED]
    claimed: list[Row] = []
    at = 0
    while at < len(rows):
        first = at + (rows[at][0] == TILE)
        at = first + (rows[at][7] if rows[at][0] == TILE else 1)
        group = [row for read in rows[first:at] for row in (read, *_make_claims(read, written))]
        claimed += [*([(TILE, 0, 0, 0, 0, 0, 0, len(group))] if len(group) > 1 else ()), *group]
    return claimed


def _make_claims(row: Row, written: Sequence[Row]) -> Iterator[Row]:
    """Yield a CLAIM row (`claim_reads`) for each shared range that `row` reads and no row of `written` writes."""
    code, *places, _, _, nbytes = row
    if code not in (COPY, REDUCE) or nbytes < LEAST_CLAIM_BYTES:
        return
    for memory, offset in (places[:2], places[2:]):
        is_written = any(w[5] == memory and w[6] < offset + nbytes and offset < w[6] + w[7] for w in written)
        if memory >= FIRST_SHARED and not is_written:
            yield CLAIM, memory, offset, 0, 0, 0, 0, nbytes


def divide_row(nbytes: int) -> Row:
    """Return the row that divides the whole output, of `nbytes` bytes, in place."""
    return DIVIDE, RESULT, 0, 0, 0, RESULT, 0, nbytes


def make_locate(
    work: int,
    itemsize: int,
    find_shared: Callable[[MemoryRange], int] | None = None,
    find_start: Callable[[MemoryRange], int] | None = None,
) -> Locate:
    """Return a function that maps a memory range to the number of its memory, as rows refer to it, and a byte offset.

    The offset is that of the range from the beginning of this memory.

    Args:
        work: the number of elements of WORK; in scratch memory, LANDING follows WORK.
        find_shared: returns the number of the memory that contains a range, for a range in a slot or in another rank's
            memory; None for a program without such ranges.
        find_start: returns the offset of a range in elements; None means `MemoryRange.start`.
    """

    def locate(place: MemoryRange) -> tuple[int, int]:
        """Return the number of the memory that contains a range, and the offset there in bytes."""
        start = place.start if find_start is None else find_start(place)
        if find_shared is not None and (place.owner != OWN or place.memory is MemoryKind.SLOT):
            return find_shared(place), start * itemsize
        return _NUMBERS[place.memory], (start + work * (place.memory is MemoryKind.LANDING)) * itemsize

    return locate


def _make_row(instruction: Reduce | Copy, locate: Locate, itemsize: int) -> Row:
    """Return the row of a reduce or copy."""
    nbytes = instruction.out.count * itemsize
    if isinstance(instruction, Copy):
        return COPY, *locate(instruction.source), 0, 0, *locate(instruction.out), nbytes
    return REDUCE, *locate(instruction.left), *locate(instruction.right), *locate(instruction.out), nbytes


def _can_tile_together(group: Sequence[Reduce | Copy], added: Reduce | Copy) -> bool:
    """Whether an instruction can join a group that runs tile by tile.

    All ranges of a group must be equally long, and overlapping ranges must start at the same element.
    """
    for other in group:
        if other.out.count != added.out.count:
            return False
        for place in other:
            if any(place.overlaps(mine) and place.start != mine.start for mine in added):
                return False
    return True
