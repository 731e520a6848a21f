"""The requested configuration of a lab (`ClusterSpec`), and functions that parse and format rates and times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpccoll.errors import UnknownNameError, UsageError

MAX_NODES = 250  # addresses .1 to .250 of one /24; .254 is the control node's
MIN_BYTES_PER_S = 1000.0
MAX_LATENCY_S = 1.0
ALL = "all"
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)(?:bit(?:/s)?|bps)?\s*", re.IGNORECASE)
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s)\s*", re.IGNORECASE)
_SUBNET = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})")
_BITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The requested configuration of a lab: number of nodes, CPUs, link rate and latency, and shared paths.

    Raises UsageError for a number out of range or a missing shared path.
    """

    nodes: int = 4  # number of nodes; they are named node1, node2 and so on
    cpus: int = 2  # number of CPUs per node that SLURM assumes, although all nodes share this machine's cores
    bytes_per_s: float | None = None  # rate of each node's link per direction; None for no limit
    latency_s: float = 0.0  # one-way latency in seconds that is added between any two nodes
    shares: tuple[str, ...] = ()  # paths below /tmp that all nodes share; the rest of /tmp is private to each node
    subnet: str = "10.77.0"  # the first three numbers of the nodes' IPv4 addresses; the fourth number of node i is i

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise UsageError(f"--nodes {self.nodes}: a lab has 1 to {MAX_NODES} nodes")
        if self.cpus < 1:
            raise UsageError(f"--cpus {self.cpus}: a node has at least one CPU")
        if self.bytes_per_s is not None and self.bytes_per_s < MIN_BYTES_PER_S:
            raise UsageError(f"a link of {format_rate(self.bytes_per_s)} bit/s is too slow; give at least 8K")
        if not 0 <= self.latency_s <= MAX_LATENCY_S:
            raise UsageError(f"--latency {self.latency_s} s: give 0 to {MAX_LATENCY_S:.0f} s, such as 1ms")
        match = _SUBNET.fullmatch(self.subnet)
        if match is None or any(int(number) > 255 for number in match.groups()):
            raise UsageError(f"--subnet {self.subnet!r} is not the first three numbers of an address, such as 10.77.0")
        for share in self.shares:
            if not Path(share).exists():
                raise UsageError(f"--share {share}: no such path; create it first")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(f"node{index}" for index in range(1, self.nodes + 1))

    def get_address(self, name: str) -> str:
        """Return the IPv4 address of a node, or of the control node `ctl`."""
        return f"{self.subnet}.{254 if name == 'ctl' else self.names.index(name) + 1}"

    def select_nodes(self, name: str) -> tuple[str, ...]:
        """Return `(name,)`, or the names of all nodes if `name` is `all`; raise UnknownNameError for unknown nodes."""
        if name == ALL:
            return self.names
        if name not in self.names:
            raise UnknownNameError("node", name, [*self.names, ALL])
        return (name,)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary that `json.dumps` accepts; `from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ClusterSpec:
        """Return the configuration that `to_dict` converted to `fields`."""
        return cls(**fields | {"shares": tuple(fields["shares"])})


def parse_rate(text: str) -> float:
    """Return the bytes per second of a rate in bits per second, such as `400M` (M is 10**6) or `10Mbit`.

    Raises UsageError if `text` is not a rate of this form.
    """
    match = _RATE.fullmatch(text)
    if match is None or not float(match[1]):
        raise UsageError(f"{text!r} is not a rate; write bits per second with a suffix K, M or G, such as 400M or 1G")
    return float(match[1]) * _BITS[match[2].upper()] / 8


def format_rate(bytes_per_s: float | None) -> str:
    """Return a rate in bytes per second as a string in bits per second, such as `400M`; `-` for None (no limit)."""
    if bytes_per_s is None:
        return "-"
    bits = bytes_per_s * 8
    for suffix in ("G", "M", "K"):
        if bits >= _BITS[suffix]:
            return f"{bits / _BITS[suffix]:.4g}{suffix}"
    return f"{bits:.4g}"


def parse_latency(text: str) -> float:
    """Return the seconds of a time with its unit, such as `1ms`, `250us` or `0s`, or raise UsageError."""
    if text.strip() == "0":
        return 0.0
    match = _TIME.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a time; write a number with its unit us, ms or s, such as 1ms")
    return float(match[1]) * _SECONDS[match[2].lower()]


def find_paths_below_tmp(paths: Sequence[str]) -> list[str]:
    """Return those of `paths` that are below /tmp, resolved and sorted, without paths inside another returned path."""
    resolved = sorted({str(Path(path).resolve()) for path in paths})
    inside = [path for path in resolved if path.startswith("/tmp/")]  # noqa: S108 - the /tmp that nodes hide
    return [path for path in inside if not any(path.startswith(f"{other}/") for other in inside)]
