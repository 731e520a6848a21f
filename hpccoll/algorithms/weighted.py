"""Weighted all-reduce for links of unequal rates: each rank owns a share of the message that fits the rate of its link.

Every rank sends each share to its owner, which reduces it and sends the result to all ranks. A rank that owns the share
w of a message of S bytes sends S (1 + (n-2) w) bytes and receives as many. Ranks with faster links get larger shares,
and ranks with slow links none, so that a slow link carries S bytes in each direction instead of the 2 (n-1)/n S of a
ring. A rank whose link has rate b gets the share max(0, b t - 1) / (n-2), where t is such that the shares of
all n ranks add up to 1. The message is cut into pieces: while the owners send the result of one piece, they reduce the
next piece. By this overlap, the weighted all-reduce reaches the lower bound of all algorithms, max(S / least rate,
2 (n-1) S / sum of rates). With equal links the shares are equal.

`weighted@4:4:4:1` is the algorithm for four ranks of which the last has a link of a quarter of the rate of the others;
`hierarchical_weighted@4:4:4:1` is the two-level algorithm for four nodes with links of these rates. If there are more
ranks than rates, the rates are repeated; without rates, all links are equal. Owner r of a share reduces its own part
first, then those of ranks r-1, r-2 and so on (mod n). Source: derived here; shares of a similar kind are in arXiv
2505.23523 and 2606.01680.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import gcd

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.algorithms.two_level_slices import all_reduce_across_nodes, all_reduce_across_nodes_cost
from hpccoll.plan import Cost, Groups, IntArray, Move, Op, Operation, Rounds, Span

_CHUNKS_PER_RANK = 32  # rounding shares to whole chunks adds up to 1/64 of the message to a link


@lru_cache(maxsize=1024)
def divide_by_rates(rates: tuple[int, ...], n: int) -> tuple[int, ...]:
    """Return the number of chunks that each of n ranks owns, as small integers, by the rates of the ranks' links.

    The numbers are not proportional to the rates: a rank with rate b owns the share max(0, b t - 1) / (n-2), rounded.
    The number t is chosen so that the shares add up to 1; ranks with slow links own nothing. With two ranks or equal
    rates, every rank owns one chunk.

    `rates` has the bandwidth of each rank's link in any unit. If it has fewer than n elements, they are repeated; if it
    is empty, all rates are equal.
    """
    own = [rates[rank % len(rates)] for rank in range(n)] if rates else [1] * n
    if n <= 2 or min(own) == max(own):
        return (1,) * n
    level = _find_water_level(own)
    shares = [max(Fraction(0), rate * level - 1) / (n - 2) for rate in own]
    total = _CHUNKS_PER_RANK * n
    chunks = [int(share * total) for share in shares]
    by_remainder = sorted(range(n), key=lambda rank: chunks[rank] - shares[rank] * total)
    for rank in by_remainder[: total - sum(chunks)]:
        chunks[rank] += 1
    common = gcd(*chunks)
    return tuple(count // common for count in chunks)


def _find_water_level(rates: list[int]) -> Fraction:
    """Return the number t at which the sum of max(0, b t - 1) over all rates b is the number of rates minus 2."""
    fastest, total = sorted(rates, reverse=True), 0
    level = Fraction(0)
    for count, rate in enumerate(fastest, 1):
        if count > 1 and rate * level <= 1:
            break  # this rate and all lower ones get no share
        total += rate
        level = Fraction(len(rates) - 2 + count, total)
    return level


def weighted_cost(n: int, chunks: int = 1, rates: tuple[int, ...] = ()) -> Cost:
    """S bytes in k chunks take k + 1 steps; a rank with share w sends (1 + (n-2) w) S.

    `rates` has the bandwidths of the ranks' links, by which shares are chosen; empty for equal links.
    """
    if n == 1:
        return Cost(0, Fraction(0), Fraction(0))
    owned = divide_by_rates(rates, n)
    return Cost(chunks + 1, Fraction(2 * (n - 1), n), 1 + (n - 2) * Fraction(max(owned), sum(owned)))


@algorithm(Operation.ALL_REDUCE, "weighted", weighted_cost, grows_linearly=True)
def weighted(rank: IntArray, n: int, chunks: int = 1, rates: tuple[int, ...] = ()) -> Rounds:
    """Plan an all-reduce: ranks own uneven shares of the message, which is cut into pieces that are pipelined.

    While an owner sends the sum of its share of one piece, it reduces its share of the next piece. `chunks` is the
    number k of pieces of the message, and `rates` has the bandwidths of the ranks' links, in any unit; empty for equal
    links.
    """
    owned = np.array(divide_by_rates(rates, n), np.int64)
    first, total = np.cumsum(owned) - owned, int(owned.sum())

    def get_share(owner: IntArray, piece: int) -> Span:
        """Return the region of the chunks of message piece `piece` that each rank in `owner` owns."""
        return Span(first[owner], owned[owner], total, base=piece * total)

    def exchange(t: int) -> list[Move]:
        """Return the messages of round t: piece t of the message to its owners, and the sums of piece t - 1 back."""
        moves = []
        for distance in range(1, n):
            dest, source = (rank + distance) % n, (rank - distance) % n
            if t < chunks:
                moves.append(Move(dest, source, get_share(dest, t), get_share(rank, t), Op.OWN_FIRST))
            if t > 0:
                moves.append(Move(dest, source, get_share(rank, t - 1), get_share(source, t - 1)))
        return moves

    return Rounds((chunks + 1) * min(n - 1, 1), total * chunks, exchange)


def hierarchical_weighted_cost(n: int, nodes: Groups | None = None, rates: tuple[int, ...] = ()) -> Cost:
    """S bytes on N nodes of L ranks take 4 steps; a rank moves (2 (L-1) + 1 + (N-2) w) S/L if its node has share w.

    `nodes` has the ranks of each node (None: one node), and `rates` the bandwidths of the nodes' links, by which shares
    are chosen.
    """
    return all_reduce_across_nodes_cost(n, nodes or Groups((n,)), _name_with_rates(rates))


@algorithm(
    Operation.ALL_REDUCE,
    "hierarchical_weighted",
    hierarchical_weighted_cost,
    uses_shared_memory=True,
    grows_linearly=True,
)
def hierarchical_weighted(rank: IntArray, n: int, nodes: Groups | None = None, rates: tuple[int, ...] = ()) -> Rounds:
    """Plan an all-reduce: owners reduce slices, exchange them between nodes by weighted shares, and store them.

    `nodes` has the ranks of each node (None: one node), and `rates` the bandwidths of the nodes' links, in any unit;
    empty for equal links.
    """
    return all_reduce_across_nodes(rank, nodes or Groups((n,)), _name_with_rates(rates))


def _name_with_rates(rates: tuple[int, ...]) -> str:
    """Return the name of the all-reduce across nodes with its rates, such as `weighted@4:4:1`."""
    return "@".join(filter(None, ("weighted", ":".join(map(str, rates)))))
