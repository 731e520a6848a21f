"""PAT, parallel aggregated trees: every block travels down its own binomial tree, the farthest ranks first.

The n trees are one tree turned to n roots, so that in each round every rank sends the blocks of several trees to one
rank, at distances 2**(q-1), ..., 2, 1: Bruck's distances in reverse order, so that the long links carry the small
messages. Where at most A blocks may be joined in a message (a library's bounded buffers), the far rounds stay as they
are, and below them the subtrees are walked one edge a round, depth first, A trees at a time. A tree of n ranks is the
tree of the next power of two without the ranks from n on, so any rank count will do; the reduce-scatter is the
all-gather backwards.

What is registered joins as many blocks as there are: chunks land at their places here, and need no buffers.
Order: each partial sum takes the receiver's own first, then its children from the nearest to the farthest; one rank
computes each chunk. Source: Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at scale",
arXiv 2506.20252.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, IntArray, Move, Op, Operation, Picks, Rounds


def cost(n: int) -> Cost:
    """ceil(log2 n) steps; every rank sends (n-1)/n S."""
    return Cost(ceil_log2(n), Fraction(n - 1, n), Fraction(n - 1, n))


def _joined(n: int, distance: int, parent: int, spacing: int) -> int:
    """Return how many nodes parent, parent + spacing, ... of a tree have a child at `distance` (below n)."""
    return -(-(n - distance - parent) // spacing)


def _far_rounds(n: int, most: int | None) -> int:
    """Return after how many far rounds the subtrees are walked, so that none of their messages joins too many."""
    q = ceil_log2(n)
    return max((t for t in range(q) if most is None or _joined(n, 1, 0, 1 << (q - t)) <= most), default=0)


@algorithm(Operation.ALL_GATHER, "pat", cost, period=1)
def all_gather(rank: IntArray, n: int, most: int | None = None) -> Rounds:
    """Each block goes down a binomial tree of its own, far ranks first; a message joins those that go the same way.

    Args:
        rank: the ranks of the column.
        n: ranks in all.
        most: blocks that a message may join; None for any number. Fewer cost more rounds, not more bytes.
    """
    q = ceil_log2(n)
    far = _far_rounds(n, most)
    below = 1 << (q - far)  # ranks in each subtree that is left to walk: two, where a message may join any number

    def edge(t: int) -> tuple[int, int, int]:
        """Return distance, first parent and spacing of the parents of round t."""
        if t < far:
            return 1 << (q - 1 - t), 0, 1 << (q - t)
        child = t - far + 1
        distance = child & -child
        return distance, child - distance, below

    def at(t: int) -> list[Move]:
        distance, parent, spacing = edge(t)
        count = _joined(n, distance, parent, spacing)

        def blocks(of: IntArray) -> Picks:
            """The blocks for which rank `of` is one of the parents in their tree."""
            return Picks(count, lambda: (of[:, None] - parent - spacing * np.arange(count)) % n)

        to, frm = (rank + distance) % n, (rank - distance) % n
        return [Move(to, frm, blocks(rank), blocks(frm))]

    return Rounds(far + min(below, n) - 1, n, at)


@algorithm(Operation.REDUCE_SCATTER, "pat", cost, period=1)
def reduce_scatter(rank: IntArray, n: int, most: int | None = None) -> Rounds:
    """The all-gather backwards: each block's partial sums climb a tree of their own, near ranks first."""
    return all_gather(rank, n, most).reversed(Op.OWN_FIRST)
