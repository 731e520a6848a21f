"""Optimal trees for a collective on a network: the tightest cut, switches removed, and trees packed (ForestColl).

If the tightest cut allows x bytes per second of each source, let y be the largest number of which x and all bandwidths
are integer multiples. Then every source is the root of k = x / y trees, and a tree uses y bytes per second of each of
its links. With a fixed number k of trees per source, bandwidths are rounded down to multiples of the largest y for
which k trees exist; fewer trees cut the message into fewer pieces and are nearly as fast.
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

    For a reduce_scatter or reduce, the network has every link reversed.

    Args:
        network: the network that the trees use.
        trees: the trees; the multiplicities of the trees of a root add up to `units`.
        units: the number of trees of each root, counted with their multiplicities.
        seconds_per_byte: the time per byte of a source's data in which each link carries the bytes of its trees.
        routes: the routes of the messages between two ranks, with the units of trees that take them.
    """

    network: Network
    trees: tuple[Tree, ...]
    units: int
    seconds_per_byte: Fraction
    routes: Mapping[Arc, tuple[tuple[Path, int], ...]]

    @property
    def height(self) -> int:
        """The largest number of links between the root of a tree and a rank."""
        return max(max(tree.compute_depths().values()) for tree in self.trees)

    def measure_loads(self) -> dict[Arc, Fraction]:
        """Return the seconds that each link of the network carries data, per byte of each source."""
        loads: Counter[Arc] = Counter()
        for routes in self.routes.values():
            for path, units in routes:
                for link in itertools.pairwise(path):
                    loads[link] += units
        return {link: Fraction(units, self.units) / self.network.links[link] for link, units in loads.items()}


def grow_forest(network: Network, operation: Operation, root: int = 0, trees: int | None = None) -> Forest:
    """Return optimal trees for `operation` on a network, or the best ones with `trees` trees per source.

    For a reduce_scatter or reduce, the trees are those of an all_gather or broadcast on the reversed network. Links
    that are faster in one direction than in the other are used at the lower bandwidth. `root` is the root of a
    broadcast or reduce.

    Raises:
        NetworkError: the network does not connect its ranks, or needs more than 31 bits.
    """
    graph = network.reverse() if operation in REVERSED else network
    graph = graph if graph.is_balanced else graph.balance()
    sources = [root] if operation in ROOTED else range(graph.ranks)
    unit, capacities = graph.count_capacities()
    rate = 1 / find_tightest_cut(graph, sources).seconds_per_byte / unit
    if trees is None:
        step = Fraction(
            gcd(rate.numerator, *(each * rate.denominator for each in capacities.values())), rate.denominator
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
    """Return the largest rate of one tree, in units of `capacities`, with which each source can have `trees` trees.

    Args:
        capacities: the bandwidth of each link in integer units.
        sources: the ranks that have data.
        trees: the number of trees of each source.
        rate: the optimal rate of a source, in these units.
    """
    check = SupplyCheck(network.ranks, len(network.vertices), dict.fromkeys(sources, trees))

    def is_feasible(step: Fraction) -> bool:
        """Whether trees that use `step` units of bandwidth each fit into the network."""
        return not check.count_missing({link: floor(each / step) for link, each in capacities.items()}, 1)

    high = rate / trees  # no more than an equal share of the optimal rate
    if is_feasible(high):
        return high
    low = high / 2
    while not is_feasible(low):
        low /= 2
    # The answer is a bandwidth divided by a number of trees, at most the number of all trees of all sources.
    quotients = {
        Fraction(each, count)
        for each in set(capacities.values())
        for count in range(ceil(each / high), min(floor(each / low), check.total) + 1)
    }
    usable = sorted(quotient for quotient in quotients if low < quotient < high)
    best = bisect_left(usable, True, key=lambda quotient: not is_feasible(quotient))
    return usable[best - 1] if best else low


def _take_routes(routes: list[tuple[Path, int]], units: int) -> list[tuple[Path, int]]:
    """Return routes of together `units` units from `routes`, those of a link, which stays unchanged."""
    taken = []
    for path, count in routes:
        used = min(count, units)
        if used:
            taken.append((path, used))
        units -= used
    return taken
