"""Double binary trees: two trees, each for half of the message, in which at most one rank has children in both.

The first tree is an in-order binary tree over the ranks: a rank's height is its number of trailing zero bits, so half
of the ranks are leaves. The second tree is the same tree over mirrored ranks (n even) or over ranks shifted by one (n
odd). The inner ranks of the first tree, except rank 0 for odd n, are leaves of the second tree. The message is cut into
2k chunks, k (`chunks`) per tree. A rank of height h (0 for leaves) sends chunk c up in round c + h; each chunk moves
down as soon as the root has reduced it. The links of both trees are busy in both directions at once, and the all-reduce
takes 2 ceil(log2 n) + k - 1 rounds.

In the broadcast the root sends to two binary trees of the n - 1 other ranks. The second tree of the broadcast is the
first over mirrored (n odd) or shifted ranks (n even), so every rank receives the message once and sends at most S bytes
(the message size). The reduce moves partial sums up the two trees of the broadcast. In the paper by Sanders, Speck and
Traeff a rank sends one chunk per step, in about twice as many steps; in these plans a rank sends to both children in
one step.

A parent reduces its own part first, then its children's chunks in order of arrival (the left child's first if both
arrive in one round). The root of a tree computes the result of each of the tree's chunks. Sources: Sanders, Speck and
Traeff, Parallel Computing 2009; NCCL 2.4 for the shape of the trees.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from hpccoll.algorithms.chain import mirror_chunks
from hpccoll.algorithms.powers_of_two import ceil_log2, floor_power_of_two
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import (
    NO_PEER,
    Cost,
    IntArray,
    Move,
    Op,
    Operation,
    Rounds,
    Span,
    empty_rounds,
    overlay,
    relabel_ranks,
)


def parent_of(rank: IntArray, n: int) -> IntArray:
    """Return each rank's parent in the first tree, -1 for rank 0, the root (n >= 2)."""
    lowest = rank & -rank
    up = (rank ^ lowest) | (lowest << 1)
    return np.where(rank == 0, NO_PEER, np.where(up >= n, rank ^ lowest, up))


