"""Hierarchical all-to-all: blocks first move to the slot of their destination within the node, then across to its node.

Within a node the rank of slot p collects all blocks for ranks of slot p anywhere; then it sends each other node's, as
one message, to the rank of slot p there, for whom they are. N nodes of L ranks thus send N - 1 messages a rank between
nodes instead of n - L, each L times as large, for at most twice the bytes: for small blocks on many ranks a node.

Chunks 0 to n-1 are a rank's input, n to 2n-1 its output; 2n + j N + h holds what slot j of its node sends to node h.
Uneven nodes: a node is cut into groups of the largest size that divides all nodes, which then stand for nodes; where
only 1 does, this is pairwise. Source: the two-level exchange of Traeff and Rougier, EuroMPI 2014.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import numpy as np

from hpccoll.algorithms.registry import algorithm
from hpccoll.plan import Cost, Groups, IntArray, Move, Operation, Picks, Rounds, Span


def _even(n: int, nodes: Groups | None) -> Groups:
    """Return groups of one size, each of them within a node."""
    groups = nodes or Groups((n,))
    size = gcd(*groups.sizes)
    return Groups((size,) * (n // size), groups.members)


def cost(n: int, nodes: Groups | None = None) -> Cost:
    """L - 1 + N - 1 steps on N nodes of L ranks; every rank sends ((L-1) N + (N-1) L) / n S."""
    size = _even(n, nodes).sizes[0]
    groups = n // size
    sent = Fraction((size - 1) * groups + (groups - 1) * size, n)
    return Cost(size - 1 + groups - 1, sent, sent)


def period(n: int, nodes: Groups | None = None) -> int:
    """Every node does the same where ranks are numbered node by node."""
    groups = _even(n, nodes)
    return groups.sizes[0] if groups.members is None else n


@algorithm(Operation.ALL_TO_ALL, "hierarchical", cost, period)
def all_to_all(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Blocks change slots within their node, then nodes."""
    groups = _even(n, nodes)
    size, count, at_place = groups.sizes[0], len(groups.sizes), groups.make_rank_lookup()
    group, slot = groups.locate(rank)
    every_group, every_slot = np.arange(count), np.arange(size)

    def within(t: int) -> Move:
        there, here = (slot + t) % size, (slot - t) % size
        leaving = Picks(count, lambda: at_place(every_group * size + there[:, None]))
        arriving = Span(here * count, count, n, base=2 * n)
        return Move(at_place(group * size + there), at_place(group * size + here), leaving, arriving)

    def between(t: int) -> Move:
        there, here = (group + t) % count, (group - t) % count
        leaving = Picks(size, lambda: 2 * n + every_slot * count + there[:, None])
        arriving = Picks(size, lambda: n + at_place(here[:, None] * size + every_slot))
        return Move(at_place(there * size + slot), at_place(here * size + slot), leaving, arriving)

    return Rounds(size + count, 3 * n, lambda t: [within(t) if t < size else between(t - size)])
