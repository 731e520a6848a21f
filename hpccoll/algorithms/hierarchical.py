"""Hierarchical: first within each node, then across nodes, then within each node again.

The ranks of a node reduce-scatter the message over their owners, so that each owner holds one slice of the node's sum;
the owners of each slice all-reduce it across nodes, all slices at once; and the reduce-scatter backwards gathers the
slices in every node. Only 1/owners of the message crosses each rank's link to other nodes, and any two algorithms
compose: `hierarchical(intra, inter)`; without a name they are a ring within, a double tree across.

Uneven nodes: the smallest node has as many ranks as there are owners in every node; a rank of slot s beyond them folds
into slot s mod owners before and gets the result after. Nodes whose ranks do not follow each other are relabelled.
Order: that of `intra` within a node (a guest after the owner that it folds into), then that of `inter` across nodes.
Sources: Karonis et al., IPDPS 2000; Cho, Finkler and Kung, BlueConnect, SysML 2019.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import lcm

import numpy as np

from hpccoll.algorithms import binomial, dissemination
from hpccoll.algorithms.bits import ceil_log2
from hpccoll.algorithms.registry import Algorithm, algorithm, get_algorithm
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


def _two_levels(rank: IntArray, groups: Groups, intra: Algorithm, inter: Algorithm, chunks: int) -> Rounds:
    owners = min(groups.sizes)

    def to_owners(slot: IntArray, size: int) -> Rounds:
        scatter = _made(intra, np.minimum(slot, owners - 1), owners, chunks)
        guests = reduce_into_core(slot, size, owners, Span(0, scatter.chunks, scatter.chunks), scatter.chunks)
        return guests + keep_ranks(scatter, slot < owners)

    within = run_in_groups(to_owners, groups, rank)
    between = run_across_groups(lambda node, nodes: _made(inter, node, nodes, chunks), groups, rank, owners)
    slot = np.minimum(groups.locate(rank)[1], owners - 1)
    # A slice is as many chunks as both levels can cut it into.
    fine = lcm(within.chunks // owners, between.chunks)
    within = within.scaled(fine * owners // within.chunks)
    between = between.scaled(fine // between.chunks).shifted(slot * fine, owners * fine)
    return within + between + within.reversed()


def _made(level: Algorithm, rank: IntArray, n: int, chunks: int) -> Rounds:
    return level.make_rounds(rank, n, chunks=chunks) if "chunks" in level.parameters else level.make_rounds(rank, n)


def _stated(level: Algorithm, n: int, chunks: int) -> Cost:
    cost = level.plan(n, chunks=chunks).cost
    if cost is None:
        raise UsageError(f"{level.full_name} states no cost, so what is composed of it can state none; state one")
    return cost


def _cost(n: int, groups: Groups, intra: Algorithm, inter: Algorithm, chunks: int) -> Cost:
    owners, nodes = min(groups.sizes), len(groups.sizes)
    within, between = _stated(intra, owners, chunks), _stated(inter, nodes, chunks)
    layers = -(-max(groups.sizes) // owners) - 1
    guests = n - owners * nodes
    mean = (2 * guests + 2 * owners * nodes * within.mean + nodes * between.mean) / Fraction(n)
    most = 2 * within.most + between.most / owners if not guests else _most(groups, intra, inter, chunks)
    return Cost(2 * (layers + within.steps) + between.steps, mean, most)


@cache
def _most(groups: Groups, intra: Algorithm, inter: Algorithm, chunks: int) -> Fraction:
    """What the busiest rank sends, in S: an owner its part in both levels, and the result to each of its guests."""
    owners = min(groups.sizes)
    within, between = _sent(intra, owners, chunks), _sent(inter, len(groups.sizes), chunks)
    busiest = Fraction(1)  # a guest, which hands in S
    for size in set(groups.sizes):
        sent = max(of for of, here in zip(between, groups.sizes, strict=True) if here == size)
        for slot, own in enumerate(within):
            busiest = max(busiest, -(-(size - slot) // owners) - 1 + 2 * own + sent / owners)
    return busiest


def _sent(level: Algorithm, n: int, chunks: int) -> list[Fraction]:
    """Return what each rank moves in a level, in the level's S."""
    rank, sent = np.arange(n), np.zeros(n, np.int64)
    rounds = _made(level, rank, n, chunks)
    for steps in rounds:
        for step in steps:
            if isinstance(step, Load):
                sent += np.where((step.source >= 0) & (step.source != rank), step.local.size, 0)
            elif not isinstance(step, Fence):
                size = step.send.size if isinstance(step, Move) else step.local.size
                sent += np.where((step.dest >= 0) & (step.dest != rank), size, 0)
    return [Fraction(int(of), rounds.chunks) for of in sent]


