"""Binomial trees: in round t, ranks whose number (relative to the root) ends in t zero bits pair up at distance 2**t.

In a reduce each rank but the root sends its partial result to its parent once. The broadcast runs the rounds of the
reduce backwards. In a gather each rank sends the blocks of its whole subtree. The barrier is a reduce and a broadcast
of empty messages. The cost of a binomial tree does not depend on the root.

A parent reduces its own operand first, then those of its children, from the nearest to the farthest. In a reduce the
root computes the final result. Source: Thakur, Rabenseifner and Gropp, IJHPCA 2005.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, SIGNAL, Cost, IntArray, Move, Op, Operation, Region, Rounds, Span, relabel_ranks

WHOLE = Span(0, 1, 1)


def _send_up_tree(rank: IntArray, n: int, root: int, region: Region, op: Op, chunks: int) -> Rounds:
    """Return the rounds in which every rank but the root sends `region` to its parent in a binomial tree, leaves first.

    `region` has the chunks that a rank sends and its parent receives. `op` states whether the parent copies the
    received chunks over its own, or reduces them with its own.
    """
    place = (rank - root) % n  # the rank relative to the root

    def send_to_parent_round(t: int) -> list[Move]:
        """Return round t: ranks whose subtree has 2**t ranks send to their parents in the tree."""
        distance = 1 << t
        active = (place & (distance - 1)) == 0
        sends = active & ((place & distance) != 0)
        receives = active & ~sends & (place + distance < n)
        dest = np.where(sends, place - distance, NO_PEER)
        source = np.where(receives, place + distance, NO_PEER)
        return [Move(dest, source, region, region, op)]

    return relabel_ranks(Rounds(ceil_log2(n), chunks, send_to_parent_round), lambda peer: (peer + root) % n)


def reduce_cost(n: int) -> Cost:
    """A message of S bytes takes ceil(log2 n) steps; every rank but the root sends S once."""
    return Cost(ceil_log2(n), Fraction(n - 1, n), Fraction(min(n - 1, 1)))


def broadcast_cost(n: int) -> Cost:
    """A message of S bytes takes ceil(log2 n) steps; the root sends S in each step."""
    return Cost(ceil_log2(n), Fraction(n - 1, n), Fraction(ceil_log2(n)))


def all_reduce_cost(n: int) -> Cost:
    """S bytes take 2 ceil(log2 n) steps; a rank sends 2 (n-1)/n S on average, the root ceil(log2 n) S."""
    return Cost(2 * ceil_log2(n), Fraction(2 * (n - 1), n), Fraction(ceil_log2(n)))


@algorithm(Operation.REDUCE, "tree", reduce_cost)
def reduce(rank: IntArray, n: int, root: int) -> Rounds:
    """Plan a reduce: partial results move up a binomial tree to the root."""
    return _send_up_tree(rank, n, root, WHOLE, Op.OWN_FIRST, 1)


@algorithm(Operation.BROADCAST, "tree", broadcast_cost)
def broadcast(rank: IntArray, n: int, root: int) -> Rounds:
    """Plan a broadcast: in each round every rank that has the message sends it to one more rank."""
    return reduce(rank, n, root).reversed()


@algorithm(Operation.ALL_REDUCE, "tree", all_reduce_cost)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: a binomial reduce to rank 0, then a binomial broadcast."""
    return reduce(rank, n, 0) + broadcast(rank, n, 0)


def _subtree_sizes(n: int) -> list[int]:
    """Return the sizes of the subtrees of ranks 1 to n - 1, in this order, in a binomial tree with root 0."""
    return [min(place & -place, n - place) for place in range(1, n)]


def gather_cost(n: int) -> Cost:
    """A gather takes ceil(log2 n) steps; every rank but the root sends the blocks of its subtree once."""
    sizes = _subtree_sizes(n)
    return Cost(ceil_log2(n), Fraction(sum(sizes), n * n), Fraction(max(sizes, default=0), n))


def scatter_cost(n: int) -> Cost:
    """S bytes take ceil(log2 n) steps; the root sends (n-1)/n S; an edge carries S/n per rank of its subtree."""
    return Cost(ceil_log2(n), Fraction(sum(_subtree_sizes(n)), n * n), Fraction(n - 1, n))


@algorithm(Operation.GATHER, "tree", gather_cost)
def gather(rank: IntArray, n: int, root: int) -> Rounds:
    """Plan a gather: each rank collects the blocks of its subtree, then sends all of them to its parent at once."""
    place = (rank - root) % n  # the rank relative to the root

    def gather_round(t: int) -> list[Move]:
        """Return round t: ranks send the blocks of their subtree of up to 2**t ranks to their parents."""
        distance = 1 << t
        active = (place & (distance - 1)) == 0
        sends = active & ((place & distance) != 0)
        receives = active & ~sends & (place + distance < n)
        sent = Span(rank, np.clip(n - place, 0, distance), n)
        received = Span(rank + distance, np.clip(n - place - distance, 0, distance), n)
        dest = np.where(sends, (rank - distance) % n, NO_PEER)
        source = np.where(receives, (rank + distance) % n, NO_PEER)
        return [Move(dest, source, sent, received)]

    return Rounds(ceil_log2(n), n, gather_round)


@algorithm(Operation.SCATTER, "tree", scatter_cost)
def scatter(rank: IntArray, n: int, root: int) -> Rounds:
    """Plan a scatter: each rank keeps its own block and forwards the blocks of its subtree."""
    return gather(rank, n, root).reversed()


def barrier_cost(n: int) -> Cost:
    """A tree barrier takes 2 ceil(log2 n) steps and sends no data."""
    return Cost(2 * ceil_log2(n), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "tree", barrier_cost)
def barrier(rank: IntArray, n: int) -> Rounds:
    """Plan a barrier: empty messages move up a binomial tree to rank 0 as ranks enter, then down to release them."""
    up = _send_up_tree(rank, n, 0, SIGNAL, Op.COPY, 0)
    return up + up.reversed()
