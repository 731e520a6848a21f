"""Swing all-reduce: a butterfly with partners at distances 1, -1, 3, -5, 11, ..., mirrored for odd ranks.

Swing is like recursive halving and doubling, but its distances grow only to about n/3 instead of n/2. Shorter distances
shorten the paths on rings and tori, and most bytes move between partners that are close. A rank sends its partner the
chunks of all ranks that the partner reaches in later rounds; these chunks are scattered over the message. The
all-gather is the reduce-scatter backwards.

If n is not a power of two, each rank r >= c (the largest power of two below n) first sends its data to rank r - c,
which sends back the result at the end. If n is not a power of two, the all-reduce takes two more rounds, and some ranks
send S bytes (the message size) more. The receiver's own part is the first operand of each reduction, the partner's
partial sum the second. For each chunk, a single rank computes the final sum, and all others copy it. Source: De Sensi,
Bonato, Saam and Hoefler, NSDI 2024 (arXiv 2401.09356).
"""

from __future__ import annotations

import numpy as np

from hpccoll.algorithms.powers_of_two import floor_power_of_two
from hpccoll.algorithms.recursive_doubling import rabenseifner_cost
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import IntArray, Move, Op, Operation, Picks, Rounds, Span, fold_ranks


def find_partner(rank: IntArray, step: int, n: int) -> IntArray:
    """Return each rank's partner in round `step`: (1 - (-2)**(step+1)) / 3 ranks above even and below odd ranks."""
    distance = (1 - (-2) ** (step + 1)) // 3
    return np.asarray(np.where(rank % 2 == 0, rank + distance, rank - distance) % n, np.int64)


def find_reachable(rank: IntArray, step: int, n: int) -> IntArray:
    """Return each rank and all ranks that it reaches from round `step` on, sorted: one row of n >> step ranks per rank.

    Sorting makes adjacent chunks contiguous in a message.
    """
    ranks = rank[:, None]
    for later in range(step, n.bit_length() - 1):
        ranks = np.concatenate([ranks, find_partner(ranks, later, n)], axis=1)
    return np.asarray(np.sort(ranks, axis=1), np.int64)


def _halving_doubling(rank: IntArray, n: int) -> Rounds:
    """Return the rounds of the ranks in `rank` of the Swing all-reduce; n is a power of two."""

    def reduce_scatter_round(t: int) -> list[Move]:
        """Return round t: each rank sends the blocks that its partner keeps, and reduces the blocks that it keeps."""
        peer, count = find_partner(rank, t, n), n >> (t + 1)
        sent = Picks(count, lambda: find_reachable(peer, t + 1, n))
        kept = Picks(count, lambda: find_reachable(rank, t + 1, n))
        return [Move(peer, peer, sent, kept, Op.OWN_FIRST)]

    halving = Rounds(n.bit_length() - 1, n, reduce_scatter_round)
    return halving + halving.reversed()


def period(n: int) -> int:
    """Return the period p (rank r + p acts like rank r): 2 if n is a power of two, else n."""
    return min(n, 2) if n == floor_power_of_two(n) else n


@algorithm(Operation.ALL_REDUCE, "swing", rabenseifner_cost, period)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: a reduce-scatter with halving messages and growing distances, then the rounds backwards."""
    core = floor_power_of_two(n)
    return fold_ranks(_halving_doubling, rank, n, core, Span(0, core, core))
