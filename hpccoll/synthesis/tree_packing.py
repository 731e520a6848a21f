"""Packs spanning trees into a network of ranks, so that each source is the root of as many trees as it supplies units.

A tree of multiplicity m uses m units of each of its links. Trees grow by one link at a time. A tree may take a link up
to the least number of units that all unfinished trees together can spare on every cut behind it, which is one maximum
flow; where that is less than the tree's multiplicity, the tree divides in two. The trees exist by Edmonds' theorem
(1973); growing them so is from Berczi and Frank (2010), as used by ForestColl (arXiv 2402.06787).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpccoll.synthesis.edge_splitting import Arc
from hpccoll.synthesis.max_flow import find_min_cut, make_flow_graph
from hpccoll.synthesis.network import NetworkError


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of `units` multiplicity from the rank `root`: its links, parents first.

    The multiplicity is the number of equal trees for which this one stands.
    """

    root: int
    units: int
    links: tuple[Arc, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of the tree, in the order in which links reach them: the root first."""
        return (self.root, *(child for _, child in self.links))

    def compute_depths(self) -> dict[int, int]:
        """Return the number of links between the root and each rank of the tree."""
        depths = {self.root: 0}
        for parent, child in self.links:
            depths[child] = depths[parent] + 1
        return depths


def pack_trees(capacities: Mapping[Arc, int], ranks: int, supplies: Mapping[int, int]) -> list[Tree]:
    """Return trees that span all ranks: `supplies[root]` of them from each root, counted with their multiplicities.

    `capacities` has the number of trees that each link can carry. Cost: one maximum flow per link of a tree, and some
    for links that no tree may take.

    Raises:
        NetworkError: the capacities do not allow so many trees.
    """
    left = dict(capacities)
    started = [Tree(root, units) for root, units in supplies.items()]
    finished: list[Tree] = []
    while started:
        tree = started.pop()
        refused: set[Arc] = set()
        while len(tree.links) < ranks - 1:
            link, units = _choose_link(tree, left, ranks, started, refused)
            if units < tree.units:
                started.append(replace(tree, units=tree.units - units))
            tree = Tree(tree.root, units, (*tree.links, link))
            left[link] -= units
        finished.append(tree)
    return finished


def _choose_link(
    tree: Tree, left: Mapping[Arc, int], ranks: int, others: list[Tree], refused: set[Arc]
) -> tuple[Arc, int]:
    """Return a link that extends `tree`, nearest to its root, and for how many of its units it may be used.

    Args:
        tree: the tree to extend.
        left: the capacity of each link that no tree uses yet.
        others: the other unfinished trees.
        refused: the links that the tree may not take, to which this function adds; they stay refused while the tree
            grows.
    """
    members = set(tree.members)
    neighbours: dict[int, list[int]] = {}
    for (source, dest), units in left.items():
        if units and source in members and dest not in members and (source, dest) not in refused:
            neighbours.setdefault(source, []).append(dest)
    for source in tree.members:
        for dest in neighbours.get(source, ()):
            link = source, dest
            if link in refused:
                continue
            spare, behind = _find_spare(link, left, ranks, others)
            if spare > 0:
                return link, min(tree.units, left[link], spare)
            # No link into the vertices behind the cut can be spared, either.
            refused |= {(one, other) for one, other in left if other in behind and one not in behind}
    raise NetworkError(f"no link extends a tree of rank {tree.root}; the capacities do not allow the trees")


def _find_spare(link: Arc, left: Mapping[Arc, int], ranks: int, others: list[Tree]) -> tuple[int, frozenset[int]]:
    """Return how many units of `link` the unfinished trees `others` can spare, and the ranks behind the tightest cut.

    The cut separates the ranks that the link leads to from its source. `left` has the unused capacity of each link.
    """
    source, dest = link
    needed = sum(tree.units for tree in others)
    graph = dict(left)
    extra = ranks
    for tree in others:
        if tree.links:
            graph[source, extra] = tree.units
            graph |= {(extra, member): tree.units for member in tree.members}
            extra += 1
        elif tree.root != source:
            graph[source, tree.root] = graph.get((source, tree.root), 0) + tree.units
    flow, reached = find_min_cut(make_flow_graph(extra, graph, 2 * (needed + left[link])), source, dest)
    return flow - needed, frozenset(range(ranks)) - reached
