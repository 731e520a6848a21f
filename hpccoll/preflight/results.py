"""The results of a preflight: samples of each direction of each link, and of each node.

The result of a link is its best sample, because a disturbance makes some short samples worse but rarely all. The result
of a node is the median of its samples, so a node that is disturbed in most samples counts as slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.preflight.link_benchmark import LinkSample
from hpccoll.preflight.node_benchmark import NodeSpeed
from hpccoll.records import PreflightNodeRecord, PreflightPairRecord
from hpccoll.units import GB


@dataclass(frozen=True, slots=True)
class DirectedLink:
    """The latency and transfer times of the link from node `source` to node `destination`, measured by the source.

    If a measurement failed, `broken` is the reason.
    """

    source: int  # index of the sending node
    destination: int  # index of the receiving node
    latency_seconds: float | None  # half the shortest round trip; None if every sample failed
    transfers: tuple[float, ...]  # times of the long message in seconds, one per sample
    nbytes: int  # size of the long message
    broken: str | None = None  # the reason why a sample failed; None if none failed

    @property
    def bytes_per_s(self) -> float | None:
        """The rate of the fastest measured transfer in bytes/s; None if no transfer was measured or a sample failed."""
        return self.nbytes / min(self.transfers) if self.transfers and self.broken is None else None

    def to_record(self, nodes: tuple[str, ...]) -> dict[str, Any]:
        """Return the link's record of kind `preflight_pair`, ready for JSON; `nodes` are the names of all nodes."""
        rate = self.bytes_per_s
        return PreflightPairRecord(
            nodes[self.source],
            nodes[self.destination],
            nbytes=self.nbytes,
            repeats=len(self.transfers),
            latency_us=None if self.latency_seconds is None else round(self.latency_seconds * 1e6, 3),
            bandwidth_GBps=None if rate is None else rate / GB,
            transfer_us=tuple(round(seconds * 1e6, 3) for seconds in self.transfers),
            broken=self.broken,
        ).as_dict()


@dataclass(slots=True)
class PreflightResults:
    """All measurements of a preflight. Nodes are numbered by their position in `nodes`."""

    nodes: tuple[str, ...]  # names of the nodes
    nbytes: int = 0  # size in bytes of the long message that measures a link's rate
    # The samples of each direction (sending node, receiving node)
    links: dict[tuple[int, int], list[LinkSample]] = field(default_factory=dict)
    speeds: dict[int, list[NodeSpeed]] = field(default_factory=dict)  # the samples of each node
    # For each node that did not answer, the reason why the node counts as lost
    lost: dict[int, str] = field(default_factory=dict)

    def iter_directed_links(self) -> Iterator[DirectedLink]:
        """Yield each measured direction of each link, also of broken links, in order of (source, destination)."""
        for (source, destination), samples in sorted(self.links.items()):
            broken = next((sample.broken for sample in samples if sample.broken), None)
            good = [sample for sample in samples if sample.broken is None]
            latency = min((sample.latency_seconds for sample in good), default=None)
            transfers = tuple(sample.transfer_seconds for sample in good)
            yield DirectedLink(source, destination, latency, transfers, self.nbytes, broken)

    def compute_median_speed(self, node: int) -> NodeSpeed | None:
        """Return the medians of a node's copy and computing speeds over all its measurements; None if not measured."""
        samples = self.speeds.get(node, [])
        if not samples:
            return None
        return NodeSpeed(median(s.copy_bytes_per_s for s in samples), median(s.operations_per_s for s in samples))

    def compute_link_rates(self) -> dict[str, tuple[float, float]]:
        """Return the bandwidths in GB/s at which each node sends and receives, by the node's name.

        A node's bandwidth is that of its fastest link. Raises UsageError if any link is broken.
        """
        up: dict[int, float] = {}
        down: dict[int, float] = {}
        for link in self.iter_directed_links():
            if link.bytes_per_s is None:
                ends = f"{self.nodes[link.source]} and {self.nodes[link.destination]}"
                raise UsageError(f"the link between {ends} is broken; no rates are saved until it works")
            rate = link.bytes_per_s / GB
            up[link.source] = max(up.get(link.source, 0.0), rate)
            down[link.destination] = max(down.get(link.destination, 0.0), rate)
        return {self.nodes[node]: (up[node], down[node]) for node in up if node in down}

    def make_node_record(self, node: int) -> dict[str, Any]:
        """Return the record of kind `preflight_node` of the node with index `node`, ready for JSON."""
        speed = self.compute_median_speed(node)
        return PreflightNodeRecord(
            self.nodes[node],
            repeats=len(self.speeds.get(node, [])),
            copy_GBps=None if speed is None else speed.copy_bytes_per_s / GB,
            compute_Gsin_per_s=None if speed is None else speed.operations_per_s / 1e9,
            lost=self.lost.get(node),
        ).as_dict()
