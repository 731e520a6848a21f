"""Two-level collectives on emulated nodes have the bits of replay, on any layout, in all memory, at any timing."""

from __future__ import annotations

import random
import signal
import time
import weakref
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpccoll
from hpccoll.algorithms import list_algorithms
from hpccoll.arrays import get_dtype
from hpccoll.errors import MismatchError, UsageError
from hpccoll.measure.data import make_input
from hpccoll.plan import replay
from hpccoll.runtime.job import RANKS_PER_NODE, detect_layout
from hpccoll.runtime.shared_memory import access
from hpccoll.runtime.two_level import executable as two_level
from tests.mpi.calls import check
from tests.mpi.cases import Case
from tests.mpi.test_matrix import SAMPLE, counts
from tests.mpi.test_symmetric import Pool

MIXED = {known.full_name: known for known in list_algorithms() if known.is_two_level}
ROWS = {name: [row for row in SAMPLE if row[0] == name] for name in MIXED}
LAYOUTS = (
    pytest.param("1", marks=[pytest.mark.full, pytest.mark.needs_ranks(2)]),
    pytest.param("2", marks=pytest.mark.needs_ranks(3)),
    pytest.param("3", marks=pytest.mark.needs_ranks(4)),
    pytest.param("2 in turn", marks=pytest.mark.needs_ranks(3)),
)  # ranks of a node; in turn: neighbours in rank are on different nodes


