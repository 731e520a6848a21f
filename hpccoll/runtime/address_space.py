"""Maps the memory ranges in a rank's program (its instructions) to arrays, or to addresses in other processes.

A program (a rank's instructions) contains offsets but no addresses, so it serves all arrays of one size. An
`AddressSpace` maps these offsets to memory: this rank's input, output and scratch, the shared-memory slots of the
node's ranks, and other ranks' inputs and outputs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
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
        slots: each rank's slot, a buffer in shared memory, by rank; the key of this rank's own slot is OWN.
        segment: the segment that the program works on; None if the program works on whole chunks.
        rank: the number of this rank, used only if `segment` is given.
    """

    def __init__(
        self,
        call: CollectiveCall,
        program: Program,
        scratch: FlatArray,
        *,
        slots: Mapping[int, FlatArray] | None = None,
        segment: ChunkSegment | None = None,
        rank: int = 0,
    ) -> None:
        self.module, self.itemsize = call.module, call.dtype.itemsize
        self.reduce_function = call.reduction.function
        none, work = scratch[:0], program.work
        self._own: tuple[FlatArray, ...] = (  # in the order of MemoryKind
            call.source.flat if call.source else none,
            call.result.flat if call.result else none,
            scratch[:work],
            scratch[work : work + program.landing],
            slots[OWN] if slots else none,
        )
        self._slots = slots or {}
        self._peers: dict[tuple[MemoryKind, int], tuple[FlatArray | None, int]] = {}
        self._segment, self._plan, self._count, self._rank = segment, program.plan, call.count, rank
        self._offsets: dict[tuple[MemoryKind, int], tuple[list[int], list[int]]] = {}

    def add_peer(self, kind: MemoryKind, rank: int, array: FlatArray | None, address: int) -> None:
        """Record another rank's input or output, as an array or else as an address in that rank's process."""
        self._peers[kind, rank] = array, address

    def view(self, place: MemoryRange) -> FlatArray | None:
        """Return a memory range as an array; None if only another process can address the range."""
        if place.owner == OWN:
            array = self._own[place.memory]
        elif place.memory is MemoryKind.SLOT:
            array = self._slots[place.owner]
        else:
            array = self._peers[place.memory, place.owner][0]
            if array is None:
                return None
        start = self.start(place)
        return array[start : start + place.count]

    def own_view(self, place: MemoryRange) -> FlatArray:
        """Return a memory range as an array; raise LookupError if only another process can address the range."""
        view = self.view(place)
        if view is None:
            raise LookupError(f"{place} is memory of another process")  # no plan copies between two remote memories
        return view

    def address(self, place: MemoryRange) -> int:
        """Return the address of a memory range, valid in the process that owns the memory."""
        if place.owner == OWN:
            base = self.module.get_address(self._own[place.memory])
        else:
            base = self._peers[place.memory, place.owner][1]
        return base + self.start(place) * self.itemsize

    def start(self, place: MemoryRange) -> int:
        """Return a range's offset, translated from packed segment to whole chunks if the memory is a user's array."""
        if self._segment is None or place.memory not in USER_MEMORY or place.start == place.stop:
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
        assert segment is not None  # noqa: S101
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
