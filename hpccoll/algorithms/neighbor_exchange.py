"""Neighbour exchange: ranks exchange blocks with their left and right neighbour in turn, in half the steps of a ring.

First the two ranks of a pair exchange their own blocks; from then on every message carries the two blocks that arrived
last, alternately out of the pair and within it. Each rank talks only to its two neighbours, in n/2 rounds. For odd n
the last rank is the guest of the rank before it, whose pair carries three blocks: the guest sends its block before the
rounds and receives all others after them, which costs two more rounds and about S more bytes at its host.

Backwards with sums it is a reduce-scatter, in which all ranks send the same amount also for odd n. Order: each partial
sum takes the receiver's own part first; one rank computes each chunk. Source: Chen et al., "Performance evaluation of
allgather algorithms on terascale Linux cluster with fast Ethernet", HPC Asia 2005.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Ints, Move, Op, Operation, Rounds, Span, empty_rounds, keep_ranks


def _steps(n: int) -> int:
    """Return n/2, and two more for odd n."""
    return n // 2 + 2 * (n % 2) if n > 1 else 0


def all_gather_cost(n: int) -> Cost:
    """n/2 steps (+2 for odd n); every rank sends (n-1)/n S, for odd n up to (2n-1)/n S at the last rank's host."""
    most = n - 1 if n % 2 == 0 or n == 1 else min(2 * n - 1, 4 * (n - 2))
    return Cost(_steps(n), Fraction(n - 1, n), Fraction(most, n))


def reduce_scatter_cost(n: int) -> Cost:
    """n/2 steps (+2 for odd n); every rank sends (n-1)/n S."""
    return Cost(_steps(n), Fraction(n - 1, n), Fraction(n - 1, n))


def _period(n: int) -> int:
    """Return 2 for even n, where all pairs behave alike; else n."""
    return n if n % 2 else 2


@algorithm(Operation.ALL_GATHER, "neighbor_exchange", all_gather_cost, period=_period)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Plan an all-gather: exchange the blocks that arrived last with the left and the right neighbour in turn."""
    if n == 1:
        return empty_rounds(1)
    odd, even = n % 2, n - n % 2
    pairs, pair, is_left = even // 2, rank // 2, rank % 2 == 0
    direction = np.where(is_left, 1, -1)
    partner, neighbour = rank + direction, (rank - direction) % even  # within the pair, and in the next pair

    def own(ranks: IntArray) -> Span:
        """Return the block of each rank, with that of its guest."""
        return Span(ranks, 1 + (ranks == n - 2) if odd else 1, n)

    def latest(t: int) -> Span:
        """Return the blocks that arrive in round t: those of the pairs 1, 1, 2, 2, ... away, on alternating sides."""
        at: Ints = pair + direction * (t // 2 if t % 2 == 0 else -(t + 1) // 2)
        if not odd:
            return Span(at, 1, pairs, unit=2)
        return Span(2 * (at % pairs), 2 + (at % pairs == pairs - 1), n)

    def exchange(t: int) -> list[Move]:
        if t == 0:
            return [Move(partner, partner, own(rank), own(partner))]
        peer = neighbour if t % 2 else partner
        return [Move(peer, peer, latest(t - 1), latest(t))]

    host, guest = np.where(rank == n - 1, n - 2, NO_PEER), np.where(rank == n - 2, n - 1, NO_PEER)
    guest_block, other_blocks = Span(n - 1, 1, n), Span(0, n - 1, n)
    before = Rounds(odd, n, lambda _: [Move(host, guest, guest_block, guest_block)])
    after = Rounds(odd, n, lambda _: [Move(guest, host, other_blocks, other_blocks)])
    return before + keep_ranks(Rounds(pairs, n, exchange), rank < even) + after


@algorithm(Operation.REDUCE_SCATTER, "neighbor_exchange", reduce_scatter_cost, period=_period)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Plan a reduce-scatter: the all-gather backwards; partial sums move between neighbours, two at a time."""
    return all_gather(rank, n).reversed(Op.OWN_FIRST)
