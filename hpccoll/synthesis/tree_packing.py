"""Packs spanning trees into a network of ranks, such that each source is the root of a given number of trees.

A tree of multiplicity m stands for m equal trees, and uses m units of the capacity of each of its links. Trees grow by
one link at a time. A tree may use as many units of a link as all other unfinished trees can do without; one maximum
flow computes this number. If a tree may use fewer units of a link than its multiplicity, the tree is divided in two.
The required trees exist by Edmonds' theorem (1973); the method to grow them is that of Berczi and Frank (2010), as used
by ForestColl (arXiv 2402.06787).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hpccoll.synthesis.edge_splitting import Arc
from hpccoll.synthesis.max_flow import find_min_cut, make_flow_graph
from hpccoll.synthesis.network import NetworkError


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree from the rank `root`; in `links`, a rank's incoming link comes before its outgoing links.

    `units` is the multiplicity: the number of equal trees for which this tree stands.
    """

    root: int
    units: int
    links: tuple[Arc, ...] = ()

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of the tree, in the order in which links reach them: the root first."""
        return (self.root, *(child for _, child in self.links))

    def compute_depths(self) -> dict[int, int]:
        """Return the number of links between the root and each rank of the tree, by rank."""
        depths = {self.root: 0}
        for parent, child in self.links:
            depths[child] = depths[parent] + 1
        return depths


def pack_trees(capacities: Mapping[Arc, int], ranks: int, supplies: Mapping[int, int]) -> list[Tree]:
    """Return trees that span all ranks: `supplies[root]` of them from each root, counted with their multiplicities.

    `capacities` has the number of trees that each link can carry. Cost: one maximum flow per link of a tree, and some
    for links that no tree may take. Raises NetworkError if the capacities do not allow so many trees.
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
    """Return the link nearest to the root by which `tree` can grow, and how many of the tree's units may use it.

    Args:
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
            # Because this link cannot be spared, no link from outside into the vertices behind the cut can be spared.
            refused |= {(one, other) for one, other in left if other in behind and one not in behind}
    raise NetworkError(f"no link extends a tree of rank {tree.root}; the capacities do not allow the trees")


def _find_spare(link: Arc, left: Mapping[Arc, int], ranks: int, others: list[Tree]) -> tuple[int, frozenset[int]]:
    """Return how many units of `link` the unfinished trees `others` can spare, and the ranks behind the tightest cut.

    The cut separates the link's source from the ranks behind the cut, among them the link's destination. `left` has the
    unused capacity of each link.
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
