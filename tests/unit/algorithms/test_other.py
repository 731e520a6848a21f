"""The properties that distinguish the algorithms of all_gather, reduce_scatter, broadcast, reduce and others.

Other tests prove that every registered plan is correct and has its stated cost. The tests here check figures and
message patterns of the papers; test_slips.py plants faults.
"""

from __future__ import annotations

import tracemalloc
from collections import Counter
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from hpccoll.algorithms import (
    barriers,
    bruck,
    circulant,
    double_tree,
    get_algorithm,
    make_algorithm,
    neighbor_exchange,
    pat,
    recursive_doubling,
    scatter_all_gather,
)
from hpccoll.algorithms.binomial_tree import scatter
from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.plan import NO_CHUNK, NO_PEER, SIGNAL, Cost, Move, Operation, Plan, Span, check, empty_rounds

SOME = (1, 2, 3, 5, 6, 7, 8, 12, 13, 16, 31, 33)
NAMES = {
    "all_gather/pat", "all_gather/circulant", "all_gather/recursive_doubling", "all_gather/neighbor_exchange",
    "reduce_scatter/pat", "reduce_scatter/circulant", "reduce_scatter/recursive_halving",
    "reduce_scatter/neighbor_exchange", "broadcast/double_tree", "broadcast/scatter_all_gather",
    "broadcast/circulant", "reduce/double_tree", "reduce/scatter_all_gather", "reduce/circulant",
    "all_to_all/bruck", "barrier/recursive_doubling", "barrier/linear", "barrier/double_ring",
}  # fmt: skip


def make_plan(name: str, n: int, root: int = 0, chunks: int = 1) -> Plan:
    """Return the plan of an algorithm, given as `operation/name`."""
    operation, _, algorithm = name.partition("/")
    return get_algorithm(Operation.from_name(operation), algorithm).plan(n, root, chunks)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NAMES))
