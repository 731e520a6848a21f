"""Ranges of a program as memory, and ranges of segments of chunks in the users' arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.plan import Operation
from hpccoll.runtime.address_space import AddressSpace, ChunkSegment, SegmentOffsets, chunk_sizes, cut_chunks
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange, Program

SOURCE, RESULT, WORK, LANDING, SLOT = MemoryKind
N, RANK, COUNT = 3, 1, 10


def get_address(array):
    """Return the address of an array's first element."""
    return array.__array_interface__["data"][0]


@pytest.fixture
def plan():
    return get_algorithm(Operation.ALL_GATHER, "ring").plan(N, 0, 1)


@pytest.fixture
def memory(plan):
    """Return the address space of an all-gather on rank 1, and its input, output and scratch."""
    x, out = np.arange(COUNT, dtype=np.float32), np.arange(100, 130, dtype=np.float32)
    scratch = np.arange(200, 220, dtype=np.float32)
    call = check_call(Operation.ALL_GATHER, x, out, RANK, N)
    return AddressSpace(call, Program((), 4, 6, plan), scratch), (x, out, scratch)


@pytest.mark.parametrize(("kind", "first"), [(SOURCE, 2), (RESULT, 102), (WORK, 202), (LANDING, 206)])
def test_own_ranges_are_views_of_the_own_memory(memory, kind, first):
    space, arrays = memory
    view = space.view(MemoryRange(kind, 2, 4))
    assert view.tolist() == [first, first + 1]
    assert space.address(MemoryRange(kind, 2, 4)) == get_address(view)
    view[:] = -1
    assert any((array == -1).sum() == 2 for array in arrays)


def test_work_and_landing_end_where_the_program_says(memory):
    space, _ = memory
    assert space.view(MemoryRange(WORK, 0, 100)).tolist() == [200, 201, 202, 203]
    assert space.view(MemoryRange(LANDING, 0, 100)).tolist() == [204, 205, 206, 207, 208, 209]


def test_without_buffers_ranges_are_empty(plan):
    space = AddressSpace(check_call(Operation.BARRIER, None, None, RANK, N), Program((), 0, 0, plan), np.zeros(0))
    for kind in (SOURCE, RESULT):
        assert space.view(MemoryRange(kind, 0, 5)).tolist() == []


def test_a_peers_input_and_output_are_mapped_apart(memory):
    space, _ = memory
    space.add_peer(RESULT, 0, 4096)
    assert space.address(MemoryRange(RESULT, 5, 8, 0)) == 4096 + 5 * 4
    with pytest.raises(KeyError):
        space.address(MemoryRange(SOURCE, 0, 1, 0))


@pytest.mark.parametrize("segments", [1, 2, 3, 4])
def test_segments_together_are_the_whole_memory(plan, segments):
    """The packed ranges of all segments, one after the other per chunk, cover every element once."""
    sizes = chunk_sizes(plan, COUNT)
    assert sizes.tolist() == [COUNT] * N
    seen: dict[MemoryKind, list[int]] = {SOURCE: [], RESULT: []}
    for segment in cut_chunks(sizes, segments):
        offsets = SegmentOffsets(plan, COUNT, segment, RANK)
        packed = np.cumsum([0, *segment.sizes]).tolist()
        for chunk in range(N):
            begin = offsets.find_start(MemoryRange(RESULT, packed[chunk], packed[chunk + 1]))
            seen[RESULT] += range(begin, begin + segment.sizes[chunk])
        begin = offsets.find_start(MemoryRange(SOURCE, 0, segment.sizes[RANK]))
        seen[SOURCE] += range(begin, begin + segment.sizes[RANK])
    assert seen[SOURCE] == [*range(COUNT)]
    assert sorted(seen[RESULT]) == [*range(N * COUNT)]


def test_a_segment_of_a_peers_input_is_located_by_that_peers_chunks(plan):
    last = cut_chunks(chunk_sizes(plan, COUNT), 2)[1]
    offsets = SegmentOffsets(plan, COUNT, last, RANK)
    assert [offsets.find_start(MemoryRange(SOURCE, at, 5, 2)) for at in (0, 1)] == [5, 6]


def test_scratch_and_slots_hold_segments_packed(plan):
    offsets = SegmentOffsets(plan, COUNT, cut_chunks(chunk_sizes(plan, COUNT), 2)[1], RANK)
    for kind, owner in ((WORK, OWN), (LANDING, OWN), (SLOT, OWN), (SLOT, 0)):
        assert offsets.find_start(MemoryRange(kind, 1, 3, owner)) == 1


def test_an_empty_range_of_a_segment_has_a_start(plan):
    nothing = ChunkSegment(np.zeros(N, np.int64), np.zeros(N, np.int64))
    assert SegmentOffsets(plan, COUNT, nothing, RANK).find_start(MemoryRange(RESULT, 0, 0)) == 0


def test_offsets_skip_chunks_that_the_memory_lacks():
    """Of the six chunks of an all-to-all of three ranks, the result of rank 1 holds the last three."""
    plan = get_algorithm(Operation.ALL_TO_ALL, "pairwise").plan(N, 0, 1)
    segment = ChunkSegment(np.array([0, 0, 0, 1, 0, 1]), np.array([5, 5, 5, 3, 0, 3]))
    offsets = SegmentOffsets(plan, COUNT, segment, RANK)
    assert [offsets.find_start(MemoryRange(RESULT, at, at + 1)) for at in range(4)] == [1, 2, 21, 22]


@pytest.mark.parametrize("segments", [1, 2, 5, 9])
def test_cut_chunks_cover_every_chunk_in_nearly_equal_segments(segments):
    sizes = np.array([0, 1, 5, 23])
    cut = cut_chunks(sizes, segments)
    assert len(cut) == segments
    assert cut[0].low.tolist() == [0, 0, 0, 0]
    assert cut[-1].high.tolist() == sizes.tolist()
    for first, second in itertools.pairwise(cut):
        assert first.high.tolist() == second.low.tolist()
    lengths = np.array([segment.sizes for segment in cut])
    assert lengths.sum(0).tolist() == sizes.tolist()
    assert int((lengths.max(0) - lengths.min(0)).max()) <= 1


def test_a_segment_of_the_roots_input_is_located_on_ranks_that_have_none():
    plan = get_algorithm(Operation.BROADCAST, "chain").plan(N, 0, 2)
    last = cut_chunks(chunk_sizes(plan, COUNT), 2)[1]
    assert last.sizes == (3, 3)
    offsets = SegmentOffsets(plan, COUNT, last, RANK)
    assert [offsets.find_start(MemoryRange(SOURCE, at, at + 3, 0)) for at in (0, 3)] == [2, 7]
