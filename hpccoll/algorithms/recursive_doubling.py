"""Recursive doubling and halving: in each round the partner is the rank whose number differs in one bit (a butterfly).

All-reduce by recursive doubling exchanges the whole message in every round, and so takes the fewest rounds but sends
the most bytes. Rabenseifner's all-reduce halves the exchanged part in every round (recursive halving, a
reduce-scatter), then doubles it again (an all-gather). Rabenseifner's all-reduce sends as many bytes as a ring, in
logarithmically many rounds. The all-gather by recursive doubling exchanges all blocks held so far. The
recursive-halving reduce-scatter runs the rounds of the all-gather backwards, with sums. The barrier is the all-gather
with empty messages.

If n is not a power of two, n - c extra ranks (c: the largest power of two below n) take no part in the butterfly: each
first sends its data to another rank, its proxy, and gets the result from the proxy at the end, in two more rounds. In
the all-reduces the extra ranks are the highest ranks, and their proxies, the lowest ranks, send the message once more.
In the all-gather the extra ranks are the lowest odd ranks, and the proxy of rank r is rank r - 1. The blocks of a rank
and its proxy are adjacent in the all-gather, so every exchanged region is one interval, but proxies send up to twice
the average number of bytes. In the reduce-scatter every rank sends (n-1)/n of the message for all n.

In the all-reduce by recursive doubling the lower rank's operand comes first at both partners, so both compute the same
bits. In the other algorithms the receiver's own part is the first operand of each reduction. For each chunk, a single
rank computes the final sum.
Source: Thakur, Rabenseifner and Gropp, IJHPCA 2005.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms.powers_of_two import floor_power_of_two
from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import NO_PEER, SIGNAL, Cost, IntArray, Move, Op, Operation, Rounds, Span, fold_ranks, keep_ranks


def folded_cost(n: int, core_steps: int, core_sent: Fraction) -> Cost:
    """Return the cost of an all-reduce of n ranks that runs a butterfly among a power of two of them.

    `core_steps` is the number of steps of the butterfly. `core_sent` is the number of bytes that a rank sends in the
    butterfly, divided by the message size.
    """
    core = floor_power_of_two(n)
    extras = n - core
    mean = (core * core_sent + 2 * extras) / n
    return Cost(core_steps + 2 * (extras > 0), mean, core_sent + (extras > 0))


def doubling_cost(n: int) -> Cost:
    """With c the largest power of two <= n, S bytes take log2 c steps (+2 if c < n); c ranks send log2 c S each.

    If n is not a power of two, ranks that also act for another rank (proxies) send S more.
    """
    rounds = n.bit_length() - 1
    return folded_cost(n, rounds, Fraction(rounds))


def rabenseifner_cost(n: int) -> Cost:
    """With c the largest power of two <= n, S bytes take 2 log2 c steps (+2 if c < n); c ranks send 2 (c-1)/c S."""
    core = floor_power_of_two(n)
    return folded_cost(n, 2 * (n.bit_length() - 1), Fraction(2 * (core - 1), core))


@algorithm(Operation.ALL_REDUCE, "recursive_doubling", doubling_cost)
def all_reduce(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: in round t each rank exchanges the whole message with the rank at distance 2**t."""
    return fold_ranks(_doubling, rank, n, floor_power_of_two(n), Span(0, 1, 1))


def _doubling(rank: IntArray, n: int) -> Rounds:
    """Return the rounds of the ranks in `rank` of an all-reduce by recursive doubling; n is a power of two."""
    whole = Span(0, 1, 1)

    def exchange_round(t: int) -> list[Move]:
        """Return round t: ranks that differ in bit t exchange and reduce their data."""
        peer = rank ^ (1 << t)
        return [Move(peer, peer, whole, whole, np.where(rank < peer, Op.OWN_FIRST, Op.INCOMING_FIRST))]

    return Rounds(n.bit_length() - 1, 1, exchange_round)


@algorithm(Operation.ALL_REDUCE, "rabenseifner", rabenseifner_cost)
def rabenseifner(rank: IntArray, n: int) -> Rounds:
    """Plan an all-reduce: a reduce-scatter by recursive halving, then the same rounds backwards as an all-gather."""
    core = floor_power_of_two(n)
    return fold_ranks(_halving_doubling, rank, n, core, Span(0, core, core))


def _halving_doubling(rank: IntArray, n: int) -> Rounds:
    """Return the rounds of the ranks in `rank` of Rabenseifner's all-reduce; n is a power of two."""
    halving = recursive_halving(rank, n)
    return halving + halving.reversed()


