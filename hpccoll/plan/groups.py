"""Ranks in groups, such as the ranks of each node, and plans that run in all groups at once.

Shapes: P ranks of a column, G groups. The slot of a rank is its number within its group. Groups may differ in size and
may hold any ranks; `locate` and `make_rank_lookup` convert between ranks and slots.
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
    """A division of the ranks: group g has `sizes[g]` ranks, and `members` lists all ranks group by group.

    `members` is None if the list would be 0, 1, 2, ...
    """

    sizes: tuple[int, ...]
    members: tuple[int, ...] | None = None

    @classmethod
    def from_nodes(cls, ranks: int, nodes: Nodes) -> Groups:
        """Return one group per node; raise UsageError unless every node has ranks and each rank is on one node.

        `nodes` is the number of ranks on each node, in rank order, or the ranks of each node; None for a single node.
        """
        if nodes is None:
            return cls((ranks,))
        sizes = tuple(int(node) if isinstance(node, int | np.integer) else len(node) for node in nodes)
        listed = [node for node in nodes if not isinstance(node, int | np.integer)]
        members = tuple(int(rank) for node in listed for rank in node)
        complete = sum(sizes) == ranks and min(sizes, default=0) >= 1
        if not complete or (listed and (len(listed) < len(sizes) or sorted(members) != list(range(ranks)))):
            shown = repr(nodes) if len(sizes) <= 8 else f"{repr(nodes[:8])[:-1]}, ...{repr(nodes[:8])[-1]}"
            raise UsageError(
                f"nodes={shown} is no layout of {ranks} ranks: give the number of ranks on each node, at least 1 each "
                f"and {ranks} in all, or for each node its ranks, each of 0 to {ranks - 1} once"
            )
        return cls(sizes, members if listed and members != tuple(range(ranks)) else None)

    @property
    def starts(self) -> IntArray:
        """The position of each group's first rank in `members`, shape (G,)."""
        ends = np.cumsum(np.array(self.sizes, np.int64))
        return np.asarray(ends - np.array(self.sizes), np.int64)

    @property
    def common_size(self) -> int | None:
        """The size that all groups have, or None if they differ."""
        return self.sizes[0] if min(self.sizes) == max(self.sizes) else None

    def locate(self, rank: IntArray) -> tuple[IntArray, IntArray]:
        """Return two arrays: the group and the slot of each rank."""
        position = rank if self.members is None else np.argsort(np.array(self.members, np.int64))[rank]
        group = np.searchsorted(self.starts, position, side="right") - 1
        return np.asarray(group, np.int64), position - self.starts[group]

    def make_rank_lookup(self) -> Callable[[IntArray], IntArray]:
        """Return a function from positions (the start of a group plus a slot) to ranks."""
        if self.members is None:
            return lambda position: position
        members = np.array(self.members, np.int64)
        return lambda position: np.asarray(members[position], np.int64)


def run_in_groups(make: Callable[[IntArray, int], Rounds], groups: Groups, rank: IntArray) -> Rounds:
    """Return rounds that run `make(slot, size)` within every group at once.

    Groups with fewer rounds begin later, so that all end together. Each distinct group size has its own steps.
    """
    group, slot = groups.locate(rank)
    size, start, rank_at = np.array(groups.sizes)[group], groups.starts[group], groups.make_rank_lookup()
    by_size = [keep_ranks(make(np.minimum(slot, s - 1), s), size == s) for s in sorted(set(groups.sizes))]
    longest = max(rounds.count for rounds in by_size)
    together = reduce(overlay, (rounds.delayed(longest - rounds.count) for rounds in by_size))
    return relabel_ranks(together, lambda peer: rank_at(start + peer))


def run_across_groups(make: Callable[[IntArray, int], Rounds], groups: Groups, rank: IntArray, slots: int) -> Rounds:
    """Return rounds that run `make(group, number of groups)` among the ranks of equal slot.

    Only slots below `slots` take part, and every group must have at least `slots` ranks. All slots use the same chunk
    numbers; shift the result if slots need different chunks.
    """
    group, slot = groups.locate(rank)
    starts, rank_at, own_slot = groups.starts, groups.make_rank_lookup(), np.minimum(slot, slots - 1)
    among = keep_ranks(make(group, len(groups.sizes)), slot < slots)
    return relabel_ranks(among, lambda peer: rank_at(starts[peer] + own_slot))
