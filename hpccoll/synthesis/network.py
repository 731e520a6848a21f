"""A network of ranks and switches, with directed links of rational bandwidths.

Vertices are integers: the first `ranks` vertices are the ranks, and the other vertices are switches and NICs, which
forward data, but neither copy nor reduce it. Bandwidths are exact fractions in bytes per second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import gcd, lcm

from hpccoll.errors import UsageError
from hpccoll.units import split_into_runs

RATE_DIGITS = 6  # significant digits of a bandwidth that is known as a floating-point number


class NetworkError(UsageError):
    """Raised if the description of a network is wrong, or if the network does not connect its ranks."""


@dataclass(frozen=True, slots=True)
class Network:
    """Ranks and switches with directed links.

    Args:
        ranks: the number of ranks, which are the first vertices.
        vertices: the name of each vertex.
        links: the bandwidth of each link (source vertex, destination vertex), in bytes per second.
        nodes: the name of each node with its vertices; empty if nodes are unknown or have one rank each.
    """

    name: str
    ranks: int
    vertices: tuple[str, ...]
    links: Mapping[tuple[int, int], Fraction]
    nodes: tuple[tuple[str, frozenset[int]], ...] = ()

    def reverse(self) -> Network:
        """Return the network with every link in the opposite direction."""
        return replace(self, links={(dest, source): rate for (source, dest), rate in self.links.items()})

    def count_capacities(self) -> tuple[Fraction, dict[tuple[int, int], int]]:
        """Return a unit of bandwidth in bytes/s, and the bandwidth of each link as a whole number of units.

        The unit is the largest bandwidth of which all bandwidths are multiples.
        """
        denominator = lcm(*(rate.denominator for rate in self.links.values()))
        scaled = {link: int(rate * denominator) for link, rate in self.links.items()}
        unit = gcd(*scaled.values())
        return Fraction(unit, denominator), {link: rate // unit for link, rate in scaled.items()}

    @property
    def is_balanced(self) -> bool:
        """Whether, for each vertex, the incoming links and the outgoing links have the same total bandwidth."""
        balance = dict.fromkeys(range(len(self.vertices)), Fraction(0))
        for (source, dest), rate in self.links.items():
            balance[source] += rate
            balance[dest] -= rate
        return not any(balance.values())

    def balance(self) -> Network:
        """Return the network with the bandwidth of each link limited to that of the link in the opposite direction.

        Links without a link in the opposite direction are left out.
        """
        both = {(a, b): min(rate, self.links[b, a]) for (a, b), rate in self.links.items() if (b, a) in self.links}
        return replace(self, links=both)

    def measure_outgoing(self, inside: Collection[int]) -> Fraction:
        """Return the total bandwidth, in bytes/s, of the links from the vertices `inside` to other vertices."""
        leaving = (rate for (source, dest), rate in self.links.items() if source in inside and dest not in inside)
        return sum(leaving, Fraction(0))


@dataclass(slots=True)
class NetworkBuilder:
    """Collects named vertices and links; `build` numbers the vertices and returns the network."""

    name: str
    ranks: list[str] = field(default_factory=list)  # the vertices that are ranks, in rank order
    switches: list[str] = field(default_factory=list)
    rates: dict[tuple[str, str], Fraction] = field(default_factory=dict)
    nodes: list[tuple[str, list[str]]] = field(default_factory=list)

    def add_link(self, source: str, dest: str, rate: Fraction) -> None:
        """Add a link of `rate` bytes/s from vertex `source` to vertex `dest`.

        The rates of parallel links are added up.
        """
        if rate <= 0 or source == dest:
            raise NetworkError(
                f"{self.name}: the link from {source} to {dest} has {float(rate):g} bytes/s; a link joins two vertices "
                "and has a bandwidth above 0"
            )
        self.rates[source, dest] = self.rates.get((source, dest), Fraction(0)) + rate

    def connect(self, one: str, other: str, rate: Fraction) -> None:
        """Add links of `rate` bytes/s in both directions between the vertices `one` and `other`."""
        self.add_link(one, other, rate)
        self.add_link(other, one, rate)

    def build(self) -> Network:
        """Return the network; each vertex that is named by a link and is not a rank becomes a switch."""
        names = dict.fromkeys([*self.ranks, *self.switches, *(end for link in self.rates for end in link)])
        number = {name: vertex for vertex, name in enumerate(names)}
        links = {(number[source], number[dest]): rate for (source, dest), rate in self.rates.items()}
        nodes = tuple((name, frozenset(number[vertex] for vertex in inside)) for name, inside in self.nodes)
        return Network(self.name, len(self.ranks), tuple(names), links, nodes)


def round_rate(bytes_per_s: float, digits: int = RATE_DIGITS) -> Fraction:
    """Return a bandwidth as a fraction, rounded to `digits` significant digits to keep exact arithmetic fast."""
    return Fraction(f"{bytes_per_s:.{digits - 1}e}")


def format_rank_list(ranks: Iterable[int]) -> str:
    """Return ranks in words: `rank 3`, `ranks 0 to 3`, `ranks 0 to 3 and 6`."""
    listed = sorted(ranks)
    runs = split_into_runs(listed)
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    joined = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"rank{'s' * (len(listed) > 1)} {joined}"
