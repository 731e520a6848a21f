"""Hierarchical all-to-all by messages: blocks first move to their receiver's slot within the node, then to its node.

Within a node the rank of slot p collects all blocks for ranks of slot p on any node; then it sends the blocks for each
other node, as one message, to the rank of slot p there, which is their receiver. On N nodes of L ranks, each rank sends
N - 1 messages between nodes instead of n - L, each L times as large, for at most twice the bytes. It suits small blocks
on many ranks per node.

Chunks 0 to n-1 are a rank's input, n to 2n-1 its output; 2n + j N + h holds the block that slot j of the rank's node
sends to node h. Uneven nodes are divided into groups of the largest size that divides all nodes, which take the place
of nodes; if that size is 1, this is pairwise. Source: the two-level exchange of Traeff and Rougier, EuroMPI 2014.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, Groups, IntArray, Move, Operation, Picks, Rounds, Span


def split_into_even_groups(n: int, nodes: Groups | None) -> Groups:
    """Return groups of one size, the largest that divides all nodes; each group is within a node."""
    groups = nodes or Groups((n,))
    size = gcd(*groups.sizes)
    return Groups((size,) * (n // size), groups.members)


def cost(n: int, nodes: Groups | None = None) -> Cost:
    """L - 1 + N - 1 steps on N nodes of L ranks; every rank sends ((L-1) N + (N-1) L) / n S."""
    size = split_into_even_groups(n, nodes).sizes[0]
    groups = n // size
    sent = Fraction((size - 1) * groups + (groups - 1) * size, n)
    return Cost(size - 1 + groups - 1, sent, sent)


def period(n: int, nodes: Groups | None = None) -> int:
    """Return the group size where ranks are numbered node by node, since all nodes then behave alike; else n."""
    groups = split_into_even_groups(n, nodes)
    return groups.sizes[0] if groups.members is None else n


@algorithm(Operation.ALL_TO_ALL, "hierarchical", cost, period)
def all_to_all(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan an all-to-all: blocks move to their receiver's slot within the node, then to its node."""
    groups = split_into_even_groups(n, nodes)
    size, count, rank_at = groups.sizes[0], len(groups.sizes), groups.make_rank_lookup()
    group, slot = groups.locate(rank)
    every_group, every_slot = np.arange(count), np.arange(size)

    def within(t: int) -> Move:
        """Return round t within nodes: all blocks for the slot t above, on any node."""
        to_slot, from_slot = (slot + t) % size, (slot - t) % size
        sent = Picks(count, lambda: rank_at(every_group * size + to_slot[:, None]))
        received = Span(from_slot * count, count, n, base=2 * n)
        return Move(rank_at(group * size + to_slot), rank_at(group * size + from_slot), sent, received)

    def between(t: int) -> Move:
        """Return round t between nodes: all blocks for the node t above, to the rank of equal slot."""
        to_group, from_group = (group + t) % count, (group - t) % count
        sent = Picks(size, lambda: 2 * n + every_slot * count + to_group[:, None])
        received = Picks(size, lambda: n + rank_at(from_group[:, None] * size + every_slot))
        return Move(rank_at(to_group * size + slot), rank_at(from_group * size + slot), sent, received)

    return Rounds(size + count, 3 * n, lambda t: [within(t) if t < size else between(t - size)])
