"""Two-level collectives on blocks: loads and stores within nodes, messages between nodes.

The slot of a rank is its number within its node (its local rank); the ranks of one slot on all nodes form a column.
Blocks from or for the ranks of a column (equal local ranks) move between nodes only among the ranks of this column.
Within a node each rank loads from and stores to the other ranks' memory, between two fences (barriers of the node's
ranks). All ranks of a node use the node's link at the same time, and no block crosses the link more often than the
algorithm across nodes needs.

If nodes differ in size, they are divided into equal groups, of the largest size that divides every node's size, and
each group is treated as a node. If every group of ranks has one rank, the plans consist of messages only. The ranks of
a node need not be consecutive. Within a node, the rank with local rank s reduces its own operand first, then those of
local ranks s+1, s+2 and so on (modulo the node size). Across nodes, the order of reduction is that of the algorithm
across nodes. Sources: Traeff and Rougier, EuroMPI 2014; Jain et al., SC 2018.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from hpccoll.algorithms import bruck, pairwise, ring  # noqa: F401 - registers the algorithms used across nodes
from hpccoll.algorithms.hierarchical_all_to_all import period, split_into_even_groups
from hpccoll.algorithms.registry import algorithm, get_registered
from hpccoll.algorithms.two_level_slices import TwoLevelRounds, iterate_group_peers
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


class _Columns(TwoLevelRounds):
    """Builds the rounds of a plan within and between nodes; the ranks of equal local rank on all nodes are a column."""

    def __init__(self, rank: IntArray, n: int, nodes: Groups | None) -> None:
        super().__init__(rank, split_into_even_groups(n, nodes), n)
        self.size, self.count = self.groups.sizes[0], len(self.groups.sizes)
        self.group, self.slot = self.groups.locate(rank)
        self._rank_at_place = self.groups.make_rank_lookup()

    def rank_at(self, group: IntArray, slot: IntArray) -> IntArray:
        """Return the ranks with local rank `slot` in the nodes `group`; both are arrays."""
        return self._rank_at_place(group * self.size + slot)

    def blocks(self, slot: IntArray) -> Region:
        """Return, for each local rank in the array `slot`, the blocks of all ranks with this local rank."""
        return Picks(self.count, lambda: self.rank_at(np.arange(self.count), slot[:, None]))

    def between_nodes(self, operation: Operation, inter: str) -> Rounds:
        """Return rounds in which the ranks of equal local rank run `operation/inter` on their blocks."""
        rounds = run_across_groups(get_registered(operation, inter).make_rounds, self.groups, self.rank, self.size)

        def to_column(region: Region) -> Region:
            """Return the region with each node's number replaced by the rank of equal local rank on this node."""
            size = int(np.max(region.size))
            return Picks(size, lambda: self.rank_at(region.ids(len(self.rank)), self.slot[:, None]))

        return rounds.map_regions(to_column, self.chunks)

    def peers(self) -> list[tuple[IntArray, IntArray]]:
        """Return a list of pairs of arrays: a peer of each rank in its node, and the local rank of this peer.

        In pair d, from 1, the peer of local rank s has local rank s + d (modulo the node size).
        """
        others = iterate_group_peers(self.groups, self.rank)
        return [(peer, (self.slot + d) % self.size) for d, peer in enumerate(others, 1)]


def _cost(n: int, nodes: Groups | None, operation: Operation, inter: str) -> Cost:
    """Return the cost of the two-level reduce-scatter or all-gather; `inter` is the algorithm across nodes."""
    groups = split_into_even_groups(n, nodes)
    size, between = groups.sizes[0], get_registered(operation, inter).plan(len(groups.sizes)).cost
    steps, mean, most = (between.steps, between.mean, between.most) if between else (0, Fraction(0), Fraction(0))
    return Cost(min(size - 1, 1) + steps, (size - 1 + mean) / size, (size - 1 + most) / size)


def _reduce_scatter(rank: IntArray, n: int, nodes: Groups | None, inter: str) -> Rounds:
    """Return the rounds of the two-level reduce-scatter; `inter` is the name of the algorithm across nodes."""
    columns = _Columns(rank, n, nodes)
    own = columns.blocks(columns.slot)
    loads = columns.transfer(lambda: [Load(peer, own, own, Op.OWN_FIRST) for peer, _ in columns.peers()])
    return columns.fence() + loads + columns.between_nodes(Operation.REDUCE_SCATTER, inter) + columns.fence()


