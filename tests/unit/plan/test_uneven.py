"""Plans with blocks of different sizes, zero among them: proofs and values against plain NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpccoll.algorithms import Algorithm, get_algorithm, list_algorithms
from hpccoll.errors import PlanError
from hpccoll.plan import Operation, check, replay

BLOCKED = [each for each in list_algorithms() if each.operation.has_blocks]
EXCHANGES = [each for each in BLOCKED if each.operation is Operation.ALL_TO_ALL]
# Chunks of these plans hold blocks of different ranks in different rounds.
EQUAL_BLOCKS_ONLY = {"all_to_all/bruck", "all_to_all/hierarchical", "all_to_all/hierarchical_pairwise"}
UNEVEN = [each for each in BLOCKED if each.full_name not in EQUAL_BLOCKS_ONLY]
Blocks = list[NDArray[Any]]


def draw_counts(data: st.DataObject, algorithm: Algorithm, n: int) -> tuple[int, ...]:
    length = n * n if algorithm.operation is Operation.ALL_TO_ALL else n
    return tuple(data.draw(st.lists(st.sampled_from((0, 0, 1, 2, 3, 7, 20)), min_size=length, max_size=length)))


def make_blocks(counts: tuple[int, ...]) -> Blocks:
    chance = np.random.default_rng(sum(counts))
    return [chance.integers(-(2**40), 2**40, count) for count in counts]


def cut_blocks(array: NDArray[Any], counts: tuple[int, ...]) -> Blocks:
    """Return an array as blocks of the given counts."""
    return np.split(array, np.cumsum(counts)[:-1])


def bring_and_want(operation: Operation, counts: tuple[int, ...], n: int, root: int) -> tuple[Blocks, Blocks]:
    """Every rank's input and the output that it must get, without any plan."""
    nothing = np.empty(0, np.int64)
    if operation is Operation.ALL_TO_ALL:
        blocks = make_blocks(counts)
        rows = [blocks[r * n : (r + 1) * n] for r in range(n)]
        return [np.concatenate(row) for row in rows], [np.concatenate([row[r] for row in rows]) for r in range(n)]
    if operation is Operation.REDUCE_SCATTER:
        data = [np.concatenate(make_blocks((*counts, rank)))[: sum(counts)] for rank in range(n)]
        return data, cut_blocks(np.asarray(sum(data)), counts)
    blocks = make_blocks(counts)
    whole = np.concatenate(blocks)
    if operation is Operation.SCATTER:
        return [whole if r == root else nothing for r in range(n)], blocks
    everywhere = operation is Operation.ALL_GATHER
    return blocks, [whole if everywhere or r == root else nothing for r in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", UNEVEN, ids=lambda algorithm: algorithm.full_name)
@given(data=st.data())
def test_values_and_proof_on_drawn_counts(algorithm, data):
    n, chunks = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    root = data.draw(st.integers(0, n - 1)) if "root" in algorithm.parameters else 0
    counts = draw_counts(data, algorithm, n)
    plan = algorithm.plan(n, root, chunks)
    check(plan, (counts,))
    brought, wanted = bring_and_want(algorithm.operation, counts, n, root)
    for mine, right in zip(replay(plan, counts, brought, np.add), wanted, strict=True):
        np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize("name", sorted(EQUAL_BLOCKS_ONLY))
def test_a_plan_whose_chunks_hold_blocks_of_several_ranks_is_refused(name):
    plan = get_algorithm(Operation.ALL_TO_ALL, name.partition("/")[2]).plan(3)
    check(plan, (5,))
    with pytest.raises(PlanError, match=re.escape("blocks of different sizes need a plan with 6 chunks")):
        check(plan, (tuple(range(9)),))


def test_a_transfer_between_blocks_of_different_sizes_is_refused():
    plan = get_algorithm(Operation.ALL_GATHER, "ring").plan(3)
    even = get_algorithm(Operation.ALL_TO_ALL, "pairwise").plan(3)
    check(plan, ((4, 0, 9),))
    rounds = even.rounds()
    crossed = rounds.map_regions(lambda region: region.shifted(0) if region.base == 0 else region.shifted(-1), 6)
    with pytest.raises(PlanError, match="differ in elements for some counts"):
        check(type(plan)(Operation.ALL_TO_ALL, "crossed", 3, 0, lambda _: crossed), (tuple(range(9)),))
