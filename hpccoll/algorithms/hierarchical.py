"""Hierarchical all-reduce and barrier by messages: within each node, then across nodes, then within each node again.

The ranks of a node reduce-scatter the message, after which each owner (a rank that owns a slice) holds one slice of the
node's sum. The owners of each slice all-reduce it across nodes, all slices at once. The reversed rounds of the
reduce-scatter then gather the slices in every node. Each owner sends only its slice to other nodes.
`compose_levels(intra, inter)` composes any reduce-scatter within nodes and any all-reduce across nodes; the algorithm
`hierarchical` is a ring within nodes and a double tree across nodes.

The slot of a rank is its number within its node (its local rank). The number of owners in every node is the number of
ranks of the smallest node. In nodes larger than the smallest one, each rank that owns no slice first sends its data to
an owner, which sends back the result at the end. The ranks of a node need not be consecutive. Data are reduced in the
order of the algorithm `intra` within a node (an owner's data before data sent to it), then in the order of the
algorithm `inter` across nodes. Sources: Karonis et al., IPDPS 2000; Cho, Finkler and Kung, BlueConnect, SysML 2019.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import lcm

import numpy as np

from hpccoll.algorithms import double_tree, ring  # noqa: F401 - registers the algorithms of both levels
from hpccoll.algorithms.barriers import dissemination
from hpccoll.algorithms.binomial_tree import broadcast as tree_broadcast
from hpccoll.algorithms.powers_of_two import ceil_log2
from hpccoll.algorithms.registry import Algorithm, algorithm, get_registered
from hpccoll.errors import UsageError
from hpccoll.plan import (
    SIGNAL,
    Cost,
    Fence,
    Groups,
    IntArray,
    Load,
    Move,
    Operation,
    Rounds,
    Span,
    keep_ranks,
    reduce_into_core,
    run_across_groups,
    run_in_groups,
)


def _make_rounds(rank: IntArray, groups: Groups, intra: Algorithm, inter: Algorithm, chunks: int) -> Rounds:
    """Return the rounds of an all-reduce by `intra` within groups (nodes) and `inter` across groups.

    Args:
        intra: a reduce-scatter within nodes; its rounds backwards gather the result.
        inter: an all-reduce across nodes.
    """
    owners = min(groups.sizes)

    def reduce_scatter_to_owners(slot: IntArray, size: int) -> Rounds:
        """Return the rounds after which the owner of each slice (share of the message) has its sum over one node.

        `slot` has the local ranks, and `size` is the number of ranks of the node.
        """
        scatter = _make_level(intra, np.minimum(slot, owners - 1), owners, chunks)
        further = reduce_into_core(slot, size, owners, Span(0, scatter.chunks, scatter.chunks), scatter.chunks)
        return further + keep_ranks(scatter, slot < owners)

    within = run_in_groups(reduce_scatter_to_owners, groups, rank)
    between = run_across_groups(lambda node, nodes: _make_level(inter, node, nodes, chunks), groups, rank, owners)
    slot = np.minimum(groups.locate(rank)[1], owners - 1)
    # `intra` and `inter` may cut a slice into different numbers of chunks, so the plan uses a common multiple.
    slice_chunks = lcm(within.chunks // owners, between.chunks)
    within = within.scaled(slice_chunks * owners // within.chunks)
    between = between.scaled(slice_chunks // between.chunks).shifted(slot * slice_chunks, owners * slice_chunks)
    return within + between + within.reversed()


def _make_level(level: Algorithm, rank: IntArray, n: int, chunks: int) -> Rounds:
    """Return the rounds of the algorithm `level` (within or across nodes) on n ranks.

    `chunks` is ignored unless the algorithm is pipelined.
    """
    return level.make_rounds(rank, n, chunks=chunks) if "chunks" in level.parameters else level.make_rounds(rank, n)


def _level_cost(level: Algorithm, n: int, chunks: int) -> Cost:
    """Return the cost that the algorithm `level` states for n ranks; raise UsageError if it states none."""
    cost = level.plan(n, chunks=chunks).cost
    if cost is None:
        raise UsageError(f"{level.full_name} states no cost, which a composed algorithm needs; give it a cost function")
    return cost


def _cost(n: int, groups: Groups, intra: Algorithm, inter: Algorithm, chunks: int) -> Cost:
    """Return the cost of the all-reduce with `intra` within groups and `inter` across them, from their stated costs."""
    owners, nodes = min(groups.sizes), len(groups.sizes)
    within, between = _level_cost(intra, owners, chunks), _level_cost(inter, nodes, chunks)
    layers = -(-max(groups.sizes) // owners) - 1
    further = n - owners * nodes
    mean = (2 * further + 2 * owners * nodes * within.mean + nodes * between.mean) / Fraction(n)
    most = 2 * within.most + between.most / owners if not further else _most_sent(groups, intra, inter, chunks)
    return Cost(2 * (layers + within.steps) + between.steps, mean, most)


@cache
def _most_sent(groups: Groups, intra: Algorithm, inter: Algorithm, chunks: int) -> Fraction:
    """Return the bytes that the busiest rank sends, divided by the message size, for groups that differ in size."""
    owners, nodes = min(groups.sizes), len(groups.sizes)
    within = count_moved(_make_level(intra, np.arange(owners), owners, chunks), owners)
    between = count_moved(_make_level(inter, np.arange(nodes), nodes, chunks), nodes)
    busiest = Fraction(1)  # a rank without a slice, which sends S
    for size in set(groups.sizes):
        crossing = max(sent for sent, node_size in zip(between, groups.sizes, strict=True) if node_size == size)
        for slot, sent in enumerate(within):
            busiest = max(busiest, -(-(size - slot) // owners) - 1 + 2 * sent + crossing / owners)
    return busiest


def count_moved(rounds: Rounds, n: int) -> list[Fraction]:
    """Return the bytes that each of the n ranks sends, loads or stores in `rounds`, as a fraction of the message."""
    rank, moved = np.arange(n), np.zeros(n, np.int64)
    for steps in rounds:
        for step in steps:
            if isinstance(step, Load):
                moved += np.where((step.source >= 0) & (step.source != rank), step.local.size, 0)
            elif not isinstance(step, Fence):
                size = step.send.size if isinstance(step, Move) else step.local.size
                moved += np.where((step.dest >= 0) & (step.dest != rank), size, 0)
    return [Fraction(int(chunks), max(rounds.chunks, 1)) for chunks in moved]


def _period(n: int, groups: Groups, inter: Algorithm, chunks: int) -> int:
    """Return the period p (rank r + p acts like rank r) of the plan; n if nodes differ in size or interleave ranks."""
    nodes = len(groups.sizes)
    period = inter.plan(nodes, chunks=chunks).period or nodes
    return n if groups.common_size is None or groups.members is not None else period * groups.common_size


def compose_levels(intra: Algorithm, inter: Algorithm) -> Algorithm:
    """Return an all-reduce made of the reduce-scatter `intra` within nodes and the all-reduce `inter` across nodes.

    In `intra` each rank must send each partial sum once, so that the reversed rounds are an all-gather; otherwise
    `check` rejects the plans.
    """

    def make(rank: IntArray, n: int, chunks: int = 1, nodes: Groups | None = None) -> Rounds:
        """Plan an all-reduce: a reduce-scatter within nodes, an all-reduce across nodes, an all-gather within nodes."""
        return _make_rounds(rank, nodes or Groups((n,)), intra, inter, chunks)

    def cost(n: int, chunks: int = 1, nodes: Groups | None = None) -> Cost:
        """Return the cost of the all-reduce, computed from the costs that `intra` and `inter` state."""
        return _cost(n, nodes or Groups((n,)), intra, inter, chunks)

    def period(n: int, chunks: int = 1, nodes: Groups | None = None) -> int:
        """Return the period of the plan: rank r + period does the same as rank r."""
        return _period(n, nodes or Groups((n,)), inter, chunks)

    parameters = frozenset({"nodes"}) | ((intra.parameters | inter.parameters) & {"chunks"})
    cost_or_none = cost if intra.cost is not None and inter.cost is not None else None
    name, shared = f"hierarchical({intra.name},{inter.name})", intra.uses_shared_memory or inter.uses_shared_memory
    return Algorithm(Operation.ALL_REDUCE, name, make, cost_or_none, parameters, period, shared)


def _default_levels() -> tuple[Algorithm, Algorithm]:
    """Return the algorithms that `all_reduce/hierarchical` consists of: ring within nodes, double tree across nodes."""
    return get_registered(Operation.REDUCE_SCATTER, "ring"), get_registered(Operation.ALL_REDUCE, "double_tree")


def all_reduce_cost(n: int, chunks: int, nodes: Groups | None = None) -> Cost:
    """N nodes of L ranks: 2 (L-1) + 2 ceil(log2 N) + k - 1 steps; a rank sends (2 (L-1) + 2 (N-1)/N) S/L on average."""
    return _cost(n, nodes or Groups((n,)), *_default_levels(), chunks)


@algorithm(Operation.ALL_REDUCE, "hierarchical", all_reduce_cost)
def all_reduce(rank: IntArray, n: int, chunks: int, nodes: Groups | None = None) -> Rounds:
    """Plan an all-reduce: a ring reduce-scatter within nodes, a double tree across nodes, and the ring backwards.

    `chunks` is the number k of chunks of each half of a slice.
    """
    return _make_rounds(rank, nodes or Groups((n,)), *_default_levels(), chunks)


def barrier_cost(n: int, nodes: Groups | None = None) -> Cost:
    """A barrier on N nodes of at most L ranks takes 2 ceil(log2 L) + ceil(log2 N) steps and sends no data."""
    groups = nodes or Groups((n,))
    return Cost(2 * ceil_log2(max(groups.sizes)) + ceil_log2(len(groups.sizes)), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "hierarchical", barrier_cost)
def barrier(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """Plan a barrier: a binomial tree up within each node, dissemination among the nodes, and the tree down again."""
    groups = nodes or Groups((n,))
    tree = run_in_groups(lambda slot, size: tree_broadcast(slot, size, 0), groups, rank)
    down = tree.map_regions(lambda _: SIGNAL, 0)
    return down.reversed() + run_across_groups(dissemination, groups, rank, 1) + down
