"""Dual root all-reduce: two binary trees of half the ranks each, whose roots exchange partial sums, in one pipeline.

A rank exchanges data with one partner per round, in a cycle of three rounds: right child, left child, parent. Each
exchange within a tree sends a chunk of the partial sum up and an earlier chunk of the result down; the two roots
exchange partial sums. After the first chunk, one more chunk is finished every three rounds. The dual root all-reduce
suits networks on which a rank communicates with one other rank at a time. In the double tree a rank exchanges data with
several ranks per round. For many chunks the double tree therefore takes a third of the rounds of the dual root, and the
busiest rank sends the message twice instead of three times.

The trees are numbered in post-order: a subtree is an interval of ranks, with its root last. The operands of a rank's
sum are, from left to right, the sum of its left subtree, that of its right subtree, and its own part. At the roots, the
sum of the tree of the lower ranks comes first. All operands are thus in rank order from 0 to n - 1, so the operation
need not commute. The two roots evaluate the same expression, so the results of all ranks agree bit for bit. Source:
Traeff, "A Doubly-pipelined, Dual-root Reduction-to-all Algorithm", arXiv 2109.12626.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Move, Op, Operation, Rounds, Span, empty_rounds

PARENT, LEFT, RIGHT = 0, 1, 2  # the rounds by which a rank exchanges with this neighbour before its parent


@dataclass(frozen=True, slots=True)
class TreePlaces:
    """The parent, the children and the depth of each rank in its tree, one of two.

    The parent of a tree's root is the root of the other tree; -1 stands for a missing child.
    """

    parent: IntArray
    left: IntArray
    right: IntArray
    depth: IntArray
    lead: IntArray  # rounds from a rank's first exchange with its parent to that of the roots: 1 or 2 per edge


def find_tree_places(rank: IntArray, n: int) -> TreePlaces:
    """Return the places of each of the ranks `rank` in the two binary trees of n ranks (n >= 2)."""
    lower = -(-n // 2)
    low, high = np.where(rank < lower, 0, lower), np.where(rank < lower, lower - 1, n - 1)
    parent = lower - 1 + n - 1 - high
    depth, lead = np.zeros_like(rank), np.zeros_like(rank)
    for _ in range(ceil_log2(lower + 1)):
        below, middle = rank < high, low + (high - low + 1) // 2
        left = below & (rank < middle)
        right = below & ~left
        parent = np.where(below, high, parent)
        depth, lead = depth + below, lead + np.where(right, RIGHT, np.where(left, LEFT, PARENT))
        low, high = np.where(right, middle, low), np.where(left, middle - 1, np.where(right, high - 1, high))
    descendants = rank - low
    left_child = np.where(descendants >= 1, low + (descendants + 1) // 2 - 1, NO_PEER)
    right_child = np.where(descendants >= 2, rank - 1, NO_PEER)
    return TreePlaces(parent, left_child, right_child, depth, lead)


@cache
def find_longest_path(size: int, left: int, right: int) -> int:
    """Return the length of the longest path from the root to a leaf in a tree of `size` ranks.

    An edge to a left child has the length `left`, to a right child the length `right`.
    """
    below = size - 1
    paths = [left + find_longest_path(below - below // 2, left, right)] if below else [0]
    return max(paths + ([right + find_longest_path(below // 2, left, right)] if below > 1 else []))


def cost(n: int, chunks: int) -> Cost:
    """S bytes in k chunks take at most 3 k + 4 log2 n steps; a rank sends 2 (n-1)/n S on average, 3 S at most."""
    if n == 1:
        return Cost(0, Fraction(0), Fraction(0))
    half = -(-n // 2)
    # No rank has a partner in the rounds for missing children in trees of one or two ranks.
    # In larger trees no rank has a partner in the round before the last if one leaf is deeper than all others.
    idle = {1: 2 * (chunks - 1), 2: chunks}.get(half, int(half & (half - 1) == 0))
    return Cost(count_rounds(n, chunks) - idle, Fraction(2 * (n - 1), n), Fraction(min(3, half)))


def count_rounds(n: int, chunks: int) -> int:
    """Return the number of rounds of the dual-root all-reduce of n >= 2 ranks.

    The first chunk goes up one tree, across to the other tree and down that tree; each later chunk adds 3 rounds.
    """
    half = -(-n // 2)
    return find_longest_path(half, LEFT, RIGHT) + 1 + find_longest_path(half, RIGHT, LEFT) + 3 * (chunks - 1)


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """The exchanges of each rank with its `peer` in the tree, once every three rounds.

    In round `start` + 3 i, chunk i moves up the tree and chunk i - `lag` down.
    """

    peer: IntArray
    start: IntArray
    lag: IntArray
    receives_up: NDArray[np.bool_]  # whether `peer` is a child
    op: IntArray
    chunks: int

    def make_step(self, t: int) -> Move:
        """Return the exchanges of all ranks in round t."""
        rising = (t - self.start) // 3
        falling = rising - self.lag
        sent, received = np.where(self.receives_up, falling, rising), np.where(self.receives_up, rising, falling)
        k = self.chunks
        dest = np.where((sent >= 0) & (sent < k), self.peer, NO_PEER)
        source = np.where((received >= 0) & (received < k), self.peer, NO_PEER)
        return Move(dest, source, Span(sent, 1, k), Span(received, 1, k), self.op)


def _make_exchanges(rank: IntArray, places: TreePlaces, longest: int, phase: int, chunks: int) -> _Exchanges:
    """Return the exchanges in the rounds t with t mod 3 == `phase`.

    Args:
        places: the neighbours and depths of the ranks in their trees.
        longest: the round in which the roots first exchange.
        phase: the value of t mod 3 in these rounds: 0, 1 or 2.
    """
    slot = (longest - places.lead - phase) % 3
    peer = np.choose(slot, [places.parent, places.left, places.right])
    up = np.where(rank < peer, Op.OWN_FIRST, Op.INCOMING_FIRST)
    op = np.where((slot == PARENT) & (places.depth > 0), Op.COPY, up)
    is_child = slot != PARENT
    return _Exchanges(peer, longest - places.lead - slot, places.depth + is_child, is_child, op, chunks)


@algorithm(Operation.ALL_REDUCE, "dual_root", cost)
def all_reduce(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Plan an all-reduce: chunks go up two trees, between the roots, and down; a rank has one partner per round."""
    if n == 1:
        return empty_rounds(chunks)
    places, longest = find_tree_places(rank, n), find_longest_path(-(-n // 2), LEFT, RIGHT)
    phases = [_make_exchanges(rank, places, longest, phase, chunks) for phase in range(3)]
    return Rounds(count_rounds(n, chunks), chunks, lambda t: [phases[t % 3].make_step(t)])
