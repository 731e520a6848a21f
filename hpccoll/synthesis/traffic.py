"""The time that the links of a network need for the messages of a schedule, by the bytes that each link carries."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from hpccoll.synthesis.network import Network, NetworkError


def find_busiest_link(
    network: Network, messages: Mapping[tuple[int, int], Fraction]
) -> tuple[Fraction, tuple[int, int]]:
    """Return the seconds that the busiest link needs for its messages, and this link (source, destination vertex).

    A message takes the path with the fewest links, among the paths on which no other rank forwards it. If several such
    paths have equally few links, a message takes the path whose slowest link is the fastest. Latencies and the order of
    messages are ignored, so a run of the schedule on the same paths takes at least the returned time. `messages` has
    the bytes from each rank to each other rank, with at least one pair. Raises NetworkError if no path leads from a
    rank to another one.
    """
    carried: dict[tuple[int, int], Fraction] = {}
    senders = {source for source, _ in messages}
    before = {source: _find_paths(network, source) for source in senders}
    for (source, dest), nbytes in messages.items():
        vertex = dest
        while vertex != source:
            if vertex not in before[source]:
                raise NetworkError(
                    f"{network.name}: no path without another rank leads from rank {source} to rank {dest}, between "
                    "which the schedule sends; name the network for which it was made"
                )
            link = before[source][vertex], vertex
            carried[link] = carried.get(link, Fraction(0)) + nbytes
            vertex = link[0]
    return max((nbytes / network.links[link], link) for link, nbytes in carried.items())


def _find_paths(network: Network, source: int) -> dict[int, int]:
    """Return, for each vertex that the rank `source` reaches, the vertex before it on its path."""
    leaving: dict[int, list[tuple[int, Fraction]]] = {}
    for (start, end), rate in network.links.items():
        leaving.setdefault(start, []).append((end, rate))
    widths: dict[int, Fraction | float] = {source: float("inf")}  # bandwidth of the slowest link of the path
    before: dict[int, int] = {}
    reached = [source]
    while reached:
        widest: dict[int, tuple[Fraction | float, int]] = {}
        for vertex in reached:
            forwards = vertex == source or vertex >= network.ranks
            for end, rate in leaving.get(vertex, []) if forwards else ():
                width = min(widths[vertex], rate)
                if end not in widths and (end not in widest or width > widest[end][0]):
                    widest[end] = width, vertex
        widths |= {end: width for end, (width, _) in widest.items()}
        before |= {end: vertex for end, (_, vertex) in widest.items()}
        reached = list(widest)
    return before