def _period(n: int, groups: Groups, inter: Algorithm, chunks: int) -> int:
    """After how many ranks all do the same: only nodes of one size, in rank order, under a level that has a period."""
    nodes = len(groups.sizes)
    stated = inter.plan(nodes, chunks=chunks).period or nodes
    return n if groups.common_size is None or groups.members is not None else stated * groups.common_size


@cache
def hierarchical(intra: str = "ring", inter: str = "double_tree") -> Algorithm:
    """Return the all-reduce by `reduce_scatter/intra` within nodes and `all_reduce/inter` across them.

    Raises:
        UnknownNameError: lists the names that there are.
    """
    return composed(get_algorithm(Operation.REDUCE_SCATTER, intra), get_algorithm(Operation.ALL_REDUCE, inter))


def composed(intra: Algorithm, inter: Algorithm) -> Algorithm:
    """Return the all-reduce of a reduce-scatter within nodes and an all-reduce across them; either may be one's own.

    Of `intra` each rank must send each partial sum once, so that backwards it gathers: a proof shows it.
    """

    def make(rank: IntArray, n: int, chunks: int = 1, nodes: Groups | None = None) -> Rounds:
        """Reduce-scatter within nodes, all-reduce across them, gather within nodes."""
        return _two_levels(rank, nodes or Groups((n,)), intra, inter, chunks)

    def cost(n: int, chunks: int = 1, nodes: Groups | None = None) -> Cost:
        """Twice that of `intra` on the smallest node and once that of `inter`, each owner for its slice."""
        return _cost(n, nodes or Groups((n,)), intra, inter, chunks)

    def period(n: int, chunks: int = 1, nodes: Groups | None = None) -> int:
        return _period(n, nodes or Groups((n,)), inter, chunks)

    parameters = frozenset({"nodes"}) | ((intra.parameters | inter.parameters) & {"chunks"})
    stated = cost if intra.cost is not None and inter.cost is not None else None
    name, shared = f"hierarchical({intra.name},{inter.name})", intra.uses_shared_memory or inter.uses_shared_memory
    return Algorithm(Operation.ALL_REDUCE, name, make, stated, parameters, period, shared)


def _levels() -> tuple[Algorithm, Algorithm]:
    return get_algorithm(Operation.REDUCE_SCATTER, "ring"), get_algorithm(Operation.ALL_REDUCE, "double_tree")


def all_reduce_cost(n: int, chunks: int, nodes: Groups | None = None) -> Cost:
    """2 (L-1) + 2 ceil(log2 N) + k - 1 steps on N nodes of L ranks; (2 (L-1) + 2 (N-1)/N) S/L on average."""
    return _cost(n, nodes or Groups((n,)), *_levels(), chunks)


@algorithm(Operation.ALL_REDUCE, "hierarchical", all_reduce_cost)
def all_reduce(rank: IntArray, n: int, chunks: int, nodes: Groups | None = None) -> Rounds:
    """A ring reduce-scatter within nodes, a double tree across them, and the ring backwards."""
    return _two_levels(rank, nodes or Groups((n,)), *_levels(), chunks)


def barrier_cost(n: int, nodes: Groups | None = None) -> Cost:
    """2 ceil(log2 L) + ceil(log2 N) steps on N nodes of at most L ranks, no data."""
    groups = nodes or Groups((n,))
    return Cost(2 * ceil_log2(max(groups.sizes)) + ceil_log2(len(groups.sizes)), Fraction(0), Fraction(0))


@algorithm(Operation.BARRIER, "hierarchical", barrier_cost)
def barrier(rank: IntArray, n: int, nodes: Groups | None = None) -> Rounds:
    """The news climbs a binomial tree within each node, spreads among the nodes, and comes down again."""
    groups = nodes or Groups((n,))
    down = run_in_groups(lambda slot, size: binomial.broadcast(slot, size, 0), groups, rank).map_regions(
        lambda _: SIGNAL, 0
    )
    return down.reversed() + run_across_groups(dissemination.barrier, groups, rank, 1) + down
