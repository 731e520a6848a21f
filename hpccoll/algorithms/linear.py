"""The linear barrier: everyone reports to rank 0, then rank 0 tells everyone.

Rank 0 takes the reports one after the other and answers likewise, so its port is the whole cost and grows with n. It
is the simplest barrier and the yardstick of the others. The answers go out in reverse order: the last to be heard is
the first to be released.

No data moves, nothing is reduced. Source: Mellor-Crummey and Scott, ACM TOCS 1991, name it the centralised barrier.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, SIGNAL, Cost, IntArray, Move, Operation, Rounds


def cost(n: int) -> Cost:
    """2 (n - 1) steps, no data."""
    return Cost(2 * (n - 1), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "linear", cost)
def barrier(rank: IntArray, n: int) -> Rounds:
    """All to rank 0, one a round; then rank 0 to all."""

    def report(t: int) -> list[Move]:
        to, frm = np.where(rank == t + 1, 0, NO_PEER), np.where(rank == 0, t + 1, NO_PEER)
        return [Move(to, frm, SIGNAL, SIGNAL)]

    reports = Rounds(n - 1, 0, report)
    return reports + reports.reversed()
