"""Every pair occurs once, in the fewest rounds, and each node in at most one pair per round."""

from __future__ import annotations

from itertools import combinations

import pytest

from hpccoll.preflight.pair_schedule import schedule_pairs, split_by_machine


@pytest.mark.parametrize("nodes", [*range(2, 34), 100, 101])
def test_all_pairs_meet_once_in_the_fewest_rounds(nodes):
    found = schedule_pairs(nodes)
    assert len(found) == (nodes - 1 if nodes % 2 == 0 else nodes)
    assert sorted(pair for pairs in found for pair in pairs) == list(combinations(range(nodes), 2))
    for pairs in found:
        busy = [node for pair in pairs for node in pair]
        assert len(set(busy)) == len(busy) == nodes - nodes % 2


@pytest.mark.parametrize("nodes", [0, 1])
def test_too_few_nodes_have_no_pairs(nodes):
    assert [pair for pairs in schedule_pairs(nodes) for pair in pairs] == []


def test_pairs_of_different_machines_run_concurrently():
    pairs = schedule_pairs(8)[0]
    assert split_by_machine(pairs, [f"kernel {node}" for node in range(8)]) == [pairs]


def test_pairs_of_one_machine_run_in_turn():
    assert split_by_machine(schedule_pairs(4)[0], ["one"] * 4) == [[pair] for pair in schedule_pairs(4)[0]]
    assert split_by_machine([(0,), (1,), (2,), (3,)], ["a", "a", "b", "c"]) == [[(0,), (2,), (3,)], [(1,)]]
