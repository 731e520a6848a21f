"""Circulant graphs with skips (distances) that halve, rounding up: algorithms with the fewest rounds for any n.

The skips are n, ceil(n/2), ceil(n/4), ..., 1. The reduce-scatter has one round per skip s < n, from the largest skip to
the smallest. Rank r has partial sums of the chunks r, r + 1, ..., and sends the partial sums of chunks r + s and above
to rank r + s (all modulo n), until only chunk r remains. The all-gather is the reduce-scatter backwards. Every message
is one cyclic interval of chunks, of the same length on all ranks, so no rank count needs special treatment.

The broadcast sends k chunks to n ranks in k - 1 + q rounds, q = ceil(log2 n), for any k and n. In round t every rank
sends one chunk to the rank skip[(t + j) mod q] above it, where skip lists the skips below n in ascending order, and the
first cycle lacks its first j = -(k - 1) mod q rounds, so that the last cycle is complete. A schedule of
q = ceil(log2 n) chunk numbers per rank lists the chunks that the rank receives in the first cycle of q rounds. In each
later cycle of q = ceil(log2 n) rounds all chunk numbers of the schedule are higher by q. If skips are added
greedily, largest first, up to a rank's distance from the root, the index of the last skip added is the number of the
first chunk that the rank receives. In each cycle of q = ceil(log2 n) rounds a rank receives one chunk for every residue
of chunk numbers modulo q, always a chunk that its sender already has. The reduce is the broadcast backwards. Traeff's
papers compute the schedule by a depth-first search. `compute_receive_schedule` computes the schedule of all ranks at
once by greedy additions of skips, and a test verifies the papers' conditions on schedules.

Each partial sum starts with the receiver's own part and adds arriving partial sums round by round. For each chunk, a
single rank computes the final sum (in the reduce, the root). Sources: Traeff, arXiv 2410.14234 (reduce-scatter),
2312.11236 and 2407.18004 (broadcast); Bar-Noy and Kipnis, Discrete Applied Mathematics 1994, for the bound on rounds.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.algorithms.bruck import all_gather_cost
from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Move, Op, Operation, Rounds, Span, empty_rounds

Ints32: TypeAlias = NDArray[np.int32] | IntArray
_NEVER = -(2**40)  # a chunk number so low that no cycle reaches the first chunk


def list_skips(n: int) -> list[int]:
    """Return the distances, in ranks, over which the algorithms of this file send: 1, ..., ceil(n/4), ceil(n/2), n."""
    descending = [n]
    while descending[-1] > 1:
        descending.append((descending[-1] + 1) // 2)
    return descending[::-1]


@algorithm(Operation.REDUCE_SCATTER, "circulant", all_gather_cost, period=1)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Plan a reduce-scatter: the distance and the size of messages halve per round, down to one rank and one chunk."""
    skips = list_skips(n)

    def reduce_scatter_round(t: int) -> list[Move]:
        """Return round t: each rank sends blocks `skip` ranks up, and reduces the blocks that it receives."""
        last, skip = skips[-1 - t], skips[-2 - t]
        above, below = (rank + skip) % n, (rank - skip) % n
        return [Move(above, below, Span(rank + skip, last - skip, n), Span(rank, last - skip, n), Op.OWN_FIRST)]

    return Rounds(len(skips) - 1, n, reduce_scatter_round)


