"""PAT, parallel aggregated trees: every block moves down its own binomial tree, farthest ranks first.

The n trees are one tree rotated to n roots, so in each round every rank sends the blocks of several trees to one rank.
The distances are Bruck's in reverse order (the largest power of two below n, ..., 2, 1), so that long links carry small
messages. If bounded buffers limit a message to A blocks, the first rounds (those with the largest distances) are the
same as without a limit. After the first rounds, the remaining subtrees are traversed depth first, one edge per round,
so that no message exceeds the limit. The tree of n ranks is the binomial tree of the next power of two, without the
ranks n and above. The reduce-scatter is the all-gather backwards.

The algorithms named `pat` do not limit the blocks per message, because chunks are received at their final addresses,
without buffers. A rank reduces its own part first, then those of its children, from the nearest to the farthest. For
each chunk, a single rank computes the final sum. Source: Jeaugey, "PAT: a new algorithm for all-gather and
reduce-scatter operations at scale", arXiv 2506.20252.
"""

from __future__ import annotations

import numpy as np

from hpccoll.algorithms.bruck import all_gather_cost
from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import IntArray, Move, Op, Operation, Picks, Rounds


def _count_blocks(n: int, distance: int, parent: int, spacing: int) -> int:
    """Return the number of ranks p = parent + i * spacing (i >= 0) that have a child p + distance below n in a tree."""
    return -(-(n - distance - parent) // spacing)


def _count_far_rounds(n: int, most: int | None) -> int:
    """Return the number of rounds with the largest distances, which come before the depth-first rounds.

    The result is the largest number for which depth-first rounds send at most `most` blocks per message. If `most` is
    None (no limit), the result is the number of all rounds but the last.
    """
    q = ceil_log2(n)
    return max((t for t in range(q) if most is None or _count_blocks(n, 1, 0, 1 << (q - t)) <= most), default=0)


@algorithm(Operation.ALL_GATHER, "pat", all_gather_cost, period=1)
def all_gather(rank: IntArray, n: int, most: int | None = None) -> Rounds:
    """Plan an all-gather: each block moves down its own binomial tree, farthest ranks first; blocks share messages.

    A message holds at most `most` blocks (None: no limit). A lower `most` costs more rounds, not more bytes.
    """
    q = ceil_log2(n)
    far = _count_far_rounds(n, most)
    below = 1 << (q - far)  # ranks of each subtree below the far rounds: two without a limit

    def find_parents(t: int) -> tuple[int, int, int]:
        """Return, for round t, the distance from parents to children, the first parent, and the spacing of parents."""
        if t < far:
            return 1 << (q - 1 - t), 0, 1 << (q - t)
        child = t - far + 1
        distance = child & -child
        return distance, child - distance, below

    def all_gather_round(t: int) -> list[Move]:
        """Return round t: each rank forwards the blocks in whose trees it is a parent in this round."""
        distance, parent, spacing = find_parents(t)
        count = _count_blocks(n, distance, parent, spacing)

        def sent_blocks(sender: IntArray) -> Picks:
            """Return the blocks that each rank in `sender` sends in this round; it is a parent in their trees."""
            return Picks(count, lambda: (sender[:, None] - parent - spacing * np.arange(count)) % n)

        dest, source = (rank + distance) % n, (rank - distance) % n
        return [Move(dest, source, sent_blocks(rank), sent_blocks(source))]

    return Rounds(far + min(below, n) - 1, n, all_gather_round)


@algorithm(Operation.REDUCE_SCATTER, "pat", all_gather_cost, period=1)
def reduce_scatter(rank: IntArray, n: int, most: int | None = None) -> Rounds:
    """Plan a reduce-scatter: each block's partial sums move up the block's own binomial tree.

    A message holds at most `most` blocks (None: no limit).
    """
    return all_gather(rank, n, most).reversed(Op.OWN_FIRST)
