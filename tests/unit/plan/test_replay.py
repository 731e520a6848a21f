"""The serial executor against plain NumPy: values for any count, and the order of reduction that each plan states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpccoll.algorithms import Algorithm, get_algorithm, list_algorithms
from hpccoll.plan import Operation, Plan, replay
from tests.depth import keep, mark_full

COUNTS = (0, 1, 2, 7, 13)
Arrays = list[NDArray[Any]]


def inputs(plan: Plan, count: int) -> Arrays:
    """Return the input of every rank: `count` elements, or as many per block."""
    n, chance = plan.ranks, np.random.default_rng(count)
    elements = {Operation.REDUCE_SCATTER: n, Operation.ALL_TO_ALL: n, Operation.SCATTER: n}.get(plan.operation, 1)
    brings = [r == plan.root or plan.operation not in (Operation.BROADCAST, Operation.SCATTER) for r in range(n)]
    return [chance.integers(-(2**40), 2**40, elements * count if there else 0) for there in brings]


def plainly(plan: Plan, data: Arrays, count: int) -> Arrays:
    """Return the expected result of every rank, computed without any plan."""
    n, nothing = plan.ranks, np.empty(0, np.int64)
    ranks = range(n)
    block = [slice(r * count, (r + 1) * count) for r in ranks]
    total = np.asarray(sum(data)) if plan.operation.reduces else nothing
    match plan.operation:
        case Operation.ALL_REDUCE:
            return [total] * n
        case Operation.REDUCE:
            return [total if r == plan.root else nothing for r in ranks]
        case Operation.SCAN:
            return [np.asarray(sum(data[: r + 1])) for r in ranks]
        case Operation.EXSCAN:
            return [np.asarray(sum(data[:r])) if r else nothing for r in ranks]
        case Operation.REDUCE_SCATTER:
            return [total[block[r]] for r in ranks]
        case Operation.ALL_GATHER:
            return [np.concatenate(data)] * n
        case Operation.GATHER:
            return [np.concatenate(data) if r == plan.root else nothing for r in ranks]
        case Operation.BROADCAST:
            return [data[plan.root]] * n
        case Operation.SCATTER:
            return [data[plan.root][block[r]] for r in ranks]
        case Operation.ALL_TO_ALL:
            return [np.concatenate([data[frm][block[r]] for frm in ranks]) for r in ranks]
    return [nothing] * n


def get_name(algorithm: Algorithm) -> str:
    """Return the full name of an algorithm."""
    return algorithm.full_name


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, mark_full(4), mark_full(13)])
@pytest.mark.parametrize("algorithm", list_algorithms(), ids=get_name)
def test_values_are_those_of_plain_numpy(algorithm, n):
    for root in {0, n // 2, n - 1} if "root" in algorithm.parameters else {0}:
        for count in COUNTS:
            plan = algorithm.plan(n, root, chunks=3)
            data = inputs(plan, count)
            kept = [array.copy() for array in data]
            for mine, right in zip(replay(plan, count, data, np.add), plainly(plan, data, count), strict=True):
                np.testing.assert_array_equal(mine, right)
            for array, before in zip(data, kept, strict=True):
                np.testing.assert_array_equal(array, before)


@given(data=st.data())
def test_values_on_drawn_ranks_roots_counts_and_chunks(data):
    algorithm = data.draw(st.sampled_from(list_algorithms()))
    n, count, chunks = data.draw(st.integers(1, 17)), data.draw(st.integers(0, 40)), data.draw(st.integers(1, 9))
    plan = algorithm.plan(n, data.draw(st.integers(0, n - 1)) if "root" in algorithm.parameters else 0, chunks)
    given_data = inputs(plan, count)
    for mine, right in zip(replay(plan, count, given_data, np.add), plainly(plan, given_data, count), strict=True):
        np.testing.assert_array_equal(mine, right)


def test_a_barrier_moves_nothing_and_needs_no_input():
    assert [array.size for array in replay(get_algorithm(Operation.BARRIER, "tree").plan(3), 5, [None] * 3)] == [
        0,
        0,
        0,
    ]


def write_expression(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Return the reduction of two symbolic operands, element by element, in brackets."""
    return np.array([f"({a}{b})" for a, b in zip(left, right, strict=True)], object)


