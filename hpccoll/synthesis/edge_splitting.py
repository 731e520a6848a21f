"""Removes switches from a network: each pair of links through a switch becomes a direct link (edge splitting).

Replacing the links u -> w and w -> t by u -> t keeps the optimum as long as every rank can still receive the supplies
of all sources, which one maximum flow per rank shows. If some units could no longer be received, that many units fewer
of the pair are replaced. In a balanced network, some pair of a switch can always be replaced, until the switch has no
links left (Jackson 1988; Frank 1988; Bang-Jensen, Frank and Jackson 1995; as in ForestColl, arXiv 2402.06787).

Whole switches are tried first: in a cyclic order of the neighbours, each link into the switch is joined to the link to
the neighbour a fixed number of places (the shift) later. Removing a whole switch leaves few links, costs one maximum
flow per rank, and keeps the optimum for most switches of real machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hpccoll.synthesis.max_flow import compute_max_flow, make_flow_graph
from hpccoll.synthesis.network import NetworkError

Arc: TypeAlias = tuple[int, int]  # a link from one vertex to another
Path: TypeAlias = tuple[int, ...]  # the vertices of a route, from a rank to a rank


@dataclass(slots=True)
class SupplyCheck:
    """A test whether every rank of a network can receive the supplies of all sources at once, by maximum flows.

    `supplies` has the units that each source rank sends, and `size` is the number of vertices.
    """

    ranks: int
    size: int
    supplies: Mapping[int, int]

    @property
    def total(self) -> int:
        """The units that every rank must be able to receive."""
        return sum(self.supplies.values())

    def count_missing(self, capacities: Mapping[Arc, int], most: int) -> int:
        """Return how many units the rank with the least flow cannot receive.

        If a result is at least `most`, other ranks may lack more units.
        """
        start = self.size
        supplied = {(start, source): units for source, units in self.supplies.items()}
        graph = make_flow_graph(self.size + 1, {**capacities, **supplied}, self.total)
        missing = 0
        for rank in range(self.ranks):
            missing = max(missing, self.total - compute_max_flow(graph, start, rank))
            if missing >= most:
                break
        return missing


@dataclass(slots=True)
class SplitNetwork:
    """A network while switches are removed from it: the capacities of links, and the routes that each consists of.

    A route leads through removed switches; each has a number of units.
    """

    check: SupplyCheck
    routes: dict[Arc, list[tuple[Path, int]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def capacities(self) -> dict[Arc, int]:
        """The units that each link between the remaining vertices can carry."""
        return {link: sum(units for _, units in routes) for link, routes in self.routes.items() if routes}

    def split(self, source: int, switch: int, dest: int, units: int) -> None:
        """Replace `units` of the links from `source` over `switch` to `dest` by a direct link."""
        before, after = self._take((source, switch), units), self._take((switch, dest), units)
        while before:
            (first, count), (second, other) = before.pop(), after.pop()
            common = min(count, other)
            before += [(first, count - common)] * (count > common)
            after += [(second, other - common)] * (other > common)
            if source != dest:
                self.routes[source, dest].append((first + second[1:], common))

    def _take(self, link: Arc, units: int) -> list[tuple[Path, int]]:
        """Remove routes of together `units` units from a link, and return them."""
        taken: list[tuple[Path, int]] = []
        routes = self.routes[link]
        while units:
            path, count = routes.pop()
            used = min(count, units)
            routes += [(path, count - used)] * (count > used)
            taken.append((path, used))
            units -= used
        return taken


def remove_switches(capacities: Mapping[Arc, int], check: SupplyCheck) -> SplitNetwork:
    """Return a network without switches in which every rank can still receive all supplies.

    `capacities` has the units that each link can carry, and `check` tests whether all supplies can be received. Raises
    NetworkError if a switch cannot be removed, which no balanced network has.
    """
    network = SplitNetwork(check)
    for link, units in capacities.items():
        network.routes[link].append((link, units))
    for switch in sorted(range(check.ranks, check.size), key=lambda vertex: _count_neighbours(capacities, vertex)):
        if not _split_by_shift(network, switch):
            _split_by_pairs(network, switch)
    return network


def _count_neighbours(capacities: Mapping[Arc, int], vertex: int) -> int:
    """Return the number of vertices with a link to or from `vertex`."""
    return sum(dest == vertex for _, dest in capacities)


def _split_by_shift(network: SplitNetwork, switch: int) -> bool:
    """Remove a switch by joining each link into it to the link to another neighbour, a fixed number of places later.

    Returns whether every rank can still receive all supplies with some number of places; otherwise, nothing is changed.
    """
    capacities = network.capacities
    senders = sorted(source for source, dest in capacities if dest == switch)
    receivers = sorted(dest for source, dest in capacities if source == switch)
    if senders != receivers:
        return False
    kept = {link: units for link, units in capacities.items() if switch not in link}
    for shift in range(1, max(len(senders), 2)):
        order = senders[shift % len(senders) :] + senders[: shift % len(senders)]
        into = [(source, capacities[source, switch]) for source in senders]
        pairs = list(_match(into, [(dest, capacities[switch, dest]) for dest in order]))
        trial = dict(kept)
        for source, dest, units in pairs:
            if source != dest:
                trial[source, dest] = trial.get((source, dest), 0) + units
        if not network.check.count_missing(trial, 1):
            for source, dest, units in pairs:
                network.split(source, switch, dest, units)
            return True
    return False


def _match(into: Sequence[tuple[int, int]], out: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield (source, dest, units) such that the units of two lists of (vertex, units) are used up in order.

    The iteration ends when one of the lists is used up.
    """
    senders, receivers = list(reversed(into)), list(reversed(out))
    while senders and receivers:
        (source, units), (dest, room) = senders.pop(), receivers.pop()
        common = min(units, room)
        senders += [(source, units - common)] * (units > common)
        receivers += [(dest, room - common)] * (room > common)
        yield source, dest, common


def _split_by_pairs(network: SplitNetwork, switch: int) -> None:
    """Remove a switch one pair of links at a time; a direct link replaces as many units as the supplies allow."""
    capacities = network.capacities
    senders = sorted(source for source, dest in capacities if dest == switch)
    receivers = sorted(dest for source, dest in capacities if source == switch)
    pairs = [(source, dest) for dest in receivers for source in senders]
    for source, dest in sorted(pairs, key=lambda pair: pair[0] == pair[1]):
        units = min(capacities.get((source, switch), 0), capacities.get((switch, dest), 0))
        if units:
            trial = _replace_pair(capacities, source, switch, dest, units)
            units -= network.check.count_missing(trial, units)
        if units:
            network.split(source, switch, dest, units)
            capacities = network.capacities
    left = [dest for dest in receivers if capacities.get((switch, dest))]
    if left:
        raise NetworkError(
            f"the switch with number {switch} cannot be removed: {len(left)} links remain; each vertex must receive as "
            "many bytes per second as it sends"
        )


def _replace_pair(capacities: Mapping[Arc, int], source: int, switch: int, dest: int, units: int) -> dict[Arc, int]:
    """Return the capacities with `units` from `source` over `switch` to `dest` moved to the direct link."""
    changed = dict(capacities)
    changed[source, switch] -= units
    changed[switch, dest] -= units
    if source != dest:
        changed[source, dest] = changed.get((source, dest), 0) + units
    return changed
