"""What was measured: of each direction of each pair of nodes, and of each node alone.

Of a link the best repetition counts, because whatever disturbs a short measurement makes it worse: repetitions are
spread over the whole run, and what is slow in all of them is slow itself. Of a node alone, whose slices are long, the
median counts: a node that is held up in most of them is slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hpccoll.preflight.link_benchmark import LinkSample
from hpccoll.preflight.node_benchmark import NodeSpeed
from hpccoll.units import GB

SCHEMA = "hpccoll/1"


@dataclass(frozen=True, slots=True)
class DirectedLink:
    """One direction of a link, measured by the sender.

    Args:
        source: the sending node's number.
        destination: the receiving node's.
        latency_seconds: half the best round trip.
        transfers: what the long message took each time, in seconds.
        nbytes: of the long message.
        broken: why it could not be measured, or None.
    """

    source: int
    destination: int
    latency_seconds: float | None
    transfers: tuple[float, ...]
    nbytes: int
    broken: str | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """The best rate; None where the link is broken."""
        return self.nbytes / min(self.transfers) if self.transfers and self.broken is None else None

    def record(self, nodes: tuple[str, ...]) -> dict[str, Any]:
        """Return the record of kind `preflight_pair`."""
        rate = self.bytes_per_s
        return {
            "schema": SCHEMA,
            "kind": "preflight_pair",
            "source": nodes[self.source],
            "destination": nodes[self.destination],
            "nbytes": self.nbytes,
            "repeats": len(self.transfers),
            "latency_us": None if self.latency_seconds is None else round(self.latency_seconds * 1e6, 3),
            "bandwidth_GBps": None if rate is None else rate / GB,
            "transfer_us": [round(seconds * 1e6, 3) for seconds in self.transfers],
            "broken": self.broken,
        }


@dataclass(slots=True)
class PreflightResults:
    """All that a run found, by node numbers.

    Args:
        nodes: their names.
        nbytes: of the long message.
        links: what each end of a pair saw, by (source, destination), once a sweep.
        speeds: of each node, once a sweep.
        lost: nodes that did not answer, and how that showed.
    """

    nodes: tuple[str, ...]
    nbytes: int = 0
    links: dict[tuple[int, int], list[LinkSample]] = field(default_factory=dict)
    speeds: dict[int, list[NodeSpeed]] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)

    def directions(self) -> Iterator[DirectedLink]:
        """Yield both directions of every pair that was tried."""
        for (source, destination), seen in sorted(self.links.items()):
            broken = next((each.broken for each in seen if each.broken), None)
            whole = [each for each in seen if each.broken is None]
            yield DirectedLink(
                source,
                destination,
                min((each.latency_seconds for each in whole), default=None),
                tuple(each.transfer_seconds for each in whole),
                self.nbytes,
                broken,
            )

    def speed(self, node: int) -> NodeSpeed | None:
        """Return what a node typically showed; None where it was not measured."""
        found = self.speeds.get(node, [])
        if not found:
            return None
        return NodeSpeed(
            median(each.copy_bytes_per_s for each in found), median(each.operations_per_s for each in found)
        )

    def node_record(self, node: int) -> dict[str, Any]:
        """Return the record of kind `preflight_node`."""
        speed = self.speed(node)
        return {
            "schema": SCHEMA,
            "kind": "preflight_node",
            "node": self.nodes[node],
            "repeats": len(self.speeds.get(node, [])),
            "copy_GBps": speed and speed.copy_bytes_per_s / GB,
            "compute_Gsin_per_s": speed and speed.operations_per_s / 1e9,
            "lost": self.lost.get(node),
        }
