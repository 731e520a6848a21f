"""The optimal time of a collective on a network: the tightest cut, found exactly by maximum flows.

In an all_gather of M bytes, each of N ranks has M/N bytes that every rank needs. A set of vertices that contains r < N
ranks must send r M/N bytes over the links that leave the set. The optimal time of an all_gather is the largest ratio,
over all sets of vertices, of the bytes that must leave the set to the bandwidth of the links that leave it; trees reach
this time (ForestColl, arXiv 2402.06787). A reduce_scatter is an all_gather on the reversed network. In a broadcast,
only the root has data, and trees reach the tightest cut as well (Edmonds 1973); a reduce is a reversed broadcast.

The search for the tightest cut starts with the ratio of one cut as its guess. An extra source vertex sends at the
guessed rate to every rank that has data. If maximum flows show that each rank can receive from all ranks with data at
the guessed rate, no cut is tighter; otherwise, a minimum cut is tighter, and its ratio is the next guess (Dinkelbach's
method). The search is exact, because all numbers are integers or fractions.

No formula is known for the optimal time of an all_reduce. For an all_reduce of M bytes, `compute_optimum` returns the
largest of the lower bounds that follow from two facts:

- Every set of ranks must send at least M bytes to the other ranks, which need the sum over the set, and must receive at
  least M bytes.
- If the ranks are divided into p parts (single ranks, or nodes), each element must cross from one part to another at
  least 2(p - 1) times (one-way gossip, Harary and Schwenk 1974; Patarasuk and Yuan 2009), so the links that leave the
  parts carry at least 2(p - 1) M bytes in total.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction

from hpccoll.plan import Operation
from hpccoll.synthesis.max_flow import find_min_cut, make_flow_graph
from hpccoll.synthesis.network import Network, NetworkError, format_rank_list
from hpccoll.units import GB, format_count

REVERSED = (Operation.REDUCE_SCATTER, Operation.REDUCE)  # optimal plans are reversed ones of all_gather and broadcast
ROOTED = (Operation.BROADCAST, Operation.REDUCE)
RULED = (Operation.ALL_GATHER, *REVERSED, Operation.BROADCAST, Operation.ALL_REDUCE)


@dataclass(frozen=True, slots=True)
class Cut:
    """A division of a network's vertices into those `inside` and the rest.

    `sources` is the number of vertices inside that have data, and `bytes_per_s` the total bandwidth of the links that
    lead from inside to the rest.
    """

    inside: frozenset[int]
    sources: int
    bytes_per_s: Fraction

    @property
    def seconds_per_byte(self) -> Fraction:
        """The seconds in which the links that leave the cut carry one byte of each source inside the cut."""
        return self.sources / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Optimum:
    """A lower bound of the time of a collective per byte of its message, and in words, the links that cause it.

    `is_reached` states whether a plan is known to reach the bound for long messages.
    """

    operation: Operation
    seconds_per_byte: Fraction
    binding: str
    is_reached: bool

    def compute_seconds(self, nbytes: int) -> float:
        """Return the lower bound in seconds for a message of `nbytes` bytes (S of nccl-tests)."""
        return float(self.seconds_per_byte * nbytes)

    def describe_share(self, seconds: float, nbytes: int) -> str:
        """Return a phrase: the speed of an operation as a percentage of the bound's speed, and the bound's cause.

        `seconds` is the time of the operation, and `nbytes` the message size in bytes.
        """
        kind = "optimum" if self.is_reached else "largest known lower bound"
        return describe_speed(self.compute_seconds(nbytes), seconds, kind, self.binding)


def describe_speed(bound_s: float, seconds: float, kind: str, binding: str) -> str:
    """Return a phrase: the speed of an operation as a percentage of the speed at a lower bound of its time.

    Args:
        bound_s: the lower bound in seconds.
        seconds: the time of the operation.
        kind: a name for the bound, such as `optimum`.
        binding: the links of the network that cause the bound.
    """
    share = f"{100 * bound_s / seconds:.3g} %"
    return f"{share} of the speed that this network allows (time of the {kind} / time of the call), set by {binding}"


def compute_optimum(network: Network, operation: Operation, root: int = 0) -> Optimum:
    """Return the `Optimum` of a collective on a network: a lower bound of the time per byte, and the links that set it.

    The network must have at least two ranks. Plans are known to reach the bound (`Optimum.is_reached`) for all
    operations but all_reduce, if every vertex of the network receives as many bytes per second as it sends. Cost: some
    maximum flows per rank; 64 ranks take a tenth of a second. `root` is the root of a broadcast or reduce. Raises
    NetworkError if the network does not connect its ranks, or `operation` has no known optimum.
    """
    if operation not in RULED or network.ranks < 2:
        known = ", ".join(operation.value for operation in RULED)
        raise NetworkError(
            f"no optimum of {operation.value} on {format_count(network.ranks, 'rank')} is known; {known} on two or "
            "more ranks have one"
        )
    if operation is Operation.ALL_REDUCE:
        return _bound_all_reduce(network)
    graph = network.reverse() if operation in REVERSED else network
    cut = find_tightest_cut(graph, [root] if operation in ROOTED else range(network.ranks))
    share = 1 if operation in ROOTED else network.ranks
    binding = describe_cut(network, cut.inside, is_reversed=operation in REVERSED)
    return Optimum(operation, cut.seconds_per_byte / share, binding, is_reached=network.is_balanced)


def find_tightest_cut(network: Network, sources: Collection[int]) -> Cut:
    """Return the cut with the most sources inside per bandwidth of the links that leave it.

    At least one rank is outside the cut. `sources` are the ranks that have data. Raises NetworkError if some rank can
    receive data from no source.
    """
    every = range(len(network.vertices))
    unit, capacities = network.count_capacities()
    sinks = [rank for rank in range(network.ranks) if list(sources) != [rank]]
    guesses = [_measure_cut(network, frozenset(every) - {sink}, sources) for sink in sinks]
    tightest = max(guesses, key=lambda cut: cut.seconds_per_byte)
    start, size = len(every), len(sources)
    while True:
        supply, scale = (tightest.bytes_per_s / unit / tightest.sources).as_integer_ratio()
        scaled = {link: capacity * scale for link, capacity in capacities.items()}
        supplies = {(start, source): supply for source in sources}
        graph = make_flow_graph(start + 1, scaled | supplies, supply * size)
        for sink in sinks:
            flow, reached = find_min_cut(graph, start, sink)
            if flow < supply * size:
                tightest = _measure_cut(network, reached - {start}, sources)
                sinks.insert(0, sinks.pop(sinks.index(sink)))  # the next tighter cut often separates this rank, too
                break
        else:
            return tightest


def _measure_cut(network: Network, inside: frozenset[int], sources: Collection[int]) -> Cut:
    """Return the `Cut` around the vertices `inside`; `sources` are the ranks that have data, inside and outside.

    Raises NetworkError if no link leaves the vertices `inside`.
    """
    bandwidth = network.measure_outgoing(inside)
    if not bandwidth:
        outside = set(range(network.ranks)) - inside
        raise NetworkError(f"{network.name}: no link leads to {format_rank_list(outside)}; connect all ranks")
    return Cut(inside, sum(source in inside for source in sources), bandwidth)


def _bound_all_reduce(network: Network) -> Optimum:
    """Return the `Optimum` of an all_reduce on the network: the largest of the known lower bounds."""
    bounds = []
    for graph, is_reversed in ((network, False), (network.reverse(), True)):
        cut = find_tightest_cut(graph, [0])
        bounds.append((cut.seconds_per_byte, describe_cut(network, cut.inside, is_reversed=is_reversed)))
        for name, parts in _list_partitions(network):
            total = sum((graph.measure_outgoing(part) for part in parts), Fraction(0))
            direction = "down" if is_reversed else "up"
            bounds.append((2 * (len(parts) - 1) / total, f"the {direction}links of all {name} together"))
    # Among equal bounds, the bound of an uplink is named, because people who run a cluster know its uplinks.
    seconds, binding = max(bounds, key=lambda bound: (bound[0], " uplink" in bound[1]))
    return Optimum(Operation.ALL_REDUCE, seconds, binding, is_reached=False)


def _list_partitions(network: Network) -> list[tuple[str, list[frozenset[int]]]]:
    """Return (name, parts) of each division of the ranks (single ranks, and nodes) that bounds an all_reduce's time."""
    nodes = [inside for _, inside in network.nodes]
    ranks = [frozenset([rank]) for rank in range(network.ranks)]
    return [(f"{network.ranks} ranks", ranks)] + ([(f"{len(nodes)} nodes", nodes)] if len(nodes) > 1 else [])