@pytest.fixture(params=LAYOUTS, scope="module")
def nodes(request, comm):
    """A communicator whose ranks are on pretended nodes, with its MPI communicator."""
    ranks, _, in_turn = request.param.partition(" ")
    half = -(-comm.size // 2)
    split = comm.Split(0, 2 * (comm.rank % half) + comm.rank // half if in_turn else comm.rank)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RANKS_PER_NODE, ranks)
        where = detect_layout(split)
        in_order = [rank for node in where.members for rank in node] == list(range(comm.size))
        assert where.nodes > 1
        assert in_order != bool(in_turn)
        with hpccoll.Communicator(split) as made:
            yield made, split
    split.Free()


def draw_cases(hpc, name, data, share=slice(None)):
    """Yield cases of the algorithm `name` in the sample of test_matrix, with counts and roots that `data` draws.

    `share` selects a part of the cases.
    """
    for turn, (_, dtype, op, size, in_place, path, special) in enumerate(ROWS[name][share]):
        count = data.draw(counts(size, hpc.size, turn), label="count")
        root = (data.draw(st.integers(0, hpc.size - 1), label="root") + turn) % hpc.size
        yield Case(MIXED[name], dtype, op, count, root, in_place, path, special, seed=turn)


@pytest.mark.parametrize("name", MIXED)
@settings(max_examples=1)
@given(data=st.data())
def test_they_are_bit_equal_to_replay(nodes, name, data):
    hpc, comm = nodes
    check(hpc, comm, list(draw_cases(hpc, name, data, slice(0, None, 3))))


@pytest.mark.parametrize("name", MIXED)
@settings(max_examples=1)
@given(data=st.data())
def test_many_segments_through_small_slots_are_bit_equal_to_replay(nodes, name, data):
    hpc, comm = nodes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two_level, "MESSAGE_BYTES", 96)
        patch.setattr(hpc._engine.node, "slot_bytes", 1024)
        check(hpc, comm, list(draw_cases(hpc, name, data, slice(1, None, 9))))


@pytest.mark.parametrize("name", MIXED)
@settings(max_examples=1)
@given(data=st.data())
def test_buffers_that_neighbours_reach_are_bit_equal_to_replay(nodes, name, data):
    hpc, comm = nodes
    pool = Pool(hpc.empty(4 * 2**20, "uint8"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two_level, "MESSAGE_BYTES", 1024)
        check(hpc, comm, list(draw_cases(hpc, name, data, slice(3, None, 12))), pool)
        if hpc._engine.node.readable is not None:
            patch.setattr(access, "find_least_remote_bytes", lambda *_: 1)
            check(hpc, comm, list(draw_cases(hpc, name, data, slice(5, None, 12))))


def test_large_sums_at_odd_sizes_with_ranks_that_come_late(nodes):
    hpc, comm = nodes
    chance = random.Random(comm.rank)
    for count in (1, 600_001):
        inputs = [make_input(get_dtype("float32"), 3, rank, count) for rank in range(comm.size)]
        for name in ("all_reduce/hierarchical_ring", "all_reduce/hierarchical_doubling"):
            wanted = replay(MIXED[name].plan(comm.size, nodes=hpc._engine.nodes), count, inputs, np.add)[comm.rank]
            for _ in range(3):
                x = inputs[comm.rank].copy()
                time.sleep(chance.random() * 0.02)
                hpc.all_reduce(x, algorithm=MIXED[name].name)
                assert x.tobytes() == wanted.tobytes()


def test_messages_under_way_get_on_meanwhile(nodes):
    hpc, comm = nodes
    mine = np.full(300_000, comm.rank + 1.0)
    others = [np.full(70_000, comm.rank + each, np.float64) for each in range(3)]
    works = [hpc.all_reduce(each, algorithm="ring", async_op=True) for each in others]
    hpc.all_reduce(mine, algorithm="hierarchical_ring")
    for work in works[::-1]:
        work.wait()
    n = comm.size
    assert (mine == n * (n + 1) / 2).all()
    assert all((x == n * (n - 1) / 2 + n * each).all() for each, x in enumerate(others))


def test_they_are_under_way_themselves_and_follow_each_other(nodes):
    hpc, comm = nodes
    n, rank = comm.size, comm.rank
    arrays = [np.full(200_000 + 1000 * each, rank + each, np.float64) for each in range(4)]
    works = [
        hpc.all_reduce(x, algorithm=name, async_op=True)
        for x, name in zip(
            arrays, ("hierarchical_ring", "ring", "hierarchical_doubling", "hierarchical_ring"), strict=True
        )
    ]
    small = np.full(3, rank, np.int32)
    hpc.all_reduce(small, algorithm="hierarchical_doubling")
    chance = random.Random(rank)
    for work in chance.sample(works, len(works)):
        work.wait()
    assert (small == n * (n - 1) // 2).all()
    assert all((x == n * (n - 1) / 2 + n * each).all() for each, x in enumerate(arrays))


def test_repeated_asynchronous_calls_make_no_further_executable(nodes, monkeypatch):
    hpc, comm = nodes
    make = Mock(wraps=hpc._engine._make_executable)
    monkeypatch.setattr(hpc._engine, "_make_executable", make)
    x, n = np.zeros(150_001), comm.size
    for turn in range(3):
        x[:] = comm.rank + turn
        hpc.all_reduce(x, algorithm="hierarchical_ring", async_op=True).wait()
        assert (x == n * (n - 1) / 2 + n * turn).all()
    x[:] = 1
    works = [hpc.all_reduce(x, algorithm="hierarchical_ring", async_op=True) for _ in range(2)]  # the sum of sums
    for work in works[::-1]:
        work.wait()
    assert (x == n * n).all()
    assert make.call_count == 2  # for the first call, and for the later ones


def test_an_array_lives_until_its_collective_ends(nodes):
    hpc, comm = nodes
    x = np.full(100_000, comm.rank + 1.0)
    kept = weakref.ref(x)
    for starts in (comm.rank > 0, comm.rank == 0):  # it cannot end before rank 0 begins
        if starts:
            hpc.all_reduce(x, algorithm="hierarchical_ring", async_op=True)
            del x
            assert comm.rank == 0 or kept() is not None
        comm.Barrier()
    hpc.all_reduce(np.ones(100), algorithm="hierarchical_ring")  # which begins after the first
    assert kept() is None


def test_neighbours_that_disagree_are_told(nodes):
    hpc, comm = nodes
    neighbours = hpc._engine.node.ranks
    if len(neighbours) > 1:
        x = np.zeros(8 + (comm.rank == neighbours[-1]))
        with pytest.raises(MismatchError, match=f"rank {neighbours[-1]}: count 9; pass the same"):
            hpc.all_reduce(x, algorithm="hierarchical_ring")


def test_what_needs_one_node_is_refused(nodes):
    with pytest.raises(UsageError, match="the ranks are on"):
        nodes[0].all_reduce(np.zeros(4), algorithm="shared_two_shot")


def test_a_wrong_number_of_ranks_a_node_is_refused(comm, monkeypatch):
    monkeypatch.setenv(RANKS_PER_NODE, "two")
    with pytest.raises(UsageError, match="HPCCOLL_RANKS_PER_NODE='two' is not a number of ranks"):
        hpccoll.Communicator(comm)


def test_an_interrupted_call_leaves_the_slots_to_later_calls(comm, monkeypatch):
    """Rank 0 waits for the others in vain, until a signal interrupts it as Ctrl-C does."""
    monkeypatch.setenv(RANKS_PER_NODE, "1")
    hpc, x = hpccoll.Communicator(comm), np.ones(1000)
    if comm.rank == 0 and comm.size > 1:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            hpc.all_reduce(x, algorithm="hierarchical_ring")
        signal.signal(signal.SIGALRM, before)
        assert not hpc._engine.node.pipelines
    comm.Barrier()


def test_no_rank_leaves_a_barrier_before_all_have_entered(nodes):
    hpc, comm = nodes
    for late in range(comm.size):
        comm.Barrier()
        if comm.rank == late:
            time.sleep(0.01)
        entered = time.monotonic()
        hpc.barrier(algorithm="hierarchical_dissemination")
        left = time.monotonic()
        assert min(comm.allgather(left)) >= max(comm.allgather(entered))
