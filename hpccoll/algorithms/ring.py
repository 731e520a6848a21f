"""Rings: every rank talks only to its two neighbours, and each byte crosses each link once per phase.

The message is cut into n chunks. In reduce-scatter chunk c starts at rank c + 1 and travels once around, each rank
adding its own part, until rank c holds the sum; all-gather is the same journey backwards. Bandwidth-optimal, and the
steps grow with n.

Order: chunk c is c (+) (c-1 (+) (... (+) (c+2 (+) c+1))), each rank's own first; the same on every rank because
one rank computes it. Source: Patarasuk and Yuan, JPDC 2009.
"""

from __future__ import annotations

from fractions import Fraction

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, IntArray, Move, Op, Operation, Rounds, Span


def one_way_cost(n: int) -> Cost:
    """n - 1 steps; every rank sends (n-1)/n S."""
    return Cost(n - 1, Fraction(n - 1, n), Fraction(n - 1, n))


def both_ways_cost(n: int) -> Cost:
    """2 (n - 1) steps; every rank sends 2 (n-1)/n S."""
    return Cost(2 * (n - 1), Fraction(2 * (n - 1), n), Fraction(2 * (n - 1), n))


@algorithm(Operation.REDUCE_SCATTER, "ring", one_way_cost, period=1)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Each chunk travels once around the ring and is summed on its way."""
    to, frm = (rank + 1) % n, (rank - 1) % n
    return Rounds(n - 1, n, lambda s: [Move(to, frm, Span(rank - s - 1, 1, n), Span(rank - s - 2, 1, n), Op.OWN_FIRST)])


@algorithm(Operation.ALL_GATHER, "ring", one_way_cost, period=1)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Each chunk travels once around the ring: the reduce-scatter backwards."""
    return reduce_scatter(rank, n).reversed()


@algorithm(Operation.ALL_REDUCE, "ring", both_ways_cost, period=1)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """A ring reduce-scatter, then a ring all-gather."""
    return reduce_scatter(rank, n) + all_gather(rank, n)
