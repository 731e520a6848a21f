"""Circulant graphs whose skips halve, rounding up: all-gather and reduce-scatter in ceil(log2 n) rounds for any n.

The skips are n, ceil(n/2), ceil(n/4), ..., 1. Going down them, each rank hands the rank one skip above the partial sums
of all chunks that lie at least that far above itself, so that what it still has to sum shrinks from n chunks to its own
one; the all-gather is the same backwards. Every rank does the same in every round and its chunks stand in one cyclic
interval, so no rank count is special and nothing is folded.

Order: each partial sum takes the receiver's own first; one rank computes each chunk. Source: Traeff, "Optimal,
non-pipelined reduce-scatter and allreduce algorithms", arXiv 2410.14234.
"""

from __future__ import annotations

from fractions import Fraction

from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, IntArray, Move, Op, Operation, Rounds, Span


def skips(n: int) -> list[int]:
    """Return the ceil(log2 n) + 1 skips of n ranks, ascending: 1, ..., ceil(n/4), ceil(n/2), n."""
    falling = [n]
    while falling[-1] > 1:
        falling.append((falling[-1] + 1) // 2)
    return falling[::-1]


def cost(n: int) -> Cost:
    """ceil(log2 n) steps; every rank sends (n-1)/n S."""
    return Cost(ceil_log2(n), Fraction(n - 1, n), Fraction(n - 1, n))


@algorithm(Operation.REDUCE_SCATTER, "circulant", cost, period=1)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Hand on the far half of what is left to sum, at distances ceil(n/2), ceil(n/4), ..., 1."""
    rising = skips(n)

    def at(t: int) -> list[Move]:
        wide, skip = rising[-1 - t], rising[-2 - t]
        above, below = (rank + skip) % n, (rank - skip) % n
        return [Move(above, below, Span(rank + skip, wide - skip, n), Span(rank, wide - skip, n), Op.OWN_FIRST)]

    return Rounds(len(rising) - 1, n, at)


@algorithm(Operation.ALL_GATHER, "circulant", cost, period=1)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """The reduce-scatter backwards: the interval of chunks that a rank holds about doubles in every round."""
    return reduce_scatter(rank, n).reversed()
