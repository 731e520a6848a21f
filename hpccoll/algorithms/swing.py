"""Swing all-reduce: a butterfly with partners at distances 1, -1, 3, -5, 11, ..., mirrored for odd ranks.

Like recursive halving and doubling, but the distances grow to n/3 only instead of n/2, which shortens the paths on
rings and tori, and most bytes move while partners are close. A rank exchanges the chunks of the ranks that its partner
can still reach, so they are scattered over the message. The same rounds backwards are the all-gather.

If n is not a power of two, the ranks from the largest power c on fold into rank r mod c before and receive the result
after: two more rounds, and up to S more sent by the hosts. This serves odd n as well, unlike the paper's way for even
n.
Order: the receiver's own part first, then the partner's partial sum; one rank computes each chunk.
Source: De Sensi, Bonato, Saam and Hoefler, NSDI 2024 (arXiv 2401.09356).
"""

from __future__ import annotations

import numpy as np

from hpccoll.algorithms.powers_of_two import floor_power_of_two
from hpccoll.algorithms.recursive_doubling import rabenseifner_cost
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import IntArray, Move, Op, Operation, Picks, Rounds, Span, fold_ranks


def find_partner(rank: IntArray, step: int, n: int) -> IntArray:
    """Return each rank's partner: at distance 1 - 2 + 4 - ... (step + 1 terms), negated for odd ranks."""
    distance = (1 - (-2) ** (step + 1)) // 3
    return np.asarray(np.where(rank % 2 == 0, rank + distance, rank - distance) % n, np.int64)


def find_reachable(rank: IntArray, step: int, n: int) -> IntArray:
    """Return the ranks that each rank can still reach from `step` on, itself included, sorted, shape (P, n >> step).

    Sorting lets neighbouring chunks travel as one piece of memory.
    """
    ranks = rank[:, None]
    for later in range(step, n.bit_length() - 1):
        ranks = np.concatenate([ranks, find_partner(ranks, later, n)], axis=1)
    return np.asarray(np.sort(ranks, axis=1), np.int64)


def _halving_doubling(rank: IntArray, n: int) -> Rounds:
    """Return the all-reduce among a power of two of ranks."""

    def make_round(t: int) -> list[Move]:
        peer, count = find_partner(rank, t, n), n >> (t + 1)
        sent = Picks(count, lambda: find_reachable(peer, t + 1, n))
        kept = Picks(count, lambda: find_reachable(rank, t + 1, n))
        return [Move(peer, peer, sent, kept, Op.OWN_FIRST)]

    halving = Rounds(n.bit_length() - 1, n, make_round)
    return halving + halving.reversed()


def period(n: int) -> int:
    """Return 2 for powers of two, where even ranks behave alike and odd ranks behave alike; else n."""
    return min(n, 2) if n == floor_power_of_two(n) else n


@algorithm(Operation.ALL_REDUCE, "swing", rabenseifner_cost, period)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: halve the exchanged part per round while distances grow, then the rounds backwards."""
    core = floor_power_of_two(n)
    return fold_ranks(_halving_doubling, rank, n, core, Span(0, core, core))
