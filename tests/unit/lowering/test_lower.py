"""Programs of messages have the results of replay, for every algorithm and all ranks at once, without MPI."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpccoll.algorithms import Algorithm, get_algorithm, list_algorithms, make_algorithm
from hpccoll.lowering import Copy, MemoryKind, MemoryRange, Program, Receive, Reduce, Send, Wait, lower_plan
from hpccoll.lowering import message_lowering as lowering
from hpccoll.lowering.chunk_locations import align_ranges
from hpccoll.lowering.message_lowering import split_message
from hpccoll.plan import Move, Op, Operation, Plan, Rounds, Span, replay
from hpccoll.synthesis import NetworkBuilder
from hpccoll.synthesis.forest_plan import synthesize
from tests.depth import mark_full
from tests.unit.runtime.simulated import simulate

ITEMSIZE = 8
ALGORITHMS = [known for known in list_algorithms() if not known.uses_shared_memory]  # those: test_node_programs.py


def mixed(left, right):
    """Neither commutative nor associative: another order gives another result."""
    return left * 31 + right * 17


def layout(operation: Operation, rank: int, n: int, root: int, count: int, in_place: bool):
    """Return the input and output of a rank: separate, or sharing the chunks that are in both."""
    blocks = {"own": 1, "all": n, "none": 0}
    brings = {
        Operation.REDUCE_SCATTER: "all", Operation.ALL_TO_ALL: "all",
        Operation.SCATTER: "all" if rank == root else "none",
        Operation.BROADCAST: "own" if rank == root else "none", Operation.BARRIER: "none",
    }.get(operation, "own")  # fmt: skip
    takes = {
        Operation.ALL_GATHER: "all", Operation.ALL_TO_ALL: "all",
        Operation.GATHER: "all" if rank == root else "none",
        Operation.REDUCE: "own" if rank == root else "none", Operation.BARRIER: "none",
        Operation.EXSCAN: "own" if rank else "none",
    }.get(operation, "own")  # fmt: skip
    source, result = np.empty(count * blocks[brings], np.int64), np.empty(count * blocks[takes], np.int64)
    if in_place and len(source) and len(result):
        mine = slice(rank * count, (rank + 1) * count)
        if operation in (Operation.ALL_GATHER, Operation.GATHER):
            source = result[mine]
        elif operation in (Operation.REDUCE_SCATTER, Operation.SCATTER):
            result = source[mine]
        elif operation is not Operation.ALL_TO_ALL:  # the engine takes a copy of its input first
            source = result
    return source, result


def run(plan: Plan, count: int, in_place: bool, seed: int) -> list[Program]:
    """Lower a plan for all ranks, run it, and hold it against replay; return the programs."""
    n = plan.ranks
    ranks = [layout(plan.operation, rank, n, plan.root, count, in_place) for rank in range(n)]
    shares = [in_place and bool(len(s) and len(r)) and plan.operation is not Operation.ALL_TO_ALL for s, r in ranks]
    programs = [lower_plan(plan, rank, count, ITEMSIZE, shares[rank]) for rank in range(n)]
    rng = np.random.default_rng(seed)
    memories: list[list[Any]] = []
    inputs: list[Any] = []
    for program, (source, result) in zip(programs, ranks, strict=True):
        result[:] = -1
        source[:] = rng.integers(-(2**62), 2**62, len(source))
        inputs.append(source.copy() if len(source) else None)
        memories.append([source, result, np.full(program.work, -2), np.full(program.landing, -3)])
    if plan.operation in (Operation.BROADCAST, Operation.SCATTER):
        inputs = [values if rank == plan.root else None for rank, values in enumerate(inputs)]
    simulate(programs, memories, mixed, seed)
    wanted = replay(plan, count, inputs, mixed if plan.operation.reduces else None)
    for rank, (source, result) in enumerate(ranks):
        assert result.tolist() == wanted[rank].tolist(), f"rank {rank}"
        if not shares[rank] and inputs[rank] is not None:
            assert source.tolist() == inputs[rank].tolist(), f"the input of rank {rank} was written"
    return programs


@pytest.fixture
def small_segments(monkeypatch):
    """Segments of three elements, so that small messages are cut and roll through the window."""
    monkeypatch.setattr(lowering, "SEGMENT", 3 * ITEMSIZE)


def make_plan(algorithm: Algorithm, n: int, root: int, chunks: int) -> Plan:
    """Return a plan; the drawn root is reduced modulo n."""
    return algorithm.plan(n, root % n if algorithm.operation.has_root else 0, chunks)


CASES = {
    "n": st.integers(1, 9),
    "count": st.one_of(st.integers(0, 12), st.sampled_from([61, 128, 257])),
    "root": st.integers(0, 8),
    "chunks": st.sampled_from([1, 2, 3, 7, 16]),
    "in_place": st.booleans(),
    "seed": st.integers(0, 2**32 - 1),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.full_name)
@settings(max_examples=8)
@given(**CASES)
def test_programs_do_what_replay_does_whatever_the_timing(algorithm, n, count, root, chunks, in_place, seed):
    run(make_plan(algorithm, n, root, chunks), count, in_place, seed)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.full_name)
def test_segmented_programs_do_what_replay_does_whatever_the_timing(algorithm, small_segments):
    @settings(max_examples=6)
    @given(**CASES)
    def check(n, count, root, chunks, in_place, seed):
        run(make_plan(algorithm, n, root, chunks), count, in_place, seed)

    check()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_ring_whose_segments_share_a_window_does_what_replay_does(in_place, small_segments):
    programs = run(get_algorithm(Operation.ALL_REDUCE, "ring").plan(3), 61, in_place, seed=1)
    assert all(program.landing <= lowering.WINDOW * 3 for program in programs)


def list_starts(program: Program) -> list[int]:
    """Return the numbers of the instructions that start a message."""
    return [i for i, step in enumerate(program.instructions) if isinstance(step, Send | Receive)]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.full_name)
@pytest.mark.parametrize("n", [2, 3, 5, mark_full(8)])
def test_every_message_is_waited_for_once_and_after_it_started(algorithm, n, small_segments):
    plan = make_plan(algorithm, n, n - 1, 4)
    for rank in range(n):
        program = lower_plan(plan, rank, 50, ITEMSIZE, in_place=False)
        waits = [(at, step.start) for at, step in enumerate(program.instructions) if isinstance(step, Wait)]
        assert Counter(start for _, start in waits) == Counter(list_starts(program))
        assert all(start < at for at, start in waits)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.full_name)
@pytest.mark.parametrize("n", [2, 3, 5, mark_full(8)])
@pytest.mark.parametrize("in_place", [False, True])
def test_no_place_is_read_or_written_while_a_message_owns_it(algorithm, n, in_place, small_segments):
    plan = make_plan(algorithm, n, 1, 4)
    for rank in range(n):
        source, result = layout(plan.operation, rank, n, plan.root, 50, in_place)
        shares = in_place and bool(len(source) and len(result)) and plan.operation is not Operation.ALL_TO_ALL
        program = lower_plan(plan, rank, 50, ITEMSIZE, shares)
        flying: dict[int, Send | Receive] = {}
        for index, step in enumerate(program.instructions):
            reads, writes = touched(step)
            for other in flying.values():
                forbidden = [*writes, *reads] if isinstance(other, Receive) else writes
                assert not any(other.place.overlaps(place) for place in forbidden), (step, other)
            if isinstance(step, Send | Receive):
                flying[index] = step
            elif isinstance(step, Wait):
                del flying[step.start]


def touched(step) -> tuple[list[MemoryRange], list[MemoryRange]]:
    """The places that an instruction reads, and those that it writes."""
    match step:
        case Send(_, place):
            return [place], []
        case Receive(_, place):
            return [], [place]
        case Reduce(left, right, out):
            return [left, right], [out]
        case Copy(source, out):
            return [source], [out]
    return [], []


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.full_name)
@pytest.mark.parametrize("n", [2, 3, 6])
def test_the_input_is_only_read_and_places_lie_within_their_memories(algorithm, n):
    plan = make_plan(algorithm, n, 0, 3)
    for rank in range(n):
        program = lower_plan(plan, rank, 10, ITEMSIZE, in_place=False)
        source, result = layout(plan.operation, rank, n, plan.root, 10, in_place=False)
        extent = [len(source), len(result), program.work, program.landing]
        for step in program.instructions:
            reads, writes = touched(step)
            assert not any(place.memory is MemoryKind.SOURCE for place in writes)
            assert all(0 <= place.start <= place.stop <= extent[place.memory] for place in (*reads, *writes))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_scratch_of_a_ring_is_a_window_of_segments_however_large_the_message(n, in_place):
    count = 2**30 // 4
    for rank in range(n):
        program = lower_plan(get_algorithm(Operation.ALL_REDUCE, "ring").plan(n), rank, count, 4, in_place)
        longest = max(stop - start for start, stop in split_message(-(-count // n), 4))
        assert program.landing <= lowering.WINDOW * (longest + 1)
        assert program.work == 0
        assert len(program.instructions) < 8 * n * lowering.MOST_SEGMENTS


def test_messages_of_a_ring_are_those_of_the_formula():
    for n in (2, 3, 8):
        program = lower_plan(get_algorithm(Operation.ALL_REDUCE, "ring").plan(n), 0, 1000 * n, 4, in_place=True)
        assert len(list_starts(program)) == 2 * 2 * (n - 1)
        assert sum(step.place.count for step in program.instructions if isinstance(step, Send)) == 2 * (n - 1) * 1000


def test_recursive_doubling_in_place_waits_for_a_send_before_it_reduces_into_what_is_sent():
    program = lower_plan(
        get_algorithm(Operation.ALL_REDUCE, "recursive_doubling").plan(2), 0, 4, ITEMSIZE, in_place=True
    )
    kinds = [type(step).__name__ for step in program.instructions]
    sent, joined = kinds.index("Send"), kinds.index("Reduce")
    assert Wait(sent) in program.instructions[:joined]


@given(count=st.integers(0, 2**33), itemsize=st.sampled_from([1, 2, 4, 8, 16]))
def test_segments_cover_a_message_in_nearly_equal_parts(count, itemsize):
    cuts = split_message(count, itemsize)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == count
    assert all(stop == start for (_, stop), (start, _) in pairwise(cuts))
    sizes = [stop - start for start, stop in cuts]
    assert max(sizes) - min(sizes) <= 1
    assert len(cuts) <= lowering.MOST_SEGMENTS
    assert len(cuts) == lowering.MOST_SEGMENTS or max(sizes) * itemsize <= lowering.SEGMENT + itemsize


def test_both_ends_cut_a_message_alike_even_where_their_pieces_differ(small_segments):
    plan = get_algorithm(Operation.GATHER, "tree").plan(7, root=3)
    for count in (1, 4, 10):
        programs = [lower_plan(plan, rank, count, ITEMSIZE, in_place=False) for rank in range(7)]
        for a in range(7):
            for b in range(7):
                sent = [s.place.count for s in programs[a].instructions if isinstance(s, Send) and s.peer == b]
                come = [s.place.count for s in programs[b].instructions if isinstance(s, Receive) and s.peer == a]
                assert sent == come


@pytest.mark.parametrize(("count", "memory"), [(1, MemoryKind.LANDING), (2, MemoryKind.RESULT)])
def test_one_element_is_not_reduced_in_place(count, memory):
    """NumPy reduces one element slower in place than into other memory; longer messages need no scratch."""
    program = lower_plan(get_algorithm(Operation.SCAN, "chain").plan(2), 1, count, 8, False)
    assert [step.place.memory for step in program.instructions if isinstance(step, Receive)] == [memory]


def test_a_message_without_elements_is_not_sent_but_a_barriers_is():
    empty = lower_plan(get_algorithm(Operation.ALL_REDUCE, "ring").plan(4), 1, 0, ITEMSIZE, in_place=True)
    assert empty.instructions == ()
    barrier = lower_plan(get_algorithm(Operation.BARRIER, "dissemination").plan(4), 1, 0, 1, in_place=False)
    assert len(list_starts(barrier)) == 4


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("first", [Op.COPY, Op.INCOMING_FIRST])
@pytest.mark.parametrize("count", [0, 2, 10, 64])
def test_a_ranks_own_operand_takes_its_turn_among_those_that_arrive(in_place, first, count, small_segments):
    def make(rank, n):
        to, frm, one, two = (rank + 1) % n, (rank - 1) % n, Span(0, 1, 2), Span(1, 1, 2)
        arrives, own = Move(to, frm, one, one, first), Move(rank, rank, one, one, Op.OWN_FIRST)
        across = Move(rank, rank, one, two, Op.INCOMING_FIRST)
        return Rounds(2, 2, lambda t: [arrives, own, across, Move(frm, to, two, one, Op.OWN_FIRST)])

    run(make_algorithm(Operation.ALL_REDUCE, "mine", make, None).plan(3), count, in_place, seed=count)


def test_pieces_that_correspond_are_cut_at_every_edge_of_either_side():
    left = [MemoryRange(MemoryKind.SOURCE, 0, 3), MemoryRange(MemoryKind.SOURCE, 10, 12)]
    right = [MemoryRange(MemoryKind.RESULT, 5, 6), MemoryRange(MemoryKind.RESULT, 8, 12)]
    pieces = align_ranges(left, right)
    assert [(a.start, a.stop, b.start, b.stop) for a, b in pieces] == [(0, 1, 5, 6), (1, 3, 8, 10), (10, 12, 10, 12)]


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_packed_message_and_one_received_in_place_are_added_to_the_same_chunk(count, ranks):
    network = NetworkBuilder("star", [f"rank {rank}" for rank in range(ranks)])
    for rank in range(ranks):
        network.connect(f"rank {rank}", "switch", Fraction(4 if rank < ranks - 1 else 1))
    plan, _ = synthesize(network.build(), Operation.REDUCE_SCATTER, pieces=2)
    for seed in range(3):
        run(plan, count, False, seed)
