"""Ranks in groups, such as the ranks of each node: who is where, and plans that run in all groups at once.

Shapes: P ranks of a column, G groups. The slot of a rank is its number within its group. Groups may differ in size,
and their ranks need not follow each other: only `locate` and `rank_at` know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.plan.rounds import Rounds, keep_ranks, overlay, relabel_ranks
from hpccoll.plan.step import IntArray

Nodes: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | None


@dataclass(frozen=True, slots=True)
class Groups:
    """Group g has `sizes[g]` ranks; `members` lists all ranks group by group, None where that is rank order."""

    sizes: tuple[int, ...]
    members: tuple[int, ...] | None = None

    @classmethod
    def from_nodes(cls, ranks: int, nodes: Nodes) -> Groups:
        """Return the groups that `nodes` describes.

        Args:
            ranks: how many there are.
            nodes: the number of ranks on each node, in rank order, or the ranks of each node; None for a single node.

        Raises:
            UsageError: an empty node, or nodes that do not hold each rank exactly once.
        """
        if nodes is None:
            return cls((ranks,))
        sizes = tuple(int(node) if isinstance(node, int | np.integer) else len(node) for node in nodes)
        listed = [node for node in nodes if not isinstance(node, int | np.integer)]
        members = tuple(int(rank) for node in listed for rank in node)
        whole = sum(sizes) == ranks and min(sizes, default=0) >= 1
        if not whole or (listed and (len(listed) < len(sizes) or sorted(members) != list(range(ranks)))):
            shown = repr(nodes) if len(sizes) <= 8 else f"{repr(nodes[:8])[:-1]}, ...{repr(nodes[:8])[-1]}"
            raise UsageError(
                f"nodes={shown} is no layout of {ranks} ranks: give the number of ranks on each node, at least 1 each "
                f"and {ranks} in all, or for each node its ranks, each of 0 to {ranks - 1} once"
            )
        return cls(sizes, members if listed and members != tuple(range(ranks)) else None)

    @property
    def starts(self) -> IntArray:
        """How many ranks the groups before each hold, shape (G,)."""
        ends = np.cumsum(np.array(self.sizes, np.int64))
        return np.asarray(ends - np.array(self.sizes), np.int64)

    @property
    def common_size(self) -> int | None:
        """The size of every group where all have one size."""
        return self.sizes[0] if min(self.sizes) == max(self.sizes) else None

    def locate(self, rank: IntArray) -> tuple[IntArray, IntArray]:
        """Return the group and the slot of each rank."""
        place = rank if self.members is None else np.argsort(np.array(self.members, np.int64))[rank]
        group = np.searchsorted(self.starts, place, side="right") - 1
        return np.asarray(group, np.int64), place - self.starts[group]

    def make_rank_lookup(self) -> Callable[[IntArray], IntArray]:
        """Return the mapping from place (the start of a group, plus the slot) to rank."""
        if self.members is None:
            return lambda place: place
        members = np.array(self.members, np.int64)
        return lambda place: np.asarray(members[place], np.int64)


def run_in_groups(make: Callable[[IntArray, int], Rounds], groups: Groups, rank: IntArray) -> Rounds:
    """Run `make(slot, size)` within every group at once; the shorter ones begin later, so that all end together.

    Costs one move more a round for each further size of group.
    """
    group, slot = groups.locate(rank)
    size, start, ranks_at = np.array(groups.sizes)[group], groups.starts[group], groups.make_rank_lookup()
    parts = [keep_ranks(make(np.minimum(slot, s - 1), s), size == s) for s in sorted(set(groups.sizes))]
    longest = max(part.count for part in parts)
    together = reduce(overlay, (part.delayed(longest - part.count) for part in parts))
    return relabel_ranks(together, lambda peer: ranks_at(start + peer))


def run_across_groups(make: Callable[[IntArray, int], Rounds], groups: Groups, rank: IntArray, slots: int) -> Rounds:
    """Run `make(group, groups)` among the ranks of equal slot in all groups, for each of the first `slots` at once.

    No group may have fewer than `slots` ranks. All slots name the same chunks; shift them apart.
    """
    group, slot = groups.locate(rank)
    starts, ranks_at, mine = groups.starts, groups.make_rank_lookup(), np.minimum(slot, slots - 1)
    among = keep_ranks(make(group, len(groups.sizes)), slot < slots)
    return relabel_ranks(among, lambda peer: ranks_at(starts[peer] + mine))
