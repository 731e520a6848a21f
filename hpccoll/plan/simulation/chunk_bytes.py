"""Computes the sizes in bytes of regions (sets of chunks per rank), whose chunks may differ in size.

If all chunks have the same size, the bytes of a region follow from its number of chunks; otherwise, they follow from
prefix sums over the chunk sizes, without a list of the region's chunks. If ranks have different
chunk sizes, the chunks of each region are listed.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from hpccoll.plan.step import NO_CHUNK, Floats, IntArray, Region, Span

ByteCounts: TypeAlias = int | Floats  # whole numbers as floats, which are exact and multiply faster

_TABLES = 64  # number of cached tables, each with one entry per chunk


class ChunkBytes:
    """The sizes of chunks in bytes, from which the bytes of sets of chunks are computed.

    `sizes` has the bytes of each chunk, shape (chunks,), or of each chunk of each rank, shape (ranks, chunks).
    `common_size` is the size of every chunk, or None if chunks differ in size.
    """

    def __init__(self, sizes: IntArray) -> None:
        self.sizes = sizes
        self.common_size: int | None = int(sizes.flat[0]) if sizes.size else 0
        if (sizes != self.common_size).any():
            self.common_size = None
        self._before = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._tables: dict[tuple[int, int, int, int], Floats] = {}

    @property
    def period(self) -> int:
        """The smallest d >= 1 for which rotating the list of chunk sizes by d entries leaves the list unchanged."""
        if self.common_size is not None:
            return 1
        length = len(self.sizes)
        shorter = (d for d in range(1, length) if length % d == 0)
        return next((d for d in shorter if np.array_equal(self.sizes[d:], self.sizes[:-d])), length)

    def region_bytes(self, region: Region) -> ByteCounts:
        """Return the bytes of a set of chunks: one number for all ranks, or an array with one entry per rank."""
        if self.common_size is not None:
            size = region.size
            return size * self.common_size if isinstance(size, int) else np.asarray(size * self.common_size, np.float64)
        if self.sizes.ndim == 2:
            ids = region.ids(len(self.sizes))
            sizes = np.where(ids == NO_CHUNK, 0, np.take_along_axis(self.sizes, ids, 1))
            return np.asarray(sizes.sum(1), np.float64)
        if not isinstance(region, Span):
            return np.asarray(self.sizes[region.table()].sum(axis=-1), np.float64)
        if isinstance(region.base, int) and isinstance(region.count, int):
            table = self._start_table(region.base, region.count, region.mod, region.unit)
            first, near = np.asarray(region.first), 4 * region.mod
            # NumPy's take(mode="wrap") is faster than computing indices modulo `mod`, unless they are far out of range.
            if first.max(initial=0) > near or first.min(initial=0) < -near:
                first = first % region.mod
            return table.take(first, mode="wrap")
        return self._span_bytes(region)

    def _start_table(self, base: int, count: int, mod: int, unit: int) -> Floats:
        """Return a cached array whose entry j is the bytes of `count` units from unit j on, in a cycle of `mod` units.

        A unit is `unit` consecutive chunks; unit 0 starts at chunk `base`.
        """
        key = (base, count, mod, unit)
        if key not in self._tables:
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            self._tables[key] = self._span_bytes(Span(np.arange(mod), count, mod, unit, base))
        return self._tables[key]

    def _span_bytes(self, region: Span) -> Floats:
        """Return the bytes of a span (a cyclic interval of chunks) for each rank, from prefix sums."""
        first = np.asarray(region.first) % max(region.mod, 1)
        last = first + np.maximum(region.count, 0)
        straight = self._bytes_before(region, np.minimum(last, region.mod)) - self._bytes_before(region, first)
        over, origin = np.maximum(last - region.mod, 0), np.zeros_like(first)
        wrapped = self._bytes_before(region, over) - self._bytes_before(region, origin)
        return np.asarray(straight + wrapped, np.float64)

    def _bytes_before(self, region: Span, unit: IntArray) -> IntArray:
        """Return the total size in bytes of the chunks before each unit (by index) of the span `region`."""
        # The region of a rank without a peer may have chunks that do not exist, so indices are clipped.
        return self._before.take(region.base + region.unit * unit, mode="clip")
