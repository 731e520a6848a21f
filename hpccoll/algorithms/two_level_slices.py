"""Two-level collectives on whole vectors: loads and stores within nodes, messages between nodes.

The slot of a rank is its number within its node (its local rank). The message is cut into as many slices as the
smallest node has ranks. In every node the rank of slot s owns slice s: it reduces that slice from the memory of all
ranks of its node, exchanges it with the owners of the same slice on the other nodes, and stores the result to all ranks
of its node. Each byte crosses a node's link only as often as the algorithm across nodes needs, all ranks of a node
share the work, and the ranks of a node wait for each other at two fences only.

In nodes larger than the smallest one some ranks own no slice; owners also load from and store to these ranks. The ranks
of a node need not be consecutive. With one rank per node there are no loads or stores, with a single node no messages.
Within a node, the owner of a slice, with local rank s, reduces its own part first, then those of local ranks s+1, s+2
and so on (modulo the node size). Across nodes, the order of reduction is that of the algorithm across nodes. Sources:
Karonis et al., IPDPS 2000; Jain et al., SC 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache

import numpy as np

from hpccoll.algorithms import barriers, binomial_tree, chain, recursive_doubling, ring  # noqa: F401 - registers the algorithms used across nodes
from hpccoll.algorithms.hierarchical import count_moved
from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import algorithm, get_registered
from hpccoll.plan import (
    NO_PEER,
    SIGNAL,
    Cost,
    Fence,
    Groups,
    IntArray,
    Load,
    Op,
    Operation,
    Rounds,
    Span,
    Step,
    Store,
    run_across_groups,
)


class TwoLevelRounds:
    """Makes the rounds within nodes (`groups`) of a plan that has `chunks` chunks per rank."""

    def __init__(self, rank: IntArray, groups: Groups, chunks: int) -> None:
        self.rank, self.groups, self.chunks = rank, groups, chunks

    def fence(self) -> Rounds:
        """Return one round in which the ranks of each node wait for each other; no round if all nodes have one rank."""
        group, _ = self.groups.locate(self.rank)
        leader = self.groups.make_rank_lookup()(self.groups.starts[group])
        return self.transfer(lambda: [Fence(leader)])

    def transfer(self, make_steps: Callable[[], list[Step]]) -> Rounds:
        """Return one round of the steps that `make_steps` returns; no round if all nodes have one rank."""
        return Rounds(min(max(self.groups.sizes) - 1, 1), self.chunks, lambda _: make_steps())


def iterate_group_peers(groups: Groups, rank: IntArray) -> Iterator[IntArray]:
    """Yield, for each distance d >= 1, the rank d positions after each rank in its group, cyclically.

    The entry is -1 for a rank whose group has at most d ranks.
    """
    group, slot = groups.locate(rank)
    size, start, rank_at = np.array(groups.sizes)[group], groups.starts[group], groups.make_rank_lookup()
    for distance in range(1, max(groups.sizes)):
        yield np.where(distance < size, rank_at(start + (slot + distance) % size), NO_PEER)


class _SlicedNodes(TwoLevelRounds):
    """Builds the rounds of a two-level plan: on each node, each owner works on its slice, a share of the message.

    `inter` returns the rounds across nodes, as `inter(node, number of nodes)`.
    """

    def __init__(self, rank: IntArray, groups: Groups, inter: Callable[[IntArray, int], Rounds]) -> None:
        self.owners = min(groups.sizes)
        self.group, slot = groups.locate(rank)
        self.is_owner = slot < self.owners
        owned = np.minimum(slot, self.owners - 1)
        between = run_across_groups(inter, groups, rank, self.owners)
        super().__init__(rank, groups, self.owners * between.chunks)
        self.own_slice = Span(owned, 1, self.owners, between.chunks)
        self.between_nodes = between.shifted(owned * between.chunks, self.chunks)

    def reduce_slices(self) -> Rounds:
        """Return the round in which the owner of each slice reduces it from the memory of all ranks of its node."""
        own = self.own_slice
        return self.transfer(lambda: [Load(peer, own, own, Op.OWN_FIRST) for peer in self._iterate_owner_peers()])

    def store_slices(self, skip: int = NO_PEER) -> Rounds:
        """Return the round in which the owner of each slice stores it to all ranks of its node except rank `skip`."""
        own = self.own_slice
        return self.transfer(lambda: [Store(peer, own, own) for peer in self._iterate_owner_peers(skip)])

    def _iterate_owner_peers(self, skip: int = NO_PEER) -> Iterator[IntArray]:
        """Yield an array per distance within nodes: each slice owner's peer; -1 for no peer, and for rank `skip`."""
        for peer in iterate_group_peers(self.groups, self.rank):
            yield np.where(self.is_owner & (peer != skip), peer, NO_PEER)