def test_proven_for_every_root_and_chunk_count(name):
    for n in SOME:
        for root in {0, min(1, n - 1), n // 2, n - 1}:
            for chunks in (1, 2, 5, 11):
                plan = make_plan(name, n, root, chunks)
                assert check(plan, counts=(0, 1, n - 1, 7, 1_000_003)).cost == plan.cost


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("n", [1, 2, 5, 8, 13])
def test_a_ranks_column_is_its_slice_of_the_whole(name, n):
    plan = make_plan(name, n, n // 2, 3)
    whole = plan.moves()
    for rank in range(n):
        column = plan.column(rank)
        assert (column.count, column.chunks) == (whole.count, whole.chunks)
        for mine, theirs in zip(column, whole, strict=True):
            assert len(mine) == len(theirs)
            for one, every in zip(mine, theirs, strict=True):
                assert (one.dest[0], one.source[0]) == (every.dest[rank], every.source[rank])
                for ours, there in ((one.send, every.send), (one.recv, every.recv)):
                    row = there.ids(n)[rank]
                    assert ours.ids(1)[0].tolist() == row[row != NO_CHUNK].tolist()


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_round_of_24576_ranks_needs_no_table_of_ranks_and_chunks(name):
    n = 24_576
    tracemalloc.start()
    rounds = make_plan(name, n, n - 1, 4).moves()
    for t in {0, 1, rounds.count // 2, rounds.count - 1}:
        rounds.at(t)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20


@pytest.mark.parametrize(
    ("name", "n", "chunks", "cost"),
    [
        ("all_gather/circulant", 13, 1, Cost(4, Fraction(12, 13), Fraction(12, 13))),
        ("reduce_scatter/pat", 24, 1, Cost(5, Fraction(23, 24), Fraction(23, 24))),
        ("all_gather/recursive_doubling", 16, 1, Cost(4, Fraction(15, 16), Fraction(15, 16))),
        # Seven ranks, three extra ranks: rank 0 doubles 2 and 4 blocks and gives its extra rank the other 6.
        ("all_gather/recursive_doubling", 7, 1, Cost(4, Fraction(6, 7), Fraction(2 + 4 + 6, 7))),
        ("reduce_scatter/recursive_halving", 7, 1, Cost(4, Fraction(6, 7), Fraction(6, 7))),
        ("all_gather/neighbor_exchange", 10, 1, Cost(5, Fraction(9, 10), Fraction(9, 10))),
        ("all_gather/neighbor_exchange", 9, 1, Cost(6, Fraction(8, 9), Fraction(17, 9))),
        ("broadcast/double_tree", 16, 10, Cost(13, Fraction(15, 16), Fraction(1))),
        ("broadcast/scatter_all_gather", 8, 1, Cost(6, Fraction(7, 8), Fraction(14, 8))),
        ("reduce/scatter_all_gather", 11, 1, Cost(8, Fraction(10, 11), Fraction(1))),
        ("broadcast/circulant", 17, 10, Cost(14, Fraction(16, 17), Fraction(14, 10))),
        ("reduce/circulant", 17, 10, Cost(14, Fraction(16, 17), Fraction(1))),
        ("all_to_all/bruck", 8, 1, Cost(3, Fraction(12, 8), Fraction(12, 8))),
        ("all_to_all/bruck", 5, 1, Cost(3, Fraction(5, 5), Fraction(5, 5))),
        ("barrier/recursive_doubling", 12, 1, Cost(5, Fraction(0), Fraction(0))),
        ("barrier/linear", 9, 1, Cost(16, Fraction(0), Fraction(0))),
        ("barrier/double_ring", 9, 1, Cost(16, Fraction(0), Fraction(0))),
    ],
)
def test_costs_are_those_of_the_literature(name, n, chunks, cost):
    assert check(make_plan(name, n, n // 2, chunks)).cost == cost


def test_skips_halve_and_round_up():
    assert circulant.list_skips(1) == [1]
    assert circulant.list_skips(13) == [1, 2, 4, 7, 13]
    assert circulant.list_skips(24) == [1, 2, 3, 6, 12, 24]
    assert all(len(circulant.list_skips(n)) == ceil_log2(n) + 1 for n in range(1, 300))


def base_chunk(place: int, skips: list[int]) -> int:
    """The smallest skip on the greedy path to a place, in plain Python."""
    last = len(skips) - 1
    for e in range(len(skips) - 2, -1, -1):
        if skips[e] <= place:
            place, last = place - skips[e], e
    return last


@pytest.mark.parametrize("n", [*range(2, 130), 513, 1000])
def test_the_broadcast_schedule_keeps_the_conditions_of_the_paper(n):
    skips = circulant.list_skips(n)
    q = len(skips) - 1
    table = circulant.compute_receive_schedule(np.arange(n), n).tolist()
    for place in range(1, n):
        base, got = base_chunk(place, skips), table[place]
        # Once in a cycle a new chunk, its base chunk; otherwise each other chunk of the cycle before.
        assert sorted(got) == sorted([base, *(c for c in range(-q, 0) if c != base - q)])
        for k in range(q):
            receiver = (place + skips[k]) % n
            # What a place must send came to it in a round before, or is the base chunk of the cycle before.
            assert receiver == 0 or table[receiver][k] in {base - q, *got[:k]}
    assert [table[skips[k]][k] for k in range(q)] == list(range(q))  # the root sends chunk k in round k


@pytest.mark.parametrize("n", [2, 3, 7, 13, 16, 33])
@pytest.mark.parametrize("chunks", [1, 2, 3, 8, 17])
def test_the_circulant_broadcast_is_round_optimal_with_one_port_a_rank(n, chunks):
    rounds = make_plan("broadcast/circulant", n, 1, chunks).moves()
    assert rounds.count == chunks - 1 + ceil_log2(n)  # the bound of Bar-Noy and Kipnis
    assert {len(moves) for moves in rounds} == {1}
    got = Counter(
        (rank, int(move.recv.ids(n)[rank, 0]))
        for moves in rounds
        for move in moves
        for rank in np.nonzero(move.source != NO_PEER)[0].tolist()
    )
    assert got == {(rank, chunk): 1 for rank in range(n) for chunk in range(chunks) if rank != 1}


@pytest.mark.parametrize("n", [1, 2, 3, 8, 13, 16, 24, 33])
@pytest.mark.parametrize("most", [1, 2, 3, 4, 64])
def test_pat_with_bounded_messages_is_right_and_sends_no_byte_more(n, most):
    for operation, make in ((Operation.ALL_GATHER, pat.all_gather), (Operation.REDUCE_SCATTER, pat.reduce_scatter)):
        plan = make_algorithm(operation, "pat", partial(make, most=most), None).plan(n)
        cost = check(plan).cost
        assert cost.mean == cost.most == Fraction(n - 1, n)
        assert all(int(np.max(move.send.size)) <= most for moves in plan.moves() for move in moves)
        assert cost.steps <= n - 1
        assert most > 1 or cost.steps == n - 1
        assert most < n / 2 or cost.steps == ceil_log2(n)


def test_pat_sends_the_far_messages_small():
    far = [(int(moves[0].dest[0]), moves[0].send.size) for moves in make_plan("all_gather/pat", 16).moves()]
    assert far == [(8, 1), (4, 2), (2, 4), (1, 8)]


@pytest.mark.parametrize("n", [2, 3, 4, 9, 10, 17])
def test_neighbor_exchange_talks_to_neighbours_only(n):
    around = n - n % 2  # for odd n the last rank is outside the circle
    for moves in make_plan("all_gather/neighbor_exchange", n).moves():
        for rank, to in ((rank, to) for move in moves for rank, to in enumerate(move.dest.tolist()) if to != NO_PEER):
            assert (to - rank) % around in (1, around - 1) or {rank, to} == {n - 2, n - 1}


@pytest.mark.parametrize("name", ["all_gather/recursive_doubling", "reduce_scatter/recursive_halving"])
@pytest.mark.parametrize("n", [2, 3, 6, 11, 13])
def test_messages_of_recursive_doubling_are_one_interval(name, n):
    for moves in make_plan(name, n).moves():
        assert len(moves) == 1
        ids = moves[0].send.ids(n)
        for row in (row[row != NO_CHUNK] for row in ids[moves[0].dest != NO_PEER]):
            assert set(np.diff(row).tolist()) <= {1, 1 - n}


@pytest.mark.parametrize("n", range(2, 34))
@pytest.mark.parametrize("name", ["broadcast/double_tree", "reduce/double_tree"])
def test_a_rank_is_inner_in_one_tree_only_and_no_round_sends_it_a_tree_twice(name, n):
    chunks, root = 3, n // 3
    inner: list[set[int]] = [set(), set()]
    down = make_plan("broadcast/double_tree", n, root, chunks).moves()
    for moves in down if name.startswith("broadcast") else make_plan(name, n, root, chunks).moves().reversed():
        for tree in (0, 1):
            for move in moves[2 * tree : 2 * tree + 2]:
                senders = np.nonzero(move.dest != NO_PEER)[0]
                inner[tree] |= set(senders.tolist())
                assert set((move.send.ids(n)[senders] // chunks).ravel().tolist()) <= {tree}
            received = np.sum([move.source != NO_PEER for move in moves[2 * tree : 2 * tree + 2]], axis=0)
            assert received.max() <= 1
    assert inner[0] & inner[1] == {root}


def test_the_broadcast_is_a_scatter_and_what_an_all_gather_must_add():
    n, root = 11, 4
    rounds = make_plan("broadcast/scatter_all_gather", n, root).moves()
    phase = scatter(np.arange(n), n, root)
    for t in range(phase.count):
        np.testing.assert_array_equal(rounds.at(t)[0].dest, phase.at(t)[0].dest)
    got = [
        (rank, chunk)
        for moves in rounds
        for move in moves
        for rank in np.nonzero(move.source != NO_PEER)[0].tolist()
        for chunk in move.recv.ids(n)[rank].tolist()
        if chunk != NO_CHUNK
    ]
    assert sorted(got) == [(rank, chunk) for rank in range(n) for chunk in range(n) if rank != root]


def test_bruck_all_to_all_sends_each_block_once_for_each_bit_of_its_distance():
    n = 13
    rounds = make_plan("all_to_all/bruck", n).moves()
    sizes = [int(moves[-1].send.size) for moves in rounds]
    assert sum(sizes) == sum(j.bit_count() for j in range(n))
    first, last = rounds.at(0)[-1], rounds.at(rounds.count - 1)[-1]
    assert (first.send.ids(n) < n).all()  # from the input, without turning it first
    assert (last.recv.ids(n) // n == 1).all()  # into the output


@pytest.mark.parametrize("name", ["barrier/linear", "barrier/double_ring"])
def test_serial_barriers_have_one_message_on_its_way(name):
    for moves in make_plan(name, 7).moves():
        assert [int((move.dest != NO_PEER).sum()) for move in moves] == [1]


def test_one_rank_needs_no_message():
    one = np.zeros(1, np.int64)
    for make in (double_tree.broadcast, circulant.broadcast):
        assert make(one, 1, 0, 3).count == empty_rounds(1).count == 0
    assert neighbor_exchange.all_gather(one, 1).count == recursive_doubling.all_gather(one, 1).count == 0
    assert scatter_all_gather.broadcast(one, 1, 0).count == barriers.linear(one, 1).count == 0
    assert barriers.double_ring(one, 1).count == 0
    (copy,) = bruck.all_to_all(one, 1).at(0)
    assert copy == Move(one, one, Span(one, 1, 1), Span(one, 1, 1, base=1))
    assert recursive_doubling.barrier(np.arange(4), 4).at(0)[0].send is SIGNAL
