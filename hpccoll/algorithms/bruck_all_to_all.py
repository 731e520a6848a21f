"""Bruck's all-to-all: ceil(log2 n) rounds in which blocks hop along the bits of their distance.

The block for the rank j above must travel j ranks up; in round t every block whose j has bit t set hops 2**t further,
joined with all others that do. Each block is sent as often as j has bits, log2(n)/2 times on average: more bytes than
pairwise in far fewer messages, for small blocks. Any n will do, since distances count around the circle.

Chunks 0 to n-1 are a rank's input, n to 2n-1 its output, and 2n+j is where a block of distance j rests on its way. The
original turns all blocks before and after; here the first hop takes a block from the input and the last lands it in the
output, so only the rank's own block is copied. Source: Bruck et al., TPDS 1997.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, IntArray, Move, Operation, Picks, Rounds, Span


def _hops(n: int, t: int) -> int:
    """Return how many distances below n have bit t set."""
    bit = 1 << t
    return n // (2 * bit) * bit + max(0, n % (2 * bit) - bit)


def cost(n: int) -> Cost:
    """ceil(log2 n) steps; every rank sends a block for each bit in 0, ..., n-1: about log2(n)/2 S."""
    sent = Fraction(sum(_hops(n, t) for t in range(ceil_log2(n))), n)
    return Cost(ceil_log2(n), sent, sent)


@algorithm(Operation.ALL_TO_ALL, "bruck", cost, period=1)
def all_to_all(rank: IntArray, n: int) -> Rounds:
    """Blocks hop 1, 2, 4, ... ranks up, those together that hop alike."""
    home = Move(rank, rank, Span(rank, 1, n), Span(rank, 1, n, base=n))

    def hop(t: int) -> Move:
        bit, count = 1 << t, _hops(n, t)

        def distances() -> IntArray:
            every = np.arange(n)
            return np.nonzero(every & bit)[0]

        def leaving() -> IntArray:
            j = distances()
            return np.where(j & (bit - 1) == 0, (rank[:, None] + j) % n, 2 * n + j)

        def arriving() -> IntArray:
            j = distances()
            return np.where(j < 2 * bit, n + (rank[:, None] - j) % n, 2 * n + j)

        return Move((rank + bit) % n, (rank - bit) % n, Picks(count, leaving), Picks(count, arriving))

    # A rank alone has its own block to copy and nothing to send.
    rounds = max(ceil_log2(n), 1)
    return Rounds(rounds, 3 * n, lambda t: ([home] if t == 0 else []) + ([hop(t)] if n > 1 else []))
