"""Pipelined chains: the ranks stand in a line, and the message moves along it in chunks, one link a round.

With k chunks the last chunk arrives after k + n - 2 rounds, so for large messages every link is busy almost all the
time and the whole costs little more than sending S once. The reduce is the broadcast backwards, summing.

Order: each rank's own comes first, then all that came from further down the line; the root computes the result.
Source: the pipelined linear broadcast of Sanders, Speck and Traeff, Parallel Computing 2009, section 2.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.collectives.registry import algorithm
from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Cost
from hpccoll.plan.rounds import Rounds, nothing, relabel
from hpccoll.plan.step import NOBODY, IntArray, Move, Op, Span


def cost(n: int, chunks: int) -> Cost:
    """k + n - 2 steps; every rank but one end sends S."""
    return Cost(chunks + n - 2 if n > 1 else 0, Fraction(n - 1, n), Fraction(min(n - 1, 1)))


@algorithm(Operation.BROADCAST, "chain", cost)
def broadcast(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """Chunk c leaves rank v of the line in round c + v."""
    if n == 1:
        return nothing(chunks)
    place = (rank - root) % n

    def at(t: int) -> list[Move]:
        out, into = t - place, t - place + 1
        sends = (place < n - 1) & (out >= 0) & (out < chunks)
        receives = (place > 0) & (into >= 0) & (into < chunks)
        to, frm = np.where(sends, place + 1, NOBODY), np.where(receives, place - 1, NOBODY)
        return [Move(to, frm, Span(out, 1, chunks), Span(into, 1, chunks))]

    return relabel(Rounds(chunks + n - 2, chunks, at), lambda peer: (peer + root) % n)


@algorithm(Operation.REDUCE, "chain", cost)
def reduce(rank: IntArray, n: int, root: int, chunks: int) -> Rounds:
    """The chain broadcast backwards: partial sums move towards the root, chunk by chunk."""
    return broadcast(rank, n, root, chunks).reversed(Op.OWN_FIRST)
