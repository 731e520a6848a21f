"""Where each chunk of one rank lives while its plan is lowered.

Every chunk has a home: the user's output where the rank wants it, scratch otherwise. A chunk that the rank brings
starts in the user's input and is read from there until something new arrives in its home, so that nothing is copied
only to be summed into.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import IntArray, Plan
from hpccoll.runtime.lowering.program import MemoryKind, MemoryRange


class ChunkLocations:
    """The places of one rank's chunks, changing as the plan goes on.

    Args:
        plan: whose chunks.
        rank: whose places.
        sizes: elements of each chunk, shape (C,).
        used: the chunks that the rank holds at any time, shape (C,).
        in_place: whether input and output share memory.
        arena: the chunks that live in the node's shared memory, shape (C,), packed there.
        apart: whether chunks are kept apart, since in the user's memory they are.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        sizes: IntArray,
        used: NDArray[np.bool_],
        in_place: bool,
        arena: NDArray[np.bool_] | None = None,
        apart: bool = False,
    ) -> None:
        of = (np.array([rank]), plan.ranks, len(sizes), plan.root)
        self.held, self.wanted = plan.operation.input_mask(*of)[0], plan.operation.output_mask(*of)[0]
        arena = np.zeros_like(self.held) if arena is None else arena
        scratch = used & ~self.wanted & ~arena
        self.sizes = sizes
        self.work, self.arena = int(sizes[scratch].sum()), int(sizes[arena].sum())
        nothing = np.zeros_like(self.held)
        masks = (self.held, self.wanted, scratch, nothing, arena)  # in the order of MemoryKind
        self._start = np.stack([self._packed(mask) for mask in masks])
        self._home = np.where(arena, MemoryKind.ARENA, np.where(self.wanted, MemoryKind.RESULT, MemoryKind.WORK))
        resident = self.held & self.wanted if in_place else np.zeros_like(self.held)
        self._now = np.where(resident, MemoryKind.RESULT, MemoryKind.SOURCE)
        self.apart = apart

    def _packed(self, mask: NDArray[np.bool_]) -> IntArray:
        ends = np.cumsum(np.where(mask, self.sizes, 0))
        return np.asarray(ends - self.sizes, np.int64)

    def now(self, chunks: IntArray) -> list[MemoryRange]:
        """Return where these chunks are, neighbours merged, empty ones left out."""
        return self.merged(chunks, self._now[chunks])

    def home(self, chunks: IntArray) -> list[MemoryRange]:
        """Return where these chunks will be once they have arrived, likewise."""
        return self.merged(chunks, self._home[chunks])

    def at(self, chunks: IntArray, memory: MemoryKind) -> list[MemoryRange]:
        """Return where these chunks are in one of the memories, likewise."""
        return self.merged(chunks, np.full(len(chunks), memory))

    def homes(self, chunks: IntArray) -> IntArray:
        """Return the memory that is each chunk's home."""
        return np.asarray(self._home[chunks], np.int64)

    def rehome(self, chunks: IntArray) -> None:
        """Let those of the chunks that the rank wants live in its output from their next arrival on."""
        self._home[chunks[self.wanted[chunks]]] = MemoryKind.RESULT

    def strays(self, chunks: IntArray) -> IntArray:
        """Return those of the chunks that are not at home."""
        return np.asarray(chunks[self._now[chunks] != self._home[chunks]], np.int64)

    def settle(self, chunks: IntArray) -> None:
        """Record that these chunks are at home from now on."""
        self._now[chunks] = self._home[chunks]

    def unsettled(self) -> IntArray:
        """Return the wanted chunks that never left the input, or that are in shared memory."""
        elsewhere = (self.held & (self._now == MemoryKind.SOURCE)) | (self._now == MemoryKind.ARENA)
        return np.nonzero(self.wanted & elsewhere)[0]

    def merged(self, chunks: IntArray, memory: IntArray) -> list[MemoryRange]:
        """Return where chunks are, each in its own memory, neighbours merged, empty ones left out."""
        sizes = self.sizes[chunks]
        full = sizes > 0
        if not full.any():
            return []
        chunks, memory, sizes = chunks[full], memory[full], sizes[full]
        starts = self._start[memory, chunks]
        stops = starts + sizes
        apart = (memory[1:] != memory[:-1]) | (starts[1:] != stops[:-1])
        apart |= self.apart
        cuts = np.nonzero(apart)[0] + 1
        first, last = [0, *cuts.tolist()], [*(cuts - 1).tolist(), len(chunks) - 1]
        return [
            MemoryRange(MemoryKind(int(memory[a])), int(starts[a]), int(stops[b]))
            for a, b in zip(first, last, strict=True)
        ]


def align_ranges(*sides: list[MemoryRange]) -> list[tuple[MemoryRange, ...]]:
    """Cut lists of places that hold equally many elements into pieces that correspond to each other."""
    cuts = sorted({edge for side in sides for edge in np.cumsum([place.count for place in side]).tolist() if edge})
    pieces: list[tuple[MemoryRange, ...]] = []
    begin = 0
    for end in cuts:
        pieces.append(tuple(_piece(side, begin, end) for side in sides))
        begin = end
    return pieces


def _piece(side: list[MemoryRange], begin: int, end: int) -> MemoryRange:
    offset = 0
    for place in side:
        if begin < offset + place.count:
            return place.part(begin - offset, end - offset)
        offset += place.count
    raise IndexError(f"elements {begin} to {end} of {offset}")
