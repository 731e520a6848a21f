"""The all-reduce algorithms beyond the basic ones: the properties that their papers state, and planted faults.

test_collectives proves that every registered algorithm is correct and has its stated cost. The tests here check the
orders and message patterns that distinguish the algorithms, layouts of nodes, and compositions that are not registered.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hpccoll.algorithms import (
    bine,
    direct,
    dual_root,
    get_algorithm,
    hierarchical,
    make_algorithm,
    make_hierarchical,
    swing,
)
from hpccoll.errors import PlanError, UnknownNameError, UsageError
from hpccoll.plan import Cost, Groups, Move, Op, Operation, Plan, Rounds, Span, check, empty_rounds, run_in_groups
from hpccoll.plan import groups as grouping
from hpccoll.selection.cost_model import find_fastest_algorithm
from tests.unit.plan.test_replay import expressions

NEW = ("bine", "chain", "dual_root", "hierarchical", "one_shot", "swing", "two_shot")
DEALT = ((0, 3, 6), (1, 4, 7), (5, 2))
LAYOUTS = [None, (8,), (4, 4), (2, 2, 2, 2), (1,) * 8, (3, 5), (1, 7), (7, 1), (2, 3, 3), DEALT]
PAIRS = [
    (intra, inter) for intra in ("ring", "bruck") for inter in ("swing", "double_tree", "rabenseifner", "dual_root")
]


def make_plan(name: str, n: int, chunks: int = 1, nodes: grouping.Nodes = None) -> Plan:
    """Return the plan of an all-reduce."""
    return get_algorithm(Operation.ALL_REDUCE, name).plan(n, 0, chunks, nodes)


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("n", [*range(1, 20), 31, 32, 33, 63, 64, 65])
def test_each_is_proven_at_its_cost_on_any_number_of_ranks(name, n):
    for chunks in (1, 2, 5):
        plan = make_plan(name, n, chunks)
        assert check(plan, counts=(0, 1, n - 1, 7, 1_000_003)).cost == plan.cost


@pytest.mark.parametrize(
    ("name", "n", "chunks", "cost"),
    [
        ("swing", 8, 1, Cost(6, Fraction(14, 8), Fraction(14, 8))),
        ("bine", 8, 1, Cost(6, Fraction(14, 8), Fraction(14, 8))),
        # Two extra ranks: both send S, and their proxies send the result.
        ("swing", 6, 1, Cost(4 + 2, Fraction(4 * 6 + 4 * 4, 4 * 6), Fraction(6, 4) + 1)),
        ("chain", 6, 4, Cost(4 + 2 * 6 - 3, Fraction(10, 6), Fraction(2))),
        # Two full trees of 7: 4 rounds up, 1 across, 4 down, 3 for each of the other chunks.
        ("dual_root", 14, 5, Cost(4 + 1 + 4 + 3 * 4, Fraction(26, 14), Fraction(3))),
        ("one_shot", 8, 1, Cost(1, Fraction(7), Fraction(7))),
        ("two_shot", 8, 1, Cost(2, Fraction(14, 8), Fraction(14, 8))),
    ],
)
def test_costs_are_those_of_the_literature(name, n, chunks, cost):
    assert check(make_plan(name, n, chunks)).cost == cost


def test_swing_swings_out_as_published():
    partners = [swing.find_partner(np.arange(16), step, 16) for step in range(4)]
    assert [peers[0] for peers in partners] == [1, 16 - 1, 3, 16 - 5]
    assert [peers[1] for peers in partners] == [0, 2, 16 - 2, 6]
    for peers in partners:
        np.testing.assert_array_equal(peers[peers], np.arange(16))


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32, 64])
def test_bine_reaches_one_interval_and_its_distances_are_two_thirds(n):
    rank, steps = np.arange(n), n.bit_length() - 1
    reached = rank[:, None]
    for left in range(1, steps + 1):
        reached = np.concatenate([reached, reached[swing.find_partner(rank, left - 1, n)]], axis=1)
        found = (bine.find_first_reachable(rank, left)[:, None] + np.arange(1 << left)) % n
        np.testing.assert_array_equal(np.sort(found, axis=1), np.sort(reached, axis=1))
    farthest = np.abs(swing.find_partner(rank[:1], steps - 1, n) - rank[0])[0]
    assert min(farthest, n - farthest) <= -(-n // 3)


def hauled(plan: Plan) -> Fraction:
    """Bytes times ranks on the shorter way around, over all messages, in S."""
    n, rounds = plan.ranks, plan.moves()
    total = 0
    for moves in rounds:
        for move in moves:
            away = np.abs(move.dest - np.arange(n))[move.dest >= 0]
            total += int(np.sum(np.minimum(away, n - away) * np.broadcast_to(move.send.size, n)[move.dest >= 0]))
    return Fraction(total, rounds.chunks)


@pytest.mark.parametrize("n", [16, 64, 256])
def test_bine_and_swing_haul_bytes_less_far_than_halving(n):
    halving = hauled(make_plan("rabenseifner", n))
    assert hauled(make_plan("bine", n)) < Fraction(7, 10) * halving
    assert hauled(make_plan("swing", n)) < Fraction(3, 10) * halving


def test_swing_does_not_spell_out_what_is_only_counted(monkeypatch):
    # A simulation of 24,576 ranks reads peers and sizes; the tables would be gigabytes.
    monkeypatch.setattr(swing, "find_reachable", lambda *_: pytest.fail("a table was made"))
    rounds = make_plan("swing", 24576).moves()
    sizes = [move.send.size for t in (0, 1, 2, 14, 15, 28, 29) for move in rounds.at(t)]
    assert sizes == [2**14, 2**13, 2**12, 1, 1, 2**13, 2**14]


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_one_shot_reduces_in_rank_order_on_every_rank(n):
    left = "a"
    for rank in range(1, n):
        left = f"({left}{chr(ord('a') + rank)})"
    assert set(expressions(make_plan("one_shot", n), 0)) == {left}


def test_two_shot_reduces_own_first_then_downwards():
    assert set(expressions(make_plan("two_shot", 4), 2)) == {"(((cb)a)d)"}


@pytest.mark.parametrize("n", range(2, 27))
def test_dual_root_keeps_rank_order_so_that_nothing_need_commute(n):
    (found,) = {*expressions(make_plan("dual_root", n, 2), 1)}
    assert [letter for letter in found if letter.isalpha()] == [chr(ord("a") + rank) for rank in range(n)]


@pytest.mark.parametrize("n", [2, 3, 7, 14, 23, 64])
def test_dual_root_has_one_partner_a_round(n):
    for moves in make_plan("dual_root", n, 4).moves():
        (move,) = moves
        both = (move.dest >= 0) & (move.source >= 0)
        np.testing.assert_array_equal(move.dest[both], move.source[both])


@pytest.mark.parametrize("n", range(2, 40))
def test_both_trees_of_the_dual_root_are_binary_in_post_order(n):
    rank = np.arange(n)
    places = dual_root.find_tree_places(rank, n)
    for child in (places.left, places.right):
        np.testing.assert_array_equal(places.parent[child[child >= 0]], rank[child >= 0])
        assert (child < rank).all()
    roots = rank[places.depth == 0]
    assert roots.tolist() == [-(-n // 2) - 1, n - 1]
    assert places.parent[roots].tolist() == roots[::-1].tolist()
    children = np.concatenate([places.left, places.right])
    assert sorted([*children[children >= 0].tolist(), *roots.tolist()]) == rank.tolist()
    assert places.depth.max() == (-(-n // 2)).bit_length() - 1


@pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", ["hierarchical", *map("+".join, PAIRS)])
def test_hierarchies_of_any_two_on_any_nodes(name, nodes):
    made = get_algorithm(Operation.ALL_REDUCE, name) if "+" not in name else make_hierarchical(*name.split("+"))
    for chunks in (1, 3):
        plan = made.plan(8, 0, chunks, nodes)
        assert check(plan, counts=(0, 1, 7, 1_000_003)).cost == plan.cost


def locate_nodes(nodes: grouping.Nodes, n: int) -> np.ndarray:
    """Return the node of each rank."""
    return Groups.from_nodes(n, nodes).locate(np.arange(n))[0]


@pytest.mark.parametrize("nodes", [(4,) * 4, tuple(tuple(range(first, 16, 4)) for first in range(4))], ids=str)
def test_a_hierarchy_sends_only_its_slices_between_nodes(nodes):
    plan = make_hierarchical("ring", "ring").plan(16, nodes=nodes)
    node, rounds = locate_nodes(nodes, 16), plan.moves()
    crossing = np.zeros(16, np.int64)
    for move in (move for moves in rounds for move in moves):
        crosses = (move.dest >= 0) & (node[move.dest] != node)
        crossing += np.where(crosses, move.send.size, 0)
    # Each of the 4 owners of a node sends 2 (N-1)/N of its quarter.
    assert [Fraction(int(sent), rounds.chunks) for sent in crossing] == [Fraction(2 * 3, 4 * 4)] * 16
    assert plan.cost == Cost(2 * 3 + 2 * 3, Fraction(2 * 3, 4) + Fraction(6, 16), Fraction(2 * 3, 4) + Fraction(6, 16))


def test_a_hierarchy_costs_what_its_parts_cost_written_out():
    # 4 nodes of 2: a ring of 2 there and back, 2 ceil(log2 4) + 3 - 1 rounds of a double tree on half of the message.
    assert make_plan("hierarchical", 8, 3, (2, 2, 2, 2)).cost == Cost(2 + 6, 1 + Fraction(6, 8), 1 + Fraction(2, 2))
    # 3 and 5 ranks: two further ranks send to slots 0 and 1 of the second node.
    found = check(make_hierarchical("ring", "recursive_doubling").plan(8, nodes=(3, 5))).cost
    mean = (2 * 2 + 6 * Fraction(4, 3) + 2 * 1) / Fraction(8)
    assert found == Cost(2 * (1 + 2) + 1, mean, 1 + Fraction(4, 3) + Fraction(1, 3))


def test_hierarchies_are_made_once_and_unknown_levels_are_named():
    assert make_hierarchical("ring", "swing") is make_hierarchical("ring", "swing")
    assert make_hierarchical("ring", "swing").full_name == "all_reduce/hierarchical(ring,swing)"
    assert "chunks" not in make_hierarchical("ring", "swing").parameters
    with pytest.raises(UnknownNameError, match=r"unknown algorithm for reduce_scatter 'swing'; .*choose one of"):
        make_hierarchical("swing", "ring")


def test_a_level_of_ones_own_may_state_no_cost():
    mine = make_algorithm(Operation.ALL_REDUCE, "mine", get_algorithm(Operation.ALL_REDUCE, "ring").make_rounds, None)
    made = hierarchical.compose_levels(get_algorithm(Operation.REDUCE_SCATTER, "ring"), mine)
    assert made.plan(6, nodes=(2, 4)).cost is None
    assert check(made.plan(6, nodes=(2, 4))).cost.steps == 2 * (1 + 1) + 2


@pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
def test_hierarchical_barriers_hold_everyone(nodes):
    plan = get_algorithm(Operation.BARRIER, "hierarchical").plan(8, nodes=nodes)
    assert check(plan).cost == plan.cost


@pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
def test_hierarchical_all_to_all_brings_every_block_home(nodes):
    plan = get_algorithm(Operation.ALL_TO_ALL, "hierarchical").plan(8, nodes=nodes)
    assert check(plan).cost == plan.cost


def test_hierarchical_all_to_all_sends_few_messages_between_nodes():
    plan = get_algorithm(Operation.ALL_TO_ALL, "hierarchical").plan(12, nodes=(4, 4, 4))
    node = locate_nodes((4, 4, 4), 12)
    crossing = sum((node[move.dest] != node).sum() for moves in plan.moves() for move in moves)
    assert crossing == 12 * 2  # pairwise: 12 * 8
    assert plan.cost == Cost(3 + 2, Fraction(3 * 3 + 2 * 4, 12), Fraction(3 * 3 + 2 * 4, 12))


@pytest.mark.parametrize(
    "nodes", [(), (8, 0), (4, 3), (9,), (-1, 9), ((0, 1), (2, 3)), ((0, 1, 2), (2, 3, 4, 5, 6, 7))]
)
def test_nodes_that_are_not_those_of_the_ranks(nodes):
    for name in ("hierarchical", "ring"):
        with pytest.raises(UsageError, match="is no layout of 8 ranks: give the number of ranks on each node"):
            make_plan(name, 8, nodes=nodes)


def test_nodes_in_rank_order_are_the_same_however_they_are_said():
    assert Groups.from_nodes(5, ((0, 1), (2, 3, 4))) == Groups.from_nodes(5, [2, 3]) == Groups((2, 3))
    dealt = Groups.from_nodes(5, ((0, 3), (4, 1, 2)))
    group, slot = dealt.locate(np.arange(5))
    assert (group.tolist(), slot.tolist()) == ([0, 1, 1, 0, 1], [0, 1, 2, 1, 0])
    assert (dealt.common_size, Groups.from_nodes(6, (3, 3)).common_size) == (None, 3)


def test_groups_of_unequal_size_end_together():
    made = get_algorithm(Operation.ALL_REDUCE, "ring").make_rounds
    rounds = run_in_groups(
        lambda slot, size: made(slot, size).map_regions(lambda _: Span(0, 1, 1), 1), Groups((2, 4)), np.arange(6)
    )
    talking = [{int(r) for move in moves for r in np.nonzero(move.dest >= 0)[0]} for moves in rounds]
    assert talking == [{2, 3, 4, 5}] * 4 + [{0, 1, 2, 3, 4, 5}] * 2


def test_auto_leaves_out_what_its_model_cannot_tell():
    # One step of 63 messages is no step; and on one node a hierarchy is but a ring.
    chosen = {
        find_fastest_algorithm(Operation.ALL_REDUCE, n, nbytes).name for n in (4, 8, 64) for nbytes in (8, 2**16, 2**26)
    }
    assert not chosen & {"one_shot", "two_shot", "hierarchical"}


# Planted faults: each must be found by the proof.


def find_error(plan: Plan) -> str:
    """Return the error message of `check`; None if it accepts the plan."""
    with pytest.raises(PlanError) as caught:
        check(plan)
    return str(caught.value)


def test_fault_swing_whose_odd_ranks_do_not_mirror(monkeypatch):
    monkeypatch.setattr(swing, "find_partner", lambda rank, step, n: (rank + (1 - (-2) ** (step + 1)) // 3) % n)
    assert "round 0: rank 0 (and 7 more) sends to 1, which receives from 2" in find_error(make_plan("swing", 8))


def test_fault_bine_whose_odd_ranks_are_off_by_one(monkeypatch):
    right = bine.find_first_reachable
    monkeypatch.setattr(bine, "find_first_reachable", lambda rank, digits: right(rank, digits) + rank % 2)
    assert "all_reduce/bine on 8 ranks: in the end rank 0 chunk" in find_error(make_plan("bine", 8))


def test_fault_one_shot_in_order_of_arrival():
    def make(rank, n):
        whole = Span(0, 1, 1)
        moves = [Move((rank + t) % n, (rank - t) % n, whole, whole, Op.OWN_FIRST) for t in range(1, n)]
        return Rounds(1, 1, lambda t: moves)

    hasty = make_algorithm(Operation.ALL_REDUCE, "hasty", make, direct.one_shot_cost)
    assert "reduce chunk 0 in different orders" in find_error(hasty.plan(3))


def test_fault_dual_root_that_hands_results_down_a_round_too_soon(monkeypatch):
    right = dual_root.find_tree_places

    def hasty(rank, n):
        places = right(rank, n)
        return dual_root.TreePlaces(
            places.parent, places.left, places.right, np.maximum(places.depth - 1, 0), places.lead
        )

    monkeypatch.setattr(dual_root, "find_tree_places", hasty)
    assert "all_reduce/dual_root on 8 ranks" in find_error(make_plan("dual_root", 8, 3))


def test_fault_hierarchy_that_forgets_its_further_ranks(monkeypatch):
    monkeypatch.setattr(
        hierarchical, "reduce_into_core", lambda slot, size, owners, whole, chunks: empty_rounds(chunks)
    )
    said = find_error(make_plan("hierarchical", 5, 1, (2, 3)))
    assert "the contribution of rank 4 is missing" in said
