"""The two-tree broadcast: the root feeds two trees of all other ranks, in which each rank is inner in at most one.

Each tree carries one half of the message, in k chunks. Without the root the first tree of `double_tree` is an in-order
tree over n - 1 ranks in which every other rank is a leaf; mirrored (n odd) or shifted by one (n even) it makes inner
ranks of the leaves, so that every rank receives S in all and sends S at most. The reduce is the way up instead of down.

The paper colours the edges so that a rank sends one chunk a step, in about twice as many steps; here a round holds what
a rank sends to both children, as in this project's double-tree all-reduce. Order of the reduce: a parent's own first,
then the child whose chunk arrives first, the left one before the right one; the root computes the result. Source:
Sanders, Speck and Traeff, Parallel Computing 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.double_tree import climb, descend
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, IntArray, Operation, Rounds, empty_rounds, overlay, relabel_ranks


def cost(n: int, chunks: int) -> Cost:
    """k + ceil(log2 n) - 1 steps, in 2 k chunks; (n-1)/n S on average, S at most."""
    steps = chunks + ceil_log2(n) - 1 if n > 1 else 0
    return Cost(steps, Fraction(n - 1, n), Fraction(min(n - 1, 1)))


def _other_place(place: IntArray, n: int) -> IntArray:
    """Return where a place of the first tree stands in the second; the root stays."""
    moved = n - place if n % 2 else place % (n - 1) + 1
    return np.where(place == 0, 0, moved)


def _first_place(other: IntArray, n: int) -> IntArray:
    """Return the place that `_other_place` moves to `other`."""
    moved = n - other if n % 2 else (other - 2) % (n - 1) + 1
    return np.where(other == 0, 0, moved)


def _two(tree: Callable[[IntArray, int, int], Rounds], rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    if n == 1:
        return empty_rounds(2 * chunks)
    place = (rank - root) % n
    first = relabel_ranks(tree(place, n, chunks), lambda peer: (peer + root) % n)
    second = relabel_ranks(tree(_other_place(place, n), n, chunks), lambda other: (_first_place(other, n) + root) % n)
    return overlay(first.shifted(0, 2 * chunks), second.shifted(chunks, 2 * chunks))


@algorithm(Operation.BROADCAST, "double_tree", cost)
def broadcast(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Each half of the message goes down its own tree, chunk by chunk."""
    return _two(descend, rank, n, root, chunks)


@algorithm(Operation.REDUCE, "double_tree", cost)
def reduce(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Partial sums of each half climb their own tree, chunk by chunk."""
    return _two(climb, rank, n, root, chunks)
