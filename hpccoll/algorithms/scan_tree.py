"""Binomial tree scans: about 2 log2(n) rounds; a rank sends fewer than two messages on average (exclusive scan: three).

On the way up, in round t, every rank r for which r + 1 is a multiple of 2**(t+1) adds the sum of the rank 2**t below
it, so that rank r holds the sum of 2**(t+1) ranks. On the way down, in rounds of falling t, every rank r for which
r + 1 is a multiple of 2**(t+1) holds the sum of ranks 0 to r, and sends it to rank r + 2**t, whose sum is then
complete. The lower ranks' sum is the first operand of each reduction.

The exclusive scan first shifts the data by one rank, then runs the inclusive scan on the ranks above rank 0.

Sources: Blelloch, "Prefix sums and their applications", CMU-CS-90-190, for the two sweeps over a tree; Brent and Kung,
IEEE Transactions on Computers 1982, for the inclusive form.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.powers_of_two import floor_power_of_two
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Move, Op, Operation, Rounds, Span, keep_ranks, relabel_ranks

WHOLE = Span(0, 1, 1)


def _list_rounds(n: int) -> list[tuple[int, int]]:
    """Return the rounds of the scan as pairs (d, offset): ranks r with (r + 1) mod 2d == offset send d ranks up."""
    up = [1 << t for t in range(floor_power_of_two(n).bit_length() - 1)]
    return [(d, d) for d in up] + [(d, 0) for d in reversed(up) if 3 * d <= n]


def _find_senders(rank: IntArray, n: int, distance: int, offset: int) -> IntArray:
    """Return a mask of the ranks that send `distance` ranks up in a round with this distance and offset."""
    return np.asarray((rank >= 0) & ((rank + 1) % (2 * distance) == offset) & (rank + distance < n))


def _count_sent(n: int) -> IntArray:
    """Return the number of times that each rank sends the message in an inclusive scan, shape (n,)."""
    rank = np.arange(n)
    return np.asarray(sum((_find_senders(rank, n, *pair) for pair in _list_rounds(n)), np.zeros(n, np.int64)))


def scan_cost(n: int) -> Cost:
    """S bytes take about 2 log2 n - 1 steps; a rank sends less than 2 S on average."""
    sent = _count_sent(n)
    return Cost(len(_list_rounds(n)), Fraction(int(sent.sum()), n), Fraction(int(sent.max())))


@algorithm(Operation.SCAN, "tree", scan_cost)
def scan(rank: IntArray, n: int) -> Rounds:
    """Plan an inclusive scan: sums of blocks of ranks move up a binomial tree, complete sums move down."""
    rounds = _list_rounds(n)

    def add_below_round(t: int) -> list[Move]:
        """Return round t: ranks send their sums up by the round's distance; receivers add them as the left operand."""
        distance, offset = rounds[t]
        dest = np.where(_find_senders(rank, n, distance, offset), rank + distance, NO_PEER)
        source = np.where((rank < n) & _find_senders(rank - distance, n, distance, offset), rank - distance, NO_PEER)
        return [Move(dest, source, WHOLE, WHOLE, Op.INCOMING_FIRST)]

    return Rounds(len(rounds), 1, add_below_round)


def exscan_cost(n: int) -> Cost:
    """S bytes take one step more than the inclusive scan of n - 1 ranks; a rank sends less than 3 S on average."""
    if n == 1:
        return Cost(0, Fraction(0), Fraction(0))
    sent = 1 + np.append(_count_sent(n - 1), -1)  # the last rank sends nothing
    sent[1:-1], sent[0] = 1 + _count_sent(n - 1)[:-1], 1
    return Cost(1 + len(_list_rounds(n - 1)), Fraction(int(sent.sum()), n), Fraction(int(sent.max())))


@algorithm(Operation.EXSCAN, "tree", exscan_cost)
def exscan(rank: IntArray, n: int) -> Rounds:
    """Plan an exclusive scan: every rank sends its data to the next rank; then the ranks above 0 run `scan`."""
    dest, source = np.where(rank < n - 1, rank + 1, NO_PEER), rank - 1
    shift = Rounds(min(n - 1, 1), 1, lambda _: [Move(dest, source, WHOLE, WHOLE)])
    if n > 1:
        among = keep_ranks(scan(np.maximum(rank - 1, 0), n - 1), rank > 0)
        shift += relabel_ranks(among, lambda peer: peer + 1)
    return shift.shifted(0, 2)
