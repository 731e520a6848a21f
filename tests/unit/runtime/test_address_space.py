"""The address space: ranges of a program as memory, for whole chunks and for segments of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm
from hpccoll.plan import Operation
from hpccoll.runtime.address_space import AddressSpace, ChunkSegment, chunk_sizes, cut_chunks
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange, Program

SOURCE, RESULT, WORK, LANDING, SLOT = MemoryKind
N, RANK, COUNT = 3, 1, 10


def get_address(array):
    """Return the address of an array's first element."""
    return array.__array_interface__["data"][0]


class Spaces:
    """An all-gather of three ranks on rank 1: memory of ten elements a block, and a program with some scratch."""

    def __init__(self):
        self.x, self.out = np.arange(COUNT, dtype=np.float32), np.arange(100, 130, dtype=np.float32)
        self.scratch = np.arange(200, 220, dtype=np.float32)
        self.slots = {rank: np.arange(300 + 100 * rank, 320 + 100 * rank, dtype=np.float32) for rank in (OWN, 0)}
        self.plan = get_algorithm(Operation.ALL_GATHER, "ring").plan(N, 0, 1)
        self.program = Program((), 4, 6, self.plan)
        self.call = check_call(Operation.ALL_GATHER, self.x, self.out, RANK, N)

    def space(self, **options):
        return AddressSpace(self.call, self.program, self.scratch, **options)


@pytest.fixture
def memory():
    return Spaces()


@pytest.mark.parametrize(
    ("kind", "owner", "first"), [(SOURCE, OWN, 2), (RESULT, OWN, 102), (WORK, OWN, 202), (LANDING, OWN, 206)]
)
def test_own_ranges_are_views_of_the_own_memory(memory, kind, owner, first):
    space = memory.space()
    view = space.own_view(MemoryRange(kind, 2, 4, owner))
    assert view.tolist() == [first, first + 1]
    assert space.address(MemoryRange(kind, 2, 4, owner)) == get_address(view)
    view[:] = -1
    assert any((array == -1).sum() == 2 for array in (memory.x, memory.out, memory.scratch))


def test_work_and_landing_end_where_the_program_says(memory):
    space = memory.space()
    assert space.own_view(MemoryRange(WORK, 0, 100)).tolist() == [200, 201, 202, 203]
    assert space.own_view(MemoryRange(LANDING, 0, 100)).tolist() == [204, 205, 206, 207, 208, 209]


def test_slots_are_found_by_rank(memory):
    space = memory.space(slots=memory.slots)
    assert space.own_view(MemoryRange(SLOT, 1, 3)).tolist() == [301 + 100 * OWN, 302 + 100 * OWN]
    assert space.own_view(MemoryRange(SLOT, 1, 3, 0)).tolist() == [301, 302]
    assert space.address(MemoryRange(SLOT, 1, 3)) == get_address(memory.slots[OWN]) + 4


def test_without_buffers_and_slots_ranges_are_empty(memory):
    memory.call = check_call(Operation.BARRIER, None, None, RANK, N)
    space = memory.space()
    for kind in (SOURCE, RESULT, SLOT):
        assert space.own_view(MemoryRange(kind, 0, 5)).tolist() == []


def test_a_peer_mapped_by_array_is_viewed(memory):
    space, other = memory.space(), np.arange(50, 60, dtype=np.float32)
    space.add_peer(SOURCE, 2, other, get_address(other))
    place = MemoryRange(SOURCE, 3, 5, 2)
    assert space.own_view(place).tolist() == [53, 54]
    assert space.address(place) == get_address(other) + 12


def test_a_peer_mapped_by_address_has_an_address_only(memory):
    space = memory.space()
    space.add_peer(RESULT, 0, None, 4096)
    place = MemoryRange(RESULT, 5, 8, 0)
    assert space.view(place) is None
    assert space.address(place) == 4096 + 5 * 4
    with pytest.raises(LookupError, match="memory of another process"):
        space.own_view(place)


def test_a_peers_input_and_output_are_mapped_apart(memory):
    space = memory.space()
    space.add_peer(SOURCE, 0, None, 4096)
    with pytest.raises(KeyError):
        space.address(MemoryRange(RESULT, 0, 1, 0))


