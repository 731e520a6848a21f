"""Pipelined chains: the ranks stand in a line, and the message moves along it in chunks, one link per round.

With k chunks the last chunk reaches the last rank after k + n - 2 rounds. For large messages in many chunks every link
is busy almost all the time, and the broadcast takes little longer than sending the message once. The reduce runs the
broadcast backwards, with sums instead of copies. The all-reduce overlaps reduce and broadcast: rank 0 broadcasts each
chunk as soon as it is reduced.

Each rank's own part is the first operand of its reduction, the next rank's partial sum the second. In a reduce the root
computes the final result.
Source: the pipelined linear broadcast of Sanders, Speck and Traeff, Parallel Computing 2009, section 2.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Move, Op, Operation, Region, Rounds, Span, empty_rounds, overlay


def mirror_chunks(rounds: Rounds) -> Rounds:
    """Return the rounds with each chunk number c replaced by k - 1 - c, where k is the number of chunks.

    Every region (set of chunks of a step) must have exactly one chunk. Reversed rounds of a pipeline start with the
    last chunk; mirrored chunk numbers make them start with chunk 0.
    """
    last = rounds.chunks - 1

    def mirror(region: Region) -> Region:
        """Return the region with chunk number k - 1 - c instead of c, for k chunks."""
        return replace(region, first=last - region.first) if isinstance(region, Span) else region

    return rounds.map_regions(mirror, rounds.chunks)


def broadcast_cost(n: int, chunks: int) -> Cost:
    """S bytes in k chunks take k + n - 2 steps; every rank but the last of the line sends S."""
    return Cost(chunks + n - 2 if n > 1 else 0, Fraction(n - 1, n), Fraction(min(n - 1, 1)))


@algorithm(Operation.BROADCAST, "chain", broadcast_cost, grows_linearly=True)
def broadcast(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Plan a broadcast: rank root + p (mod n) forwards chunk c to the next rank in round c + p."""
    if n == 1:
        return empty_rounds(chunks)
    place = (rank - root) % n
    above, below = (rank + 1) % n, (rank - 1) % n

    def forward_round(t: int) -> list[Move]:
        """Return round t: the rank at position p of the chain forwards chunk t - p to the next rank."""
        sent, received = t - place, t - place + 1
        sends = (place < n - 1) & (sent >= 0) & (sent < chunks)
        receives = (place > 0) & (received >= 0) & (received < chunks)
        dest, source = np.where(sends, above, NO_PEER), np.where(receives, below, NO_PEER)
        return [Move(dest, source, Span(sent, 1, chunks), Span(received, 1, chunks))]

    return Rounds(chunks + n - 2, chunks, forward_round)


@algorithm(Operation.REDUCE, "chain", broadcast_cost, grows_linearly=True)
def reduce(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Plan a reduce: partial sums move along the line of ranks towards the root, chunk by chunk."""
    return broadcast(rank, n, root, chunks).reversed(Op.OWN_FIRST)


def all_reduce_cost(n: int, chunks: int) -> Cost:
    """S bytes in k chunks take k + 2 n - 3 steps; a rank sends 2 (n-1)/n S on average, 2 S at most."""
    return Cost(chunks + 2 * n - 3 if n > 1 else 0, Fraction(2 * (n - 1), n), Fraction(min(n - 1, 2)))


@algorithm(Operation.ALL_REDUCE, "chain", all_reduce_cost, grows_linearly=True)
def all_reduce(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Plan an all-reduce: a chain reduce to rank 0 and a chain broadcast from rank 0, overlapped chunk by chunk."""
    if n == 1:
        return empty_rounds(chunks)
    return overlay(mirror_chunks(reduce(rank, n, 0, chunks)), broadcast(rank, n, 0, chunks).delayed(n - 1))
