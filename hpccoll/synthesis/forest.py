"""Optimal trees for a collective on a network, by the method of ForestColl: tightest cut, edge splitting, tree packing.

Every source is the root of x / y trees, each of which uses y bytes per second of its links; x is the rate in bytes per
second that the tightest cut allows each source, and y is the largest number of which x and all bandwidths are integer
multiples. If the caller fixes the number of trees per source, bandwidths are rounded down to multiples of the rate of a
tree, which is the largest rate for which this number of trees exists. A small number of trees cuts the message into few
pieces, and is nearly as fast.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd

from hpccoll.plan import Operation
from hpccoll.synthesis.edge_splitting import Arc, Path, SupplyCheck, remove_switches
from hpccoll.synthesis.network import Network
from hpccoll.synthesis.optimum import REVERSED, ROOTED, find_tightest_cut
from hpccoll.synthesis.tree_packing import Tree, pack_trees


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees along which a network carries the data of an all_gather or broadcast.

    For a reduce_scatter or reduce, every link of `network` is reversed.

    Args:
        trees: the trees; the multiplicities of the trees of a root add up to `units`.
        units: the number of trees of each root, counted with their multiplicities.
        seconds_per_byte: the time in which each link carries the data of its trees, per byte of a source's data.
        routes: for each pair of ranks, the routes of its messages, and the number of trees that use each route.
    """

    network: Network
    trees: tuple[Tree, ...]
    units: int
    seconds_per_byte: Fraction
    routes: Mapping[Arc, tuple[tuple[Path, int], ...]]

    @property
    def height(self) -> int:
        """The depth of the deepest tree: the number of transfers between ranks from its root to its farthest rank."""
        return max(max(tree.compute_depths().values()) for tree in self.trees)

    def measure_loads(self) -> dict[Arc, Fraction]:
        """Return, by link, the seconds for which each used link carries data, per byte of a source's data."""
        loads: Counter[Arc] = Counter()
        for routes in self.routes.values():
            for path, units in routes:
                for link in itertools.pairwise(path):
                    loads[link] += units
        return {link: Fraction(units, self.units) / self.network.links[link] for link, units in loads.items()}


def grow_forest(network: Network, operation: Operation, root: int = 0, trees: int | None = None) -> Forest:
    """Return the `Forest` of trees along which long messages of `operation` take the least time on a network.

    If `trees` is given, every source has `trees` trees, and the time is the least for this number of trees. For a
    reduce_scatter or reduce, the trees are those of an all_gather or broadcast on the reversed network. Links that are
    faster in one direction than in the other are used at the lower bandwidth. `root` is the root of a broadcast or
    reduce. Raises NetworkError if the network does not connect its ranks, or needs integers of more than 31 bits.
    """
    graph = network.reverse() if operation in REVERSED else network
    graph = graph if graph.is_balanced else graph.balance()
    sources = [root] if operation in ROOTED else range(graph.ranks)
    unit, capacities = graph.count_capacities()
    rate = 1 / find_tightest_cut(graph, sources).seconds_per_byte / unit
    if trees is None:
        step = Fraction(
            gcd(rate.numerator, *(capacity * rate.denominator for capacity in capacities.values())), rate.denominator
        )
        units = int(rate / step)
    else:
        step, units = find_tree_rate(graph, capacities, sources, trees, rate), trees
    scaled = {link: floor(capacity / step) for link, capacity in capacities.items() if capacity >= step}
    supplies = dict.fromkeys(sources, units)
    split = remove_switches(scaled, SupplyCheck(graph.ranks, len(graph.vertices), supplies))
    packed = pack_trees(split.capacities, graph.ranks, supplies)
    used = Counter[Arc]()
    for tree in packed:
        used.update(dict.fromkeys(tree.links, tree.units))
    routes = {link: tuple(_take_routes(split.routes[link], units)) for link, units in used.items()}
    return Forest(graph, tuple(packed), units, 1 / (units * step * unit), routes)


def find_tree_rate(
    network: Network, capacities: Mapping[Arc, int], sources: Collection[int], trees: int, rate: Fraction
) -> Fraction:
    """Return the largest rate of a tree, in units of `capacities`, for which each source can have `trees` such trees.

    Args:
        capacities: the bandwidth of each link in integer units.
        sources: the ranks that have data.
        trees: the number of trees of each source.
        rate: the largest rate at which every source can send to all ranks, in units of `capacities`.
    """
    check = SupplyCheck(network.ranks, len(network.vertices), dict.fromkeys(sources, trees))

    def is_feasible(step: Fraction) -> bool:
        """Whether trees that use `step` units of bandwidth each fit into the network."""
        return not check.count_missing({link: floor(capacity / step) for link, capacity in capacities.items()}, 1)

    high = rate / trees  # a tree gets at most an equal share of the rate of its source
    if is_feasible(high):
        return high
    low = high / 2
    while not is_feasible(low):
        low /= 2
    # The largest rate of a tree is the bandwidth of some link divided by an integer, at most the number of all trees.
    quotients = {
        Fraction(capacity, count)
        for capacity in set(capacities.values())
        for count in range(ceil(capacity / high), min(floor(capacity / low), check.total) + 1)
    }
    usable = sorted(quotient for quotient in quotients if low < quotient < high)
    best = bisect_left(usable, True, key=lambda quotient: not is_feasible(quotient))
    return usable[best - 1] if best else low


def _take_routes(routes: list[tuple[Path, int]], units: int) -> list[tuple[Path, int]]:
    """Return some of `routes`, the routes of one link, with `units` units in total; `routes` is not changed."""
    taken = []
    for path, count in routes:
        used = min(count, units)
        if used:
            taken.append((path, used))
        units -= used
    return taken
