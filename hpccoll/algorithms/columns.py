"""Two levels for blocks, the lower in shared memory: the ranks of one slot on all nodes form a column.

Whatever is for, or from, a rank of slot s anywhere is carried between nodes by the ranks of slot s. Within a node each
rank loads and stores what its neighbours need, straight in their memory, between two fences. So all ranks of a node use
its link at once, and no block crosses more often than the plan across nodes says.

Uneven nodes: a node is cut into groups of the largest size that divides all nodes, which then stand for nodes; where
only 1 does, the plan across nodes is left. Nodes whose ranks do not follow each other are relabelled.
Order: a node's sum of a block is that of the column's rank first, then those of the slots above around the circle; then
that of the plan across nodes. Sources: Traeff and Rougier, EuroMPI 2014; Jain et al., SC 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import gcd

import numpy as np

from hpccoll.algorithms import pairwise
from hpccoll.algorithms.hierarchical_shared import acting, around, fences
from hpccoll.algorithms.registry import algorithm, get_algorithm
from hpccoll.plan import (
    NO_PEER,
    Cost,
    Groups,
    IntArray,
    Load,
    Move,
    Op,
    Operation,
    Picks,
    Region,
    Rounds,
    Span,
    Step,
    Store,
    run_across_groups,
)


def even(n: int, nodes: Groups | None) -> Groups:
    """Return groups of one size, each of them within a node."""
    groups = nodes or Groups((n,))
    size = gcd(*groups.sizes)
    return Groups((size,) * (n // size), groups.members)


def period(n: int, nodes: Groups | None = None) -> int:
    """Every node does the same where ranks are numbered node by node."""
    groups = even(n, nodes)
    return groups.sizes[0] if groups.members is None else n


class _Columns:
    """Which blocks belong to whose column, and the plan across nodes for each column."""

    def __init__(self, rank: IntArray, n: int, nodes: Groups | None) -> None:
        self.rank, self.n, self.groups = rank, n, even(n, nodes)
        self.size, self.count = self.groups.sizes[0], len(self.groups.sizes)
        self.group, self.slot = self.groups.locate(rank)
        self.rank_at = self.groups.make_rank_lookup()

    def at(self, group: IntArray, slot: IntArray) -> IntArray:
        """Return the rank of a slot in a group."""
        return self.rank_at(group * self.size + slot)

    def blocks(self, slot: IntArray) -> Region:
        """Return the blocks of the ranks of a slot in all groups."""
        return Picks(self.count, lambda: self.at(np.arange(self.count), slot[:, None]))

    def fence(self) -> Rounds:
        return fences(self.groups, self.rank, self.n)

    def acting(self, steps: Callable[[], list[Step]]) -> Rounds:
        return acting(self.n, self.groups, steps)

    def crossing(self, operation: Operation, inter: str) -> Rounds:
        """Return the plan across nodes, whose block h is that of the rank in group h."""
        rounds = run_across_groups(get_algorithm(operation, inter).make_rounds, self.groups, self.rank, self.size)

        def column(region: Region) -> Region:
            return Picks(int(np.max(region.size)), lambda: self.at(region.ids(len(self.rank)), self.slot[:, None]))

        return rounds.map_regions(column, self.n)

    def peers(self) -> list[tuple[IntArray, IntArray]]:
        """Return the other ranks of each rank's group, with their slots."""
        others = around(self.groups, self.rank)
        return [(peer, (self.slot + d) % self.size) for d, peer in enumerate(others, 1)]


def _cost(n: int, nodes: Groups | None, operation: Operation, inter: str) -> Cost:
    groups = even(n, nodes)
    size, level = groups.sizes[0], get_algorithm(operation, inter).plan(len(groups.sizes)).cost
    steps, mean, most = (level.steps, level.mean, level.most) if level else (0, Fraction(0), Fraction(0))
    return Cost(min(size - 1, 1) + steps, (size - 1 + mean) / size, (size - 1 + most) / size)