def reduce_scatter_ring_cost(n: int, nodes: Groups | None = None) -> Cost:
    """S bytes on N nodes of L ranks take N steps; every rank moves (L - 1 + (N-1)/N) S/L."""
    return _cost(n, nodes, Operation.REDUCE_SCATTER, "ring")


@algorithm(
    Operation.REDUCE_SCATTER,
    "hierarchical_ring",
    reduce_scatter_ring_cost,
    period,
    uses_shared_memory=True,
    grows_linearly=True,
)
def reduce_scatter_ring(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan a reduce-scatter that reduces first within each node, then between nodes on a ring.

    Within its node, each rank reduces the blocks whose receivers, on any node, have its local rank. The ranks of equal
    local rank then run a ring reduce-scatter of these blocks.
    """
    return _reduce_scatter(rank, n, nodes, "ring")


def reduce_scatter_bruck_cost(n: int, nodes: Groups | None = None) -> Cost:
    """S bytes on N nodes of L ranks take 1 + ceil(log2 N) steps; every rank moves (L - 1 + (N-1)/N) S/L."""
    return _cost(n, nodes, Operation.REDUCE_SCATTER, "bruck")


@algorithm(Operation.REDUCE_SCATTER, "hierarchical_bruck", reduce_scatter_bruck_cost, period, uses_shared_memory=True)
def reduce_scatter_bruck(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan a reduce-scatter: as `reduce_scatter_ring`, but with the Bruck algorithm between nodes."""
    return _reduce_scatter(rank, n, nodes, "bruck")


def _all_gather(rank: IntArray, n: int, nodes: Groups | None, inter: str) -> Rounds:
    """Return the rounds of the two-level all-gather; `inter` is the name of the algorithm across nodes."""
    columns = _Columns(rank, n, nodes)
    loads = columns.transfer(
        lambda: [Load(peer, columns.blocks(slot), columns.blocks(slot)) for peer, slot in columns.peers()]
    )
    between = columns.between_nodes(Operation.ALL_GATHER, inter)
    return between + columns.fence() + loads + columns.fence()


def all_gather_ring_cost(n: int, nodes: Groups | None = None) -> Cost:
    """S bytes on N nodes of L ranks take N steps; every rank moves (L - 1 + (N-1)/N) S/L."""
    return _cost(n, nodes, Operation.ALL_GATHER, "ring")


@algorithm(
    Operation.ALL_GATHER,
    "hierarchical_ring",
    all_gather_ring_cost,
    period,
    uses_shared_memory=True,
    grows_linearly=True,
)
def all_gather_ring(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan an all-gather: ranks of equal local rank gather on a ring, then load the other blocks within their node."""
    return _all_gather(rank, n, nodes, "ring")


def all_gather_bruck_cost(n: int, nodes: Groups | None = None) -> Cost:
    """S bytes on N nodes of L ranks take ceil(log2 N) + 1 steps; every rank moves (L - 1 + (N-1)/N) S/L."""
    return _cost(n, nodes, Operation.ALL_GATHER, "bruck")


@algorithm(Operation.ALL_GATHER, "hierarchical_bruck", all_gather_bruck_cost, period, uses_shared_memory=True)
def all_gather_bruck(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan an all-gather: as `all_gather_ring`, but with the Bruck algorithm between nodes."""
    return _all_gather(rank, n, nodes, "bruck")


def gather_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:  # noqa: ARG001 - the same for every root
    """S bytes take up to 2 steps: one between nodes, and one within the root's node, which has L ranks.

    Each rank of another node sends its block of S/n bytes. Each rank of the root's node but the root stores S/L.
    """
    size = split_into_even_groups(n, nodes).sizes[0]
    across_nodes, within = n > size, size > 1
    mean = (Fraction(n - size, n) + Fraction(size - 1, size)) / n
    return Cost(across_nodes + within, mean, max(Fraction(across_nodes, n), Fraction(within, size)))


@algorithm(Operation.GATHER, "hierarchical_direct", gather_cost, uses_shared_memory=True, grows_linearly=True)
def gather(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """Plan a gather: each block goes to the rank of equal local rank on the root's node, and from there to the root."""
    columns = _Columns(rank, n, nodes)
    home = int(columns.groups.locate(np.array([root]))[0][0])

    def send_to_home_node(_: int) -> list[Step]:
        """Return the round in which every rank sends its block to the rank of equal local rank on the root's node."""
        moves: list[Step] = []
        for distance in range(1, columns.count):
            group = (home + distance) % columns.count
            at_home, at_group = (columns.rank_at(np.array(g), columns.slot) for g in (home, group))
            dest = np.where(columns.group == group, at_home, NO_PEER)
            source = np.where(columns.group == home, at_group, NO_PEER)
            moves.append(Move(dest, source, Span(rank, 1, n), Span(at_group, 1, n)))
        return moves

    def store_to_root() -> list[Step]:
        """Return the `Store` step in which each rank of the root's node stores its column's blocks at the root."""
        dest = np.where((columns.group == home) & (rank != root), root, NO_PEER)
        return [Store(dest, columns.blocks(columns.slot), columns.blocks(columns.slot))]

    between = Rounds(min(columns.count - 1, 1), n, send_to_home_node)
    return between + columns.fence() + columns.transfer(store_to_root) + columns.fence()


def scatter_cost(n: int, root: int, nodes: Groups | None = None) -> Cost:  # noqa: ARG001 - the same for every root
    """S bytes take up to 2 steps: one within the root's node, which has L ranks, and one between nodes.

    Each rank of the root's node takes S/L, which all but the root load from the root's memory, and sends all of it but
    its own block to other nodes.
    """
    size = split_into_even_groups(n, nodes).sizes[0]
    mean = (Fraction(n - size, n) + Fraction(size - 1, size)) / n
    return Cost((n > size) + (size > 1), mean, Fraction(size > 1, size) + Fraction(n // size - 1, n))


@algorithm(Operation.SCATTER, "hierarchical_direct", scatter_cost, uses_shared_memory=True, grows_linearly=True)
def scatter(rank: IntArray, n: int, root: int, nodes: Groups | None = None) -> Rounds:
    """Plan a scatter: each rank of the root's node loads the blocks for ranks of its local rank and sends them."""
    return gather(rank, n, root, nodes).reversed()


def all_to_all_cost(n: int, nodes: Groups | None = None) -> Cost:
    """S bytes on N nodes of L ranks take N steps; every rank moves ((L-1) N + (N-1) L) / n S."""
    size = split_into_even_groups(n, nodes).sizes[0]
    moved = Fraction((size - 1) * (n // size) + n - size, n)
    return Cost((size > 1) + n // size - 1, moved, moved)


@algorithm(
    Operation.ALL_TO_ALL, "hierarchical_pairwise", all_to_all_cost, period, uses_shared_memory=True, grows_linearly=True
)
def all_to_all(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan an all-to-all that exchanges blocks first within each node, then between nodes.

    Each rank loads, from all ranks of its node, the blocks whose receivers have its local rank. The rank then sends one
    message to the rank of equal local rank on each other node.
    """
    columns = _Columns(rank, n, nodes)
    if columns.size == 1:
        return pairwise.all_to_all(rank, n)
    size, every_group, every_slot = columns.size, np.arange(columns.count), np.arange(columns.size)
    group, slot, output, transit = columns.group[:, None], columns.slot[:, None], n, 2 * n

    def find_load_target(peer: IntArray, peer_slot: IntArray) -> Region:
        """Return the chunks into which blocks of `peer` (local rank `peer_slot`) are loaded: outputs or buffers."""
        chunks = transit + every_group * size + peer_slot[:, None]
        return Picks(columns.count, lambda: np.where(every_group == group, output + peer[:, None], chunks))

    def load_column() -> list[Step]:
        """Return the load steps in which each rank reads its node's blocks for all ranks with its own local rank."""
        column = columns.blocks(columns.slot)
        own: Step = Load(rank, Span(rank, 1, n), Span(rank, 1, n, base=output))
        return [own, *(Load(peer, column, find_load_target(peer, peer_slot)) for peer, peer_slot in columns.peers())]

    def send_between_nodes(t: int) -> list[Step]:
        """Return the messages between nodes of round t."""
        to_group, from_group = (columns.group + t + 1) % columns.count, (columns.group - t - 1) % columns.count
        dest, source = columns.rank_at(to_group, columns.slot), columns.rank_at(from_group, columns.slot)
        in_transit = transit + to_group[:, None] * size + every_slot
        sent = Picks(size, lambda: np.where(every_slot == slot, dest[:, None], in_transit))
        received = Picks(size, lambda: output + columns.rank_at(from_group[:, None], every_slot))
        return [Move(dest, source, sent, received)]

    within = TwoLevelRounds(rank, columns.groups, 3 * n)
    between = Rounds(columns.count - 1, 3 * n, send_between_nodes)
    return within.fence() + within.transfer(load_column) + between + within.fence()