@algorithm(Operation.ALL_GATHER, "circulant", all_gather_cost, period=1)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Plan an all-gather: the number of chunks that a rank holds about doubles per round."""
    return reduce_scatter(rank, n).reversed()


def compute_receive_schedule(place: IntArray, n: int) -> IntArray:
    """Return the chunk number that each rank receives in each of the first q = ceil(log2 n) rounds of a broadcast.

    `place` is an array of ranks, counted from the root; the root's row of the result is meaningless. The result has one
    row of q numbers per rank. In the row of a rank other than the root, only the chunk that the rank receives first is
    >= 0; a negative entry means that nothing is received yet. Each later cycle of q rounds adds q to all chunk numbers.
    """
    skips, column = list_skips(n), np.arange(len(place))
    q = len(skips) - 1
    # Sums of skips stay below 3 n. Small integers and one row per skip keep a million ranks in the processor's caches.
    small: Ints32 = place.astype(np.int32) if n < 2**29 else place
    free = np.ones((q + 1, len(small)), np.bool_)

    def walk(limit: Ints32, enough: Ints32) -> tuple[Ints32, Ints32]:
        """Return a sum of unused skips (distances), and the index of the last skip added.

        Skips are added from the largest to the smallest until the sum is > `enough`, leaving out skips that would make
        the sum > `limit`.
        """
        height, last = np.zeros_like(small), np.full_like(small, NO_PEER)
        for e in range(q, -1, -1):
            step = free[e] & (height <= limit - skips[e]) & (height <= enough)
            height += step * small.dtype.type(skips[e])
            last[step] = e
        return height, last

    base = np.where(small == 0, q, walk(small, np.full_like(small, n))[1])
    free[base, column] = False
    chunk, below = np.zeros((q, len(small)), np.int64), np.full_like(small, 2 * n)
    for k in range(q):
        # The sum of skips is > n + the sender's number in round k + 1, and <= n + the sender's number in round k.
        below, chunk[k] = walk(np.minimum(n + small - skips[k], below - 1), n + small - skips[k + 1])
        free[chunk[k], column] = False
    return np.asarray(np.where(chunk == q, base, chunk - q).T, np.int64)


def _send_and_receive_schedules(place: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """Return two arrays: the chunks that ranks send, and those that they receive, in each round of the first cycle.

    `place` has the ranks, counted from the root. The two arrays have one row per rank with q = ceil(log2 n) numbers;
    a negative number stands for no chunk.
    """
    skips = list_skips(n)[:-1]
    own_and_senders = (place[:, None] + np.array([0, *skips])) % n
    if len(place) == n and np.bincount(place, minlength=n).all():  # all ranks, so none must be selected
        places, index = np.arange(n), own_and_senders
    else:
        places, index = np.unique(own_and_senders, return_inverse=True)
    received = compute_receive_schedule(places, n)
    received[places == 0] = _NEVER  # the root has every chunk
    own_and_peers = index.reshape(len(place), len(skips) + 1)
    return received[own_and_peers[:, 1:], np.arange(len(skips))], received[own_and_peers[:, 0]]


def broadcast_cost(n: int, chunks: int) -> Cost:
    """S bytes in k chunks take t = k - 1 + ceil(log2 n) steps; a rank sends (n-1)/n S on average, the root t/k S."""
    steps = chunks - 1 + ceil_log2(n) if n > 1 else 0
    return Cost(steps, Fraction(n - 1, n), Fraction(steps, chunks))


def reduce_cost(n: int, chunks: int) -> Cost:
    """S bytes in k chunks take k - 1 + ceil(log2 n) steps; every rank but the root sends S once."""
    return Cost(broadcast_cost(n, chunks).steps, Fraction(n - 1, n), Fraction(min(n - 1, 1)))


@algorithm(Operation.BROADCAST, "circulant", broadcast_cost)
def broadcast(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Plan a broadcast: each rank sends one chunk per round, to the ranks at distances 1, 2, ..., ceil(n/2) in turn."""
    if n == 1:
        return empty_rounds(chunks)
    sends, receives = _send_and_receive_schedules((rank - root) % n, n)
    peers = [((rank + skip) % n, (rank - skip) % n) for skip in list_skips(n)[:-1]]
    cycle, last = len(peers), chunks - 1
    skipped = -last % cycle  # rounds left out of the first cycle, so that the last cycle is complete

    def broadcast_round(t: int) -> list[Move]:
        """Return round t: round k of the schedule's first cycle, with t - k added to its chunk numbers."""
        k = (t + skipped) % cycle
        ahead = t - k  # added to the chunk numbers of the first cycle
        sent, received = sends[:, k] + ahead, receives[:, k] + ahead
        dest, source = np.where(sent >= 0, peers[k][0], NO_PEER), np.where(received >= 0, peers[k][1], NO_PEER)
        return [
            Move(dest, source, Span(np.minimum(sent, last), 1, chunks), Span(np.minimum(received, last), 1, chunks))
        ]

    return Rounds(last + cycle, chunks, broadcast_round)


@algorithm(Operation.REDUCE, "circulant", reduce_cost)
def reduce(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Plan a reduce: each rank sends the partial sum of one chunk per round towards the root."""
    return broadcast(rank, n, root, chunks).reversed(Op.OWN_FIRST)
