"""Scans by doubling distances: about log2(n) rounds, in each of which almost every rank sends the whole message.

Inclusive scan: before round t every rank holds the sum over itself and the 2**t - 1 ranks below it. In round t each
rank adds the sum of the rank 2**t below it. The lower ranks' sum is the first operand, so operands stay in rank order.

Exclusive scan: a rank collects the sum of the ranks below it, without its own data. In round 0 every rank sends its
data to the next rank. In round 1 ranks send the sum of their own and the received data to the second rank above, so
that each rank then holds the sum of three ranks. In the later rounds ranks send over distances of 3, 6, 12, and so on.
Shifting the data by one rank before an inclusive scan would take up to one more round. Chunk 0 is the input and output;
chunk 1 collects the sum while chunk 0 is still needed. The two highest ranks forward nothing after round 0, so they
collect the sum in chunk 0.

Sources: Hillis and Steele, CACM 1986, for the inclusive scan; Traeff, arXiv 2604.25667, for exclusive scans that begin
with a round of an inclusive scan.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Move, Op, Operation, Rounds, Span

WHOLE = Span(0, 1, 1)


def scan_cost(n: int) -> Cost:
    """S bytes take ceil(log2 n) steps; in a step of distance d, n - d ranks send S."""
    steps = ceil_log2(n)
    return Cost(steps, Fraction(sum(n - (1 << t) for t in range(steps)), n), Fraction(steps))


@algorithm(Operation.SCAN, "hillis_steele", scan_cost)
def scan(rank: IntArray, n: int) -> Rounds:
    """Plan an inclusive scan: in round t every rank adds the sum that the rank 2**t below it holds."""

    def add_below_round(t: int) -> list[Move]:
        """Return round t: each rank sends its sum to the rank 2**t above, which adds this sum as the left operand."""
        dest, source = _shift(rank, n, 1 << t, 0)
        return [Move(dest, source, WHOLE, WHOLE, Op.INCOMING_FIRST)]

    return Rounds(ceil_log2(n), 1, add_below_round)


def _list_distances(n: int) -> list[int]:
    """Return the distances, in ranks, of the exclusive scan's rounds on n ranks: 1, 2, 3, 6, 12, and so on."""
    later = [3 << t for t in range(ceil_log2(n))]
    return [d for d in (1, 2, *later) if d < n and (d < 3 or d < n - 1)]


def exscan_cost(n: int) -> Cost:
    """S bytes take about log2(4/3 n) steps; in a step of distance d, n - d ranks send S (one fewer for d >= 3)."""
    distances = _list_distances(n)
    sent = sum(n - d - (d >= 3) for d in distances)
    return Cost(len(distances), Fraction(sent, n), Fraction(len(distances)))


@algorithm(Operation.EXSCAN, "doubling_123", exscan_cost)
def exscan(rank: IntArray, n: int) -> Rounds:
    """Plan an exclusive scan: ranks add sums of ranks at the distances 1, 2, 3, 6, 12, ... below them."""
    distances = _list_distances(n)
    forwards = rank + 2 < n  # the other ranks collect the sum in chunk 0
    collected = Span(0, 1, 1, base=np.where(forwards, 1, 0))
    itself = np.where(forwards & (rank > 0), rank, NO_PEER)

    def send_up(distance: int) -> Move:
        """Return the step in which each rank sends `distance` ranks up."""
        dest, source = _shift(rank, n, distance, int(distance >= 3))
        op = Op.COPY if distance == 1 else Op.INCOMING_FIRST
        return Move(dest, source, WHOLE if distance < 3 else collected, collected, op)

    rounds = [send_up(distance) for distance in distances]
    if n > 2:
        rounds.insert(1, Move(itself, itself, collected, WHOLE, Op.INCOMING_FIRST))
        rounds.append(Move(itself, itself, collected, WHOLE))
    return Rounds(len(rounds), 2, lambda t: [rounds[t]])


def _shift(rank: IntArray, n: int, distance: int, lowest: int) -> tuple[IntArray, IntArray]:
    """Return two arrays: each rank's receiver, `distance` ranks above it, and its sender, `distance` ranks below it.

    -1 stands for no rank; ranks below `lowest` do not send.
    """
    dest = np.where((rank >= lowest) & (rank + distance < n), rank + distance, NO_PEER)
    return dest, np.where(rank - distance >= lowest, rank - distance, NO_PEER)
