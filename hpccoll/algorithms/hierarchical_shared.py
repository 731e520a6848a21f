"""Two levels, the lower in shared memory: ranks of a node load and store, and messages cross between nodes only.

The message is cut into as many slices as the smallest node has ranks. In every node the rank of slot s owns slice s: it
reduces that slice straight from the memory of all ranks of its node, exchanges it with the owners of the same slice on
the other nodes, and stores the result to all ranks of its node. So each byte crosses a node's link as often as the plan
across nodes says and no more, all ranks of a node share the work, and two fences a node are all that they wait.

Uneven nodes: ranks of slots beyond the smallest node own nothing, but are loaded from and stored to like all others.
Nodes whose ranks do not follow each other are relabelled; one rank a node leaves the plan across nodes, one node
the plan in shared memory.
Order: a node's sum of a slice is its owner's own first, then those of the slots above around the circle; then that of
the plan across nodes. Sources: Karonis et al., IPDPS 2000; Jain et al., SC 2018; the across-node plans in their files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache

import numpy as np

from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.registry import algorithm, get_algorithm
from hpccoll.plan import (
    NO_PEER,
    SIGNAL,
    Cost,
    Fence,
    Groups,
    IntArray,
    Load,
    Move,
    Op,
    Operation,
    Rounds,
    Span,
    Step,
    Store,
    run_across_groups,
)


def fences(groups: Groups, rank: IntArray, chunks: int) -> Rounds:
    """Return one round in which the ranks of each group wait for each other; none where every rank is alone."""
    group, _ = groups.locate(rank)
    leader = groups.make_rank_lookup()(groups.starts[group])
    return Rounds(min(max(groups.sizes) - 1, 1), chunks, lambda _: [Fence(leader)])


def around(groups: Groups, rank: IntArray) -> Iterator[IntArray]:
    """Yield the other ranks of each rank's group, from the slot above around the circle; -1 where there is none."""
    group, slot = groups.locate(rank)
    size, start, ranks_at = np.array(groups.sizes)[group], groups.starts[group], groups.make_rank_lookup()
    for distance in range(1, max(groups.sizes)):
        yield np.where(distance < size, ranks_at(start + (slot + distance) % size), NO_PEER)


def acting(chunks: int, groups: Groups, steps: Callable[[], list[Step]]) -> Rounds:
    """Return one round of loads or stores; none where every rank is alone."""
    return Rounds(min(max(groups.sizes) - 1, 1), chunks, lambda _: steps())


class _Slices:
    """Who owns which slice, and what is done with it across nodes."""

    def __init__(self, rank: IntArray, groups: Groups, inter: Callable[[IntArray, int], Rounds]) -> None:
        self.rank, self.groups, self.owners = rank, groups, min(groups.sizes)
        self.group, slot = groups.locate(rank)
        self.owns = slot < self.owners
        place = np.minimum(slot, self.owners - 1)
        crossing = run_across_groups(inter, groups, rank, self.owners)
        self.chunks = self.owners * crossing.chunks
        self.mine = Span(place, 1, self.owners, crossing.chunks)
        self.crossing = crossing.shifted(place * crossing.chunks, self.chunks)

    def fence(self) -> Rounds:
        return fences(self.groups, self.rank, self.chunks)

    def reduced(self) -> Rounds:
        """Every owner reduces its slice from the memory of its node."""

        def loads() -> list[Step]:
            peers = around(self.groups, self.rank)
            return [Load(np.where(self.owns, peer, NO_PEER), self.mine, self.mine, Op.OWN_FIRST) for peer in peers]

        return acting(self.chunks, self.groups, loads)

    def stored(self, but: int = NO_PEER) -> Rounds:
        """Every owner stores its slice to all ranks of its node, `but` one."""

        def stores() -> list[Step]:
            peers = around(self.groups, self.rank)
            return [Store(np.where(self.owns & (peer != but), peer, NO_PEER), self.mine, self.mine) for peer in peers]

        return acting(self.chunks, self.groups, stores)


@cache
def _sent(operation: Operation, inter: str, nodes: int, root: int) -> tuple[Fraction, ...]:
    """Return what each node sends in the plan across nodes, for one slice, as fractions of it."""
    rank, sent = np.arange(nodes), np.zeros(nodes, np.int64)
    rounds = get_algorithm(operation, inter).plan(nodes, root).make(rank)
    for steps in rounds:
        for step in steps:
            if isinstance(step, Move):
                sent += np.where((step.dest >= 0) & (step.dest != rank), step.send.size, 0)
    return tuple(Fraction(int(each), max(rounds.chunks, 1)) for each in sent)


