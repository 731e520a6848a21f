"""The double binary tree: two trees in which every rank is inner in at most one, each carrying half of the message.

The first tree is an in-order binary tree over the ranks: a rank's height is the number of trailing zeros, so half of
the ranks are leaves. The second is the same tree over the ranks mirrored (n even) or shifted by one (n odd), which
makes leaves of inner ranks. The message is cut into 2k chunks, k a tree; chunk c crosses the edge above a rank of
height h in round c + h and comes down as soon as the root has it, so both directions and both trees are busy at once:
2 ceil(log2 n) + k - 1 rounds.

Order: a parent's own first, then its left child's, then its right child's where both arrive in one round, the lower
one first otherwise; the tree's root computes each chunk. Sources: Sanders, Speck and Traeff, Parallel Computing
2009; NCCL 2.4's shape of the trees.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.bits import ceil_log2, floor_power
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import (
    NO_PEER,
    Cost,
    IntArray,
    Move,
    Op,
    Operation,
    Region,
    Rounds,
    Span,
    empty_rounds,
    overlay,
    relabel_ranks,
)


def parent_of(rank: IntArray, n: int) -> IntArray:
    """Return each rank's parent in the first tree, -1 for its root, rank 0 (n >= 2)."""
    lowest = rank & -rank
    up = (rank ^ lowest) | (lowest << 1)
    return np.where(rank == 0, NO_PEER, np.where(up >= n, rank ^ lowest, up))


def children_of(rank: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """Return each rank's left and right child in the first tree, -1 where there is none (n >= 2)."""
    half = (rank & -rank) >> 1
    left = np.where(half > 0, rank - half, NO_PEER)
    offset = half
    for _ in range(ceil_log2(n)):
        offset = np.where(rank + offset >= n, offset >> 1, offset)
    right = np.where((offset > 0) & (rank + offset < n), rank + offset, NO_PEER)
    return left, np.where(rank == 0, floor_power(n - 1), right)


def height_of(rank: IntArray, n: int) -> IntArray:
    """Return the trailing zeros of each rank: 0 for leaves, ceil(log2 n) for rank 0."""
    lowest = np.where(rank == 0, 1 << ceil_log2(n), rank & -rank)
    return np.asarray(np.log2(lowest), np.int64)


def climb(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Reduce up the first tree to rank 0, chunk by chunk: chunks + ceil(log2 n) - 1 rounds (n >= 2)."""
    parent, (left, right) = parent_of(rank, n), children_of(rank, n)
    height = height_of(rank, n)
    is_left = children_of(np.maximum(parent, 0), n)[0] == rank
    below = [(child, height_of(np.maximum(child, 0), n)) for child in (left, right)]

    def at(t: int) -> list[Move]:
        out, moves = t - height, []
        sends = (parent >= 0) & (out >= 0) & (out < chunks)
        for (child, low), mine in zip(below, (is_left, ~is_left), strict=True):
            into = t - low
            frm = np.where((child >= 0) & (into >= 0) & (into < chunks), child, NO_PEER)
            to = np.where(sends & mine, parent, NO_PEER)
            moves.append(Move(to, frm, Span(out, 1, chunks), Span(into, 1, chunks), Op.OWN_FIRST))
        return moves

    return Rounds(chunks + ceil_log2(n) - 1, chunks, at)


def descend(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Broadcast down the first tree from rank 0, chunk by chunk: as many rounds as `climb`."""

    def flip(region: Region) -> Region:
        return Span(chunks - 1 - region.first, region.count, region.mod) if isinstance(region, Span) else region

    # Backwards the last chunk would come first; flipped, chunk c comes down in the order in which it went up.
    return climb(rank, n, chunks).reversed().map_regions(flip, chunks)


def _one_tree(rank: IntArray, n: int, chunks: int) -> Rounds:
    return overlay(climb(rank, n, chunks), descend(rank, n, chunks).delayed(ceil_log2(n)))


def most_sent(n: int) -> Fraction:
    """What the busiest rank sends, in S: with two children three halves in one tree, a half as a leaf of the other."""
    return Fraction(min(n, 4), 2) if n > 1 else Fraction(0)


def cost(n: int, chunks: int) -> Cost:
    """2 ceil(log2 n) + k - 1 steps; 2 (n-1)/n S on average, 2 S at most."""
    steps = 2 * ceil_log2(n) + chunks - 1 if n > 1 else 0
    return Cost(steps, Fraction(2 * (n - 1), n), most_sent(n))


@algorithm(Operation.ALL_REDUCE, "double_tree", cost)
def all_reduce(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Up and down two complementary binary trees at once, chunk by chunk."""
    if n == 1:
        return empty_rounds(2 * chunks)
    first = _one_tree(rank, n, chunks)
    if n % 2 == 0:
        second = relabel_ranks(_one_tree(n - 1 - rank, n, chunks), lambda peer: n - 1 - peer)
    else:
        second = relabel_ranks(_one_tree((rank - 1) % n, n, chunks), lambda peer: (peer + 1) % n)
    return overlay(first.shifted(0, 2 * chunks), second.shifted(chunks, 2 * chunks))
