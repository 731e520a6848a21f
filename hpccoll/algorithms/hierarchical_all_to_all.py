"""Hierarchical all-to-all by messages: blocks first move within their node, then between nodes to their receiver.

The slot of a rank is its number within its node (its local rank). First, the rank with local rank p collects its node's
blocks for all ranks with local rank p, on any node. In a second phase, each rank sends the collected blocks for each
other node, as one message, to their receiver on that node. With n ranks on N nodes of L, each rank sends N - 1 messages
between nodes instead of n - L. Each message is L times as large as in a pairwise all-to-all; a rank sends at most twice
as many bytes in all. The hierarchical all-to-all suits small blocks on many ranks per node.

Chunks 0 to n-1 are a rank's input, chunks n to 2n-1 its output. Chunk 2n + j N + h buffers the block that the rank with
local rank j of the same node sends to node h. If nodes differ in size, they are divided into equal groups, of the
largest size that divides every node's size, and each group is treated as a node. With groups of one rank the algorithm
is the pairwise all-to-all. Source: the two-level exchange of Traeff and Rougier, EuroMPI 2014.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, Groups, IntArray, Move, Operation, Picks, Rounds, Span


def split_into_even_groups(n: int, nodes: Groups | None) -> Groups:
    """Return the nodes divided into groups of equal size: the largest that divides every node's size.

    `nodes` is None for a single node of n ranks.
    """
    groups = nodes or Groups((n,))
    size = gcd(*groups.sizes)
    return Groups((size,) * (n // size), groups.members)


def cost(n: int, nodes: Groups | None = None) -> Cost:
    """S bytes on N nodes of L ranks take L + N - 2 steps; every rank sends ((L-1) N + (N-1) L) / n S."""
    size = split_into_even_groups(n, nodes).sizes[0]
    groups = n // size
    sent = Fraction((size - 1) * groups + (groups - 1) * size, n)
    return Cost(size - 1 + groups - 1, sent, sent)


def period(n: int, nodes: Groups | None = None) -> int:
    """Return the period p (rank r + p acts like rank r): the group size, or n if a node's ranks are not consecutive."""
    groups = split_into_even_groups(n, nodes)
    return groups.sizes[0] if groups.members is None else n


@algorithm(Operation.ALL_TO_ALL, "hierarchical", cost, period)
def all_to_all(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan an all-to-all: blocks move within the node to the receiver's local rank, then to the receiver's node."""
    groups = split_into_even_groups(n, nodes)
    size, count, rank_at = groups.sizes[0], len(groups.sizes), groups.make_rank_lookup()
    group, slot = groups.locate(rank)
    every_group, every_slot = np.arange(count), np.arange(size)

    def send_within_nodes(t: int) -> Move:
        """Return round t within nodes: blocks for local rank q of any node move from local rank q - t to q."""
        to_slot, from_slot = (slot + t) % size, (slot - t) % size
        sent = Picks(count, lambda: rank_at(every_group * size + to_slot[:, None]))
        received = Span(from_slot * count, count, n, base=2 * n)
        return Move(rank_at(group * size + to_slot), rank_at(group * size + from_slot), sent, received)

    def send_between_nodes(t: int) -> Move:
        """Return round t between nodes: each rank sends one message to the rank of equal local rank, t nodes up."""
        to_group, from_group = (group + t) % count, (group - t) % count
        sent = Picks(size, lambda: 2 * n + every_slot * count + to_group[:, None])
        received = Picks(size, lambda: n + rank_at(from_group[:, None] * size + every_slot))
        return Move(rank_at(to_group * size + slot), rank_at(from_group * size + slot), sent, received)

    return Rounds(size + count, 3 * n, lambda t: [send_within_nodes(t) if t < size else send_between_nodes(t - size)])
