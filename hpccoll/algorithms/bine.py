"""Bine (binomial negabinary) all-reduce: a butterfly whose distances, written in base -2, are all ones.

The distances (1 - (-2)**m) / 3 for m = log2 n, ..., 1 shrink from about n/3 to 1, two thirds of those of recursive
halving, so fewer bytes cross between groups of nearby nodes. Even ranks go one way around the circle and odd ranks the
other. The ranks that a rank can still reach form one cyclic interval, so every message is one piece of memory (two
where it wraps around). This is the distance-halving butterfly: a reduce-scatter, then the same rounds backwards.

If n is not a power of two, the ranks from the largest power c on fold into rank r mod c before and receive the result
after: two more rounds, and up to S more sent by the hosts.
Order: the receiver's own part first, then the partner's partial sum; one rank computes each chunk.
Source: De Sensi et al., Bine Trees, SC 2025 (arXiv 2508.17311).
"""

from __future__ import annotations

import numpy as np

from hpccoll.algorithms.powers_of_two import floor_power_of_two
from hpccoll.algorithms.recursive_doubling import rabenseifner_cost
from hpccoll.algorithms.registry import algorithm
from hpccoll.algorithms.swing import find_partner, period
from hpccoll.plan import IntArray, Move, Op, Operation, Rounds, Span, fold_ranks


def find_first_reachable(rank: IntArray, digits: int) -> IntArray:
    """Return the start of the interval of 2**digits ranks that each rank reaches in its last `digits` steps.

    An even rank r reaches r + v for every v of `digits` digits in base -2, an odd one r - v; v is smallest where all
    digits of odd weight are ones. Not reduced modulo n.
    """
    least = -2 * (4 ** (digits // 2) - 1) // 3
    most = least + (1 << digits) - 1
    return np.asarray(np.where(rank % 2 == 0, rank + least, rank - most), np.int64)


def _halving_doubling(rank: IntArray, n: int) -> Rounds:
    """Return the all-reduce among a power of two of ranks."""
    steps = n.bit_length() - 1

    def make_round(t: int) -> list[Move]:
        left = steps - t - 1
        peer, count = find_partner(rank, left, n), 1 << left
        sent, kept = (Span(find_first_reachable(ranks, left), count, n) for ranks in (peer, rank))
        return [Move(peer, peer, sent, kept, Op.OWN_FIRST)]

    halving = Rounds(steps, n, make_round)
    return halving + halving.reversed()


@algorithm(Operation.ALL_REDUCE, "bine", rabenseifner_cost, period)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: halve distance and bytes in every round, then the same rounds backwards."""
    core = floor_power_of_two(n)
    return fold_ranks(_halving_doubling, rank, n, core, Span(0, core, core))
