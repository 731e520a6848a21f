"""Barriers by empty messages: linear, double ring and dissemination.

In the linear barrier every rank signals rank 0, one rank per round, then rank 0 signals all ranks in reverse order. The
linear barrier is the simplest barrier; its time grows with n. The linear barrier is the message-passing form of the
centralised barrier of Mellor-Crummey and Scott, ACM TOCS 1991.

In the double ring a token travels around the ring of ranks twice. When the token first reaches the last rank, every
rank has entered the barrier. The last rank then leaves the barrier, and every other rank leaves when the token passes
it on the second lap, which ends at rank n - 2. The double ring is the slowest barrier, with the least load on the
network, because one message is in flight at a time. The source of the double ring is Open MPI.

In a dissemination barrier every rank r signals rank r + 2**t (modulo n) in round t. After ceil(log2 n) rounds of
dissemination every rank knows that all ranks have entered. Dissemination works for any n and needs no root. Source:
Hensgen, Finkel and Manber, IJPP 1988.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, SIGNAL, Cost, IntArray, Move, Operation, Rounds


def linear_cost(n: int) -> Cost:
    """A linear or double-ring barrier takes 2 (n - 1) steps and sends no data."""
    return Cost(2 * (n - 1), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "linear", linear_cost, grows_linearly=True)
def linear(rank: IntArray, n: int) -> Rounds:
    """Plan a barrier: every rank signals rank 0, one rank per round; then rank 0 signals every rank."""

    def signal_rank_0(t: int) -> list[Move]:
        """Return the message of round t, in which rank t + 1 signals rank 0."""
        dest, source = np.where(rank == t + 1, 0, NO_PEER), np.where(rank == 0, t + 1, NO_PEER)
        return [Move(dest, source, SIGNAL, SIGNAL)]

    arrivals = Rounds(n - 1, 0, signal_rank_0)
    return arrivals + arrivals.reversed()


@algorithm(Operation.BARRIER, "double_ring", linear_cost, grows_linearly=True)
def double_ring(rank: IntArray, n: int) -> Rounds:
    """Plan a barrier: rank t mod n signals the next rank in round t, twice around the ring."""
    above, below = (rank + 1) % n, (rank - 1) % n

    def signal_next_rank(t: int) -> list[Move]:
        """Return the message of round t, in which rank t mod n signals the next rank."""
        dest, source = np.where(rank == t % n, above, NO_PEER), np.where(below == t % n, below, NO_PEER)
        return [Move(dest, source, SIGNAL, SIGNAL)]

    return Rounds(2 * (n - 1), 0, signal_next_rank)


def dissemination_cost(n: int) -> Cost:
    """A dissemination barrier takes ceil(log2 n) steps and sends no data."""
    return Cost(ceil_log2(n), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "dissemination", dissemination_cost, period=1)
def dissemination(rank: IntArray, n: int) -> Rounds:
    """Plan a barrier: in round t every rank r signals rank r + 2**t (mod n)."""
    return Rounds(ceil_log2(n), 0, lambda t: [Move((rank + (1 << t)) % n, (rank - (1 << t)) % n, SIGNAL, SIGNAL)])
