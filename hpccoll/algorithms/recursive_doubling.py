"""Recursive doubling of blocks: in round t a rank meets that at distance 2**t, and both hand over all that they have.

What a rank holds doubles in every round and is always one interval of chunks. Where n is no power of two, the first
2 (n - c) ranks above the largest power c form pairs: the odd rank is the guest of the even one, gives it its block
before and gets all others after, two more rounds; because guests sit beside their hosts, the intervals stay whole.
Backwards with sums this is recursive halving, a reduce-scatter; with nothing in the messages it is a barrier.

The folded reduce-scatter sends no byte more than the unfolded; in the all-gather the hosts send up to twice as much.
Order: each partial sum takes the receiver's own first; one rank computes each chunk. Source: Thakur, Rabenseifner and
Gropp, IJHPCA 2005.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.bits import floor_power
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, SIGNAL, Cost, IntArray, Move, Op, Operation, Rounds, Span, keep_ranks


def _steps(n: int) -> int:
    return n.bit_length() - 1 + 2 * (n > floor_power(n))


def all_gather_cost(n: int) -> Cost:
    """log2 c steps (+2); (n-1)/n S on average, rank 0 at most: (c-1)/n S, and with a guest what it has for it."""
    core, guests = floor_power(n), n - floor_power(n)
    doubled = sum((1 << t) + min(1 << t, guests) for t in range(n.bit_length() - 1))
    return Cost(_steps(n), Fraction(n - 1, n), Fraction(doubled + n - 1 if guests else core - 1, n))


def reduce_scatter_cost(n: int) -> Cost:
    """log2 c steps (+2); every rank sends (n-1)/n S."""
    return Cost(_steps(n), Fraction(n - 1, n), Fraction(n - 1, n))


def barrier_cost(n: int) -> Cost:
    """log2 c steps (+2), no data."""
    return Cost(_steps(n), Fraction(0), Fraction(0))


@algorithm(Operation.ALL_GATHER, "recursive_doubling", all_gather_cost)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Exchange all blocks held so far with the rank at distance 1, 2, 4, ..."""
    core = floor_power(n)
    guests = n - core
    place = np.where(rank < 2 * guests, rank // 2, rank - guests)  # among the hosts, and those without a guest
    plays = (rank >= 2 * guests) | (rank % 2 == 0)

    def first(of: IntArray) -> IntArray:
        """The rank at a place, and the first chunk of that place."""
        return of + np.minimum(of, guests)

    def blocks(of: IntArray, size: int) -> Span:
        return Span(first(of), first(of + size) - first(of), n)

    def doubling(t: int) -> list[Move]:
        size = 1 << t
        peer = place ^ size
        return [Move(first(peer), first(peer), blocks(place & -size, size), blocks(peer & -size, size))]

    def fold(whole: bool) -> Rounds:
        """The guest gives its block to its host, or gets all the others from it."""
        host, guest = (rank < 2 * guests) & plays, ~plays
        up, down = np.where(guest, rank - 1, NO_PEER), np.where(host, rank + 1, NO_PEER)
        if whole:
            move = Move(down, up, Span(rank + 2, n - 1, n), Span(rank + 1, n - 1, n))
        else:
            move = Move(up, down, Span(rank, 1, n), Span(rank + 1, 1, n))
        return Rounds(1 if guests else 0, n, lambda t: [move])

    return fold(False) + keep_ranks(Rounds(n.bit_length() - 1, n, doubling), plays) + fold(True)


@algorithm(Operation.REDUCE_SCATTER, "recursive_halving", reduce_scatter_cost)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """The all-gather backwards, with sums: each round hands the partner the half that is its part to finish."""
    return all_gather(rank, n).reversed(Op.OWN_FIRST)


@algorithm(Operation.BARRIER, "recursive_doubling", barrier_cost)
def barrier(rank: IntArray, n: int) -> Rounds:
    """Tell the rank at distance 1, 2, 4, ... who has arrived: an all-gather of nothing."""
    return all_gather(rank, n).map_regions(lambda _: SIGNAL, 0)
