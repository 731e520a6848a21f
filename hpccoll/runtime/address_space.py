"""The memory behind the memory ranges of a program: arrays of this process, or addresses in other processes.

A program is made for one shape and contains only offsets. An `AddressSpace` adds the memory: this rank's input, output
and scratch, the slots of the node's ranks, and the inputs and outputs of other ranks that are accessed in place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpccoll.plan import Plan
from hpccoll.plan.step import IntArray
from hpccoll.runtime.arrays import FlatArray
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange, Program

USER_MEMORY = (MemoryKind.SOURCE, MemoryKind.RESULT)


@dataclass(frozen=True, slots=True)
class ChunkSegment:
    """Elements `low` to `high` of every chunk (shape (C,) each): the elements that one slot of shared memory holds.

    A segment keeps each chunk's owner and reduction order, so all segments together give the plan's result bit for bit.
    """

    low: IntArray
    high: IntArray

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each chunk."""
        return tuple((self.high - self.low).tolist())


def cut_chunks(sizes: IntArray, segments: int) -> list[ChunkSegment]:
    """Cut chunks of `sizes` elements, shape (C,), into `segments` segments of nearly equal size."""
    return [ChunkSegment(sizes * number // segments, sizes * (number + 1) // segments) for number in range(segments)]


class SegmentOffsets:
    """Translates offsets in the packed chunks of a segment to offsets in memory that holds the whole chunks.

    Args:
        present: the chunks that the memory holds, shape (C,).
        sizes: elements of each whole chunk, shape (C,).
        segment: which elements of each chunk are packed.
    """

    def __init__(self, present: IntArray, sizes: IntArray, segment: ChunkSegment) -> None:
        ends, counts = np.cumsum(np.where(present, sizes, 0)), np.where(present, segment.high - segment.low, 0)
        chunks = np.nonzero(counts)[0]
        self._packed = (np.cumsum(counts) - counts)[chunks].tolist()
        self._whole = (ends - sizes + segment.low)[chunks].tolist()

    def locate(self, start: int) -> int:
        """Return the offset in the whole memory of packed element `start`."""
        chunk = bisect_right(self._packed, start) - 1
        return int(self._whole[chunk]) + start - int(self._packed[chunk])


class AddressSpace:
    """Finds the memory of each memory range in one rank's program. All offsets and counts are in elements.

    Args:
        call: the collective; its input and output are the memories SOURCE and RESULT, and all memory has its module and
            dtype.
        program: gives the sizes of WORK and LANDING.
        scratch: this rank's scratch, at least as large as WORK and LANDING together.
        slots: each rank's slot memory; the key of this rank's is OWN.
        segment: the segment that the program is for; None if it is for whole chunks.
        rank: this rank; used only with `segment`.
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
        self._offsets: dict[tuple[MemoryKind, int], SegmentOffsets] = {}

    def add_peer(self, kind: MemoryKind, rank: int, array: FlatArray | None, address: int) -> None:
        """Record where another rank's input or output is: as an array, or as an address in that rank's process."""
        self._peers[kind, rank] = array, address

    def view(self, place: MemoryRange) -> FlatArray | None:
        """Return the elements of a range as an array; None if only another process can address them."""
        if place.owner == OWN:
            array = self._own[place.memory]
        elif place.memory is MemoryKind.SLOT:
            array = self._slots[place.owner]
        else:
            array = self._peers[place.memory, place.owner][0]
            if array is None:
                return None
        start = self._start(place)
        return array[start : start + place.count]

    def own_view(self, place: MemoryRange) -> FlatArray:
        """Return the elements of a range as an array; LookupError if only another process can address them."""
        view = self.view(place)
        if view is None:
            raise LookupError(f"{place} is memory of another process")  # no plan copies between two remote memories
        return view

    def address(self, place: MemoryRange) -> int:
        """Return the address of a range, in the process that owns the memory."""
        if place.owner == OWN:
            base = self.module.get_address(self._own[place.memory])
        else:
            base = self._peers[place.memory, place.owner][1]
        return base + self._start(place) * self.itemsize

    def _start(self, place: MemoryRange) -> int:
        """Return the offset of a range in its memory; the user's memory holds whole chunks, a slot packed segments."""
        if self._segment is None or place.memory not in USER_MEMORY or place.start == place.stop:
            return place.start
        key = place.memory, place.owner
        if key not in self._offsets:
            self._offsets[key] = self._offsets_of(*key)
        return self._offsets[key].locate(place.start)

    def _offsets_of(self, kind: MemoryKind, owner: int) -> SegmentOffsets:
        """Return the offsets of the segment in the input or output of a rank."""
        plan, segment = self._plan, self._segment
        assert segment is not None  # noqa: S101
        rank = np.array([self._rank if owner == OWN else owner])
        chunks = len(segment.low)
        mask = plan.operation.input_mask if kind is MemoryKind.SOURCE else plan.operation.output_mask
        sizes = chunk_sizes(plan, self._count)
        return SegmentOffsets(mask(rank, plan.ranks, chunks, plan.root)[0], sizes, segment)


def chunk_sizes(plan: Plan, count: int) -> IntArray:
    """Return the elements of each chunk, shape (C,), for a vector or blocks of `count` elements."""
    return plan.operation.chunk_sizes(count, plan.ranks, plan.column(0).chunks)
