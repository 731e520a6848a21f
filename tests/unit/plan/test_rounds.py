"""Regions and rounds: the effect of each combination of rounds on the messages of ranks."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpccoll.algorithms import binomial_tree, bruck, get_algorithm, list_algorithms, recursive_doubling, ring
from hpccoll.errors import PlanError
from hpccoll.plan import (
    SIGNAL,
    Fence,
    Load,
    Move,
    Op,
    Operation,
    Picks,
    Plan,
    Region,
    Rounds,
    Span,
    Step,
    Store,
    check,
    empty_rounds,
    fold_ranks,
    keep_ranks,
    overlay,
    relabel_ranks,
)
from hpccoll.plan.rounds import memoize_peer_map
from tests.depth import keep

Message = tuple[int, int, tuple[int, ...], tuple[int, ...], int]


def messages(rounds: Rounds, n: int) -> list[list[Message]]:
    """Per round (sender, receiver, chunks there, chunks here, op)."""
    found = []
    for moves in rounds:
        here: list[Message] = []
        for move in moves:
            out, into = move.send.ids(n), move.recv.ids(n)
            ops = np.broadcast_to(move.op, n)
            for rank in np.nonzero(move.source >= 0)[0].tolist():
                peer = int(move.source[rank])
                assert move.dest[peer] == rank
                there, kept = (tuple(c for c in row.tolist() if c >= 0) for row in (out[peer], into[rank]))
                here.append((peer, rank, there, kept, int(ops[rank])))
        found.append(sorted(here))
    return found


def list_ranks(n: int) -> np.ndarray:
    """Return the numbers of all ranks."""
    return np.arange(n)


def ends(step: Step) -> list[tuple[np.ndarray, Region]]:
    """Peers, and the chunks that go with them."""
    match step:
        case Move(to, frm, send, recv):
            return [(to, send), (frm, recv)]
        case Load(peer, src, dst) | Store(peer, src, dst):
            return [(peer, src), (peer, dst)]
        case Fence(leader):
            return [(leader, SIGNAL)]


@pytest.mark.parametrize("n", keep(range(1, 18), {1, 2, 3, 5, 8, 13}.__contains__))
@pytest.mark.parametrize("algorithm", list_algorithms(), ids=lambda algorithm: algorithm.full_name)
def test_the_column_of_a_rank_is_its_slice_of_the_whole(algorithm, n):
    for root in {0, n - 1} if "root" in algorithm.parameters else {0}:
        plan = algorithm.plan(n, root, 3)
        whole = list(plan.rounds())
        for rank in range(n):
            column = plan.column(rank)
            assert (column.count, column.chunks) == (len(whole), plan.moves().chunks)
            for mine, all_of_it in zip(column, whole, strict=True):
                assert [type(step) for step in mine] == [type(step) for step in all_of_it]
                for step, every in zip(mine, all_of_it, strict=True):
                    if isinstance(step, Move | Load):
                        assert np.broadcast_to(step.op, 1)[0] == np.broadcast_to(every.op, n)[rank]
                    for (peer, part), (peers, region) in zip(ends(step), ends(every), strict=True):
                        assert peer.tolist() == [peers[rank]]
                        if peer[0] >= 0:  # a region counts only where there is a transfer
                            assert [c for c in part.ids(1)[0] if c >= 0] == [c for c in region.ids(n)[rank] if c >= 0]
                            assert np.broadcast_to(part.size, 1)[0] == np.broadcast_to(region.size, n)[rank]


@given(
    first=st.lists(st.integers(-40, 40), min_size=1, max_size=4),
    count=st.integers(0, 6),
    mod=st.integers(1, 9),
    unit=st.integers(1, 4),
    base=st.integers(0, 5),
    scale=st.integers(1, 3),
)
def test_spans_are_what_their_definition_says(first, count, mod, unit, base, scale):
    def defined(start: int) -> list[int]:
        return [base + unit * ((start + j) % mod) + i for j in range(count) for i in range(unit)]

    ranks = len(first)
    span = Span(np.array(first), count, mod, unit, base)
    assert span.ids(ranks).tolist() == [defined(start) for start in first]
    assert span.size == count * unit
    assert span.shifted(7).ids(ranks).tolist() == [[c + 7 for c in defined(start)] for start in first]
    cut = [[c * scale + i for c in defined(start) for i in range(scale)] for start in first]
    assert span.scaled(scale).ids(ranks).tolist() == cut
    picks = Picks(count * unit, lambda: np.array([defined(start) for start in first]).reshape(ranks, count * unit))
    assert picks.ids(ranks).tolist() == span.ids(ranks).tolist()
    assert picks.scaled(scale).ids(ranks).tolist() == cut
    assert picks.shifted(7).ids(ranks).tolist() == span.shifted(7).ids(ranks).tolist()


def test_spans_whose_count_differs_by_rank_end_in_nobody():
    span = Span(np.array([0, 2]), np.array([3, 1]), 4, base=np.array([0, 10]))
    assert span.ids(2).tolist() == [[0, 1, 2], [12, -1, -1]]
    assert Span(0, np.array([0, 0]), 1).ids(2).shape == (2, 0)
    assert Span(1, 1, 4).ids(3).tolist() == [[1]] * 3
    assert SIGNAL.ids(3).shape == (3, 0)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_ring_all_reduce_is_reduce_scatter_then_all_gather(n):
    parts = [
        algorithm.plan(n).moves()
        for algorithm in (get_algorithm(Operation.REDUCE_SCATTER, "ring"), get_algorithm(Operation.ALL_GATHER, "ring"))
    ]
    whole = get_algorithm(Operation.ALL_REDUCE, "ring").plan(n).moves()
    assert messages(parts[0] + parts[1], n) == messages(whole, n)


@pytest.mark.parametrize("n", range(1, 14))
@pytest.mark.parametrize("scatter", [ring.reduce_scatter, bruck.reduce_scatter])
@pytest.mark.parametrize("gather", [ring.all_gather, bruck.all_gather])
def test_any_reduce_scatter_and_all_gather_make_an_all_reduce(scatter, gather, n):
    check(Plan(Operation.ALL_REDUCE, "composed", n, 0, lambda rank: scatter(rank, n) + gather(rank, n)))


@pytest.mark.parametrize("n", [2, 3, 6])
def test_reversed_turns_every_message_around(n):
    forward = ring.reduce_scatter(list_ranks(n), n)
    backward = messages(forward.reversed(Op.INCOMING_FIRST), n)
    turned = [sorted((b, a, into, out, 2) for a, b, out, into, _ in moves) for moves in messages(forward, n)]
    assert backward == turned[::-1]


def test_gather_backwards_is_scatter_and_reduce_backwards_broadcast():
    for n in (1, 2, 5, 8):
        for root in {0, n - 1}:
            for there, back in ((Operation.GATHER, Operation.SCATTER), (Operation.REDUCE, Operation.BROADCAST)):
                turned = get_algorithm(there, "tree").plan(n, root).moves().reversed()
                check(Plan(back, "mine", n, root, partial(lambda rounds, _: rounds, turned)))


def test_scaled_and_shifted_plans_carry_finer_and_other_chunks():
    n = 5
    check(Plan(Operation.REDUCE_SCATTER, "fine", n, 0, lambda rank: bruck.reduce_scatter(rank, n).scaled(3)))
    moved = messages(bruck.all_gather(list_ranks(n), n).shifted(n, 2 * n), n)
    plain = messages(bruck.all_gather(list_ranks(n), n), n)
    up = [[(a, b, tuple(c + n for c in o), tuple(c + n for c in i), op) for a, b, o, i, op in m] for m in plain]
    assert moved == up


def test_delayed_rounds_idle_first():
    n = 4
    rounds = ring.all_gather(list_ranks(n), n)
    late = rounds.delayed(2)
    assert messages(late, n) == [[], [], *messages(rounds, n)]
    assert (
        check(Plan(Operation.ALL_GATHER, "late", n, 0, lambda r: ring.all_gather(r, n).delayed(2))).cost.steps == n - 1
    )


def test_beside_runs_both_at_once():
    n, half = 6, 1

    def make(rank: np.ndarray) -> Rounds:
        tree = binomial_tree.all_reduce(rank, n).shifted(0, 2)
        doubling = recursive_doubling.all_reduce(rank, n).shifted(half, 2)
        return overlay(tree, doubling)

    proof = check(Plan(Operation.ALL_REDUCE, "both", n, 0, make))
    assert proof.rounds == max(
        binomial_tree.all_reduce(list_ranks(n), n).count, recursive_doubling.all_reduce(list_ranks(n), n).count
    )


def test_plans_over_other_chunks_do_not_go_together():
    with pytest.raises(PlanError, match="5 and 6 chunks cannot follow each other"):
        empty_rounds(5) + empty_rounds(6)
    with pytest.raises(PlanError, match="5 and 6 chunks cannot run side by side"):
        overlay(empty_rounds(5), empty_rounds(6))


@given(st.permutations(range(6)))
def test_relabelled_plans_are_plans_of_the_same_cost(order):
    # Plan rank p is played by rank order[p], so each rank plays what it stands for in the order.
    n, names = 6, np.array(order)
    plays = np.argsort(names)

    def make(rank: np.ndarray) -> Rounds:
        return relabel_ranks(binomial_tree.all_reduce(plays[rank], n), lambda peer: names[peer])

    assert check(Plan(Operation.ALL_REDUCE, "relabelled", n, 0, make)).cost == binomial_tree.all_reduce_cost(n)


def test_only_leaves_out_ranks():
    n = 5
    rank = list_ranks(n)
    inner = keep_ranks(ring.all_gather(np.minimum(rank, 2), 3), rank < 3)
    involved = {rank for moves in messages(inner, n) for a, b, *_ in moves for rank in (a, b)}
    assert involved == {0, 1, 2}


@pytest.mark.parametrize(("n", "core"), [(4, 4), (5, 4), (7, 3), (9, 4), (10, 2), (11, 3), (6, 1), (13, 5)])
def test_folds_of_several_layers(n, core):
    def make(rank: np.ndarray) -> Rounds:
        return fold_ranks(ring.all_reduce, rank, n, core, Span(0, core, core))

    proof = check(Plan(Operation.ALL_REDUCE, "folded", n, 0, make))
    layers = -(-n // core) - 1
    assert proof.rounds == 2 * (core - 1) + 2 * layers


def test_peers_are_mapped_once_as_long_as_they_are_the_same_array():
    calls = []

    def change(peers: np.ndarray) -> np.ndarray:
        calls.append(peers)
        return peers + 1

    mapped, peers = memoize_peer_map(change, keep=2), [np.array([i]) for i in range(4)]
    assert mapped(peers[0]) is mapped(peers[0])
    assert len(calls) == 1
    assert [mapped(array)[0] for array in peers] == [1, 2, 3, 4]
    assert mapped(np.array([0]))[0] == 1


def test_moves_turned_twice_are_the_moves():
    move = Move(np.array([1, -1]), np.array([-1, 0]), Span(0, 1, 2), Span(1, 1, 2), Op.OWN_FIRST)
    again = move.reversed(Op.COPY).reversed(Op.OWN_FIRST)
    assert (again.dest is move.dest, again.send, again.recv, again.op) == (True, move.send, move.recv, move.op)
