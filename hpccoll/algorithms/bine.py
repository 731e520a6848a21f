"""Bine (binomial negabinary) butterfly: partners at distances that, written in base -2, are all ones.

The distances (1 - (-2)**m) / 3 for m = log2 n, ..., 1 shrink from about n/3 to 1, two thirds of what recursive halving
spans, so fewer bytes cross between groups of nearby nodes. Even ranks look one way around the circle and odd ranks the
other, and what a rank can still reach is one cyclic interval of ranks, so every message is one piece of memory (two
where it wraps around). This is the distance-halving butterfly: reduce-scatter, then the same rounds backwards.

Any n: the ranks above the largest power of two c fold into rank r mod c before and get the result after: two more
rounds, and up to S more sent by the ranks that have a guest.
Order: the receiver's own first, then the partner's partial sum; one rank computes each chunk.
Source: De Sensi et al., Bine Trees, SC 2025 (arXiv 2508.17311).
"""

from __future__ import annotations

import numpy as np

from hpccoll.algorithms.bits import floor_power
from hpccoll.algorithms.butterfly import rabenseifner_cost
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import IntArray, Move, Op, Operation, Rounds, Span, fold_ranks


def partner(rank: IntArray, digits: int, n: int) -> IntArray:
    """Return whom each rank exchanges with when `digits` steps are left, this one too."""
    distance = (1 - (-2) ** digits) // 3
    return np.asarray(np.where(rank % 2 == 0, rank + distance, rank - distance) % n, np.int64)


def first_reached(rank: IntArray, digits: int) -> IntArray:
    """Return where the interval of 2**digits ranks begins that each rank reaches in its last `digits` steps.

    An even rank r reaches r + v for every v of `digits` digits in base -2, an odd one r - v; v is smallest where all
    digits of odd weight are ones. Not reduced modulo n.
    """
    least = -2 * (4 ** (digits // 2) - 1) // 3
    most = least + (1 << digits) - 1
    return np.asarray(np.where(rank % 2 == 0, rank + least, rank - most), np.int64)


def _there_and_back(rank: IntArray, n: int) -> Rounds:
    steps = n.bit_length() - 1

    def at(t: int) -> list[Move]:
        left = steps - t - 1
        peer, count = partner(rank, left + 1, n), 1 << left
        theirs, mine = (Span(first_reached(ranks, left), count, n) for ranks in (peer, rank))
        return [Move(peer, peer, theirs, mine, Op.OWN_FIRST)]

    halving = Rounds(steps, n, at)
    return halving + halving.reversed()


def period(n: int) -> int:
    """Even ranks do alike, and odd ones, where there is nothing to fold."""
    return min(n, 2) if n == floor_power(n) else n


@algorithm(Operation.ALL_REDUCE, "bine", rabenseifner_cost, period)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """Halve distance and bytes in every round, then the same rounds backwards."""
    core = floor_power(n)
    return fold_ranks(_there_and_back, rank, n, core, Span(0, core, core))
