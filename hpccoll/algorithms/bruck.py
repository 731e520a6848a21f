"""Bruck's all-gather, its mirror image as a reduce-scatter, and Bruck's all-to-all: ceil(log2 n) rounds for any n.

All-gather: in round t every rank holds 2**t consecutive chunks and receives up to 2**t more from the rank 2**t above
it. The reduce-scatter runs the rounds of the all-gather backwards, with sums instead of copies. The all-gather and the
reduce-scatter send the fewest bytes possible. Chunks are received at their final addresses, so no buffer is rotated.
The receiver's own part is the first operand of each reduction. For each chunk, a single rank computes the final sum.

All-to-all: the block from rank r for rank r + j moves j ranks up. In round t, all blocks for which bit t of j is 1 move
2**t ranks up in one message, so a block is sent once per 1-bit of j, log2(n)/2 times on average. Bruck's all-to-all
sends more bytes than the pairwise all-to-all, but far fewer messages, which suits small blocks. Chunks 0 to n-1 are a
rank's input, chunks n to 2n-1 its output, and chunk 2n+j buffers a block in transit from some rank r to rank r + j.
Bruck's paper rotates all blocks before and after the rounds. Instead of rotating, this all-to-all reads a block's first
hop from the input, writes its last hop to the output, and copies only the rank's own block.

Sources: Bruck et al., TPDS 1997; Traeff, arXiv 2410.14234, for the reduce-scatter (a circulant graph whose distances
are powers of two).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, IntArray, Move, Op, Operation, Picks, Rounds, Span


def all_gather_cost(n: int) -> Cost:
    """A message of S bytes takes ceil(log2 n) steps; every rank sends (n-1)/n S."""
    return Cost(ceil_log2(n), Fraction(n - 1, n), Fraction(n - 1, n))


@algorithm(Operation.ALL_GATHER, "bruck", all_gather_cost, period=1)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Plan an all-gather: the cyclic interval of chunks that a rank holds doubles per round, until it holds all."""

    def all_gather_round(t: int) -> list[Move]:
        """Return round t: each rank sends all its blocks to the rank 2**t below, or as many as that rank lacks."""
        distance = 1 << t
        count = min(distance, n - distance)
        below, above = (rank - distance) % n, (rank + distance) % n
        return [Move(below, above, Span(rank, count, n), Span(rank + distance, count, n))]

    return Rounds(ceil_log2(n), n, all_gather_round)


@algorithm(Operation.REDUCE_SCATTER, "bruck", all_gather_cost, period=1)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Plan a reduce-scatter: Bruck's all-gather backwards, with sums instead of copies."""
    return all_gather(rank, n).reversed(Op.OWN_FIRST)


def _count_distances(n: int, t: int) -> int:
    """Return how many of the numbers 0, ..., n-1 have bit t set."""
    bit = 1 << t
    return n // (2 * bit) * bit + max(0, n % (2 * bit) - bit)


def all_to_all_cost(n: int) -> Cost:
    """S bytes take ceil(log2 n) steps; every rank sends about log2(n)/2 S, about half of the blocks in each step."""
    sent = Fraction(sum(_count_distances(n, t) for t in range(ceil_log2(n))), n)
    return Cost(ceil_log2(n), sent, sent)


@algorithm(Operation.ALL_TO_ALL, "bruck", all_to_all_cost, period=1)
def all_to_all(rank: IntArray, n: int) -> Rounds:
    """Plan an all-to-all: in round t, all blocks that a rank sends to the rank 2**t above it share one message."""
    copy_own = Move(rank, rank, Span(rank, 1, n), Span(rank, 1, n, base=n))

    def make_hop(t: int) -> Move:
        """Return round t's step: blocks move 2**t ranks up if bit t of (receiver - sender) mod n is set."""
        bit, count = 1 << t, _count_distances(n, t)

        def list_sent_chunks() -> IntArray:
            """Return the chunks that each rank sends: input for a block's first hop, else blocks in transit."""
            j = np.nonzero(np.arange(n) & bit)[0]
            return np.where(j & (bit - 1) == 0, (rank[:, None] + j) % n, 2 * n + j)

        def list_received_chunks() -> IntArray:
            """Return the chunks that each rank receives into: the output for a block's last hop, else the buffer."""
            j = np.nonzero(np.arange(n) & bit)[0]
            return np.where(j < 2 * bit, n + (rank[:, None] - j) % n, 2 * n + j)

        return Move(
            (rank + bit) % n, (rank - bit) % n, Picks(count, list_sent_chunks), Picks(count, list_received_chunks)
        )

    # A single rank only copies its own block.
    rounds = max(ceil_log2(n), 1)
    return Rounds(rounds, 3 * n, lambda t: ([copy_own] if t == 0 else []) + ([make_hop(t)] if n > 1 else []))
