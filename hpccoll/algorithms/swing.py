"""Swing: a butterfly whose partners stand at distance 1, -1, 3, -5, 11, ..., even ranks one way, odd ranks the other.

Most bytes move while partners are close, as in any reduce-scatter that halves what it exchanges, but the distances
grow to n/3 only instead of n/2, which shortens the paths on rings and tori. What a rank exchanges are the chunks of
the ranks that its partner can still reach, so they are scattered over the message. The rounds backwards gather.

Any n: the ranks above the largest power of two c fold into rank r mod c before and get the result after (two more
rounds, up to S more sent); the paper's own way for even n is left for this one, which serves odd n alike.
Order: the receiver's own first, then the partner's partial sum; one rank computes each chunk.
Source: De Sensi, Bonato, Saam and Hoefler, NSDI 2024 (arXiv 2401.09356).
"""

from __future__ import annotations

import numpy as np

from hpccoll.algorithms.bits import floor_power
from hpccoll.algorithms.butterfly import rabenseifner_cost
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import IntArray, Move, Op, Operation, Picks, Rounds, Span, fold_ranks


def partner(rank: IntArray, step: int, n: int) -> IntArray:
    """Return whom each rank exchanges with: at distance 1 - 2 + 4 - ... (step + 1 terms), mirrored for odd ranks."""
    distance = (1 - (-2) ** (step + 1)) // 3
    return np.asarray(np.where(rank % 2 == 0, rank + distance, rank - distance) % n, np.int64)


def reachable(rank: IntArray, step: int, n: int) -> IntArray:
    """Return the ranks that each rank can still reach in the steps from `step` on, itself too, sorted: (P, n >> step).

    Sorted, because neighbouring chunks then travel as one piece of memory.
    """
    ranks = rank[:, None]
    for later in range(step, n.bit_length() - 1):
        ranks = np.concatenate([ranks, partner(ranks, later, n)], axis=1)
    return np.asarray(np.sort(ranks, axis=1), np.int64)


def _there_and_back(rank: IntArray, n: int) -> Rounds:
    def at(t: int) -> list[Move]:
        peer, count = partner(rank, t, n), n >> (t + 1)
        theirs = Picks(count, lambda: reachable(peer, t + 1, n))
        mine = Picks(count, lambda: reachable(rank, t + 1, n))
        return [Move(peer, peer, theirs, mine, Op.OWN_FIRST)]

    halving = Rounds(n.bit_length() - 1, n, at)
    return halving + halving.reversed()


def period(n: int) -> int:
    """Even ranks do alike, and odd ones, where there is nothing to fold."""
    return min(n, 2) if n == floor_power(n) else n


@algorithm(Operation.ALL_REDUCE, "swing", rabenseifner_cost, period)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """Halve what is exchanged while the distance swings out, then the same rounds backwards."""
    core = floor_power(n)
    return fold_ranks(_there_and_back, rank, n, core, Span(0, core, core))
