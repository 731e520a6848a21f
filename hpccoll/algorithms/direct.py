"""Direct all-reduce: every rank sends to every other rank at once, in one step ("one shot") or in two.

One shot: every rank sends its whole message to every other rank and reduces all messages. The one-shot all-reduce takes
one latency, and each rank sends the message n - 1 times. Two shots: every rank sends each chunk to the chunk's owner,
which reduces it and sends the result to all ranks. The two-shot all-reduce takes two latencies and sends no more bytes
than a ring. Direct algorithms suit small and medium messages of few ranks with a link between each pair.

In one shot every rank reduces all messages in rank order, so all ranks compute the same bits. In the two-shot
all-reduce owner r of a chunk reduces its own part first, then those of ranks r-1, r-2 and so on (mod n), and all ranks
copy the owner's result. Source: the one-stage and two-stage all-reduce of TensorRT-LLM and vLLM; Thakur, Rabenseifner
and Gropp, IJHPCA 2005, for the direct exchange.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Move, Op, Operation, Rounds, Span


def one_shot_cost(n: int) -> Cost:
    """A message of S bytes takes 1 step; every rank sends S to each of the n - 1 others."""
    return Cost(min(n - 1, 1), Fraction(n - 1), Fraction(n - 1))


def two_shot_cost(n: int) -> Cost:
    """A message of S bytes takes 2 steps; every rank sends 2 (n-1)/n S."""
    return Cost(2 * min(n - 1, 1), Fraction(2 * (n - 1), n), Fraction(2 * (n - 1), n))


@algorithm(Operation.ALL_REDUCE, "one_shot", one_shot_cost, grows_linearly=True)
def one_shot(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: every rank sends its message to every other rank and reduces all messages in rank order."""
    whole = Span(0, 1, 1)

    def make_exchange(t: int, wraps: bool) -> Move:
        """Return a step in which rank r sends to rank r + t - n (if `wraps`) or r + t, if this rank exists."""
        dest, source = rank + t, rank - t
        dest = np.where((dest >= n) == wraps, dest % n, NO_PEER)
        op = np.where(source == 0, Op.COPY, Op.OWN_FIRST)
        return Move(dest, np.where((source < 0) == wraps, source % n, NO_PEER), whole, whole, op)

    def all_reduce_round(_: int) -> list[Move]:
        """Return all messages of the one-shot all-reduce, in the order in which a rank reduces them."""
        # A rank reduces messages in the order of the steps, so the steps are sorted by sender.
        # The message of rank 0 overwrites the receiver's data, so the receiver also sends its data to itself.
        below = [make_exchange(t, wraps=False) for t in range(n - 1, 0, -1)]
        own = np.where(rank > 0, rank, NO_PEER)
        above = [make_exchange(t, wraps=True) for t in range(n - 1, 0, -1)]
        return [*below, Move(own, own, whole, whole, Op.OWN_FIRST), *above]

    return Rounds(min(n - 1, 1), 1, all_reduce_round)


@algorithm(Operation.ALL_REDUCE, "two_shot", two_shot_cost, period=1, grows_linearly=True)
def two_shot(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: every rank sends chunk c to its owner, rank c, which then sends the sum to every rank."""

    def reduce_scatter_or_all_gather_round(t: int) -> list[Move]:
        """Return the messages of the reduce-scatter (t = 0) or of the all-gather (t = 1)."""
        moves = []
        for distance in range(1, n):
            dest, source = (rank + distance) % n, (rank - distance) % n
            own = Span(rank, 1, n)
            gather = Move(dest, source, own, Span(source, 1, n))
            moves.append(gather if t else Move(dest, source, Span(dest, 1, n), own, Op.OWN_FIRST))
        return moves

    return Rounds(2 * min(n - 1, 1), n, reduce_scatter_or_all_gather_round)