@pytest.mark.parametrize("segments", [1, 2, 3, 4])
def test_segments_together_are_the_whole_memory(memory, segments):
    """The packed ranges of all segments, one after the other per chunk, cover every element once."""
    sizes = chunk_sizes(memory.plan, COUNT)
    assert sizes.tolist() == [COUNT] * N
    seen: dict[MemoryKind, list[float]] = {SOURCE: [], RESULT: []}
    for segment in cut_chunks(sizes, segments):
        space = memory.space(segment=segment, rank=RANK)
        packed = np.cumsum([0, *segment.sizes]).tolist()
        for chunk in range(N):
            seen[RESULT] += space.own_view(MemoryRange(RESULT, packed[chunk], packed[chunk + 1])).tolist()
        seen[SOURCE] += space.own_view(MemoryRange(SOURCE, 0, segment.sizes[RANK])).tolist()
    assert seen[SOURCE] == memory.x.tolist()
    assert sorted(seen[RESULT]) == memory.out.tolist()


def test_a_segment_of_a_peers_input_is_located_by_that_peers_chunks(memory):
    sizes = chunk_sizes(memory.plan, COUNT)
    last = cut_chunks(sizes, 2)[1]
    space, other = memory.space(segment=last, rank=RANK), np.arange(50, 60, dtype=np.float32)
    space.add_peer(SOURCE, 2, other, get_address(other))
    assert space.own_view(MemoryRange(SOURCE, 0, 5, 2)).tolist() == [55, 56, 57, 58, 59]
    assert space.address(MemoryRange(SOURCE, 1, 2, 2)) == get_address(other) + 6 * 4


def test_scratch_and_slots_hold_segments_packed(memory):
    last = cut_chunks(chunk_sizes(memory.plan, COUNT), 2)[1]
    space = memory.space(segment=last, rank=RANK, slots=memory.slots)
    assert space.own_view(MemoryRange(WORK, 1, 3)).tolist() == [201, 202]
    assert space.own_view(MemoryRange(SLOT, 1, 3, 0)).tolist() == [301, 302]


def test_an_empty_range_of_a_segment_is_empty(memory):
    nothing = ChunkSegment(np.zeros(N, np.int64), np.zeros(N, np.int64))
    space = memory.space(segment=nothing, rank=RANK)
    assert space.own_view(MemoryRange(RESULT, 0, 0)).tolist() == []


def test_offsets_skip_chunks_that_the_memory_lacks():
    """Of the six chunks of an all-to-all of three ranks, the result of rank 1 holds the last three."""
    plan = get_algorithm(Operation.ALL_TO_ALL, "pairwise").plan(N, 0, 1)
    x, out = np.arange(N * COUNT), np.arange(N * COUNT)
    call = check_call(Operation.ALL_TO_ALL, x, out, RANK, N)
    low, high = np.array([0, 0, 0, 1, 0, 1]), np.array([5, 5, 5, 3, 0, 3])
    space = AddressSpace(call, Program((), 0, 0, plan), x[:0], segment=ChunkSegment(low, high), rank=RANK)
    assert [space.start(MemoryRange(RESULT, at, at + 1)) for at in range(4)] == [1, 2, 21, 22]


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


def test_a_segment_of_the_roots_input_is_located_on_ranks_that_have_none(memory):
    memory.plan = get_algorithm(Operation.BROADCAST, "chain").plan(N, 0, 2)
    memory.program, memory.call = (
        Program((), 4, 6, memory.plan),
        check_call(Operation.BROADCAST, memory.x, None, RANK, N),
    )
    last = cut_chunks(chunk_sizes(memory.plan, COUNT), 2)[1]
    space, other = memory.space(segment=last, rank=RANK), np.arange(50, 60, dtype=np.float32)
    space.add_peer(SOURCE, 0, other, get_address(other))
    assert last.sizes == (3, 3)
    assert space.own_view(MemoryRange(SOURCE, 0, 3, 0)).tolist() == [52, 53, 54]
    assert space.own_view(MemoryRange(SOURCE, 3, 6, 0)).tolist() == [57, 58, 59]
