"""Describes which ranks of a recorded job share a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from hpccoll.profile.load import JobProfile


@dataclass(frozen=True, slots=True)
class Placement:
    """The number of each rank's node; the nodes are numbered from 0 in the order of their first ranks."""

    nodes: tuple[int, ...]

    @classmethod
    def read(cls, profile: JobProfile) -> Placement:
        """Return the recorded placement: ranks with the same host name share a node."""
        numbers: dict[str, int] = {}
        return cls(tuple(numbers.setdefault(rank.host, len(numbers)) for rank in profile.ranks))

    @classmethod
    def fill(cls, ranks: int, per_node: int) -> Placement:
        """Return the placement of consecutive ranks on nodes of `per_node` ranks."""
        return cls(tuple(rank // per_node for rank in range(ranks)))

    @property
    def count(self) -> int:
        """The number of nodes."""
        return len(set(self.nodes))

    def list_ranks(self, node: int) -> tuple[int, ...]:
        """Return the ranks on the node with the number `node`."""
        return tuple(rank for rank, its_node in enumerate(self.nodes) if its_node == node)

    def count_per_node(self, members: Sequence[int]) -> int:
        """Return how many consecutive ranks of a communicator share a node; the largest number if nodes differ.

        `members` are the ranks in the world of the communicator's ranks.
        """
        return max((len(list(run)) for _, run in groupby(self.nodes[rank] for rank in members)), default=1)
