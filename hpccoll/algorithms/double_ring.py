"""The double-ring barrier: a token goes around the ring twice, first to collect, then to release.

When the token reaches the last rank every rank has arrived; on its second way every rank that it reaches may leave.
It ends at the last rank but one, since the last one knew first. One message is on its way at any time: the slowest
barrier, and the gentlest on the network.

No data moves, nothing is reduced. Source: the double-ring barrier of Open MPI's collectives.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, SIGNAL, Cost, IntArray, Move, Operation, Rounds


def cost(n: int) -> Cost:
    """2 (n - 1) steps, no data."""
    return Cost(2 * (n - 1), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "double_ring", cost)
def barrier(rank: IntArray, n: int) -> Rounds:
    """Rank t mod n tells the next one in round t, twice around."""
    above, below = (rank + 1) % n, (rank - 1) % n

    def at(t: int) -> list[Move]:
        to, frm = np.where(rank == t % n, above, NO_PEER), np.where(below == t % n, below, NO_PEER)
        return [Move(to, frm, SIGNAL, SIGNAL)]

    return Rounds(2 * (n - 1), 0, at)
