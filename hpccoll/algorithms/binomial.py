"""Binomial trees: in round t the ranks whose number (from the root) ends in t zeros pair up at distance 2**t.

A reduce sends each rank's partial result to its partner once and then rests; a broadcast is the same tree backwards;
a gather sends the whole subtree's blocks instead of one partial result; a barrier sends nothing but the news. Ranks
are counted from the root, so any root costs the same.

Order: a parent's own comes first, its children follow from the nearest to the farthest; one rank, the root, computes
the result. Source: Thakur, Rabenseifner and Gropp, IJHPCA 2005.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, SIGNAL, Cost, IntArray, Move, Op, Operation, Region, Rounds, Span, relabel_ranks

WHOLE = Span(0, 1, 1)


def _up(rank: IntArray, n: int, root: int, region: Region, op: Op, chunks: int) -> Rounds:
    from_root = (rank - root) % n

    def at(t: int) -> list[Move]:
        distance = 1 << t
        awake = (from_root & (distance - 1)) == 0
        sends = awake & ((from_root & distance) != 0)
        receives = awake & ~sends & (from_root + distance < n)
        to = np.where(sends, from_root - distance, NO_PEER)
        frm = np.where(receives, from_root + distance, NO_PEER)
        return [Move(to, frm, region, region, op)]

    return relabel_ranks(Rounds(ceil_log2(n), chunks, at), lambda peer: (peer + root) % n)


def reduce_cost(n: int) -> Cost:
    """ceil(log2 n) steps; every rank but the root sends S once."""
    return Cost(ceil_log2(n), Fraction(n - 1, n), Fraction(min(n - 1, 1)))


def broadcast_cost(n: int) -> Cost:
    """ceil(log2 n) steps; the root sends S in each of them."""
    return Cost(ceil_log2(n), Fraction(n - 1, n), Fraction(ceil_log2(n)))


def all_reduce_cost(n: int) -> Cost:
    """2 ceil(log2 n) steps; 2 (n-1)/n S on average, ceil(log2 n) S at the root."""
    return Cost(2 * ceil_log2(n), Fraction(2 * (n - 1), n), Fraction(ceil_log2(n)))


@algorithm(Operation.REDUCE, "tree", reduce_cost)
def reduce(rank: IntArray, n: int, root: int) -> Rounds:
    """Partial results climb a binomial tree to the root."""
    return _up(rank, n, root, WHOLE, Op.OWN_FIRST, 1)


@algorithm(Operation.BROADCAST, "tree", broadcast_cost)
def broadcast(rank: IntArray, n: int, root: int) -> Rounds:
    """The binomial reduce backwards: who knows tells one more rank in every round."""
    return reduce(rank, n, root).reversed()


@algorithm(Operation.ALL_REDUCE, "tree", all_reduce_cost)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """A binomial reduce to rank 0, then a binomial broadcast."""
    return reduce(rank, n, 0) + broadcast(rank, n, 0)


def _subtree(n: int) -> list[int]:
    return [min(v & -v, n - v) for v in range(1, n)]


def gather_cost(n: int) -> Cost:
    """ceil(log2 n) steps; every rank but the root sends the blocks of its subtree once."""
    return Cost(ceil_log2(n), Fraction(sum(_subtree(n)), n * n), Fraction(max(_subtree(n), default=0), n))


def scatter_cost(n: int) -> Cost:
    """ceil(log2 n) steps; the bytes of the gather, of which the root sends (n-1)/n S."""
    return Cost(ceil_log2(n), Fraction(sum(_subtree(n)), n * n), Fraction(n - 1, n))


@algorithm(Operation.GATHER, "tree", gather_cost)
def gather(rank: IntArray, n: int, root: int) -> Rounds:
    """Each rank collects its subtree's blocks, then sends them all up at once."""
    from_root = (rank - root) % n

    def at(t: int) -> list[Move]:
        distance = 1 << t
        awake = (from_root & (distance - 1)) == 0
        sends = awake & ((from_root & distance) != 0)
        receives = awake & ~sends & (from_root + distance < n)
        mine = Span(rank, np.clip(n - from_root, 0, distance), n)
        theirs = Span(rank + distance, np.clip(n - from_root - distance, 0, distance), n)
        to = np.where(sends, (rank - distance) % n, NO_PEER)
        frm = np.where(receives, (rank + distance) % n, NO_PEER)
        return [Move(to, frm, mine, theirs)]

    return Rounds(ceil_log2(n), n, at)


@algorithm(Operation.SCATTER, "tree", scatter_cost)
def scatter(rank: IntArray, n: int, root: int) -> Rounds:
    """The binomial gather backwards: each rank keeps its block and passes on its subtree's."""
    return gather(rank, n, root).reversed()


def barrier_cost(n: int) -> Cost:
    """2 ceil(log2 n) steps, no data."""
    return Cost(2 * ceil_log2(n), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "tree", barrier_cost)
def barrier(rank: IntArray, n: int) -> Rounds:
    """The news that all have arrived climbs a binomial tree and comes down again."""
    up = _up(rank, n, 0, SIGNAL, Op.COPY, 0)
    return up + up.reversed()
