"""Where each chunk of one rank lives while its plan is lowered.

Every chunk has a home: the user's output where the rank wants it, scratch otherwise. A chunk that the rank brings
starts in the user's input and is read from there until something new arrives in its home, so that nothing is copied
only to be summed into.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.plan import Plan
from hpccoll.plan.step import IntArray
from hpccoll.runtime.program import Memory, Place


class Placement:
    """The places of one rank's chunks, changing as the plan goes on."""

    def __init__(self, plan: Plan, rank: int, sizes: IntArray, used: NDArray[np.bool_], in_place: bool) -> None:
        of = (np.array([rank]), plan.ranks, len(sizes), plan.root)
        self.held, self.wanted = plan.operation.held(*of)[0], plan.operation.wanted(*of)[0]
        scratch = used & ~self.wanted
        self.sizes = sizes
        self.work = int(sizes[scratch].sum())
        self._start = np.stack([self._packed(mask) for mask in (self.held, self.wanted, scratch)])
        self._home = np.where(self.wanted, Memory.RESULT, Memory.WORK)
        resident = self.held & self.wanted if in_place else np.zeros_like(self.held)
        self._now = np.where(resident, Memory.RESULT, Memory.SOURCE)

    def _packed(self, mask: NDArray[np.bool_]) -> IntArray:
        ends = np.cumsum(np.where(mask, self.sizes, 0))
        return np.asarray(ends - self.sizes, np.int64)

    def now(self, chunks: IntArray) -> list[Place]:
        """Return where these chunks are, neighbours merged, empty ones left out."""
        return self._merged(chunks, self._now[chunks])

    def home(self, chunks: IntArray) -> list[Place]:
        """Return where these chunks will be once they have arrived, likewise."""
        return self._merged(chunks, self._home[chunks])

    def strays(self, chunks: IntArray) -> IntArray:
        """Return those of the chunks that are not at home."""
        return np.asarray(chunks[self._now[chunks] != self._home[chunks]], np.int64)

    def settle(self, chunks: IntArray) -> None:
        """Record that these chunks are at home from now on."""
        self._now[chunks] = self._home[chunks]

    def unsettled(self) -> IntArray:
        """Return the wanted chunks that never left the input."""
        return np.nonzero(self.wanted & self.held & (self._now == Memory.SOURCE))[0]

    def _merged(self, chunks: IntArray, memory: IntArray) -> list[Place]:
        sizes = self.sizes[chunks]
        full = sizes > 0
        if not full.any():
            return []
        chunks, memory, sizes = chunks[full], memory[full], sizes[full]
        starts = self._start[memory, chunks]
        stops = starts + sizes
        cuts = np.nonzero((memory[1:] != memory[:-1]) | (starts[1:] != stops[:-1]))[0] + 1
        first, last = [0, *cuts.tolist()], [*(cuts - 1).tolist(), len(chunks) - 1]
        return [Place(Memory(int(memory[a])), int(starts[a]), int(stops[b])) for a, b in zip(first, last, strict=True)]


def aligned(*sides: list[Place]) -> list[tuple[Place, ...]]:
    """Cut lists of places that hold equally many elements into pieces that correspond to each other."""
    cuts = sorted({edge for side in sides for edge in np.cumsum([place.count for place in side]).tolist() if edge})
    pieces: list[tuple[Place, ...]] = []
    begin = 0
    for end in cuts:
        pieces.append(tuple(_piece(side, begin, end) for side in sides))
        begin = end
    return pieces


def _piece(side: list[Place], begin: int, end: int) -> Place:
    offset = 0
    for place in side:
        if begin < offset + place.count:
            return place.part(begin - offset, end - offset)
        offset += place.count
    raise IndexError(f"elements {begin} to {end} of {offset}")
