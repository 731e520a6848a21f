"""Neighbour exchange: ranks exchange blocks with their left and right neighbour in turn, in half the steps of a ring.

First the two ranks of a pair exchange their own blocks. Every later message carries the two blocks that arrived last,
alternately to the next pair and within the pair. Each rank communicates only with its two neighbours, in n/2 rounds.
For odd n, rank n - 1 first sends its block to rank n - 2 and receives all other blocks from rank n - 2 at the end. An
odd n therefore takes two more rounds, and rank n - 2 sends about S bytes (the message size) more than the others.

The reduce-scatter runs the all-gather backwards, with sums, and all ranks send equally many bytes, also for odd n. The
receiver's own part is the first operand of each reduction. For each chunk, a single rank computes the final sum.
Source: Chen et al., "Performance evaluation of allgather algorithms on terascale Linux cluster with fast Ethernet",
HPC Asia 2005.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Ints, Move, Op, Operation, Rounds, Span, empty_rounds, keep_ranks


def _count_steps(n: int) -> int:
    """Return the number of steps on n ranks: n/2 for even n, (n-1)/2 + 2 for odd n, 0 for a single rank."""
    return n // 2 + 2 * (n % 2) if n > 1 else 0


def all_gather_cost(n: int) -> Cost:
    """S bytes take n/2 steps (+2 for odd n); each rank sends (n-1)/n S, but rank n-2 up to (2n-1)/n S for odd n."""
    most = n - 1 if n % 2 == 0 or n == 1 else min(2 * n - 1, 4 * (n - 2))
    return Cost(_count_steps(n), Fraction(n - 1, n), Fraction(most, n))


def reduce_scatter_cost(n: int) -> Cost:
    """A message of S bytes takes n/2 steps (+2 for odd n); every rank sends (n-1)/n S."""
    return Cost(_count_steps(n), Fraction(n - 1, n), Fraction(n - 1, n))


def _period(n: int) -> int:
    """Return the period p (rank r + p acts like rank r) of the plans: 2 for even n, else n."""
    return n if n % 2 else 2


@algorithm(Operation.ALL_GATHER, "neighbor_exchange", all_gather_cost, period=_period)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Plan an all-gather: ranks exchange the blocks that arrived last with their left and right neighbour in turn."""
    if n == 1:
        return empty_rounds(1)
    odd, even = n % 2, n - n % 2
    pairs, pair, is_left = even // 2, rank // 2, rank % 2 == 0
    direction = np.where(is_left, 1, -1)
    partner, neighbour = rank + direction, (rank - direction) % even  # in the pair; in the adjacent pair

    def own_blocks(ranks: IntArray) -> Span:
        """Return the block of each rank; for odd n, rank n - 2 also has the block of rank n - 1."""
        return Span(ranks, 1 + (ranks == n - 2) if odd else 1, n)

    def received_blocks(t: int) -> Span:
        """Return the blocks of two ranks that each rank receives in round t, as one `Span` with a start per rank."""
        origin: Ints = pair + direction * (t // 2 if t % 2 == 0 else -(t + 1) // 2)
        if not odd:
            return Span(origin, 1, pairs, unit=2)
        return Span(2 * (origin % pairs), 2 + (origin % pairs == pairs - 1), n)

    def exchange_round(t: int) -> list[Move]:
        """Return round t: neighbours exchange the blocks that they received in the previous round."""
        if t == 0:
            return [Move(partner, partner, own_blocks(rank), own_blocks(partner))]
        peer = neighbour if t % 2 else partner
        return [Move(peer, peer, received_blocks(t - 1), received_blocks(t))]

    rank_before, last_rank = np.where(rank == n - 1, n - 2, NO_PEER), np.where(rank == n - 2, n - 1, NO_PEER)
    last_block, other_blocks = Span(n - 1, 1, n), Span(0, n - 1, n)
    before = Rounds(odd, n, lambda _: [Move(rank_before, last_rank, last_block, last_block)])
    after = Rounds(odd, n, lambda _: [Move(last_rank, rank_before, other_blocks, other_blocks)])
    return before + keep_ranks(Rounds(pairs, n, exchange_round), rank < even) + after


@algorithm(Operation.REDUCE_SCATTER, "neighbor_exchange", reduce_scatter_cost, period=_period)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Plan a reduce-scatter: partial sums of blocks move between neighbours, two blocks per message."""
    return all_gather(rank, n).reversed(Op.OWN_FIRST)
