"""Van de Geijn's broadcast (a scatter, then an all-gather), and a reduce that is the broadcast backwards.

A binomial scatter cuts the message into n chunks, one per rank, and Bruck's all-gather collects them on every rank. No
rank sends the message more than twice, whereas the root of a binomial broadcast sends it log2 n times. After the
scatter, an inner rank of the tree holds the chunks of its whole subtree; the all-gather does not send these chunks to
it again, so every rank but the root receives each chunk once. For any n, the scatter and the all-gather take ceil(log2
n) rounds each. The paper by Barnett, van de Geijn and others uses a ring all-gather, which takes n - 1 rounds.

The receiver's own part is the first operand of each reduction. The root of the reduce computes the final result.
Sources: Barnett et al., "Interprocessor collective communication library (InterCom)", SHPCC 1994; Rabenseifner, ICCS
2004 (reduce).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.binomial_tree import scatter
from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Move, Op, Operation, Rounds, Span


def broadcast_cost(n: int) -> Cost:
    """S bytes take 2 ceil(log2 n) steps; a rank sends (n-1)/n S on average, the root 2 (n-1)/n S."""
    return Cost(2 * ceil_log2(n), Fraction(n - 1, n), Fraction(2 * (n - 1), n))


def reduce_cost(n: int) -> Cost:
    """A message of S bytes takes 2 ceil(log2 n) steps; every rank but the root sends S."""
    return Cost(2 * ceil_log2(n), Fraction(n - 1, n), Fraction(min(n - 1, 1)))


def _all_gather_missing(rank: IntArray, n: int, root: int) -> Rounds:
    """Return Bruck's all-gather without the chunks that their receivers already hold after a scatter from `root`."""

    def count_held(place: IntArray) -> IntArray:
        """Return the number of consecutive chunks that each rank holds after the scatter.

        `place` is the number of the rank counted from the root.
        """
        return np.where(place == 0, n, np.minimum(place & -place, n - place))

    place = (rank - root) % n
    own = count_held(place)

    def all_gather_round(t: int) -> list[Move]:
        """Return round t: each rank sends the blocks that the rank 2**t below lacks."""
        distance, reach = 1 << t, min(2 << t, n)
        held, held_below = np.maximum(own, distance), np.maximum(count_held((place - distance) % n), distance)
        missing, missing_below = np.maximum(reach - held, 0), np.maximum(reach - held_below, 0)
        dest = np.where(missing_below > 0, (rank - distance) % n, NO_PEER)
        source = np.where(missing > 0, (rank + distance) % n, NO_PEER)
        sent, received = Span(rank - distance + held_below, missing_below, n), Span(rank + held, missing, n)
        return [Move(dest, source, sent, received)]

    return Rounds(ceil_log2(n), n, all_gather_round)


@algorithm(Operation.BROADCAST, "scatter_all_gather", broadcast_cost)
def broadcast(rank: IntArray, n: int, root: int) -> Rounds:
    """Plan a broadcast: a binomial scatter, then Bruck's all-gather of the missing chunks."""
    return scatter(rank, n, root) + _all_gather_missing(rank, n, root)


@algorithm(Operation.REDUCE, "scatter_all_gather", reduce_cost)
def reduce(rank: IntArray, n: int, root: int) -> Rounds:
    """Plan a reduce: the broadcast backwards, that is a reduce-scatter, then a gather that adds partial sums."""
    return broadcast(rank, n, root).reversed(Op.OWN_FIRST)
