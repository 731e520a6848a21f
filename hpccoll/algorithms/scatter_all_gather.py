"""Van de Geijn's broadcast: scatter the message, then all-gather it; and the reduce that mirrors it.

A binomial scatter cuts the message into n chunks, one a rank, and Bruck's all-gather puts them together everywhere: no
rank sends more than about 2 S, where in a binomial tree the root sends S log2 n times. The scatter leaves whole
subtrees of chunks on its way; what a rank has of them is not sent to it again, so that every rank but the root gets
each chunk once. The reduce is the same backwards, a reduce-scatter and a gather; any n takes ceil(log2 n) rounds each.

The original's ring all-gather would take n - 1 rounds for the same bytes. Order of the reduce: each partial sum takes
the receiver's own first; the root computes the result. Sources: Barnett et al., "Interprocessor collective
communication library (InterCom)", SHPCC 1994; for the reduce Rabenseifner, ICCS 2004.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.binomial import scatter
from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Move, Op, Operation, Rounds, Span


def broadcast_cost(n: int) -> Cost:
    """2 ceil(log2 n) steps; (n-1)/n S on average, 2 (n-1)/n S at the root."""
    return Cost(2 * ceil_log2(n), Fraction(n - 1, n), Fraction(2 * (n - 1), n))


def reduce_cost(n: int) -> Cost:
    """2 ceil(log2 n) steps; every rank but the root sends S."""
    return Cost(2 * ceil_log2(n), Fraction(n - 1, n), Fraction(min(n - 1, 1)))


def _rest_of_all_gather(rank: IntArray, n: int, root: int) -> Rounds:
    """Bruck's all-gather after a scatter from `root`, without what the scatter left where it is wanted."""

    def left(place: IntArray) -> IntArray:
        """How many chunks, from its own on, the scatter left at a place counted from the root."""
        return np.where(place == 0, n, np.minimum(place & -place, n - place))

    place = (rank - root) % n
    mine = left(place)

    def at(t: int) -> list[Move]:
        distance, reach = 1 << t, min(2 << t, n)
        have, they_have = np.maximum(mine, distance), np.maximum(left((place - distance) % n), distance)
        want, they_want = np.maximum(reach - have, 0), np.maximum(reach - they_have, 0)
        to = np.where(they_want > 0, (rank - distance) % n, NO_PEER)
        frm = np.where(want > 0, (rank + distance) % n, NO_PEER)
        return [Move(to, frm, Span(rank - distance + they_have, they_want, n), Span(rank + have, want, n))]

    return Rounds(ceil_log2(n), n, at)


@algorithm(Operation.BROADCAST, "scatter_all_gather", broadcast_cost)
def broadcast(rank: IntArray, n: int, root: int) -> Rounds:
    """A binomial scatter, then Bruck's all-gather of what is still missing."""
    return scatter(rank, n, root) + _rest_of_all_gather(rank, n, root)


@algorithm(Operation.REDUCE, "scatter_all_gather", reduce_cost)
def reduce(rank: IntArray, n: int, root: int) -> Rounds:
    """The broadcast backwards: a reduce-scatter, then a gather that sums what subtrees have left."""
    return broadcast(rank, n, root).reversed(Op.OWN_FIRST)
