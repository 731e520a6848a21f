"""Neighbour exchange: ranks swap blocks with their left and right neighbour in turn, in half the steps of a ring.

First the ranks of a pair swap their own blocks; from then on every message carries a pair's two blocks, those that
came last, and goes alternately out of the pair and back into it. Each rank talks only to its two neighbours, in n/2
rounds. That needs an even n: for odd n the last rank is the guest of the one before it, whose pair then carries three
blocks; it gives its block before and gets all others after, two more rounds, in which its host sends about S more.

Backwards with sums it is a reduce-scatter, in which all send alike also for odd n. Order: each partial sum takes the
receiver's own first; one rank computes each chunk. Source: Chen et al., "Performance evaluation of allgather algorithms
on terascale Linux cluster with fast Ethernet", HPC Asia 2005.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Ints, Move, Op, Operation, Rounds, Span, empty_rounds, keep_ranks


def _steps(n: int) -> int:
    return n // 2 + 2 * (n % 2) if n > 1 else 0


def all_gather_cost(n: int) -> Cost:
    """n/2 steps (+2 for odd n); (n-1)/n S on average and at most, for odd n the last rank's host (2n-1)/n S."""
    most = n - 1 if n % 2 == 0 or n == 1 else min(2 * n - 1, 4 * (n - 2))
    return Cost(_steps(n), Fraction(n - 1, n), Fraction(most, n))


def reduce_scatter_cost(n: int) -> Cost:
    """n/2 steps (+2 for odd n); every rank sends (n-1)/n S."""
    return Cost(_steps(n), Fraction(n - 1, n), Fraction(n - 1, n))


def _period(n: int) -> int:
    """Return after how many ranks all do the same again: pairs are alike, unless one has a guest."""
    return n if n % 2 else 2


@algorithm(Operation.ALL_GATHER, "neighbor_exchange", all_gather_cost, period=_period)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Swap what came last with the neighbours, in turn."""
    if n == 1:
        return empty_rounds(1)
    odd, even = n % 2, n - n % 2
    pairs, pair, left = even // 2, rank // 2, rank % 2 == 0
    turn = np.where(left, 1, -1)
    inward, outward = rank + turn, (rank - turn) % even
    swap = Move(inward, inward, _own(rank, n), _own(inward, n))

    def latest(t: int) -> Span:
        """The pair whose blocks came in round t: 1, 1, 2, 2, ... away, on the one side and the other."""
        at: Ints = pair + turn * (t // 2 if t % 2 == 0 else -(t + 1) // 2)
        if not odd:
            return Span(at, 1, pairs, unit=2)
        return Span(2 * (at % pairs), 2 + (at % pairs == pairs - 1), n)

    def exchange(t: int) -> list[Move]:
        if t == 0:
            return [swap]
        peer = outward if t % 2 else inward
        return [Move(peer, peer, latest(t - 1), latest(t))]

    up, down = np.where(rank == n - 1, n - 2, NO_PEER), np.where(rank == n - 2, n - 1, NO_PEER)
    one, rest = Span(n - 1, 1, n), Span(0, n - 1, n)
    before = Rounds(odd, n, lambda t: [Move(up, down, one, one)])
    after = Rounds(odd, n, lambda t: [Move(down, up, rest, rest)])
    return before + keep_ranks(Rounds(pairs, n, exchange), rank < even) + after


def _own(rank: IntArray, n: int) -> Span:
    """The block of each rank, and its guest's."""
    return Span(rank, 1 + (rank == n - 2) if n % 2 else 1, n)


@algorithm(Operation.REDUCE_SCATTER, "neighbor_exchange", reduce_scatter_cost, period=_period)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """The all-gather backwards: two partial sums at a time move between neighbours towards their owners."""
    return all_gather(rank, n).reversed(Op.OWN_FIRST)
