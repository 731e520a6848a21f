"""Pairwise all-to-all: in round t every rank r sends its block for rank r + t (mod n) directly to that rank.

In round 0 every rank copies its own block. Each block is sent once, in n - 1 rounds of one block per rank, which is
bandwidth-optimal on a flat network. Chunks 0 to n-1 are a rank's input, n to 2n-1 its output. Source: Thakur,
Rabenseifner and Gropp, IJHPCA 2005.
"""

from __future__ import annotations

from fractions import Fraction

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, IntArray, Move, Operation, Rounds, Span


def cost(n: int) -> Cost:
    """A message of S bytes takes n - 1 steps; every rank sends (n-1)/n S."""
    return Cost(n - 1, Fraction(n - 1, n), Fraction(n - 1, n))


@algorithm(Operation.ALL_TO_ALL, "pairwise", cost, period=1)
def all_to_all(rank: IntArray, n: int) -> Rounds:
    """Plan an all-to-all: in round t every rank sends one block directly to its receiver, t ranks above."""

    def send_block_round(t: int) -> list[Move]:
        """Return the messages that each rank sends and receives in round t."""
        dest, source = (rank + t) % n, (rank - t) % n
        return [Move(dest, source, Span(dest, 1, n), Span(source, 1, n, base=n))]

    return Rounds(n, 2 * n, send_block_round)