def describe_cut(network: Network, inside: frozenset[int], *, is_reversed: bool = False) -> str:
    """Return a description of the links that cross a cut, such as `the uplink of node3 (0.05 GB/s)`.

    If `is_reversed` is true, the cut belongs to the reversed network, so its links lead to the vertices `inside`.
    """
    ranks = {vertex for vertex in inside if vertex < network.ranks}
    others = set(range(network.ranks)) - ranks
    is_inner = len(ranks) <= len(others)
    direction = "up" if is_inner != is_reversed else "down"
    graph = network.reverse() if is_reversed else network
    crossing = sum(source in inside and dest not in inside for source, dest in graph.links)
    rate = float(graph.measure_outgoing(inside)) / GB
    owner = _name_ranks(network, ranks if is_inner else others)
    plural = f"{crossing} {direction}links" if crossing > 1 else f"{direction}link"
    return f"the {plural} of {owner} ({rate:.4g} GB/s)"


def _name_ranks(network: Network, ranks: set[int]) -> str:
    """Return as text the names of the nodes that consist of exactly the ranks `ranks`, or these ranks if none do."""
    parts = [(name, {vertex for vertex in inside if vertex < network.ranks}) for name, inside in network.nodes]
    whole = [(name, part) for name, part in parts if part <= ranks]
    names = [name for name, _ in whole]
    if names and set().union(*(part for _, part in whole)) == ranks:
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return format_rank_list(ranks)