@cache
def _count_sent_per_node(operation: Operation, inter: str, nodes: int, root: int) -> tuple[Fraction, ...]:
    """Return the bytes that each node sends in `operation/inter` for one slice, divided by the bytes of the slice."""
    rounds = get_registered(operation, inter).plan(nodes, root).rounds()
    return tuple(count_moved(rounds, nodes))


def _crossing_cost(operation: Operation, inter: str, groups: Groups, root: int = 0) -> tuple[int, Fraction, Fraction]:
    """Return three costs of `operation/inter` across nodes for one slice, an owner's share of the message.

    The costs are the number of steps (0 if the plan of `inter` states no cost), the bytes that all nodes send, and the
    most bytes that an owner loads and sends. An owner loads its slice from each other rank of its node, and sends as
    `inter` does. Both numbers of bytes are divided by the slice's size. `root` is the number of the root's node.
    """
    nodes = len(groups.sizes)
    cost = get_registered(operation, inter).plan(nodes, root).cost
    if cost is not None and groups.common_size is not None:
        return cost.steps, cost.mean * nodes, groups.common_size - 1 + cost.most
    sent = _count_sent_per_node(operation, inter, nodes, root)
    most = max(size - 1 + share for size, share in zip(groups.sizes, sent, strict=True))
    return cost.steps if cost else 0, sum(sent, Fraction(0)), Fraction(most)


def _locate_root(groups: Groups, root: int) -> tuple[int, int]:
    """Return the number of the root's group (node) and the root's index in it."""
    group, slot = groups.locate(np.array([root]))
    return int(group[0]), int(slot[0])


def all_reduce_across_nodes_cost(n: int, groups: Groups, inter: str) -> Cost:
    """Return the cost of a two-level all-reduce on n ranks; `inter` is the name of the all-reduce across nodes."""
    owners, transfers = min(groups.sizes), 2 * min(max(groups.sizes) - 1, 1)
    steps, sent, most_crossing = _crossing_cost(Operation.ALL_REDUCE, inter, groups)
    if groups.common_size is not None:
        most = groups.common_size - 1 + most_crossing
        return Cost(transfers + steps, (2 * (n - len(groups.sizes)) + sent) / Fraction(n), most / owners)
    shares = _count_sent_per_node(Operation.ALL_REDUCE, inter, len(groups.sizes), 0)
    most = max(2 * (size - 1) + share for size, share in zip(groups.sizes, shares, strict=True))
    return Cost(transfers + steps, (2 * (n - len(groups.sizes)) + sent) / Fraction(n), Fraction(most) / owners)


def all_reduce_across_nodes(rank: IntArray, groups: Groups, inter: str) -> Rounds:
    """Return the rounds of a two-level all-reduce; `inter` is the name of the all-reduce across nodes."""
    make_plan = get_registered(Operation.ALL_REDUCE, inter).plan
    slices = _SlicedNodes(rank, groups, lambda node, nodes: make_plan(nodes).make(node))
    return slices.fence() + slices.reduce_slices() + slices.between_nodes + slices.store_slices() + slices.fence()


