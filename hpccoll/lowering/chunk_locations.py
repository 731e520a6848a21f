"""The memory location of each chunk of one rank while its plan is lowered.

Every chunk has a home, where its new values are stored: the node's shared memory if other ranks access the chunk there,
the user's output if the rank's result contains the chunk, else scratch memory. An input chunk is read from the user's
input until a new value of the chunk is stored. The first reduction into a chunk reads the chunk's old value from the
user's input and writes the result to the chunk's home, so the input is never copied first.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hpccoll.lowering.program import Copy, MemoryKind, MemoryRange
from hpccoll.plan import IntArray, Plan


class ChunkLocations:
    """The current location and the home (memory for new values) of each chunk of `rank`, updated round by round.

    Args:
        sizes: each chunk's number of elements, as an array.
        used: Boolean array that tells for each chunk whether the rank holds the chunk at any time.
        in_place: whether input and output share memory.
        in_slot: Boolean array that tells for each chunk whether its new values are stored in the node's shared memory;
            None if this is false for all chunks.
        separate: whether neighbouring chunks must stay separate ranges, because the user's memory has gaps between
            them.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        sizes: IntArray,
        used: NDArray[np.bool_],
        in_place: bool,
        in_slot: NDArray[np.bool_] | None = None,
        separate: bool = False,
    ) -> None:
        arguments = (np.array([rank]), plan.ranks, len(sizes), plan.root)
        self.is_input = plan.operation.input_mask(*arguments)[0]
        self.is_output = plan.operation.output_mask(*arguments)[0]
        none = np.zeros_like(self.is_input)
        in_slot = none if in_slot is None else in_slot
        scratch = used & ~self.is_output & ~in_slot
        self.sizes, self.separate = sizes, separate
        self.work, self.slot = int(sizes[scratch].sum()), int(sizes[in_slot].sum())
        self.landing = self._landing_used = 0  # elements of LANDING: needed in total, and in use now
        masks = (self.is_input, self.is_output, scratch, none, in_slot)  # in the order of MemoryKind
        self._start = np.stack([self._pack(mask) for mask in masks])
        self._home = np.where(in_slot, MemoryKind.SLOT, np.where(self.is_output, MemoryKind.RESULT, MemoryKind.WORK))
        resident = self.is_input & self.is_output if in_place else none
        self._current = np.where(resident, MemoryKind.RESULT, MemoryKind.SOURCE)

    def _pack(self, mask: NDArray[np.bool_]) -> IntArray:
        """Return the offset at which each chunk starts if the chunks in `mask` are packed next to each other."""
        ends = np.cumsum(np.where(mask, self.sizes, 0))
        return np.asarray(ends - self.sizes, np.int64)

    def take_scratch(self, count: int) -> MemoryRange:
        """Return the range of the next `count` elements of LANDING (scratch), in use until `reset_scratch`."""
        begin, self._landing_used = self._landing_used, self._landing_used + count
        self.landing = max(self.landing, self._landing_used)
        return MemoryRange(MemoryKind.LANDING, begin, self._landing_used)

    def reset_scratch(self) -> None:
        """Mark all of the LANDING scratch memory as free."""
        self._landing_used = 0

    def current_ranges(self, chunks: IntArray) -> list[MemoryRange]:
        """Return the memory ranges that hold the chunks now. Adjacent ranges are merged, and empty ones left out."""
        return self.merge_ranges(chunks, self._current[chunks])

    def home_ranges(self, chunks: IntArray) -> list[MemoryRange]:
        """Return the memory ranges for new values of the chunks. Adjacent ranges are merged, empty ones left out."""
        return self.merge_ranges(chunks, self._home[chunks])

    def ranges_in(self, memory: MemoryKind, chunks: IntArray) -> list[MemoryRange]:
        """Return the ranges of `chunks` in one kind of memory. Adjacent ranges are merged; there are no empty ones."""
        return self.merge_ranges(chunks, np.full(len(chunks), memory))

    def get_home_memories(self, chunks: IntArray) -> IntArray:
        """Return an array with the `MemoryKind` in which new values of each chunk are stored."""
        return np.asarray(self._home[chunks], np.int64)

    def move_homes_to_result(self, chunks: IntArray) -> None:
        """From now on, store new values of those `chunks` that belong to the rank's result in the user's output."""
        self._home[chunks[self.is_output[chunks]]] = MemoryKind.RESULT

    def find_displaced(self, chunks: IntArray) -> IntArray:
        """Return those `chunks` whose current location is not their home (the memory for their new values)."""
        return np.asarray(chunks[self._current[chunks] != self._home[chunks]], np.int64)

    def mark_at_home(self, chunks: IntArray) -> None:
        """Record that the chunks are in their homes (the memory for their new values) from now on."""
        self._current[chunks] = self._home[chunks]

    def move_home(self, chunks: IntArray) -> list[Copy]:
        """Return copies of chunks from their current locations to their homes, where they are from now on."""
        copies = make_copies(self.current_ranges(chunks), self.home_ranges(chunks))
        self.mark_at_home(chunks)
        return copies

    def find_missing_outputs(self) -> IntArray:
        """Return the numbers of the output chunks that are still in the user's input or in shared memory."""
        elsewhere = (self.is_input & (self._current == MemoryKind.SOURCE)) | (self._current == MemoryKind.SLOT)
        return np.nonzero(self.is_output & elsewhere)[0]

    def merge_ranges(self, chunks: IntArray, memory: IntArray) -> list[MemoryRange]:
        """Return ranges of chunks; `chunks[i]` is in `memory[i]`. Adjacent ranges are merged, empty ones left out."""
        sizes = self.sizes[chunks]
        full = sizes > 0
        if not full.any():
            return []
        chunks, memory, sizes = chunks[full], memory[full], sizes[full]
        starts = self._start[memory, chunks]
        stops = starts + sizes
        is_cut = (memory[1:] != memory[:-1]) | (starts[1:] != stops[:-1])
        is_cut |= self.separate
        cuts = np.nonzero(is_cut)[0] + 1
        first, last = [0, *cuts.tolist()], [*(cuts - 1).tolist(), len(chunks) - 1]
        return [
            MemoryRange(MemoryKind(int(memory[a])), int(starts[a]), int(stops[b]))
            for a, b in zip(first, last, strict=True)
        ]


def align_ranges(*sides: list[MemoryRange]) -> list[tuple[MemoryRange, ...]]:
    """Cut lists of ranges with equal total lengths at the same offsets; return tuples with one piece per list."""
    cuts = sorted({0}.union(*(np.cumsum([part.count for part in side]).tolist() for side in sides)))
    return [tuple(slice_ranges(side, begin, end)[0] for side in sides) for begin, end in pairwise(cuts)]


def slice_ranges(side: list[MemoryRange], begin: int, end: int) -> list[MemoryRange]:
    """Return the ranges that hold elements `begin` to `end` (exclusive), counted through all ranges in order."""
    found, offset = [], 0
    for part in side:
        first, last = max(begin - offset, 0), min(end - offset, part.count)
        if first < last:
            found.append(part.part(first, last))
        offset += part.count
    return found


def make_copies(sources: list[MemoryRange], outs: list[MemoryRange]) -> list[Copy]:
    """Return instructions that copy `sources` to `outs`; copies of a range to itself are left out."""
    return [Copy(source, out) for source, out in align_ranges(sources, outs) if source != out]
