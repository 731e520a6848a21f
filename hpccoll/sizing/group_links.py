"""The links that the groups of a mesh axis use on a machine: the share of bytes between nodes, and the slowest link."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2

import numpy as np

from hpccoll.plan import IntArray, Machine


@dataclass(frozen=True, slots=True)
class GroupLinks:
    """The links that a group of `size` ranks uses, while all groups of the axis communicate at the same time.

    `between_share` is the share of the messages that leave a node, `seconds_per_byte` the time of a byte on the slowest
    link (for all_to_all, the mean over its rounds), and `alpha_s` the latency of the slowest link.
    """

    size: int
    between_share: float
    seconds_per_byte: float
    alpha_s: float

    def compute_seconds(self, sent_bytes: float, calls: float, rounds: float) -> float:
        """Return the seconds of `calls` collectives of `rounds` rounds each; a rank sends `sent_bytes` in total."""
        return sent_bytes * self.seconds_per_byte + calls * rounds * self.alpha_s

    @property
    def doubling_rounds(self) -> int:
        """The rounds of the fastest all_gather or reduce_scatter of small messages on n ranks: ceil(log2 n)."""
        return ceil(log2(self.size))


@lru_cache(maxsize=4096)
def find_group_links(
    ranks: int, size: int, stride: int, machine: Machine, *, every_peer: bool = False, wraps: bool = True
) -> GroupLinks:
    """Return the links that the groups of a mesh axis use, while all groups communicate at the same time.

    A message inside a node has the speed of the link inside nodes. Messages between nodes share the rate of a NIC if
    their senders share the NIC. Consecutive ranks fill one node after the other.

    Args:
        size: the number of ranks of a group, at least 2.
        stride: the difference between the ranks of neighbours in a group.
        every_peer: whether each rank sends to all others of its group in turn (all_to_all), or only to the next one.
        wraps: whether the last rank of a group sends to the first one.
    """
    rank = np.arange(ranks)
    index = rank // stride % size
    hops = []
    for shift in range(1, size if every_peer else 2):
        peer = rank + ((index + shift) % size - index) * stride
        sends = slice(None) if wraps else index < size - shift
        hops.append(_find_hop(rank[sends], peer[sends], machine))
    shares, seconds, alphas = zip(*hops, strict=True)
    return GroupLinks(size, sum(shares) / len(hops), sum(seconds) / len(hops), max(alphas))


def _find_hop(rank: IntArray, peer: IntArray, machine: Machine) -> tuple[float, float, float]:
    """Return the share of messages that leave a node, and the largest seconds per byte and latency of the links used.

    Message i goes from rank `rank[i]` to rank `peer[i]`; all are sent at the same time.
    """
    leaves = rank // machine.ranks_per_node != peer // machine.ranks_per_node
    links = []
    if not leaves.all():
        links.append((machine.within.min_beta, machine.within.alpha_s))
    if leaves.any():
        sharers = _count_nic_sharers(rank[leaves], machine)
        links.append((machine.between.min_beta * sharers, machine.between.alpha_s))
    return float(leaves.mean()), max(link[0] for link in links), max(link[1] for link in links)


def _count_nic_sharers(leaving: IntArray, machine: Machine) -> int:
    """Return the largest number of ranks that share a NIC among `leaving`, the ranks that send to other nodes."""
    node, local = np.divmod(leaving, machine.ranks_per_node)
    nic = local * machine.nics_per_node // machine.ranks_per_node
    return int(np.bincount(node * machine.nics_per_node + nic).max())
