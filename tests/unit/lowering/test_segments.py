"""Segments of chunks, and their ranges in the users' arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.lowering import OWN, MemoryKind, MemoryRange, chunk_sizes, cut_chunks, list_sizes, make_find_start
from hpccoll.plan import Operation

SOURCE, RESULT, WORK, LANDING, SLOT = MemoryKind
N, RANK, COUNT = 3, 1, 10


@pytest.fixture
def plan():
    return get_algorithm(Operation.ALL_GATHER, "ring").plan(N, 0, 1)


@pytest.mark.parametrize("segments", [1, 2, 3, 4])
def test_segments_together_are_the_whole_memory(plan, segments):
    """The packed ranges of all segments, one after the other per chunk, cover every element once."""
    sizes = chunk_sizes(plan, COUNT)
    assert sizes.tolist() == [COUNT] * N
    seen: dict[MemoryKind, list[int]] = {SOURCE: [], RESULT: []}
    for segment in cut_chunks(sizes, segments):
        find_start = make_find_start(plan, COUNT, segment, RANK)
        lengths = list_sizes(segment)
        packed = np.cumsum([0, *lengths]).tolist()
        for chunk in range(N):
            begin = find_start(MemoryRange(RESULT, packed[chunk], packed[chunk + 1]))
            seen[RESULT] += range(begin, begin + lengths[chunk])
        begin = find_start(MemoryRange(SOURCE, 0, lengths[RANK]))
        seen[SOURCE] += range(begin, begin + lengths[RANK])
    assert seen[SOURCE] == [*range(COUNT)]
    assert sorted(seen[RESULT]) == [*range(N * COUNT)]


def test_a_segment_of_a_peers_input_is_located_by_that_peers_chunks(plan):
    last = cut_chunks(chunk_sizes(plan, COUNT), 2)[1]
    find_start = make_find_start(plan, COUNT, last, RANK)
    assert [find_start(MemoryRange(SOURCE, at, 5, 2)) for at in (0, 1)] == [5, 6]


def test_scratch_and_slots_hold_segments_packed(plan):
    find_start = make_find_start(plan, COUNT, cut_chunks(chunk_sizes(plan, COUNT), 2)[1], RANK)
    for kind, owner in ((WORK, OWN), (LANDING, OWN), (SLOT, OWN), (SLOT, 0)):
        assert find_start(MemoryRange(kind, 1, 3, owner)) == 1


def test_an_empty_range_of_a_segment_has_a_start(plan):
    nothing = (np.zeros(N, np.int64), np.zeros(N, np.int64))
    assert make_find_start(plan, COUNT, nothing, RANK)(MemoryRange(RESULT, 0, 0)) == 0


def test_offsets_skip_chunks_that_the_memory_lacks():
    """Of the six chunks of an all-to-all of three ranks, the result of rank 1 holds the last three."""
    plan = get_algorithm(Operation.ALL_TO_ALL, "pairwise").plan(N, 0, 1)
    segment = (np.array([0, 0, 0, 1, 0, 1]), np.array([5, 5, 5, 3, 0, 3]))
    find_start = make_find_start(plan, COUNT, segment, RANK)
    assert [find_start(MemoryRange(RESULT, at, at + 1)) for at in range(4)] == [1, 2, 21, 22]


@pytest.mark.parametrize("segments", [1, 2, 5, 9])
def test_cut_chunks_cover_every_chunk_in_nearly_equal_segments(segments):
    sizes = np.array([0, 1, 5, 23])
    cut = cut_chunks(sizes, segments)
    assert len(cut) == segments
    assert cut[0][0].tolist() == [0, 0, 0, 0]
    assert cut[-1][1].tolist() == sizes.tolist()
    for first, second in itertools.pairwise(cut):
        assert first[1].tolist() == second[0].tolist()
    lengths = np.array([list_sizes(segment) for segment in cut])
    assert lengths.sum(0).tolist() == sizes.tolist()
    assert int((lengths.max(0) - lengths.min(0)).max()) <= 1


def test_a_segment_of_the_roots_input_is_located_on_ranks_that_have_none():
    plan = get_algorithm(Operation.BROADCAST, "chain").plan(N, 0, 2)
    last = cut_chunks(chunk_sizes(plan, COUNT), 2)[1]
    assert list_sizes(last) == (3, 3)
    find_start = make_find_start(plan, COUNT, last, RANK)
    assert [find_start(MemoryRange(SOURCE, at, at + 3, 0)) for at in (0, 3)] == [2, 7]
