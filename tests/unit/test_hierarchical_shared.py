"""Plans of two levels: proven on every layout of nodes, right in any order, and what crosses between nodes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hpccoll.collectives import named, registered
from hpccoll.plan.check import check
from hpccoll.plan.groups import Groups
from hpccoll.plan.operation import Operation
from hpccoll.plan.replay import replay
from hpccoll.plan.step import Load, Move, Store
from tests.unit.shared_referee import fault_in_some_order

MIXED = [known for known in registered() if known.mixed]
LAYOUTS = (
    [2, 2],
    [1, 1, 1, 1],
    [2, 1],
    [3, 2],
    [2, 2, 1],
    [4, 3, 2],
    [4, 2],
    [2, 2, 2, 2],
    [3, 3, 3],
    [2] * 5,
    [1] * 6,
    [[0, 2, 4], [1, 3, 5]],
    [[4, 0], [1, 3, 2]],
    [[0, 4], [1, 5], [2, 6], [3, 7]],
    [[5, 1], [0, 2, 3, 4]],
)


def ranks_of(nodes):
    return sum(node if isinstance(node, int) else len(node) for node in nodes)


def roots_of(algorithm, n):
    return range(n) if "root" in algorithm.takes else (0,)


@pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
@pytest.mark.parametrize("algorithm", MIXED, ids=lambda each: each.full_name)
def test_they_are_proven_on_every_layout_at_what_they_state(algorithm, nodes):
    n = ranks_of(nodes)
    for root in roots_of(algorithm, n):
        plan = algorithm.plan(n, root, nodes=nodes)
        assert check(plan).cost == plan.cost


@pytest.mark.parametrize("nodes", [[2, 2], [2, 1], [[3, 0], [1, 2, 4]]], ids=str)
@pytest.mark.parametrize("algorithm", MIXED, ids=lambda each: each.full_name)
def test_they_come_out_right_in_any_order(algorithm, nodes):
    n = ranks_of(nodes)
    for root in {0, n - 1} if "root" in algorithm.takes else {0}:
        assert fault_in_some_order(algorithm.plan(n, root, nodes=nodes), 8) is None


@pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
@pytest.mark.parametrize("algorithm", MIXED, ids=lambda each: each.full_name)
def test_messages_cross_between_nodes_and_loads_and_stores_do_not(algorithm, nodes):
    n = ranks_of(nodes)
    node, _ = Groups.of(n, nodes).locate(np.arange(n))
    uneven = algorithm.operation.blocked and len({len(x) if isinstance(x, list) else x for x in nodes}) > 1
    for steps in algorithm.plan(n, nodes=nodes).raw():
        for step in steps:
            if isinstance(step, Load | Store):
                peers = step.frm if isinstance(step, Load) else step.to
                assert (node[peers] == node)[peers >= 0].all()
            elif isinstance(step, Move) and not uneven:
                assert (node[step.to] != node)[(step.to >= 0) & (step.to != np.arange(n))].all()


@pytest.mark.parametrize(
    ("nodes", "crossing"), [([2] * 4, Fraction(6, 4)), ([3, 2], Fraction(1)), ([1] * 5, Fraction(8, 5))]
)
def test_a_node_sends_no_more_than_the_plan_across_nodes_says(nodes, crossing):
    n = sum(nodes)
    plan = named(Operation.ALL_REDUCE, "hierarchical_ring").plan(n, nodes=nodes)
    node, _ = Groups.of(n, nodes).locate(np.arange(n))
    sent = np.zeros(len(nodes))
    for steps in plan.raw():
        for step in steps:
            if isinstance(step, Move):
                np.add.at(sent, node, np.where(step.to >= 0, step.send.size, 0))
    assert (sent == float(crossing) * plan.raw().chunks).all()


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("all_reduce/hierarchical_doubling", 3),
        ("all_reduce/hierarchical_ring", 14),
        ("reduce_scatter/hierarchical_bruck", 3),
        ("all_gather/hierarchical_bruck", 3),
        ("broadcast/hierarchical_tree", 3),
        ("reduce/hierarchical_tree", 3),
        ("gather/hierarchical_direct", 1),
        ("scatter/hierarchical_direct", 1),
        ("barrier/hierarchical_dissemination", 3),
    ],
)
def test_rounds_between_eight_nodes(name, rounds):
    operation, _, algorithm = name.partition("/")
    plan = named(Operation.named(operation), algorithm).plan(16, nodes=[2] * 8)
    assert sum(any(isinstance(step, Move) for step in steps) for steps in plan.raw()) == rounds


def test_a_nodes_sum_is_its_owners_first_and_then_around_the_circle():
    plan = named(Operation.ALL_REDUCE, "hierarchical_doubling").plan(5, nodes=[3, 2])
    letters = [np.array([letter, letter], object) for letter in "abcde"]

    def add(left, right):
        return np.array([f"({a}{b})" for a, b in zip(left, right, strict=True)], object)

    found = replay(plan, 2, letters, add)
    assert {tuple(each) for each in found} == {("(((ab)c)(de))", "(((bc)a)(ed))")}


def test_one_rank_a_node_is_the_plan_across_nodes_and_one_node_the_plan_in_shared_memory():
    ring = named(Operation.ALL_REDUCE, "hierarchical_ring")
    flat, alone = ring.plan(6, nodes=[1] * 6), ring.plan(6)
    assert all(isinstance(step, Move) for steps in flat.raw() for step in steps)
    assert flat.cost == named(Operation.ALL_REDUCE, "ring").plan(6).cost
    assert not any(isinstance(step, Move) for steps in alone.raw() for step in steps)
    assert alone.cost == named(Operation.ALL_REDUCE, "shared_two_shot").plan(6).cost
