"""Two-level plans: proven on every layout of nodes, correct in any order of ranks, and their bytes between nodes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.algorithms.pipelining import choose_segment_count
from hpccoll.plan import Groups, Link, Load, Machine, Move, Operation, Store, check, replay, simulate
from hpccoll.predict.forecast import forecast, simulate_pipelined
from tests.unit.plan.shared_referee import fault_in_some_order

MIXED = [known for known in list_algorithms() if known.is_two_level]
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


def count_ranks(nodes):
    """Return the number of ranks of a layout of nodes."""
    return sum(node if isinstance(node, int) else len(node) for node in nodes)


def list_roots(algorithm, n):
    """Return the roots to test."""
    return range(n) if "root" in algorithm.parameters else (0,)


@pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
@pytest.mark.parametrize("algorithm", MIXED, ids=lambda each: each.full_name)
def test_they_are_proven_on_every_layout_at_what_they_state(algorithm, nodes):
    n = count_ranks(nodes)
    for root in list_roots(algorithm, n):
        plan = algorithm.plan(n, root, nodes=nodes)
        assert check(plan).cost == plan.cost


@pytest.mark.parametrize("nodes", [[2, 2], [2, 1], [[3, 0], [1, 2, 4]]], ids=str)
@pytest.mark.parametrize("algorithm", MIXED, ids=lambda each: each.full_name)
def test_they_come_out_right_in_any_order(algorithm, nodes):
    n = count_ranks(nodes)
    for root in {0, n - 1} if "root" in algorithm.parameters else {0}:
        assert fault_in_some_order(algorithm.plan(n, root, nodes=nodes), 8) is None


@pytest.mark.parametrize("nodes", LAYOUTS, ids=str)
@pytest.mark.parametrize("algorithm", MIXED, ids=lambda each: each.full_name)
def test_messages_cross_between_nodes_and_loads_and_stores_do_not(algorithm, nodes):
    n = count_ranks(nodes)
    node, _ = Groups.from_nodes(n, nodes).locate(np.arange(n))
    uneven = algorithm.operation.has_blocks and len({len(x) if isinstance(x, list) else x for x in nodes}) > 1
    for steps in algorithm.plan(n, nodes=nodes).rounds():
        for step in steps:
            if isinstance(step, Load | Store):
                peers = step.source if isinstance(step, Load) else step.dest
                assert (node[peers] == node)[peers >= 0].all()
            elif isinstance(step, Move) and not uneven:
                assert (node[step.dest] != node)[(step.dest >= 0) & (step.dest != np.arange(n))].all()


@pytest.mark.parametrize(
    ("nodes", "crossing"), [([2] * 4, Fraction(6, 4)), ([3, 2], Fraction(1)), ([1] * 5, Fraction(8, 5))]
)
def test_a_node_sends_no_more_than_the_plan_across_nodes_says(nodes, crossing):
    n = sum(nodes)
    plan = get_algorithm(Operation.ALL_REDUCE, "hierarchical_ring").plan(n, nodes=nodes)
    node, _ = Groups.from_nodes(n, nodes).locate(np.arange(n))
    sent = np.zeros(len(nodes))
    for steps in plan.rounds():
        for step in steps:
            if isinstance(step, Move):
                np.add.at(sent, node, np.where(step.dest >= 0, step.send.size, 0))
    assert (sent == float(crossing) * plan.rounds().chunks).all()


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
    plan = get_algorithm(Operation.from_name(operation), algorithm).plan(16, nodes=[2] * 8)
    assert sum(any(isinstance(step, Move) for step in steps) for steps in plan.rounds()) == rounds


def test_a_nodes_sum_is_its_owners_first_and_then_around_the_circle():
    plan = get_algorithm(Operation.ALL_REDUCE, "hierarchical_doubling").plan(5, nodes=[3, 2])
    letters = [np.array([letter, letter], object) for letter in "abcde"]

    def add(left, right):
        return np.array([f"({a}{b})" for a, b in zip(left, right, strict=True)], object)

    found = replay(plan, 2, letters, add)
    assert {tuple(each) for each in found} == {("(((ab)c)(de))", "(((bc)a)(ed))")}


def test_one_rank_a_node_is_the_plan_across_nodes_and_one_node_the_plan_in_shared_memory():
    ring = get_algorithm(Operation.ALL_REDUCE, "hierarchical_ring")
    flat, alone = ring.plan(6, nodes=[1] * 6), ring.plan(6)
    assert all(isinstance(step, Move) for steps in flat.rounds() for step in steps)
    assert flat.cost == get_algorithm(Operation.ALL_REDUCE, "ring").plan(6).cost
    assert not any(isinstance(step, Move) for steps in alone.rounds() for step in steps)
    assert alone.cost == get_algorithm(Operation.ALL_REDUCE, "shared_two_shot").plan(6).cost


@pytest.mark.parametrize("name", ["hierarchical_ring", "hierarchical_doubling"])
def test_parts_hide_all_but_the_first_behind_the_link(name):
    machine = Machine("test", 2, Link.one_port(1e-6, 1e-10), Link.one_port(1e-5, 1e-8), 1, 1e-10)
    algorithm = get_algorithm(Operation.ALL_REDUCE, name)
    plan, count = algorithm.plan(8, nodes=[2] * 4), 4 * 2**20
    parts = choose_segment_count(plan, plan.operation.chunk_sizes(count, 8, plan.column(0).chunks), 4)
    whole, first = simulate_pipelined(plan, machine, count, 4), simulate(plan, machine, count // parts, 4, trace=False)
    node_sends = whole.between[:2].sum()
    assert parts > 1
    assert whole.nbytes == 4 * count
    assert whole.seconds == pytest.approx(first.seconds + (parts - 1) / parts * node_sends * 1e-8)
    assert node_sends * 1e-8 < whole.seconds < simulate(plan, machine, count, 4, trace=False).seconds
    assert forecast(algorithm, 8, machine, 4 * count).seconds == whole.seconds


def test_parts_are_alike_on_all_ranks_and_few_for_short_messages():
    plan = get_algorithm(Operation.BROADCAST, "hierarchical_chain").plan(8, root=5, nodes=[2] * 4)
    sizes = plan.operation.chunk_sizes(4 * 2**20, 8, plan.column(0).chunks)
    assert choose_segment_count(plan, sizes, 4, 128 * 2**10) == 64
    assert choose_segment_count(plan, sizes, 4, 2**30) == choose_segment_count(plan, 0 * sizes, 4) == 1
