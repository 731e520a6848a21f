"""Pipelined chain scans: sums over the lower ranks move along the line of ranks in chunks, one link per round.

Inclusive scan: every rank adds its own data to the sum of the rank below it and sends the result to the rank above. All
links are busy at once for long messages. Every rank sends and receives the message once, so a chain sends fewer bytes
than a scan by doubling, in more steps.

Exclusive scan: a rank keeps the sum that it receives as its result and sends on the sum that includes its own data.
Chunks 0 to k-1 are input and output. A rank receives sums into chunks k to 2k-1, adds them to its own data in chunks 0
to k-1, and sends the new sums to the next rank. The rank then copies chunks k to 2k-1 to chunks 0 to k-1 as its result.
After each chunk, a link is idle for a round, in which the receiver adds its own data. The last rank receives its result
in place.

The lower ranks' sum is the first operand of each reduction. Source: the linear scan of Open MPI (coll/base), pipelined.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np

from hpccoll.algorithms.chain import broadcast, broadcast_cost
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, Cost, IntArray, Ints, Move, Op, Operation, Rounds, Span, Step, empty_rounds


def scan_cost(n: int, chunks: int) -> Cost:
    """S bytes in k chunks take k + n - 2 steps; every rank but the last sends S."""
    return broadcast_cost(n, chunks)


@algorithm(Operation.SCAN, "chain", scan_cost, grows_linearly=True)
def scan(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Plan an inclusive scan: rank r sends its sum of chunk c to rank r + 1 in round r + c."""

    def add_incoming(step: Step) -> Step:
        """Return the step with its copy replaced by a reduction that has the received data as its left operand."""
        return replace(step, op=Op.INCOMING_FIRST) if isinstance(step, Move) else step

    return broadcast(rank, n, 0, chunks).map_steps(add_incoming)


def exscan_cost(n: int, chunks: int) -> Cost:
    """S bytes in k > 1 chunks take k + 2 n - 4 steps (one chunk: n - 1); every rank but the last sends S."""
    steps = 0 if n == 1 else n - 1 if chunks == 1 else chunks + 2 * n - 4
    return Cost(steps, Fraction(n - 1, n), Fraction(min(n - 1, 1)))


@algorithm(Operation.EXSCAN, "chain", exscan_cost, grows_linearly=True)
def exscan(rank: IntArray, n: int, chunks: int) -> Rounds:
    """Plan an exclusive scan: rank r sends chunk c of the sum that includes its data to rank r + 1 in round 2 r + c."""
    if n == 1:
        return empty_rounds(2 * chunks)
    received_at = np.where(rank < n - 1, chunks, 0)
    forwards = (rank > 0) & (rank < n - 1)

    def chunk(number: IntArray, base: Ints) -> Span:
        """Return the region of one chunk: chunk `number` of the k chunks that start at `base`."""
        return Span(number, 1, chunks, base=base)

    def exscan_round(t: int) -> list[Move]:
        """Return round t: each rank sends a chunk of its sum to the next rank, and works on chunks received before.

        Rank r sends chunk c = t - 2 r, and receives chunk c + 2 from rank r - 1. A rank between two others also reduces
        chunk c + 1, which it has received, with its own data, and copies the received chunk c - 1 to its result. Chunk
        numbers that do not exist are skipped.
        """
        sent = t - 2 * rank
        received, added, kept = sent + 2, sent + 1, sent - 1
        sends = (rank < n - 1) & (sent >= 0) & (sent < chunks)
        receives = (rank > 0) & (received >= 0) & (received < chunks)
        dest, source = np.where(sends, rank + 1, NO_PEER), np.where(receives, rank - 1, NO_PEER)
        adds = np.where(forwards & (added >= 0) & (added < chunks), rank, NO_PEER)
        keeps = np.where(forwards & (kept >= 0) & (kept < chunks), rank, NO_PEER)
        return [
            Move(dest, source, chunk(sent, 0), chunk(received, received_at)),
            Move(adds, adds, chunk(added, chunks), chunk(added, 0), Op.INCOMING_FIRST),
            Move(keeps, keeps, chunk(kept, chunks), chunk(kept, 0)),
        ]

    return Rounds(chunks + 2 * n - 4 + (n > 2), 2 * chunks, exscan_round)
