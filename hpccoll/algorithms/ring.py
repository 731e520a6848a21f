"""Ring reduce-scatter, all-gather and all-reduce: in every round each rank sends one chunk to one neighbour.

The message is cut into n chunks. In the reduce-scatter chunk c starts at rank c + 1 and travels once around the ring,
each rank adding its own part, until rank c holds the sum. The all-gather is the reduce-scatter backwards, and sends
each chunk to the previous rank. No algorithm sends fewer bytes than the ring, but its number of steps grows with n.

A rank's own part is the first operand of its reduction, the partial sum that it receives the second. Only rank c
computes the sum of chunk c, so all ranks get the same bits.
Source: Patarasuk and Yuan, JPDC 2009.
"""

from __future__ import annotations

from fractions import Fraction

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, IntArray, Move, Op, Operation, Rounds, Span


def reduce_scatter_cost(n: int) -> Cost:
    """A message of S bytes takes n - 1 steps; every rank sends (n-1)/n S."""
    return Cost(n - 1, Fraction(n - 1, n), Fraction(n - 1, n))


def all_reduce_cost(n: int) -> Cost:
    """A message of S bytes takes 2 (n - 1) steps; every rank sends 2 (n-1)/n S."""
    return Cost(2 * (n - 1), Fraction(2 * (n - 1), n), Fraction(2 * (n - 1), n))


@algorithm(Operation.REDUCE_SCATTER, "ring", reduce_scatter_cost, period=1, grows_linearly=True)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Plan a reduce-scatter: each chunk travels once around the ring and collects a contribution at every rank."""
    dest, source = (rank + 1) % n, (rank - 1) % n
    return Rounds(
        n - 1, n, lambda t: [Move(dest, source, Span(rank - t - 1, 1, n), Span(rank - t - 2, 1, n), Op.OWN_FIRST)]
    )


@algorithm(Operation.ALL_GATHER, "ring", reduce_scatter_cost, period=1, grows_linearly=True)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Plan an all-gather: each chunk travels once around the ring and is copied at every rank."""
    return reduce_scatter(rank, n).reversed()


@algorithm(Operation.ALL_REDUCE, "ring", all_reduce_cost, period=1, grows_linearly=True)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: a ring reduce-scatter, then a ring all-gather."""
    return reduce_scatter(rank, n) + all_gather(rank, n)
