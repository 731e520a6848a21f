"""Barriers without data: linear, double ring and dissemination. Barrier messages are empty.

Linear: every rank signals rank 0, one per round, then rank 0 signals all ranks in reverse order. The linear barrier is
the simplest; its time grows with n. Mellor-Crummey and Scott, ACM TOCS 1991, call it centralised.

Double ring: a token travels around the ring twice. When the token reaches the last rank, every rank has entered; each
rank leaves when the token reaches it for the second time. The token stops at rank n - 2, because the last rank leaves
after the first lap. The double ring is the slowest barrier, with the least load on the network, because one message is
in flight at a time. Source: Open MPI.

Dissemination: in round t every rank signals the rank 2**t above it. After ceil(log2 n) rounds every rank knows that all
have entered. Dissemination works for any n and needs no root. Source: Hensgen, Finkel and Manber, IJPP 1988.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, SIGNAL, Cost, IntArray, Move, Operation, Rounds


def linear_cost(n: int) -> Cost:
    """2 (n - 1) steps, no data."""
    return Cost(2 * (n - 1), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "linear", linear_cost)
def linear(rank: IntArray, n: int) -> Rounds:
    """Plan a barrier: every rank signals rank 0, one per round; then rank 0 signals every rank."""

    def signal_rank_0(t: int) -> list[Move]:
        """Return round t: rank t + 1 signals rank 0."""
        dest, source = np.where(rank == t + 1, 0, NO_PEER), np.where(rank == 0, t + 1, NO_PEER)
        return [Move(dest, source, SIGNAL, SIGNAL)]

    arrivals = Rounds(n - 1, 0, signal_rank_0)
    return arrivals + arrivals.reversed()


@algorithm(Operation.BARRIER, "double_ring", linear_cost)
def double_ring(rank: IntArray, n: int) -> Rounds:
    """Plan a barrier: rank t mod n signals the next rank in round t, twice around the ring."""
    above, below = (rank + 1) % n, (rank - 1) % n

    def signal_next_rank(t: int) -> list[Move]:
        """Return the steps of round t."""
        dest, source = np.where(rank == t % n, above, NO_PEER), np.where(below == t % n, below, NO_PEER)
        return [Move(dest, source, SIGNAL, SIGNAL)]

    return Rounds(2 * (n - 1), 0, signal_next_rank)


def dissemination_cost(n: int) -> Cost:
    """ceil(log2 n) steps, no data."""
    return Cost(ceil_log2(n), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "dissemination", dissemination_cost, period=1)
def dissemination(rank: IntArray, n: int) -> Rounds:
    """Plan a barrier: every rank signals the ranks 1, 2, 4, ... above it, one per round, modulo n."""
    return Rounds(ceil_log2(n), 0, lambda t: [Move((rank + (1 << t)) % n, (rank - (1 << t)) % n, SIGNAL, SIGNAL)])