def period(n: int, nodes: Groups | None = None) -> int:
    """Return the period p (rank r + p acts like rank r): the ranks per node if nodes are equal and in order, else n."""
    groups = nodes or Groups((n,))
    return n if groups.common_size is None or groups.members is not None else groups.common_size


def all_reduce_ring_cost(n: int, nodes: Groups | None = None) -> Cost:
    """S bytes on N nodes of L ranks take 2 N steps; every rank moves (2 (L-1) + 2 (N-1)/N) S/L."""
    return all_reduce_across_nodes_cost(n, nodes or Groups((n,)), "ring")


@algorithm(
    Operation.ALL_REDUCE,
    "hierarchical_ring",
    all_reduce_ring_cost,
    period,
    uses_shared_memory=True,
    grows_linearly=True,
)
def all_reduce_ring(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan an all-reduce: owners reduce slices, all-reduce them on a ring of nodes, and store them to their node."""
    return all_reduce_across_nodes(rank, nodes or Groups((n,)), "ring")


def all_reduce_doubling_cost(n: int, nodes: Groups | None = None) -> Cost:
    """S bytes on N nodes of L ranks take 2 + log2 N steps (N = 2**m); every rank moves (2 (L-1) + log2 N) S/L.

    If N is not a power of two, the all-reduce takes two more steps.
    """
    return all_reduce_across_nodes_cost(n, nodes or Groups((n,)), "recursive_doubling")


@algorithm(Operation.ALL_REDUCE, "hierarchical_doubling", all_reduce_doubling_cost, uses_shared_memory=True)
def all_reduce_doubling(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan an all-reduce: owners reduce slices, all-reduce them by recursive doubling, and store them to their node."""
    return all_reduce_across_nodes(rank, nodes or Groups((n,)), "recursive_doubling")


def _broadcast_cost(n: int, groups: Groups, root: int, inter: str) -> Cost:
    """Return the cost of the two-level broadcast on n ranks; `inter` is the name of the broadcast across nodes."""
    (home, slot), owners = _locate_root(groups, root), min(groups.sizes)
    steps, sent, most = _crossing_cost(Operation.BROADCAST, inter, groups, home)
    loads = owners - (slot < owners)
    stores_at_home = loads * (groups.sizes[home] - 2) + (slot < owners) * (groups.sizes[home] - 1)
    stores = owners * (n - groups.sizes[home] - len(groups.sizes) + 1) + stores_at_home
    mean = (Fraction(loads + stores, owners) + sent) / n
    return Cost((loads > 0) + steps + (stores > 0), mean, most / owners)


def _broadcast(rank: IntArray, groups: Groups, root: int, inter: str) -> Rounds:
    """Return the rounds of the two-level broadcast; `inter` is the name of the broadcast across nodes."""
    home, _ = _locate_root(groups, root)
    make_plan = get_registered(Operation.BROADCAST, inter).plan
    slices = _SlicedNodes(rank, groups, lambda node, nodes: make_plan(nodes, home).make(node))

    def load_from_root() -> list[Step]:
        """Return the load step in which the slice owners on the root's node read their slices from the root."""
        loads_slice = slices.is_owner & (slices.group == home) & (rank != root)
        return [Load(np.where(loads_slice, root, NO_PEER), slices.own_slice, slices.own_slice)]

    start = slices.fence() + slices.transfer(load_from_root)
    return start + slices.between_nodes + slices.store_slices(root) + slices.fence()


def broadcast_chain_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:
    """N nodes broadcast in N + 1 steps; a slice's owner sends it at most once and stores it to its node's ranks."""
    return _broadcast_cost(n, nodes or Groups((n,)), root, "chain")


@algorithm(
    Operation.BROADCAST, "hierarchical_chain", broadcast_chain_cost, uses_shared_memory=True, grows_linearly=True
)
def broadcast_chain(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """Plan a broadcast: slices are loaded from the root, sent along a chain of nodes, and stored to all ranks."""
    return _broadcast(rank, nodes or Groups((n,)), root, "chain")


def broadcast_tree_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:
    """S bytes on N nodes take 2 + ceil(log2 N) steps; the root's node sends ceil(log2 N) S."""
    return _broadcast_cost(n, nodes or Groups((n,)), root, "tree")


@algorithm(Operation.BROADCAST, "hierarchical_tree", broadcast_tree_cost, uses_shared_memory=True)
def broadcast_tree(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """Plan a broadcast: slices are loaded from the root, sent down a tree of nodes, and stored to all ranks."""
    return _broadcast(rank, nodes or Groups((n,)), root, "tree")


def _reduce_cost(n: int, groups: Groups, root: int, inter: str) -> Cost:
    """Return the cost of the two-level reduce on n ranks; `inter` is the name of the reduce across nodes."""
    (home, slot), owners = _locate_root(groups, root), min(groups.sizes)
    steps, sent, most = _crossing_cost(Operation.REDUCE, inter, groups, home)
    stores = owners - (slot < owners)
    at_home = Fraction(groups.sizes[home] - 1 + (stores > 0))  # the root of a reduce sends nothing
    mean = (n - len(groups.sizes) + sent + Fraction(stores, owners)) / n
    return Cost(min(max(groups.sizes) - 1, 1) + steps + (stores > 0), mean, max(most, at_home) / owners)


def _reduce(rank: IntArray, groups: Groups, root: int, inter: str) -> Rounds:
    """Return the rounds of the two-level reduce; `inter` is the name of the reduce across nodes."""
    home, _ = _locate_root(groups, root)
    make_plan = get_registered(Operation.REDUCE, inter).plan
    slices = _SlicedNodes(rank, groups, lambda node, nodes: make_plan(nodes, home).make(node))

    def store_to_root() -> list[Step]:
        """Return the store step in which the slice owners on the root's node write their slices to the root."""
        stores_slice = slices.is_owner & (slices.group == home) & (rank != root)
        return [Store(np.where(stores_slice, root, NO_PEER), slices.own_slice, slices.own_slice)]

    end = slices.transfer(store_to_root) + slices.fence()
    return slices.fence() + slices.reduce_slices() + slices.between_nodes + end


def reduce_chain_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:
    """N nodes of L ranks reduce in N + 1 steps; a slice's owner loads L - 1 slices and sends or stores one."""
    return _reduce_cost(n, nodes or Groups((n,)), root, "chain")


@algorithm(Operation.REDUCE, "hierarchical_chain", reduce_chain_cost, uses_shared_memory=True, grows_linearly=True)
def reduce_chain(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """Plan a reduce: owners reduce slices within each node and along a chain of nodes, and store them to the root."""
    return _reduce(rank, nodes or Groups((n,)), root, "chain")


def reduce_tree_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:
    """N nodes reduce in 2 + ceil(log2 N) steps; a slice's owner loads L - 1 slices and sends or stores one."""
    return _reduce_cost(n, nodes or Groups((n,)), root, "tree")


@algorithm(Operation.REDUCE, "hierarchical_tree", reduce_tree_cost, uses_shared_memory=True)
def reduce_tree(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """Plan a reduce: owners reduce slices within nodes and up a binomial tree of nodes, and store them to the root."""
    return _reduce(rank, nodes or Groups((n,)), root, "tree")


def barrier_cost(n: int, nodes: Groups | None = None) -> Cost:
    """A barrier on N nodes takes ceil(log2 N) steps between two fences and sends no data."""
    return Cost(ceil_log2(len((nodes or Groups((n,))).sizes)), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "hierarchical_dissemination", barrier_cost, uses_shared_memory=True)
def barrier(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan a barrier: a fence on each node, dissemination among one rank per node, and a fence on each node."""
    groups = nodes or Groups((n,))
    signals = run_across_groups(
        get_registered(Operation.BARRIER, "dissemination").make_rounds, groups, rank, 1
    ).map_regions(lambda _: SIGNAL, 0)
    fence = TwoLevelRounds(rank, groups, 0).fence()
    return fence + signals + fence if len(groups.sizes) > 1 else fence
