"""Recursive doubling and halving: in each round the partner is the rank whose number differs in one bit (a butterfly).

All-reduce by recursive doubling exchanges the whole message in every round: the fewest rounds, the most bytes.
Rabenseifner's all-reduce halves the exchanged part in every round (recursive halving, a reduce-scatter), then doubles
it again (an all-gather): as many bytes as a ring, in logarithmic rounds. The all-gather by recursive doubling exchanges
all blocks held so far; backwards with sums it is the recursive-halving reduce-scatter, and with empty messages a
barrier.

If n is not a power of two, let c be the largest power below it. In the all-reduces, ranks r >= c fold into rank r mod c
before the butterfly and receive the result after it: two more rounds, and up to S more sent by the hosts. In the
all-gather, the odd ranks among the first 2 (n - c) are guests of the rank below instead, so that the blocks of a host
and its guest are neighbours and every exchanged region is one interval; the hosts send up to twice as much. The
reduce-scatter sends no more bytes than for a power of two.

Order: in the all-reduce by recursive doubling the lower rank's operand comes first at both partners, so both compute
the same bits; elsewhere each partial sum takes the receiver's own part first, and one rank computes each chunk.
Source: Thakur, Rabenseifner and Gropp, IJHPCA 2005.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.powers_of_two import floor_power_of_two
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, SIGNAL, Cost, IntArray, Move, Op, Operation, Rounds, Span, fold_ranks, keep_ranks


def folded_cost(n: int, core_steps: int, core_sent: Fraction) -> Cost:
    """Return the cost of a plan among the c core ranks (`core_steps`, `core_sent` each) with n - c guests folded in."""
    core = floor_power_of_two(n)
    guests = n - core
    mean = (core * core_sent + 2 * guests) / n
    return Cost(core_steps + 2 * (guests > 0), mean, core_sent + (guests > 0))


def doubling_cost(n: int) -> Cost:
    """log2 c steps (+2); log2 c S sent by each core rank (+S with a guest)."""
    rounds = n.bit_length() - 1
    return folded_cost(n, rounds, Fraction(rounds))


def rabenseifner_cost(n: int) -> Cost:
    """2 log2 c steps (+2); 2 (c-1)/c S sent by each core rank (+S with a guest)."""
    core = floor_power_of_two(n)
    return folded_cost(n, 2 * (n.bit_length() - 1), Fraction(2 * (core - 1), core))


@algorithm(Operation.ALL_REDUCE, "recursive_doubling", doubling_cost)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: exchange the whole message with the rank at distance 1, 2, 4, ..."""
    return fold_ranks(_doubling, rank, n, floor_power_of_two(n), Span(0, 1, 1))


def _doubling(rank: IntArray, n: int) -> Rounds:
    """Return the all-reduce among a power of two of ranks."""
    whole = Span(0, 1, 1)

    def make_round(t: int) -> list[Move]:
        peer = rank ^ (1 << t)
        return [Move(peer, peer, whole, whole, np.where(rank < peer, Op.OWN_FIRST, Op.INCOMING_FIRST))]

    return Rounds(n.bit_length() - 1, 1, make_round)


@algorithm(Operation.ALL_REDUCE, "rabenseifner", rabenseifner_cost)
def rabenseifner(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: a reduce-scatter by recursive halving, then the same rounds backwards as an all-gather."""
    core = floor_power_of_two(n)
    return fold_ranks(_halving_doubling, rank, n, core, Span(0, core, core))


def _halving_doubling(rank: IntArray, n: int) -> Rounds:
    """Return Rabenseifner's all-reduce among a power of two of ranks."""
    halving = recursive_halving(rank, n)
    return halving + halving.reversed()


def recursive_halving(rank: IntArray, n: int) -> Rounds:
    """Return a reduce-scatter for a power of two of ranks: send the partner its half, reduce the other half."""

    def make_round(t: int) -> list[Move]:
        half = n >> (t + 1)
        peer = rank ^ half
        return [Move(peer, peer, Span(peer & -half, half, n), Span(rank & -half, half, n), Op.OWN_FIRST)]

    return Rounds(n.bit_length() - 1, n, make_round)


def _block_steps(n: int) -> int:
    """Return the steps of the algorithms for blocks: log2 c, and two more with guests."""
    return n.bit_length() - 1 + 2 * (n > floor_power_of_two(n))


def all_gather_cost(n: int) -> Cost:
    """log2 c steps (+2); (n-1)/n S on average. Rank 0 sends most: (c-1)/n S, and with guests more than (n-1)/n S."""
    core, guests = floor_power_of_two(n), n - floor_power_of_two(n)
    doubled = sum((1 << t) + min(1 << t, guests) for t in range(n.bit_length() - 1))
    return Cost(_block_steps(n), Fraction(n - 1, n), Fraction(doubled + n - 1 if guests else core - 1, n))


def reduce_scatter_cost(n: int) -> Cost:
    """log2 c steps (+2); every rank sends (n-1)/n S."""
    return Cost(_block_steps(n), Fraction(n - 1, n), Fraction(n - 1, n))


def barrier_cost(n: int) -> Cost:
    """log2 c steps (+2), no data."""
    return Cost(_block_steps(n), Fraction(0), Fraction(0))


@algorithm(Operation.ALL_GATHER, "recursive_doubling", all_gather_cost)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Plan an all-gather: exchange all blocks held so far with the rank at distance 1, 2, 4, ..."""
    core = floor_power_of_two(n)
    guests = n - core
    place = np.where(rank < 2 * guests, rank // 2, rank - guests)  # in the core; a guest has its host's place
    in_core = (rank >= 2 * guests) | (rank % 2 == 0)

    def rank_at(places: IntArray) -> IntArray:
        """Return the core rank at each place, which is also the first chunk of that place."""
        return places + np.minimum(places, guests)

    def blocks(places: IntArray, size: int) -> Span:
        """Return the chunks of `size` places from each of `places` on."""
        return Span(rank_at(places), rank_at(places + size) - rank_at(places), n)

    def doubling(t: int) -> list[Move]:
        size = 1 << t
        peer = place ^ size
        return [Move(rank_at(peer), rank_at(peer), blocks(place & -size, size), blocks(peer & -size, size))]

    is_host, is_guest = (rank < 2 * guests) & in_core, ~in_core
    host, guest = np.where(is_guest, rank - 1, NO_PEER), np.where(is_host, rank + 1, NO_PEER)
    give_own = Move(host, guest, Span(rank, 1, n), Span(rank + 1, 1, n))
    get_others = Move(guest, host, Span(rank + 2, n - 1, n), Span(rank + 1, n - 1, n))
    before, after = Rounds(min(guests, 1), n, lambda _: [give_own]), Rounds(min(guests, 1), n, lambda _: [get_others])
    return before + keep_ranks(Rounds(n.bit_length() - 1, n, doubling), in_core) + after


@algorithm(Operation.REDUCE_SCATTER, "recursive_halving", reduce_scatter_cost)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Plan a reduce-scatter: the all-gather backwards; in each round the partner gets the half that it finishes."""
    return all_gather(rank, n).reversed(Op.OWN_FIRST)


@algorithm(Operation.BARRIER, "recursive_doubling", barrier_cost)
def barrier(rank: IntArray, n: int) -> Rounds:
    """Plan a barrier: exchange empty messages with the rank at distance 1, 2, 4, ..., as in the all-gather."""
    return all_gather(rank, n).map_regions(lambda _: SIGNAL, 0)
