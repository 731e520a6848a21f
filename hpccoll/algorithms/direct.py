"""Direct all-reduce: every rank sends to every other at once; one shot or two.

In one shot everyone sends its whole message to everyone, and each rank reduces what it received: one latency, and
(n - 1) S sent. In two shots every rank first sends each chunk straight to the rank that reduces it, and that rank
sends the result straight to all: two latencies, and no more bytes than a ring. Both suit few ranks that are all
connected to each other, as within a node; there they are the fastest for small and for middling messages.

Order: in one shot 0, 1, ..., n - 1 on every rank, ((x0 (+) x1) (+) x2) ..., so all compute the same bits; in two shots
a chunk's owner r reduces its own first, then those of r-1, r-2, ... around the circle, and all copy its bits.
Source: the one-stage and two-stage all-reduce of TensorRT-LLM and vLLM; Thakur, Rabenseifner and Gropp, IJHPCA 2005,
for the direct exchange.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Move, Op, Operation, Rounds, Span


def one_shot_cost(n: int) -> Cost:
    """1 step; every rank sends S to each of the n - 1 others."""
    return Cost(min(n - 1, 1), Fraction(n - 1), Fraction(n - 1))


def two_shot_cost(n: int) -> Cost:
    """2 steps; every rank sends 2 (n-1)/n S."""
    return Cost(2 * min(n - 1, 1), Fraction(2 * (n - 1), n), Fraction(2 * (n - 1), n))


@algorithm(Operation.ALL_REDUCE, "one_shot", one_shot_cost)
def one_shot(rank: IntArray, n: int) -> Rounds:
    """Everyone sends everything to everyone, and each rank reduces in rank order."""
    whole = Span(0, 1, 1)

    def shifted(t: int, wraps: bool) -> Move:
        to, frm = rank + t, rank - t
        to = np.where((to >= n) == wraps, to % n, NO_PEER)
        op = np.where(frm == 0, Op.COPY, Op.OWN_FIRST)
        return Move(to, np.where((frm < 0) == wraps, frm % n, NO_PEER), whole, whole, op)

    def at(_: int) -> list[Move]:
        # What arrives is reduced in the order of the moves: from the ranks below in ascending order, of which rank 0's
        # takes the place of one's own, then one's own as it stood before, then from the ranks above.
        below = [shifted(t, wraps=False) for t in range(n - 1, 0, -1)]
        own = np.where(rank > 0, rank, NO_PEER)
        above = [shifted(t, wraps=True) for t in range(n - 1, 0, -1)]
        return [*below, Move(own, own, whole, whole, Op.OWN_FIRST), *above]

    return Rounds(min(n - 1, 1), 1, at)


@algorithm(Operation.ALL_REDUCE, "two_shot", two_shot_cost, period=1)
def two_shot(rank: IntArray, n: int) -> Rounds:
    """Everyone sends each chunk to its owner, and each owner its result to everyone."""

    def at(t: int) -> list[Move]:
        moves = []
        for distance in range(1, n):
            to, frm = (rank + distance) % n, (rank - distance) % n
            mine = Span(rank, 1, n)
            gathered = Move(to, frm, mine, Span(frm, 1, n))
            moves.append(gathered if t else Move(to, frm, Span(to, 1, n), mine, Op.OWN_FIRST))
        return moves

    return Rounds(2 * min(n - 1, 1), n, at)
