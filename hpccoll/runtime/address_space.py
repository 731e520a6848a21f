"""Maps the memory ranges in a rank's program (its instructions) to memory.

A program contains offsets but no addresses, so it serves all arrays of one size. For plans in device memory, an
`AddressSpace` maps these offsets to arrays and addresses: of this rank's input, output and scratch, and of other ranks'
inputs and outputs. Native programs number their memories instead (instructions.py). If a program works on one segment
of each chunk, `SegmentOffsets` finds the segment in the users' arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from hpccoll.plan import Count, Plan
from hpccoll.plan.step import IntArray
from hpccoll.runtime.arrays import FlatArray
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange, Program

USER_MEMORY = (MemoryKind.SOURCE, MemoryKind.RESULT)


@dataclass(frozen=True, slots=True)
class ChunkSegment:
    """A segment: elements low[c] to high[c] (exclusive) of each of the C chunks; `low` and `high` have shape (C,).

    A segment is small enough for one slot (a buffer in shared memory). A segment is reduced over the ranks in the same
    order as a whole chunk, so cutting chunks into segments changes no bit of the result.
    """

    low: IntArray
    high: IntArray

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements that the segment takes from each chunk."""
        return tuple((self.high - self.low).tolist())


def cut_chunks(sizes: IntArray, segments: int) -> list[ChunkSegment]:
    """Return `segments` segments, each with a nearly equal share of every chunk; `sizes[c]` is the size of chunk c."""
    return [ChunkSegment(sizes * number // segments, sizes * (number + 1) // segments) for number in range(segments)]


class AddressSpace:
    """Finds the array or address of each memory range in one rank's program. Offsets and counts are in elements.

    Args:
        call: the collective; SOURCE is its input and RESULT its output, and all memory has its dtype.
        program: this rank's instructions, and how much they need of the two scratch memories, WORK and LANDING.
        scratch: this rank's scratch, at least as large as WORK and LANDING together.
    """

    def __init__(self, call: CollectiveCall, program: Program, scratch: FlatArray) -> None:
        self.module, self.itemsize = call.module, call.dtype.itemsize
        self.reduce_function = call.reduction.function
        none, work = scratch[:0], program.work
        self._own: tuple[FlatArray, ...] = (  # in the order of MemoryKind
            call.source.flat if call.source else none,
            call.result.flat if call.result else none,
            scratch[:work],
            scratch[work : work + program.landing],
        )
        self._peers: dict[tuple[MemoryKind, int], int] = {}

    def add_peer(self, kind: MemoryKind, rank: int, address: int) -> None:
        """Record the address of another rank's input or output."""
        self._peers[kind, rank] = address

    def view(self, place: MemoryRange) -> FlatArray:
        """Return a range of this rank's memory as an array."""
        return self._own[place.memory][place.start : place.stop]

    def address(self, place: MemoryRange) -> int:
        """Return the address of a memory range."""
        if place.owner == OWN:
            base = self.module.get_address(self._own[place.memory])
        else:
            base = self._peers[place.memory, place.owner]
        return base + place.start * self.itemsize


class SegmentOffsets:
    """Finds where ranges of a packed segment begin in the users' arrays, which consist of whole chunks.

    Args:
        count: elements of the vector or of each block, as in a `CollectiveCall`.
        rank: the number of this rank.
    """

    def __init__(self, plan: Plan, count: Count, segment: ChunkSegment, rank: int) -> None:
        self._plan, self._count, self._segment, self._rank = plan, count, segment, rank
        self._offsets: dict[tuple[MemoryKind, int], tuple[list[int], list[int]]] = {}

    def find_start(self, place: MemoryRange) -> int:
        """Return a range's offset in its memory, which is not packed if it is a user's array."""
        if place.memory not in USER_MEMORY or place.start == place.stop:
            return place.start
        key = place.memory, place.owner
        if key not in self._offsets:
            self._offsets[key] = self._list_chunk_offsets(*key)
        packed, whole = self._offsets[key]
        chunk = bisect_right(packed, place.start) - 1
        return whole[chunk] + place.start - packed[chunk]

    def _list_chunk_offsets(self, kind: MemoryKind, owner: int) -> tuple[list[int], list[int]]:
        """Return the offsets of the segment's chunks: in the packed segment, and in `owner`'s whole input or output.

        `kind` selects the input (SOURCE) or the output (RESULT). Both lists are ascending, and leave out chunks that
        the input or output lacks and chunks without an element in the segment.
        """
        plan, segment = self._plan, self._segment
        rank, chunks = np.array([self._rank if owner == OWN else owner]), len(segment.low)
        mask = plan.operation.input_mask if kind is MemoryKind.SOURCE else plan.operation.output_mask
        present = mask(rank, plan.ranks, chunks, plan.root)[0]
        sizes = np.where(present, plan.operation.chunk_sizes(self._count, plan.ranks, chunks), 0)
        counts = np.where(present, segment.high - segment.low, 0)
        used = np.nonzero(counts)[0]
        packed, whole = np.cumsum(counts) - counts, np.cumsum(sizes) - sizes + segment.low
        return packed[used].tolist(), whole[used].tolist()


def chunk_sizes(plan: Plan, count: Count) -> IntArray:
    """Return the number of elements of each chunk, shape (C,); `count` is that of the vector or of the blocks."""
    return plan.operation.chunk_sizes(count, plan.ranks, plan.column(0).chunks)