def expressions(plan: Plan, chunk: int = 0) -> list[str]:
    """Return the order in which each rank reduces chunk `chunk`, with ranks as letters and one element per chunk."""
    n, chunks = plan.ranks, plan.moves().chunks
    count = 1 if plan.operation is Operation.REDUCE_SCATTER else chunks
    letters = [np.array([chr(ord("a") + rank)] * chunks, object) for rank in range(n)]
    results = replay(plan, count, letters, write_expression)
    wanted = plan.operation.output_mask(np.arange(n), n, chunks, plan.root)
    return [str(array[mask[:chunk].sum()]) for array, mask in zip(results, wanted, strict=True) if mask[chunk]]


@pytest.mark.parametrize(
    ("name", "n", "chunk", "expression"),
    [
        # Chunk c is c (+) (c-1 (+) (... (+) (c+2 (+) c+1))).
        ("all_reduce/ring", 4, 0, "(a(d(cb)))"),
        ("all_reduce/ring", 5, 2, "(c(b(a(ed))))"),
        ("reduce_scatter/ring", 4, 1, "(b(a(dc)))"),
        # The lower rank's operand first, at both partners; extra ranks after their proxies.
        ("all_reduce/recursive_doubling", 4, 0, "((ab)(cd))"),
        ("all_reduce/recursive_doubling", 6, 0, "(((ae)(bf))(cd))"),
        # The receiver's own first, the far half first.
        ("all_reduce/rabenseifner", 4, 0, "((ac)(bd))"),
        ("all_reduce/rabenseifner", 4, 3, "((db)(ca))"),
        ("all_reduce/rabenseifner", 5, 0, "(((ae)c)(bd))"),
        # A parent's own first, then its children from the nearest to the farthest.
        ("all_reduce/tree", 8, 0, "(((ab)(cd))((ef)(gh)))"),
        ("reduce/tree", 5, 0, "(((ab)(cd))e)"),
        # Each rank's own first, then all from further down the line; the root is its head.
        ("reduce/chain", 4, 0, "(a(b(cd)))"),
        # The receiver's own first, then the partial sum from the rank 2**t below, the farthest first.
        ("reduce_scatter/bruck", 4, 0, "((ac)(db))"),
        ("reduce_scatter/bruck", 3, 1, "((bc)a)"),
        # A parent's own first, then left and right child; the second tree is mirrored where n is even.
        ("all_reduce/double_tree", 4, 0, "(a((cb)d))"),
        ("all_reduce/double_tree", 4, 1, "(d((bc)a))"),
        # ... and shifted by one where n is odd.
        ("all_reduce/double_tree", 5, 0, "(a(e((cb)d)))"),
        ("all_reduce/double_tree", 5, 1, "(b(a((dc)e)))"),
    ],
)
def test_the_order_of_reduction_is_the_one_that_is_stated(name, n, chunk, expression):
    operation, _, algorithm = name.partition("/")
    found = expressions(get_algorithm(Operation.from_name(operation), algorithm).plan(n), chunk)
    assert set(found) == {expression}


@pytest.mark.parametrize("n", keep(range(1, 18), {1, 2, 3, 5, 8, 13}.__contains__))
@pytest.mark.parametrize(
    "algorithm", [a for a in list_algorithms() if a.operation is Operation.ALL_REDUCE], ids=get_name
)
def test_every_rank_reduces_in_the_same_order_with_every_operand_once(algorithm, n):
    plan = algorithm.plan(n, chunks=2)
    for chunk in range(plan.moves().chunks):
        found = expressions(plan, chunk)
        assert len(found) == n
        assert len(set(found)) == 1
        assert sorted(letter for letter in found[0] if letter.isalpha()) == [chr(ord("a") + rank) for rank in range(n)]


@pytest.mark.parametrize(
    "algorithm", [a for a in list_algorithms() if a.operation is Operation.ALL_REDUCE], ids=get_name
)
def test_floats_are_bit_equal_on_all_ranks(algorithm):
    plan = algorithm.plan(7, chunks=2)
    data = [np.random.default_rng(rank).normal(size=101).astype(np.float32) for rank in range(7)]
    first, *others = replay(plan, 101, data, np.add)
    assert all(other.tobytes() == first.tobytes() for other in others)
    np.testing.assert_allclose(first, np.sum(data, axis=0, dtype=np.float64), rtol=1e-4, atol=1e-5)