def _crossing(operation: Operation, inter: str, groups: Groups, root: int = 0) -> tuple[int, Fraction, Fraction]:
    """Return the steps across nodes, and in slices what all of them send and the most that an owner moves."""
    nodes = len(groups.sizes)
    sent = _sent(operation, inter, nodes, root)
    stated = get_algorithm(operation, inter).plan(nodes, root).cost
    busiest = max(size - 1 + each for size, each in zip(groups.sizes, sent, strict=True))
    return stated.steps if stated else 0, sum(sent, Fraction(0)), Fraction(busiest)


def _home(groups: Groups, root: int) -> tuple[int, int]:
    """Return the group and the slot of the root."""
    group, slot = groups.locate(np.array([root]))
    return int(group[0]), int(slot[0])


def _all_reduce_cost(n: int, groups: Groups, inter: str) -> Cost:
    owners, levels = min(groups.sizes), 2 * min(max(groups.sizes) - 1, 1)
    steps, sent, _ = _crossing(Operation.ALL_REDUCE, inter, groups)
    each = _sent(Operation.ALL_REDUCE, inter, len(groups.sizes), 0)
    most = max(2 * (size - 1) + there for size, there in zip(groups.sizes, each, strict=True))
    return Cost(levels + steps, (2 * (n - len(groups.sizes)) + sent) / Fraction(n), Fraction(most) / owners)


def _all_reduce(rank: IntArray, groups: Groups, inter: str) -> Rounds:
    slices = _Slices(rank, groups, get_algorithm(Operation.ALL_REDUCE, inter).make_rounds)
    return slices.fence() + slices.reduced() + slices.crossing + slices.stored() + slices.fence()


def period(n: int, nodes: Groups | None = None) -> int:
    """Every node does the same where nodes are of one size and ranks numbered node by node."""
    groups = nodes or Groups((n,))
    return n if groups.common_size is None or groups.members is not None else groups.common_size


def all_reduce_ring_cost(n: int, nodes: Groups | None = None) -> Cost:
    """2 + 2 (N-1) steps on N nodes of L ranks; every rank moves (2 (L-1) + 2 (N-1)/N) S/L."""
    return _all_reduce_cost(n, nodes or Groups((n,)), "ring")