def recursive_halving(rank: IntArray, n: int) -> Rounds:
    """Return the rounds of the ranks in `rank` of a reduce-scatter by recursive halving; n is a power of two."""

    def reduce_scatter_round(t: int) -> list[Move]:
        """Return round t: each pair of ranks splits its blocks in halves; each rank reduces one half."""
        half = n >> (t + 1)
        peer = rank ^ half
        return [Move(peer, peer, Span(peer & -half, half, n), Span(rank & -half, half, n), Op.OWN_FIRST)]

    return Rounds(n.bit_length() - 1, n, reduce_scatter_round)


def _count_block_steps(n: int) -> int:
    """Return the steps of the all-gather: log2 c, and two more if c < n, where c is the largest power of two <= n."""
    return n.bit_length() - 1 + 2 * (n > floor_power_of_two(n))


def all_gather_cost(n: int) -> Cost:
    """With c the largest power of two <= n, S bytes take log2 c steps (+2 if c < n); ranks send (n-1)/n S on average.

    Rank 0 sends the most bytes: (n-1)/n S, or more if n is not a power of two.
    """
    core, extras = floor_power_of_two(n), n - floor_power_of_two(n)
    doubled = sum((1 << t) + min(1 << t, extras) for t in range(n.bit_length() - 1))
    return Cost(_count_block_steps(n), Fraction(n - 1, n), Fraction(doubled + n - 1 if extras else core - 1, n))


def reduce_scatter_cost(n: int) -> Cost:
    """With c the largest power of two <= n, S bytes take log2 c steps (+2 if c < n); every rank sends (n-1)/n S."""
    return Cost(_count_block_steps(n), Fraction(n - 1, n), Fraction(n - 1, n))


def barrier_cost(n: int) -> Cost:
    """With c the largest power of two <= n, a barrier takes log2 c steps (+2 if c < n) and sends no data."""
    return Cost(_count_block_steps(n), Fraction(0), Fraction(0))


@algorithm(Operation.ALL_GATHER, "recursive_doubling", all_gather_cost)
def all_gather(rank: IntArray, n: int) -> Rounds:
    """Plan an all-gather: in round t each rank exchanges all its blocks with the rank at distance 2**t."""
    extras = n - floor_power_of_two(n)
    place = np.where(rank < 2 * extras, rank // 2, rank - extras)  # position in the butterfly; extra ranks: the proxy's
    is_extra = (rank < 2 * extras) & (rank % 2 == 1)

    def find_rank(places: IntArray) -> IntArray:
        """Return the rank at each of the positions `places` in the butterfly; its first chunk has the same number."""
        return places + np.minimum(places, extras)

    def list_blocks(places: IntArray, size: int) -> Span:
        """Return the chunks of the ranks at `size` consecutive positions in the butterfly, which start at `places`."""
        return Span(find_rank(places), find_rank(places + size) - find_rank(places), n)

    def doubling_round(t: int) -> list[Move]:
        """Return round t: ranks whose positions in the butterfly differ in bit t exchange all blocks that they have."""
        size = 1 << t
        peer, peer_rank = place ^ size, find_rank(place ^ size)
        return [Move(peer_rank, peer_rank, list_blocks(place & -size, size), list_blocks(peer & -size, size))]

    is_proxy = (rank < 2 * extras) & ~is_extra
    proxy, extra = np.where(is_extra, rank - 1, NO_PEER), np.where(is_proxy, rank + 1, NO_PEER)
    give_own = Move(proxy, extra, Span(rank, 1, n), Span(rank + 1, 1, n))
    get_others = Move(extra, proxy, Span(rank + 2, n - 1, n), Span(rank + 1, n - 1, n))
    before, after = Rounds(min(extras, 1), n, lambda _: [give_own]), Rounds(min(extras, 1), n, lambda _: [get_others])
    return before + keep_ranks(Rounds(n.bit_length() - 1, n, doubling_round), ~is_extra) + after


@algorithm(Operation.REDUCE_SCATTER, "recursive_halving", reduce_scatter_cost)
def reduce_scatter(rank: IntArray, n: int) -> Rounds:
    """Plan a reduce-scatter by the rounds of the all-gather backwards, with sums in place of copies.

    If n is a power of two, a rank sends half of its partial sums to its partner in each round.
    """
    return all_gather(rank, n).reversed(Op.OWN_FIRST)


@algorithm(Operation.BARRIER, "recursive_doubling", barrier_cost)
def barrier(rank: IntArray, n: int) -> Rounds:
    """Plan a barrier: in round t each rank exchanges empty messages with the rank at distance 2**t."""
    return all_gather(rank, n).map_regions(lambda _: SIGNAL, 0)
