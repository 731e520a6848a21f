"""Removes switches from a network: each pair of links through a switch becomes a direct link (edge splitting).

Replacing the links u -> w and w -> t of a switch w by a link u -> t keeps the optimal time of the collective if every
rank can still receive the data of all sources at the same rate, as tested by one maximum flow per rank. If replacing
the whole bandwidth of a pair of links would lower the rate at some rank by k units, k units of the pair's bandwidth are
not replaced. In a network in which every vertex receives as many bytes per second as it sends, some pair of links of a
switch can always be replaced, until the switch has no links (Jackson 1988; Frank 1988; Bang-Jensen, Frank and Jackson
1995; as in ForestColl, arXiv 2402.06787).

The first attempt is to remove a whole switch at once: with its neighbours in a cyclic order, the link from neighbour i
is joined to the link to neighbour i + k, for all i and a fixed k. Removing a whole switch leaves few links, costs one
maximum flow per rank, and keeps the optimum for most switches of real machines.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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

    `supplies` has the units of data that each source rank sends, and `size` is the network's number of vertices.
    """

    ranks: int
    size: int
    supplies: Mapping[int, int]

    @property
    def total(self) -> int:
        """The units of data that every rank must be able to receive."""
        return sum(self.supplies.values())

    def count_missing(self, capacities: Mapping[Arc, int], most: int) -> int:
        """Return the largest number of units of data that any rank cannot receive; 0 if every rank can receive all.

        The search ends at the first rank that lacks at least `most` units of data, although other ranks may lack more.
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
    """A network from which switches are removed; each link consists of routes through removed switches.

    `routes` has the routes of each link, each with its capacity in units; the capacity of a link is the sum over its
    routes.
    """

    check: SupplyCheck
    routes: dict[Arc, list[tuple[Path, int]]] = field(default_factory=lambda: defaultdict(list))

    @property
    def capacities(self) -> dict[Arc, int]:
        """The capacity in units of each link between the remaining vertices, by link."""
        return {link: sum(units for _, units in routes) for link, routes in self.routes.items() if routes}

    def split(self, source: int, switch: int, dest: int, units: int) -> None:
        """Move `units` units of capacity from the links over `switch` to a direct link from `source` to `dest`.

        If `source` is `dest`, the capacity is only removed.
        """
        before, after = self._take((source, switch), units), self._take((switch, dest), units)
        while before:
            (first, count), (second, other) = before.pop(), after.pop()
            common = min(count, other)
            before += [(first, count - common)] * (count > common)
            after += [(second, other - common)] * (other > common)
            if source != dest:
                self.routes[source, dest].append((first + second[1:], common))

    def _take(self, link: Arc, units: int) -> list[tuple[Path, int]]:
        """Remove routes with a total capacity of `units` units from a link, and return these routes."""
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
    """Return a network without switches in which every rank can still receive the data of all sources (the supplies).

    `capacities` has the units that each link can carry, and `check` tests whether all supplies can be received. Raises
    NetworkError if a switch cannot be removed; this cannot happen if every vertex receives as many bytes per second as
    it sends.
    """
    network = SplitNetwork(check)
    for link, units in capacities.items():
        network.routes[link].append((link, units))
    neighbours = Counter(dest for _, dest in capacities)
    for switch in sorted(range(check.ranks, check.size), key=lambda vertex: neighbours[vertex]):
        if not _split_by_shift(network, switch):
            _split_by_pairs(network, switch)
    return network


def _split_by_shift(network: SplitNetwork, switch: int) -> bool:
    """Remove a switch from `network`: join its link from neighbour i to its link to neighbour i + k, for all i.

    The neighbours are in a cyclic order, and k is the least number >= 1 with which every rank can still receive the
    data of all sources. Returns whether such a k exists; if not, `network` is unchanged.
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
    """Match the units of two lists of (vertex, units) with each other, in order; yield (source, dest, units).

    The iteration ends when all units of one of the lists are matched.
    """
    senders, receivers = list(reversed(into)), list(reversed(out))
    while senders and receivers:
        (source, units), (dest, room) = senders.pop(), receivers.pop()
        common = min(units, room)
        senders += [(source, units - common)] * (units > common)
        receivers += [(dest, room - common)] * (room > common)
        yield source, dest, common


def _split_by_pairs(network: SplitNetwork, switch: int) -> None:
    """Remove a switch from `network`, one pair of links at a time.

    A direct link replaces as many units of each pair as possible: every rank must still be able to receive the data of
    all sources. Raises NetworkError if a link of the switch remains; this cannot happen if every vertex receives as
    many bytes per second as it sends.
    """
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
    """Return a copy of `capacities` in which a link from `source` to `dest` replaces `units` units over `switch`."""
    changed = dict(capacities)
    changed[source, switch] -= units
    changed[switch, dest] -= units
    if source != dest:
        changed[source, dest] = changed.get((source, dest), 0) + units
    return changed