@algorithm(Operation.ALL_REDUCE, "hierarchical_ring", all_reduce_ring_cost, period, uses_shared_memory=True)
def all_reduce_ring(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Slices are reduced in each node's shared memory, go around a ring of nodes, and are stored to each node."""
    return _all_reduce(rank, nodes or Groups((n,)), "ring")


def all_reduce_doubling_cost(n: int, nodes: Groups | None = None) -> Cost:
    """2 + log2 N steps (+2) on N nodes of L ranks; (2 (L-1) + log2 N) S/L where N is a power of two."""
    return _all_reduce_cost(n, nodes or Groups((n,)), "recursive_doubling")


@algorithm(Operation.ALL_REDUCE, "hierarchical_doubling", all_reduce_doubling_cost, uses_shared_memory=True)
def all_reduce_doubling(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Slices are reduced in each node's shared memory, all-reduced by recursive doubling, and stored to each node."""
    return _all_reduce(rank, nodes or Groups((n,)), "recursive_doubling")


def _broadcast_cost(n: int, groups: Groups, root: int, inter: str) -> Cost:
    (home, slot), owners = _home(groups, root), min(groups.sizes)
    steps, sent, most = _crossing(Operation.BROADCAST, inter, groups, home)
    loads = owners - (slot < owners)
    here = loads * (groups.sizes[home] - 2) + (slot < owners) * (groups.sizes[home] - 1)
    stores = owners * (n - groups.sizes[home] - len(groups.sizes) + 1) + here
    mean = (Fraction(loads + stores, owners) + sent) / n
    return Cost((loads > 0) + steps + (stores > 0), mean, most / owners)


def _broadcast(rank: IntArray, groups: Groups, root: int, inter: str) -> Rounds:
    home, _ = _home(groups, root)
    made = get_algorithm(Operation.BROADCAST, inter).plan
    slices = _Slices(rank, groups, lambda node, nodes: made(nodes, home).make(node))

    def loads() -> list[Step]:
        loading = slices.owns & (slices.group == home) & (rank != root)
        return [Load(np.where(loading, root, NO_PEER), slices.mine, slices.mine)]

    begun = slices.fence() + acting(slices.chunks, groups, loads)
    return begun + slices.crossing + slices.stored(root) + slices.fence()


def broadcast_chain_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:
    """2 + N - 1 steps on N nodes; an owner sends one slice and stores it to each neighbour at most."""
    return _broadcast_cost(n, nodes or Groups((n,)), root, "chain")


@algorithm(Operation.BROADCAST, "hierarchical_chain", broadcast_chain_cost, uses_shared_memory=True)
def broadcast_chain(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """The root's node loads a slice each, slices pass along a chain of nodes, and are stored to each node."""
    return _broadcast(rank, nodes or Groups((n,)), root, "chain")


def broadcast_tree_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:
    """2 + ceil(log2 N) steps on N nodes; the root's node sends ceil(log2 N) S."""
    return _broadcast_cost(n, nodes or Groups((n,)), root, "tree")


@algorithm(Operation.BROADCAST, "hierarchical_tree", broadcast_tree_cost, uses_shared_memory=True)
def broadcast_tree(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """The root's node loads a slice each, slices go down a binomial tree of nodes, and are stored to each node."""
    return _broadcast(rank, nodes or Groups((n,)), root, "tree")


def _reduce_cost(n: int, groups: Groups, root: int, inter: str) -> Cost:
    (home, slot), owners = _home(groups, root), min(groups.sizes)
    steps, sent, most = _crossing(Operation.REDUCE, inter, groups, home)
    stores = owners - (slot < owners)
    at_home = groups.sizes[home] - 1 + _sent(Operation.REDUCE, inter, len(groups.sizes), home)[home] + (stores > 0)
    mean = (n - len(groups.sizes) + sent + Fraction(stores, owners)) / n
    return Cost(min(max(groups.sizes) - 1, 1) + steps + (stores > 0), mean, max(most, at_home) / owners)


def _reduce(rank: IntArray, groups: Groups, root: int, inter: str) -> Rounds:
    home, _ = _home(groups, root)
    made = get_algorithm(Operation.REDUCE, inter).plan
    slices = _Slices(rank, groups, lambda node, nodes: made(nodes, home).make(node))

    def stores() -> list[Step]:
        storing = slices.owns & (slices.group == home) & (rank != root)
        return [Store(np.where(storing, root, NO_PEER), slices.mine, slices.mine)]

    ended = acting(slices.chunks, groups, stores) + slices.fence()
    return slices.fence() + slices.reduced() + slices.crossing + ended


def reduce_chain_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:
    """2 + N - 1 steps on N nodes of L ranks; an owner loads (L-1) slices and sends or stores one."""
    return _reduce_cost(n, nodes or Groups((n,)), root, "chain")


@algorithm(Operation.REDUCE, "hierarchical_chain", reduce_chain_cost, uses_shared_memory=True)
def reduce_chain(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """Slices are reduced in each node's shared memory and along a chain of nodes, and stored to the root."""
    return _reduce(rank, nodes or Groups((n,)), root, "chain")


def reduce_tree_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:
    """2 + ceil(log2 N) steps on N nodes of L ranks; an owner loads (L-1) slices and sends or stores one."""
    return _reduce_cost(n, nodes or Groups((n,)), root, "tree")


@algorithm(Operation.REDUCE, "hierarchical_tree", reduce_tree_cost, uses_shared_memory=True)
def reduce_tree(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """Slices are reduced in each node's shared memory and up a binomial tree of nodes, and stored to the root."""
    return _reduce(rank, nodes or Groups((n,)), root, "tree")


def barrier_cost(n: int, nodes: Groups | None = None) -> Cost:
    """ceil(log2 N) steps on N nodes, no data, between two fences."""
    return Cost(ceil_log2(len((nodes or Groups((n,))).sizes)), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "hierarchical_dissemination", barrier_cost, uses_shared_memory=True)
def barrier(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Each node meets in shared memory, one rank of each spreads the news among nodes, and each node meets again."""
    groups = nodes or Groups((n,))
    news = run_across_groups(
        get_algorithm(Operation.BARRIER, "dissemination").make_rounds, groups, rank, 1
    ).map_regions(lambda _: SIGNAL, 0)
    fence = fences(groups, rank, 0)
    return fence + news + fence if len(groups.sizes) > 1 else fence
