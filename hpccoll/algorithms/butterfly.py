"""Butterflies: in each round the partner is the rank whose number differs in one bit.

Recursive doubling exchanges the whole message with every partner: the fewest rounds, the most bytes. Rabenseifner
halves what is exchanged in every round (recursive halving), then doubles it back: as many bytes as a ring, in
logarithmic rounds. Where n is no power of two, the ranks above the largest power c fold into rank r mod c before and
get the result after: two more rounds, and up to S more sent by the ranks that have a guest.

Order: in recursive doubling the lower rank's operand comes first, at both partners, so both compute the same bits;
in recursive halving the receiver's own comes first, and one rank computes each chunk.
Sources: Thakur, Rabenseifner and Gropp, IJHPCA 2005.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.bits import floor_power
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, IntArray, Move, Op, Operation, Rounds, Span, fold_ranks


def folded_cost(n: int, core_steps: int, core_sent: Fraction) -> Cost:
    """Cost of a plan of the c lower ranks with n - c guests folded in."""
    core = floor_power(n)
    guests = n - core
    mean = (core * core_sent + 2 * guests) / n
    return Cost(core_steps + 2 * (guests > 0), mean, core_sent + (guests > 0))


def doubling_cost(n: int) -> Cost:
    """log2 c steps (+2); log2 c S sent by each core rank (+S with a guest)."""
    rounds = n.bit_length() - 1
    return folded_cost(n, rounds, Fraction(rounds))


def rabenseifner_cost(n: int) -> Cost:
    """2 log2 c steps (+2); 2 (c-1)/c S sent by each core rank (+S with a guest)."""
    core = floor_power(n)
    return folded_cost(n, 2 * (n.bit_length() - 1), Fraction(2 * (core - 1), core))


@algorithm(Operation.ALL_REDUCE, "recursive_doubling", doubling_cost)
def recursive_doubling(rank: IntArray, n: int) -> Rounds:
    """Exchange the whole message with the rank at distance 1, 2, 4, ..."""
    return fold_ranks(_doubling, rank, n, floor_power(n), Span(0, 1, 1))


def _doubling(rank: IntArray, n: int) -> Rounds:
    whole = Span(0, 1, 1)

    def at(t: int) -> list[Move]:
        peer = rank ^ (1 << t)
        return [Move(peer, peer, whole, whole, np.where(rank < peer, Op.OWN_FIRST, Op.INCOMING_FIRST))]

    return Rounds(n.bit_length() - 1, 1, at)


@algorithm(Operation.ALL_REDUCE, "rabenseifner", rabenseifner_cost)
def rabenseifner(rank: IntArray, n: int) -> Rounds:
    """Recursive halving to reduce-scatter, then the same rounds backwards to all-gather."""
    core = floor_power(n)
    return fold_ranks(_halving_doubling, rank, n, core, Span(0, core, core))


def _halving_doubling(rank: IntArray, n: int) -> Rounds:
    halving = recursive_halving(rank, n)
    return halving + halving.reversed()


def recursive_halving(rank: IntArray, n: int) -> Rounds:
    """Reduce-scatter for a power of two: the far half goes to the partner, the near half stays."""

    def at(t: int) -> list[Move]:
        half = n >> (t + 1)
        peer = rank ^ half
        return [Move(peer, peer, Span(peer & -half, half, n), Span(rank & -half, half, n), Op.OWN_FIRST)]

    return Rounds(n.bit_length() - 1, n, at)
