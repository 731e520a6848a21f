"""The dissemination barrier: in round t every rank tells the rank 2**t above what it has heard so far.

After ceil(log2 n) rounds the news of every rank has reached every other, for any n. All ranks do the same, there is
no root, and no data moves: the messages themselves are the news. Source: Hensgen, Finkel and Manber, IJPP 1988.
"""

from __future__ import annotations

from fractions import Fraction

from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import SIGNAL, Cost, IntArray, Move, Operation, Rounds


def cost(n: int) -> Cost:
    """ceil(log2 n) steps, no data."""
    return Cost(ceil_log2(n), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "dissemination", cost, period=1)
def barrier(rank: IntArray, n: int) -> Rounds:
    """Signal the rank at distance 1, 2, 4, ... around the circle."""
    return Rounds(ceil_log2(n), 0, lambda t: [Move((rank + (1 << t)) % n, (rank - (1 << t)) % n, SIGNAL, SIGNAL)])
