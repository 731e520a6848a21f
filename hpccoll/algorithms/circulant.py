"""Circulant graphs with skips that halve, rounding up: algorithms with the fewest rounds for any n.

The skips are n, ceil(n/2), ceil(n/4), ..., 1. Reduce-scatter: from the largest skip below n down, each rank sends the
rank one skip above the partial sums of all chunks that lie at least that far above itself, so the n chunks that it has
to sum shrink to its own one; the all-gather is the same backwards. All ranks do the same in every round on one cyclic
interval of chunks, so no rank count needs special treatment.

Broadcast: k chunks reach n ranks in k - 1 + q rounds, q = ceil(log2 n), for any k and n. In round t every rank sends
one chunk to the rank skip[t mod q] above it. A schedule of q numbers per rank says which chunk; it repeats every q
rounds, moved on by q chunks. A rank receives its *base* chunk (the smallest skip on its greedy path from the root)
first, and in each cycle one chunk of every other residue modulo q, among those that the sender already has. The reduce
is the broadcast backwards. The paper finds the schedule by a depth-first search; here it is a greedy walk over the
skips, for all ranks at once (`receive_schedule`), and a test verifies the paper's conditions.

Order: each partial sum takes the receiver's own part first, then arrivals round by round; one rank computes each chunk
(in the reduce, the root). Sources: Traeff, arXiv 2410.14234 (reduce-scatter), 2312.11236 and 2407.18004 (broadcast);
Bar-Noy and Kipnis, Discrete Applied Mathematics 1994, for the bound.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Ints, Move, Op, Operation, Rounds, Span, empty_rounds

_NEVER = -(2**40)  # a chunk number so low that no cycle reaches the first chunk


def list_skips(n: int) -> list[int]:
    """Return the ceil(log2 n) + 1 skips of n ranks, ascending: 1, ..., ceil(n/4), ceil(n/2), n."""
    descending = [n]
    while descending[-1] > 1:
        descending.append((descending[-1] + 1) // 2)
    return descending[::-1]


def reduce_scatter_cost(n: int) -> Cost:
    """ceil(log2 n) steps; every rank sends (n-1)/n S."""
    return Cost(ceil_log2(n), Fraction(n - 1, n), Fraction(n - 1, n))


@algorithm(Operation.REDUCE_SCATTER, "circulant", reduce_scatter_cost, period=1)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Plan a reduce-scatter: send the far half of the chunks left to sum, at distances ceil(n/2), ceil(n/4), ..., 1."""
    skips = list_skips(n)

    def make_round(t: int) -> list[Move]:
        last, skip = skips[-1 - t], skips[-2 - t]
        above, below = (rank + skip) % n, (rank - skip) % n
        return [Move(above, below, Span(rank + skip, last - skip, n), Span(rank, last - skip, n), Op.OWN_FIRST)]

    return Rounds(len(skips) - 1, n, make_round)


@algorithm(Operation.ALL_GATHER, "circulant", reduce_scatter_cost, period=1)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Plan an all-gather: the reduce-scatter backwards; a rank's interval of chunks about doubles in every round."""
    return reduce_scatter(rank, n).reversed()


def receive_schedule(place: IntArray, n: int) -> IntArray:
    """Return the chunk that each place (counted from the root) receives in each round of a cycle, shape (P, q).

    One entry is the base chunk, >= 0; a negative entry is that chunk of the previous cycle. The row of place 0 is
    meaningless.
    """
    skips, row = list_skips(n), np.arange(len(place))
    q = len(skips) - 1
    free = np.ones((len(place), q + 1), np.bool_)

    def walk(limit: IntArray, enough: Ints) -> tuple[IntArray, IntArray]:
        """Climb by the largest free skips, never above `limit`, until above `enough`; return height and last skip."""
        height, last = np.zeros(len(place), np.int64), np.full(len(place), NO_PEER)
        for e in range(q, -1, -1):
            step = free[:, e] & (height + skips[e] <= limit) & (height <= enough)
            height, last = np.where(step, height + skips[e], height), np.where(step, e, last)
        return height, last

    base = np.where(place == 0, q, walk(place, n)[1])
    free[row, base] = False
    chunk, below = np.zeros((len(place), q), np.int64), np.full(len(place), 2 * n)
    for k in range(q):
        # The sender stands skips[k] below; the path ends there or lower, but above the next round's sender.
        below, chunk[:, k] = walk(np.minimum(n + place - skips[k], below - 1), n + place - skips[k + 1])
        free[row, chunk[:, k]] = False
    return np.where(chunk == q, base[:, None], chunk - q)


def _send_and_receive_schedules(place: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """Return the chunks that each place sends and receives in each round of a cycle, both of shape (P, q)."""
    skips = list_skips(n)[:-1]
    places, index = np.unique((place[:, None] + np.array([0, *skips])) % n, return_inverse=True)
    received = receive_schedule(places, n)
    received[places == 0] = _NEVER  # the root has every chunk
    own_and_peers = index.reshape(len(place), len(skips) + 1)
    return received[own_and_peers[:, 1:], np.arange(len(skips))], received[own_and_peers[:, 0]]


def broadcast_cost(n: int, chunks: int) -> Cost:
    """k - 1 + ceil(log2 n) steps; (n-1)/n S on average, the root (k - 1 + ceil(log2 n))/k S."""
    steps = chunks - 1 + ceil_log2(n) if n > 1 else 0
    return Cost(steps, Fraction(n - 1, n), Fraction(steps, chunks))


def reduce_cost(n: int, chunks: int) -> Cost:
    """k - 1 + ceil(log2 n) steps; every rank but the root sends S once."""
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

    def make_round(t: int) -> list[Move]:
        k = (t + skipped) % cycle
        ahead = t - k  # chunks by which the schedule has moved on
        sent, received = sends[:, k] + ahead, receives[:, k] + ahead
        dest, source = np.where(sent >= 0, peers[k][0], NO_PEER), np.where(received >= 0, peers[k][1], NO_PEER)
        return [
            Move(dest, source, Span(np.minimum(sent, last), 1, chunks), Span(np.minimum(received, last), 1, chunks))
        ]

    return Rounds(last + cycle, chunks, make_round)


@algorithm(Operation.REDUCE, "circulant", reduce_cost)
def reduce(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Plan a reduce: the circulant broadcast backwards; partial sums of one chunk per round move towards the root."""
    return broadcast(rank, n, root, chunks).reversed(Op.OWN_FIRST)
