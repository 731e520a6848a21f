"""The registered algorithms: their names, the properties that they state, and the arguments that they refuse."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from hpccoll.algorithms import Algorithm, get_algorithm, list_algorithm_names, list_algorithms, make_algorithm
from hpccoll.algorithms.double_tree import children_of, height_of, parent_of
from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Cost, Operation, check

REQUIRED = {
    "all_reduce/ring",
    "all_reduce/recursive_doubling",
    "all_reduce/rabenseifner",
    "all_reduce/tree",
    "all_reduce/double_tree",
    "reduce_scatter/ring",
    "reduce_scatter/bruck",
    "all_gather/ring",
    "all_gather/bruck",
    "broadcast/tree",
    "broadcast/chain",
    "reduce/tree",
    "reduce/chain",
    "gather/tree",
    "scatter/tree",
    "all_to_all/pairwise",
    "barrier/dissemination",
    "barrier/tree",
}


def full_name(algorithm: Algorithm) -> str:
    return algorithm.full_name


def test_what_is_registered():
    found = [algorithm.full_name for algorithm in list_algorithms()]
    assert set(found) >= REQUIRED
    assert found == sorted(found)
    assert all(list_algorithm_names(operation) for operation in Operation)


@pytest.mark.parametrize("algorithm", list_algorithms(), ids=full_name)
def test_each_says_what_it_does_and_costs(algorithm):
    assert (algorithm.make_rounds.__doc__ or "").startswith("Plan a")
    assert algorithm.cost.__doc__
    assert algorithm.operation.has_root == ("root" in algorithm.parameters)


@pytest.mark.parametrize("algorithm", list_algorithms(), ids=full_name)
def test_plans_are_proven_at_their_stated_cost(algorithm):
    for n in (1, 2, 3, 4, 6, 9, 16, 17, 33):
        for chunks in (1, 4) if "chunks" in algorithm.parameters else (1,):
            plan = algorithm.plan(n, n // 2, chunks)
            assert check(plan).cost == plan.cost


@pytest.mark.parametrize(
    ("name", "n", "chunks", "cost"),
    [
        # Figures of the literature, written out: 2(p-1) and 2S(p-1)/p for the ring, and so on.
        ("all_reduce/ring", 8, 1, Cost(14, Fraction(14, 8), Fraction(14, 8))),
        ("all_reduce/recursive_doubling", 8, 1, Cost(3, Fraction(3), Fraction(3))),
        ("all_reduce/recursive_doubling", 6, 1, Cost(4, Fraction(4 * 2 + 2 * 2, 6), Fraction(3))),
        ("all_reduce/rabenseifner", 8, 1, Cost(6, Fraction(14, 8), Fraction(14, 8))),
        ("all_reduce/tree", 8, 1, Cost(6, Fraction(14, 8), Fraction(3))),
        ("all_reduce/double_tree", 8, 5, Cost(2 * 3 + 5 - 1, Fraction(14, 8), Fraction(2))),
        ("reduce_scatter/bruck", 6, 1, Cost(3, Fraction(5, 6), Fraction(5, 6))),
        ("broadcast/chain", 6, 4, Cost(4 + 6 - 2, Fraction(5, 6), Fraction(1))),
        ("gather/tree", 8, 1, Cost(3, Fraction(4 + 2 * 2 + 4, 64), Fraction(4, 8))),
        ("scatter/tree", 8, 1, Cost(3, Fraction(12, 64), Fraction(7, 8))),
        ("all_to_all/pairwise", 8, 1, Cost(7, Fraction(7, 8), Fraction(7, 8))),
        ("barrier/dissemination", 9, 1, Cost(4, Fraction(0), Fraction(0))),
    ],
)
def test_costs_are_those_of_the_literature(name, n, chunks, cost):
    operation, _, algorithm = name.partition("/")
    assert check(get_algorithm(Operation.from_name(operation), algorithm).plan(n, 0, chunks)).cost == cost


@pytest.mark.parametrize("n", range(2, 40))
def test_both_trees_of_the_double_tree_are_trees_in_which_a_rank_is_inner_once(n):
    rank = np.arange(n)
    parent, (left, right) = parent_of(rank, n), children_of(rank, n)
    for child in (left, right):
        has = child >= 0
        np.testing.assert_array_equal(parent[child[has]], rank[has])
        assert (height_of(child[has], n) < height_of(rank[has], n)).all()
    assert sorted(np.concatenate([left[left >= 0], right[right >= 0]]).tolist()) == list(range(1, n))
    inner = (left >= 0) | (right >= 0)
    # Rank 0, the root, has one child only; it is in its place in both trees where n is odd and shifted to 1.
    other = inner[::-1] if n % 2 == 0 else np.roll(inner, 1)
    both = inner & other
    both[[0, 1 if n % 2 else n - 1]] = False
    assert not both.any()


@pytest.mark.parametrize(("ranks", "root", "chunks"), [(0, 0, 1), (4, 4, 1), (4, -1, 1), (4, 0, 0)])
def test_plans_that_cannot_be(ranks, root, chunks):
    with pytest.raises(UsageError, match="broadcast/chain cannot run with ranks="):
        get_algorithm(Operation.BROADCAST, "chain").plan(ranks, root, chunks)


def test_unknown_names_list_the_valid_ones():
    with pytest.raises(UnknownNameError, match="choose one of: bine, chain, double_tree, dual_root, hierarchical, "):
        get_algorithm(Operation.ALL_REDUCE, "rings")
    with pytest.raises(UnknownNameError, match=r"'allreduc'; did you mean all_reduce.*\? choose one of: all"):
        Operation.from_name("allreduc")


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("allreduce", Operation.ALL_REDUCE),
        ("Allreduce", Operation.ALL_REDUCE),
        ("bcast", Operation.BROADCAST),
        ("reduce_scatter_block", Operation.REDUCE_SCATTER),
        ("alltoall", Operation.ALL_TO_ALL),
        ("barrier", Operation.BARRIER),
    ],
)
def test_operations_are_found_by_their_names_in_mpi_and_nccl_tests(name, operation):
    assert Operation.from_name(name) is operation


def test_an_algorithm_of_ones_own_needs_no_registration():
    ring = get_algorithm(Operation.ALL_REDUCE, "ring")
    mine = make_algorithm(Operation.ALL_REDUCE, "mine", ring.make_rounds, ring.cost)
    assert check(mine.plan(4)).rounds == 6
    assert "mine" not in list_algorithm_names(Operation.ALL_REDUCE)
