"""Bine (binomial negabinary) all-reduce: a butterfly whose distances have only the digit 1 in base -2.

The distances abs(1 - (-2)**m) / 3 for m = log2 n, ..., 1 shrink from about n/3 to 1. The distances of recursive halving
(n/2, n/4, ..., 1) are about 1.5 times those of Bine, so recursive halving sends more bytes between groups of nearby
nodes. In each round even ranks have their partners in one direction around the ring of ranks, odd ranks in the other
direction. The ranks that a rank reaches in its remaining rounds form one cyclic interval, so every message is
contiguous in memory (two pieces if it wraps around). The all-reduce is a reduce-scatter with shrinking distances, then
the same rounds backwards.

The order of reduction, and the extra rounds if n is not a power of two, are those of Swing (swing.py). Source: De Sensi
et al., Bine Trees, SC 2025 (arXiv 2508.17311).
"""

from __future__ import annotations

import numpy as np

from hpccoll.algorithms.powers_of_two import floor_power_of_two
from hpccoll.algorithms.recursive_doubling import rabenseifner_cost
from hpccoll.algorithms.registry import algorithm
from hpccoll.algorithms.swing import find_partner, period
from hpccoll.plan import IntArray, Move, Op, Operation, Rounds, Span, fold_ranks


def find_first_reachable(rank: IntArray, digits: int) -> IntArray:
    """Return the first of the 2**digits consecutive ranks that each rank reaches in its last `digits` rounds.

    An even rank r reaches the ranks r + v, an odd rank r the ranks r - v, for every v of `digits` digits in base -2.
    The smallest number of `digits` digits in base -2 has ones at exactly the digits with negative weight. A
    returned rank may be negative, because ranks are counted modulo n.
    """
    least = -2 * (4 ** (digits // 2) - 1) // 3
    most = least + (1 << digits) - 1
    return np.asarray(np.where(rank % 2 == 0, rank + least, rank - most), np.int64)


def _halving_doubling(rank: IntArray, n: int) -> Rounds:
    """Return the rounds of the ranks in `rank` of the Bine all-reduce for n ranks, where n is a power of two."""
    steps = n.bit_length() - 1

    def reduce_scatter_round(t: int) -> list[Move]:
        """Return round t: each rank sends the half of its blocks that its partner keeps, and reduces the other half."""
        left = steps - t - 1
        peer, count = find_partner(rank, left, n), 1 << left
        sent, kept = (Span(find_first_reachable(ranks, left), count, n) for ranks in (peer, rank))
        return [Move(peer, peer, sent, kept, Op.OWN_FIRST)]

    halving = Rounds(steps, n, reduce_scatter_round)
    return halving + halving.reversed()


@algorithm(Operation.ALL_REDUCE, "bine", rabenseifner_cost, period)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: a reduce-scatter whose distances and messages halve, then the same rounds backwards."""
    core = floor_power_of_two(n)
    return fold_ranks(_halving_doubling, rank, n, core, Span(0, core, core))
