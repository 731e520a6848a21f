"""Bruck's all-gather and its mirror image: ceil(log2 n) rounds for any n, at no extra byte.

In round t every rank holds 2**t consecutive chunks and fetches up to 2**t more from the rank 2**t above, so that
after ceil(log2 n) rounds it holds all. Backwards, with sums instead of copies, the same rounds are a reduce-scatter:
for any n as short as recursive halving for powers of two. Chunks keep their places: nothing has to be rotated.

Order: each partial sum takes the receiver's own first; one rank computes each chunk. Source: Bruck et al., TPDS 1997;
the mirror image is the reduce-scatter of Traeff's circulant graphs (2024) for skips that are powers of two.
"""

from __future__ import annotations

from fractions import Fraction

from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, IntArray, Move, Op, Operation, Rounds, Span


def cost(n: int) -> Cost:
    """ceil(log2 n) steps; every rank sends (n-1)/n S."""
    return Cost(ceil_log2(n), Fraction(n - 1, n), Fraction(n - 1, n))


@algorithm(Operation.ALL_GATHER, "bruck", cost, period=1)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Every rank doubles the cyclic interval of chunks that it holds, until it holds all."""

    def at(t: int) -> list[Move]:
        distance = 1 << t
        count = min(distance, n - distance)
        below, above = (rank - distance) % n, (rank + distance) % n
        return [Move(below, above, Span(rank, count, n), Span(rank + distance, count, n))]

    return Rounds(ceil_log2(n), n, at)


@algorithm(Operation.REDUCE_SCATTER, "bruck", cost, period=1)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Bruck's all-gather backwards, with sums instead of copies."""
    return all_gather(rank, n).reversed(Op.OWN_FIRST)
