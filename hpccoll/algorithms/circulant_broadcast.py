"""The round-optimal pipelined broadcast: k chunks reach n ranks in k - 1 + ceil(log2 n) rounds, for any k and n.

In round t every rank sends one chunk to the rank skip[t mod q] above it, with the q = ceil(log2 n) skips of the
circulant graph, so that ports are never idle and no rank sends two chunks at once. Which chunk, a schedule of q numbers
a rank says, used anew every q rounds and moved on by q chunks: a rank gets its *base* chunk (the smallest skip on its
greedy path from the root) first, and in each cycle one chunk of every other residue modulo q, of those that the sender
got before. The reduce is the broadcast backwards: every rank but the root sends each chunk once.

The paper finds the schedule by a depth-first search; here it is a greedy walk over the skips, for all ranks at once
(`received`), and a test holds its conditions. Order of the reduce: each rank's own comes first, then what arrives,
round by round; the root computes the result. Sources: Traeff, arXiv 2312.11236 and 2407.18004; Bar-Noy and Kipnis,
Discrete Applied Mathematics 1994, for the bound.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.circulant import skips
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Ints, Move, Op, Operation, Rounds, Span, empty_rounds

_NEVER = -(2**40)  # a chunk so far below the first that no cycle reaches it


def received(place: IntArray, n: int) -> IntArray:
    """Return the chunk that each place (counted from the root) gets in each round of a cycle, shape (P, q).

    One entry is the base chunk, >= 0; the others are negative: that chunk of the cycle before. Row 0 means nothing.
    """
    skip, row = skips(n), np.arange(len(place))
    q = len(skip) - 1
    free = np.ones((len(place), q + 1), np.bool_)

    def walk(limit: IntArray, enough: Ints) -> tuple[IntArray, IntArray]:
        """Climb by the largest free skips to `limit` at most, until above `enough`; return where, and the last skip."""
        height, last = np.zeros(len(place), np.int64), np.full(len(place), NO_PEER)
        for e in range(q, -1, -1):
            step = free[:, e] & (height + skip[e] <= limit) & (height <= enough)
            height, last = np.where(step, height + skip[e], height), np.where(step, e, last)
        return height, last

    base = np.where(place == 0, q, walk(place, n)[1])
    free[row, base] = False
    chunk, below = np.zeros((len(place), q), np.int64), np.full(len(place), 2 * n)
    for k in range(q):
        # Who sends stands skip[k] below; the path sought ends there or lower, but not so low as the next sender.
        below, chunk[:, k] = walk(np.minimum(n + place - skip[k], below - 1), n + place - skip[k + 1])
        free[row, chunk[:, k]] = False
    return np.where(chunk == q, base[:, None], chunk - q)


def _schedules(place: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """Return what each place sends and gets in each round of a cycle, both of shape (P, q)."""
    skip = skips(n)[:-1]
    around, index = np.unique((place[:, None] + np.array([0, *skip])) % n, return_inverse=True)
    table = received(around, n)
    table[around == 0] = _NEVER  # the root has everything
    mine = index.reshape(len(place), len(skip) + 1)
    return table[mine[:, 1:], np.arange(len(skip))], table[mine[:, 0]]


def broadcast_cost(n: int, chunks: int) -> Cost:
    """k - 1 + ceil(log2 n) steps; (n-1)/n S on average, the root (k - 1 + ceil(log2 n))/k S."""
    steps = chunks - 1 + ceil_log2(n) if n > 1 else 0
    return Cost(steps, Fraction(n - 1, n), Fraction(steps, chunks))


def reduce_cost(n: int, chunks: int) -> Cost:
    """k - 1 + ceil(log2 n) steps; every rank but the root sends S once."""
    return Cost(broadcast_cost(n, chunks).steps, Fraction(n - 1, n), Fraction(min(n - 1, 1)))


@algorithm(Operation.BROADCAST, "circulant", broadcast_cost)
def broadcast(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Each rank passes on one chunk a round, to the ranks at distances 1, 2, ..., ceil(n/2) in turn."""
    if n == 1:
        return empty_rounds(chunks)
    sent, got = _schedules((rank - root) % n, n)
    peers = [((rank + skip) % n, (rank - skip) % n) for skip in skips(n)[:-1]]
    cycle, last = len(peers), chunks - 1
    early = -last % cycle  # the first cycle begins so late that the last round of the last cycle is the last of all

    def at(t: int) -> list[Move]:
        k = (t + early) % cycle
        ahead = t - k  # whole cycles passed, times chunks a cycle, less those of the cut first cycle
        out, into = sent[:, k] + ahead, got[:, k] + ahead
        to, frm = np.where(out >= 0, peers[k][0], NO_PEER), np.where(into >= 0, peers[k][1], NO_PEER)
        return [Move(to, frm, Span(np.minimum(out, last), 1, chunks), Span(np.minimum(into, last), 1, chunks))]

    return Rounds(last + cycle, chunks, at)


@algorithm(Operation.REDUCE, "circulant", reduce_cost)
def reduce(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """The circulant broadcast backwards: partial sums of one chunk a round move towards the root."""
    return broadcast(rank, n, root, chunks).reversed(Op.OWN_FIRST)
