"""Networks between nodes whose links carry the messages of several nodes: fat trees, rails and dragonflies.

A fat tree has leaf switches of `nodes_per_switch` nodes each; the links of a leaf to the switches above carry all
messages to other leaves, and have together `capacity` times the bandwidth of one NIC. With rails, NIC i of each node
joins the leaf of rail i, so that messages between NICs of different numbers also leave their leaf. Messages are spread
evenly over the uplinks of a leaf. A dragonfly has groups of `nodes_per_switch` nodes, and each pair of groups has links
of its own, which carry all messages between the two groups (minimal routes); links within a group are not shared.

Messages of a round that use the same link at the same time get equal shares of its bandwidth. Sources: Leiserson, IEEE
Transactions on Computers 1985 (fat trees); Kim, Dally, Scott and Abts, ISCA 2008 (dragonfly).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from hpccoll.plan.operation import Mask
from hpccoll.plan.step import IntArray

NO_LINK = -1


class FabricKind(StrEnum):
    """The kinds of networks between nodes that can be simulated: fat tree and dragonfly."""

    FAT_TREE = "fat_tree"
    DRAGONFLY = "dragonfly"


@dataclass(frozen=True, slots=True)
class Fabric:
    """A network between nodes, some of whose links are shared by messages of several nodes.

    Args:
        nodes_per_switch: the nodes of a leaf switch, or of a group of a dragonfly.
        capacity: the bandwidth of a shared link, as a multiple of a NIC's bandwidth: that of all uplinks of a leaf
            together, or that of all links from one group to another.
        has_rails: whether a leaf switch has one NIC of each of its nodes, instead of all NICs.
    """

    kind: FabricKind
    nodes_per_switch: int
    capacity: float
    has_rails: bool = False


@dataclass(frozen=True, slots=True)
class SharedLinks:
    """The shared link between switches that each rank's message uses, by number, or NO_LINK; one entry per rank.

    If `at_dest` is true, the ranks that receive share the link (a downlink), else the ranks that send. The users
    of a link are counted as ranks, not as messages, because a rank sends and receives its messages one after the other.
    """

    number: IntArray
    at_dest: bool


class FabricTable:
    """Finds the links between switches that messages of simulated ranks share with other messages.

    Rank r of all n ranks is represented by the simulated rank r mod `represented`.

    `kinds` is the number of kinds of shared links: 2 (uplinks and downlinks) or 1 (links between groups). `links` is
    the number of links of each kind that the messages of the simulated ranks can use.
    """

    def __init__(self, fabric: Fabric, switch: IntArray, rail: IntArray, represented: int) -> None:
        """Take the switch (leaf or group) and the rail of each of the n ranks; the rail is 0 without rails."""
        self.fabric, self.switch, self.rail, self.size = fabric, switch, rail, represented
        self.switches, self.rails = int(switch[-1]) + 1, int(rail.max(initial=0)) + 1
        is_dragonfly = fabric.kind is FabricKind.DRAGONFLY
        self.kinds = 1 if is_dragonfly else 2
        self.links = (int(switch[represented - 1]) + 1) * (self.switches if is_dragonfly else self.rails)

    def find_shared_links(self, dest: IntArray, far: Mask) -> tuple[SharedLinks, ...]:
        """Return the shared links on the way from each rank to its `dest`, one `SharedLinks` per kind of links.

        `far` marks messages that leave their node.
        """
        rank = np.arange(self.size)
        here, there = self.switch[rank], self.switch[dest]
        if self.fabric.kind is FabricKind.DRAGONFLY:
            # The messages of a rank cross as many groups as those of the simulated rank that represents it.
            pair = here * self.switches + (there - here) % self.switches
            return (SharedLinks(np.where(far & (here != there), pair, NO_LINK), at_dest=False),)
        leaves = far & ((here != there) | (self.rail[rank] != self.rail[dest]))
        up, down = (self.switch[ranks] * self.rails + self.rail[ranks] for ranks in (rank, dest % self.size))
        return SharedLinks(np.where(leaves, up, NO_LINK), at_dest=False), SharedLinks(
            np.where(leaves, down, NO_LINK), at_dest=True
        )


def count_users(links: list[IntArray], users: list[IntArray], size: int) -> list[IntArray]:
    """Return, for each message, the number of different ranks that use its link; 0 without a link.

    `links` has the link of each message, or NO_LINK, one array per step of a round; `users` has the ranks that use
    these links.
    """
    joined = np.concatenate(links)
    used = joined != NO_LINK
    pairs = np.unique(joined[used] * size + np.concatenate(users)[used])
    counts = np.bincount(pairs // size, minlength=int(joined.max(initial=0)) + 1)
    return [np.where(link == NO_LINK, 0, counts[link]) for link in links]
