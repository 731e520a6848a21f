"""Segments of chunks: the parts of a collective's data that are processed one after the other.

A program for one segment of each chunk numbers the segment's elements as if they were packed next to each other.
`make_find_start` returns a function that finds the elements of a segment in the users' arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np

from hpccoll.lowering.program import OWN, USER_MEMORY, MemoryKind, MemoryRange
from hpccoll.plan import Count, IntArray, Plan

# A segment of all chunks: its first element of each chunk, and the end of its elements of each chunk, as two arrays.
# A segment is reduced over the ranks in the same order as a whole chunk, so cutting chunks into segments changes no bit
# of the result.
Segment: TypeAlias = tuple[IntArray, IntArray]


def cut_chunks(sizes: IntArray, segments: int) -> list[Segment]:
    """Return `segments` segments, each with a nearly equal share of every chunk; `sizes[c]` is the size of chunk c."""
    return [(sizes * number // segments, sizes * (number + 1) // segments) for number in range(segments)]


def list_sizes(segment: Segment) -> tuple[int, ...]:
    """Return the number of elements that a segment takes from each chunk."""
    low, high = segment
    return tuple((high - low).tolist())


def make_find_start(plan: Plan, count: Count, segment: Segment, rank: int) -> Callable[[MemoryRange], int]:
    """Return a function that finds where ranges of a packed segment begin in users' arrays, which have whole chunks.

    Args:
        count: elements of the vector or of each block, as in a `CollectiveCall`.
        rank: the number of this rank.
    """
    low, high = segment

    @cache
    def list_chunk_offsets(kind: MemoryKind, owner: int) -> tuple[list[int], list[int]]:
        """Return the offsets of the segment's chunks: in the packed segment, and in `owner`'s whole input or output.

        `kind` selects the input (SOURCE) or the output (RESULT). Both lists are ascending, and leave out chunks that
        the input or output lacks and chunks without an element in the segment.
        """
        owners, chunks = np.array([rank if owner == OWN else owner]), len(low)
        mask = plan.operation.input_mask if kind is MemoryKind.SOURCE else plan.operation.output_mask
        present = mask(owners, plan.ranks, chunks, plan.root)[0]
        sizes = np.where(present, plan.operation.chunk_sizes(count, plan.ranks, chunks), 0)
        counts = np.where(present, high - low, 0)
        used = np.nonzero(counts)[0]
        packed, whole = np.cumsum(counts) - counts, np.cumsum(sizes) - sizes + low
        return packed[used].tolist(), whole[used].tolist()

    def find_start(place: MemoryRange) -> int:
        """Return the index at which a range begins: in the array if the memory is the user's, else in packed memory."""
        if place.memory not in USER_MEMORY or place.start == place.stop:
            return place.start
        packed, whole = list_chunk_offsets(place.memory, place.owner)
        chunk = bisect_right(packed, place.start) - 1
        return whole[chunk] + place.start - packed[chunk]

    return find_start


def chunk_sizes(plan: Plan, count: Count) -> IntArray:
    """Return each chunk's number of elements as an array, for a vector or blocks of `count` elements."""
    return plan.operation.chunk_sizes(count, plan.ranks, plan.column(0).chunks)
