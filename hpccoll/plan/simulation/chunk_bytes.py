"""How many bytes a region of chunks holds on each rank, for chunks of unequal sizes too.

Where all chunks are alike a region's bytes follow from its size; otherwise they are looked up in sums over the chunks,
so that no region has to be written out.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.step import IntArray, Region, Span

Floats: TypeAlias = NDArray[np.float64]
Bytes: TypeAlias = int | Floats  # whole numbers all the same: floats hold them exactly, and multiply faster

_TABLES = 64  # kept at once; each is as long as there are chunks


class ChunkBytes:
    """The bytes of each chunk, shape (C,), and of regions of them."""

    def __init__(self, sizes: IntArray) -> None:
        self.sizes = sizes
        self.alike: int | None = int(sizes[0]) if len(sizes) else 0
        if (sizes != self.alike).any():
            self.alike = None
        self._before = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._tables: dict[tuple[int, int, int, int], Floats] = {}

    @property
    def period(self) -> int:
        """The shortest rotation of the chunks that leaves their sizes as they are."""
        if self.alike is not None:
            return 1
        length = len(self.sizes)
        shorter = (d for d in range(1, length) if length % d == 0)
        return next((d for d in shorter if np.array_equal(self.sizes[d:], self.sizes[:-d])), length)

    def of(self, region: Region) -> Bytes:
        """Return the bytes of a region, by rank or alike for all."""
        if self.alike is not None:
            size = region.size
            return size * self.alike if isinstance(size, int) else np.asarray(size * self.alike, np.float64)
        if not isinstance(region, Span):
            return np.asarray(self.sizes[region.table()].sum(axis=-1), np.float64)
        if isinstance(region.base, int) and isinstance(region.count, int):
            table = self._table(region.base, region.count, region.mod, region.unit)
            first, near = np.asarray(region.first), 4 * region.mod
            # Stepping back into the table costs less than a division over all ranks, unless it is far away.
            if first.max(initial=0) > near or first.min(initial=0) < -near:
                first = first % region.mod
            return table.take(first, mode="wrap")
        return self._general(region)

    def _table(self, base: int, count: int, mod: int, unit: int) -> Floats:
        """Return the bytes of every interval of `count` units, by where it begins."""
        key = (base, count, mod, unit)
        if key not in self._tables:
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            self._tables[key] = self._general(Span(np.arange(mod), count, mod, unit, base))
        return self._tables[key]

    def _general(self, region: Span) -> Floats:
        first = np.asarray(region.first) % max(region.mod, 1)
        last = first + np.maximum(region.count, 0)
        straight = self._until(region, np.minimum(last, region.mod)) - self._until(region, first)
        wrapped = self._until(region, np.maximum(last - region.mod, 0)) - self._until(region, np.zeros_like(first))
        return np.asarray(straight + wrapped, np.float64)

    def _until(self, region: Span, unit: IntArray) -> IntArray:
        # Ranks that take no part may name chunks that do not exist.
        return self._before.take(region.base + region.unit * unit, mode="clip")