def children_of(rank: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """Return each rank's left and right child in the first tree, -1 for a missing child (n >= 2)."""
    half = (rank & -rank) >> 1
    left = np.where(half > 0, rank - half, NO_PEER)
    offset = half
    for _ in range(ceil_log2(n)):
        beyond = rank + offset >= n
        if not beyond.any():
            break
        offset = offset >> beyond
    right = np.where((offset > 0) & (rank + offset < n), rank + offset, NO_PEER)
    return left, np.where(rank == 0, floor_power_of_two(n - 1), right)


def height_of(rank: IntArray, n: int) -> IntArray:
    """Return each rank's height in the first tree, its number of trailing zero bits; ceil(log2 n) for rank 0."""
    lowest = np.where(rank == 0, 1 << ceil_log2(n), rank & -rank)
    return np.asarray(np.log2(lowest), np.int64)


def reduce_up_first_tree(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Return the rounds of a pipelined reduce up the first of the two trees to rank 0 (n >= 2).

    The reduce takes chunks + ceil(log2 n) - 1 rounds.
    """
    parent, children = parent_of(rank, n), children_of(rank, n)
    height = height_of(rank, n)
    is_left = children_of(np.maximum(parent, 0), n)[0] == rank
    child_heights = [height_of(np.maximum(child, 0), n) for child in children]

    def send_to_parent_round(t: int) -> list[Move]:
        """Return round t: each rank sends a chunk to its parent, and reduces a chunk from each child."""
        sent, moves = t - height, []
        sends = (parent >= 0) & (sent >= 0) & (sent < chunks)
        for child, child_height, is_this_child in zip(children, child_heights, (is_left, ~is_left), strict=True):
            received = t - child_height
            source = np.where((child >= 0) & (received >= 0) & (received < chunks), child, NO_PEER)
            dest = np.where(sends & is_this_child, parent, NO_PEER)
            moves.append(Move(dest, source, Span(sent, 1, chunks), Span(received, 1, chunks), Op.OWN_FIRST))
        return moves

    return Rounds(chunks + ceil_log2(n) - 1, chunks, send_to_parent_round)


def broadcast_down_first_tree(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Return the rounds of a pipelined broadcast from rank 0 down the first of the two trees (n >= 2).

    The broadcast takes as many rounds as `reduce_up_first_tree`.
    """
    return _send_down(reduce_up_first_tree(rank, n, chunks))


def _send_down(reduce_up: Rounds) -> Rounds:
    """Return the rounds of a pipelined broadcast down a tree, made from those of the reduce up the same tree."""
    return mirror_chunks(reduce_up.reversed())


def _all_reduce_on_first_tree(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Return the rounds of an all-reduce on the first tree: reduce and broadcast, overlapped chunk by chunk."""
    up = reduce_up_first_tree(rank, n, chunks)
    return overlay(up, _send_down(up).delayed(ceil_log2(n)))


def all_reduce_cost(n: int, chunks: int) -> Cost:
    """S bytes in 2 k chunks take 2 ceil(log2 n) + k - 1 steps; a rank sends 2 (n-1)/n S on average, 2 S at most."""
    steps = 2 * ceil_log2(n) + chunks - 1 if n > 1 else 0
    return Cost(steps, Fraction(2 * (n - 1), n), Fraction(min(n, 4), 2) if n > 1 else Fraction(0))


@algorithm(Operation.ALL_REDUCE, "double_tree", all_reduce_cost)
def all_reduce(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Plan an all-reduce: chunks go up and down two complementary binary trees at once."""
    if n == 1:
        return empty_rounds(2 * chunks)
    first = _all_reduce_on_first_tree(rank, n, chunks)
    if n % 2 == 0:
        second = relabel_ranks(_all_reduce_on_first_tree(n - 1 - rank, n, chunks), lambda peer: n - 1 - peer)
    else:
        second = relabel_ranks(_all_reduce_on_first_tree((rank - 1) % n, n, chunks), lambda peer: (peer + 1) % n)
    return overlay(first.shifted(0, 2 * chunks), second.shifted(chunks, 2 * chunks))


def broadcast_cost(n: int, chunks: int) -> Cost:
    """S bytes in 2 k chunks take k + ceil(log2 n) - 1 steps; a rank sends (n-1)/n S on average, S at most."""
    steps = chunks + ceil_log2(n) - 1 if n > 1 else 0
    return Cost(steps, Fraction(n - 1, n), Fraction(min(n - 1, 1)))


def _second_place(place: IntArray, n: int) -> IntArray:
    """Return the positions of ranks in the second broadcast tree.

    `place` has the positions of the ranks in the first tree, where 0 is the root.
    """
    moved = n - place if n % 2 else place % (n - 1) + 1
    return np.where(place == 0, 0, moved)


def _first_place(second: IntArray, n: int) -> IntArray:
    """Return the positions of ranks in the first broadcast tree, where 0 is the root.

    `second` has the positions of the ranks in the second tree.
    """
    moved = n - second if n % 2 else (second - 2) % (n - 1) + 1
    return np.where(second == 0, 0, moved)


def _overlay_two_trees(
    make_tree: Callable[[IntArray, int, int], Rounds], rank: IntArray, n: int, root: int, chunks: int
) -> Rounds:
    """Return the rounds of `make_tree` on both trees, which run at the same time, each for half of the message.

    `make_tree` returns the rounds of one tree, as `make_tree(position in the tree, n, chunks)`.
    """
    if n == 1:
        return empty_rounds(2 * chunks)
    place = (rank - root) % n
    first = relabel_ranks(make_tree(place, n, chunks), lambda peer: (peer + root) % n)
    other_tree = make_tree(_second_place(place, n), n, chunks)
    second = relabel_ranks(other_tree, lambda peer: (_first_place(peer, n) + root) % n)
    return overlay(first.shifted(0, 2 * chunks), second.shifted(chunks, 2 * chunks))


@algorithm(Operation.BROADCAST, "double_tree", broadcast_cost)
def broadcast(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Plan a broadcast: each half of the message goes down its own tree, chunk by chunk."""
    return _overlay_two_trees(broadcast_down_first_tree, rank, n, root, chunks)


@algorithm(Operation.REDUCE, "double_tree", broadcast_cost)
def reduce(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Plan a reduce: partial sums of each half of the message move up its own tree, chunk by chunk."""
    return _overlay_two_trees(reduce_up_first_tree, rank, n, root, chunks)