def _reduce_scatter(rank: IntArray, n: int, nodes: Groups | None, inter: str) -> Rounds:
    columns = _Columns(rank, n, nodes)
    mine = columns.blocks(columns.slot)
    loads = columns.acting(lambda: [Load(peer, mine, mine, Op.OWN_FIRST) for peer, _ in columns.peers()])
    return columns.fence() + loads + columns.crossing(Operation.REDUCE_SCATTER, inter) + columns.fence()


def reduce_scatter_ring_cost(n: int, nodes: Groups | None = None) -> Cost:
    """1 + N - 1 steps on N nodes of L ranks; every rank moves (L - 1 + (N-1)/N) S/L."""
    return _cost(n, nodes, Operation.REDUCE_SCATTER, "ring")


@algorithm(Operation.REDUCE_SCATTER, "hierarchical_ring", reduce_scatter_ring_cost, period, uses_shared_memory=True)
def reduce_scatter_ring(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Columns are reduced in each node's shared memory, then along a ring of nodes."""
    return _reduce_scatter(rank, n, nodes, "ring")


def reduce_scatter_bruck_cost(n: int, nodes: Groups | None = None) -> Cost:
    """1 + ceil(log2 N) steps on N nodes of L ranks; every rank moves (L - 1 + (N-1)/N) S/L."""
    return _cost(n, nodes, Operation.REDUCE_SCATTER, "bruck")


@algorithm(Operation.REDUCE_SCATTER, "hierarchical_bruck", reduce_scatter_bruck_cost, period, uses_shared_memory=True)
def reduce_scatter_bruck(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Columns are reduced in each node's shared memory, then across nodes in the fewest rounds."""
    return _reduce_scatter(rank, n, nodes, "bruck")


def _all_gather(rank: IntArray, n: int, nodes: Groups | None, inter: str) -> Rounds:
    columns = _Columns(rank, n, nodes)

    def loads() -> list[Step]:
        return [Load(peer, columns.blocks(slot), columns.blocks(slot)) for peer, slot in columns.peers()]

    crossing = columns.crossing(Operation.ALL_GATHER, inter)
    return crossing + columns.fence() + columns.acting(loads) + columns.fence()


def all_gather_ring_cost(n: int, nodes: Groups | None = None) -> Cost:
    """N - 1 + 1 steps on N nodes of L ranks; every rank moves (L - 1 + (N-1)/N) S/L."""
    return _cost(n, nodes, Operation.ALL_GATHER, "ring")


@algorithm(Operation.ALL_GATHER, "hierarchical_ring", all_gather_ring_cost, period, uses_shared_memory=True)
def all_gather_ring(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Columns go around a ring of nodes, then every rank loads those of its neighbours."""
    return _all_gather(rank, n, nodes, "ring")


def all_gather_bruck_cost(n: int, nodes: Groups | None = None) -> Cost:
    """ceil(log2 N) + 1 steps on N nodes of L ranks; every rank moves (L - 1 + (N-1)/N) S/L."""
    return _cost(n, nodes, Operation.ALL_GATHER, "bruck")


@algorithm(Operation.ALL_GATHER, "hierarchical_bruck", all_gather_bruck_cost, period, uses_shared_memory=True)
def all_gather_bruck(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Columns are gathered across nodes in the fewest rounds, then every rank loads those of its neighbours."""
    return _all_gather(rank, n, nodes, "bruck")


def gather_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:  # noqa: ARG001 - alike for every root
    """2 steps on N nodes of L ranks; a rank of the root's node stores S/L, the others send their block."""
    size = even(n, nodes).sizes[0]
    across_nodes, within = n > size, size > 1
    mean = (Fraction(n - size, n) + Fraction(size - 1, size)) / n
    return Cost(across_nodes + within, mean, max(Fraction(across_nodes, n), Fraction(within, size)))


@algorithm(Operation.GATHER, "hierarchical_direct", gather_cost, uses_shared_memory=True)
def gather(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """Every block goes straight to its slot on the root's node, whose ranks store what they got to the root."""
    columns = _Columns(rank, n, nodes)
    home = int(columns.groups.locate(np.array([root]))[0][0])

    def sends() -> list[Step]:
        moves: list[Step] = []
        for distance in range(1, columns.count):
            there = (home + distance) % columns.count
            target, source = (columns.at(np.array(group), columns.slot) for group in (home, there))
            to, frm = (
                np.where(columns.group == there, target, NO_PEER),
                np.where(columns.group == home, source, NO_PEER),
            )
            moves.append(Move(to, frm, Span(rank, 1, n), Span(source, 1, n)))
        return moves

    def stores() -> list[Step]:
        to = np.where((columns.group == home) & (rank != root), root, NO_PEER)
        return [Store(to, columns.blocks(columns.slot), columns.blocks(columns.slot))]

    crossing = Rounds(min(columns.count - 1, 1), n, lambda _: sends())
    return crossing + columns.fence() + columns.acting(stores) + columns.fence()


def scatter_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:  # noqa: ARG001 - alike for every root
    """2 steps on N nodes of L ranks; a rank of the root's node loads S/L and sends all but its own block of it."""
    size = even(n, nodes).sizes[0]
    mean = (Fraction(n - size, n) + Fraction(size - 1, size)) / n
    return Cost((n > size) + (size > 1), mean, Fraction(size > 1, size) + Fraction(n // size - 1, n))


@algorithm(Operation.SCATTER, "hierarchical_direct", scatter_cost, uses_shared_memory=True)
def scatter(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """The gather backwards: the root's node loads a column each, and sends every block straight to its node."""
    return gather(rank, n, root, nodes).reversed()


def all_to_all_cost(n: int, nodes: Groups | None = None) -> Cost:
    """1 + N - 1 steps on N nodes of L ranks; every rank moves ((L-1) N + (N-1) L) / n S."""
    size = even(n, nodes).sizes[0]
    moved = Fraction((size - 1) * (n // size) + n - size, n)
    return Cost((size > 1) + n // size - 1, moved, moved)


@algorithm(Operation.ALL_TO_ALL, "hierarchical_pairwise", all_to_all_cost, period, uses_shared_memory=True)
def all_to_all(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Every rank loads its column's blocks from its node, and sends each other node's as one message."""
    columns = _Columns(rank, n, nodes)
    if columns.size == 1:
        return pairwise.all_to_all(rank, n)
    size, every_group, every_slot = columns.size, np.arange(columns.count), np.arange(columns.size)
    group, slot, output, work = columns.group[:, None], columns.slot[:, None], n, 2 * n

    def kept(peer: IntArray, theirs: IntArray) -> Region:
        """Where what a peer sends goes: for this node into the output, else set aside for each node."""
        aside = work + every_group * size + theirs[:, None]
        return Picks(columns.count, lambda: np.where(every_group == group, output + peer[:, None], aside))

    def loads() -> list[Step]:
        mine = columns.blocks(columns.slot)
        own: Step = Load(rank, Span(rank, 1, n), Span(rank, 1, n, base=output))
        return [own, *(Load(peer, mine, kept(peer, theirs)) for peer, theirs in columns.peers())]

    def sent(there: IntArray) -> IntArray:
        return np.where(every_slot == slot, columns.at(there[:, None], slot), work + there[:, None] * size + every_slot)

    def at(t: int) -> list[Step]:
        there, here = (columns.group + t + 1) % columns.count, (columns.group - t - 1) % columns.count
        leaving = Picks(size, lambda: sent(there))
        arriving = Picks(size, lambda: output + columns.at(here[:, None], every_slot))
        return [Move(columns.at(there, columns.slot), columns.at(here, columns.slot), leaving, arriving)]

    fence, crossing = fences(columns.groups, rank, 3 * n), Rounds(columns.count - 1, 3 * n, at)
    return fence + acting(3 * n, columns.groups, loads) + crossing + fence
