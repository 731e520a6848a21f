"""Dual root: two binary trees of half the ranks each, whose roots exchange; chunks go up and down in one pipeline.

A rank exchanges with one partner a round, in a cycle of three: right child, left child, parent. Each exchange takes a
chunk of the partial sum up and an earlier chunk of the result down, and the two roots exchange partial sums instead,
so that after the first chunk has gone up and come down a chunk is finished every three rounds. It suits networks on
which a rank talks to one other at a time; where it may talk to several at once, the double tree is faster.

The trees are numbered in post-order: a subtree is an interval of ranks, with its root last. Order: left, right, own,
and the lower tree before the upper: rank order from 0 to n - 1, so the operation need not commute; both roots compute
the same expression. Source: Traeff, "A Doubly-pipelined, Dual-root Reduction-to-all Algorithm", arXiv 2109.12626.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Move, Op, Operation, Rounds, Span, empty_rounds

PARENT, LEFT, RIGHT = 0, 1, 2  # how many rounds before a rank meets its parent it meets this one


@dataclass(frozen=True, slots=True)
class Family:
    """Each rank's place in its tree, arrays over ranks; -1 where there is none. The parent of a root is the other."""

    parent: IntArray
    left: IntArray
    right: IntArray
    depth: IntArray
    late: IntArray  # rounds that a rank meets its parent before the roots meet: left edges count 1, right edges 2
    root: IntArray  # the root of the rank's own tree


def family(rank: IntArray, n: int) -> Family:
    """Return where each rank stands (n >= 2): a descent from both roots at once, halving the intervals."""
    lower = -(-n // 2)
    low, high = np.where(rank < lower, 0, lower), np.where(rank < lower, lower - 1, n - 1)
    root, parent = high, lower - 1 + n - 1 - high
    depth, late = np.zeros_like(rank), np.zeros_like(rank)
    for _ in range(ceil_log2(lower + 1)):
        below, middle = rank < high, low + (high - low + 1) // 2
        left = below & (rank < middle)
        right = below & ~left
        parent = np.where(below, high, parent)
        depth, late = depth + below, late + np.where(right, RIGHT, np.where(left, LEFT, PARENT))
        low, high = np.where(right, middle, low), np.where(left, middle - 1, np.where(right, high - 1, high))
    under = rank - low
    left_child = np.where(under >= 1, low + (under + 1) // 2 - 1, NO_PEER)
    return Family(parent, left_child, np.where(under >= 2, rank - 1, NO_PEER), depth, late, root)


@cache
def deepest(size: int, left: int, right: int) -> int:
    """Return the length of the longest way down a tree of `size` ranks whose edges are so long."""
    below = size - 1
    ways = [left + deepest(below - below // 2, left, right)] if below else [0]
    return max(ways + ([right + deepest(below // 2, left, right)] if below > 1 else []))


def cost(n: int, chunks: int) -> Cost:
    """3 k + at most 4 log2 n steps; 2 (n-1)/n S on average, 3 S at most (one S a neighbour)."""
    if n == 1:
        return Cost(0, Fraction(0), Fraction(0))
    half = -(-n // 2)
    # Rounds in which nobody has a partner: those of children that two ranks, or four, do not have, and the one before
    # the last where one leaf is deeper than all others.
    idle = {1: 2 * (chunks - 1), 2: chunks}.get(half, int(half & (half - 1) == 0))
    return Cost(rounds(n, chunks) - idle, Fraction(2 * (n - 1), n), Fraction(min(3, half)))


def rounds(n: int, chunks: int) -> int:
    """Return the rounds (n >= 2): the first chunk's way up, across and down, and three for each other chunk."""
    half = -(-n // 2)
    return deepest(half, LEFT, RIGHT) + 1 + deepest(half, RIGHT, LEFT) + 3 * (chunks - 1)


@dataclass(frozen=True, slots=True)
class _Exchanges:
    """With whom each rank exchanges in every third round: chunk i up and chunk i - lag down in round start + 3 i."""

    peer: IntArray
    start: IntArray
    lag: IntArray
    from_above: NDArray[np.bool_]
    op: IntArray
    chunks: int

    def at(self, t: int) -> Move:
        rising = (t - self.start) // 3
        falling = rising - self.lag
        out, into = np.where(self.from_above, falling, rising), np.where(self.from_above, rising, falling)
        k = self.chunks
        to = np.where((out >= 0) & (out < k), self.peer, NO_PEER)
        frm = np.where((into >= 0) & (into < k), self.peer, NO_PEER)
        return Move(to, frm, Span(out, 1, k), Span(into, 1, k), self.op)


def _exchanges(rank: IntArray, kin: Family, first: int, phase: int, chunks: int) -> _Exchanges:
    slot = (first - kin.late - phase) % 3
    peer = np.choose(slot, [kin.parent, kin.left, kin.right])
    up = np.where(rank < peer, Op.OWN_FIRST, Op.INCOMING_FIRST)
    op = np.where((slot == PARENT) & (kin.depth > 0), Op.COPY, up)
    return _Exchanges(peer, first - kin.late - slot, kin.depth + (slot != PARENT), slot != PARENT, op, chunks)


@algorithm(Operation.ALL_REDUCE, "dual_root", cost)
def all_reduce(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Up two trees, across between their roots, and down again, chunk by chunk, one partner a round."""
    if n == 1:
        return empty_rounds(chunks)
    kin, first = family(rank, n), deepest(-(-n // 2), LEFT, RIGHT)
    phases = [_exchanges(rank, kin, first, phase, chunks) for phase in range(3)]
    return Rounds(rounds(n, chunks), chunks, lambda t: [phases[t % 3].at(t)])
