"""Division of ranks into groups, such as nodes, and plans that run in all groups at once.

In array shapes, P is the number of ranks in an argument `rank`, and G the number of groups. The slot of a rank is its
index within its group. Groups may differ in size and may hold any ranks; `locate` and `make_rank_lookup` convert
between ranks and slots (indices within groups).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.plan.rounds import Rounds, keep_ranks, overlay, relabel_places
from hpccoll.plan.step import IntArray

Nodes: TypeAlias = Sequence[int] | Sequence[Sequence[int]] | None


@dataclass(frozen=True, slots=True)
class Groups:
    """A division of ranks into groups, such as the nodes of a machine; `sizes` has each group's number of ranks.

    `members` lists the ranks group by group; None stands for 0, 1, 2, and so on.
    """

    sizes: tuple[int, ...]
    members: tuple[int, ...] | None = None

    @classmethod
    def from_nodes(cls, ranks: int, nodes: Nodes) -> Groups:
        """Return `Groups` with one group per node.

        `nodes` lists, for each node, either its ranks or their number (then ranks fill nodes in order); None stands for
        a single node with all ranks. Raises UsageError unless each rank is on one node and no node is empty.
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
        """The index in `members` of each group's first rank, shape (groups,)."""
        ends = np.cumsum(np.array(self.sizes, np.int64))
        return np.asarray(ends - np.array(self.sizes), np.int64)

    @property
    def common_size(self) -> int | None:
        """The common size of all groups, or None if group sizes differ."""
        return self.sizes[0] if min(self.sizes) == max(self.sizes) else None

    def locate(self, rank: IntArray) -> tuple[IntArray, IntArray]:
        """Return two arrays for the ranks in `rank`: each rank's group number, and the rank's index in this group."""
        position = rank if self.members is None else np.argsort(np.array(self.members, np.int64))[rank]
        group = np.searchsorted(self.starts, position, side="right") - 1
        return np.asarray(group, np.int64), position - self.starts[group]

    def make_rank_lookup(self) -> Callable[[IntArray], IntArray]:
        """Return a function that maps indices in `members` (group start + index in the group) to rank numbers."""
        if self.members is None:
            return lambda position: position
        members = np.array(self.members, np.int64)
        return lambda position: np.asarray(members[position], np.int64)


def run_in_groups(make: Callable[[IntArray, int], Rounds], groups: Groups, rank: IntArray) -> Rounds:
    """Return rounds in which each group runs the rounds `make(indices in the group, group size)` among its ranks.

    Groups with fewer rounds start later, so that all groups end in the same round. `make` takes an array of ranks and a
    size, and returns the rounds of these ranks in a plan among ranks 0 to size - 1.
    """
    group, slot = groups.locate(rank)
    size, start, rank_at = np.array(groups.sizes)[group], groups.starts[group], groups.make_rank_lookup()
    by_size = [keep_ranks(make(np.minimum(slot, s - 1), s), size == s) for s in sorted(set(groups.sizes))]
    longest = max(rounds.count for rounds in by_size)
    together = reduce(overlay, (rounds.delayed(longest - rounds.count) for rounds in by_size))
    return relabel_places(together, lambda peers, places: rank_at(start[places] + peers))


def run_across_groups(make: Callable[[IntArray, int], Rounds], groups: Groups, rank: IntArray, slots: int) -> Rounds:
    """Return the rounds of `make(group, number of groups)` among the ranks with equal index in their groups.

    Only the first `slots` ranks of each group take part, and every group must have at least `slots` ranks. Ranks of
    every index use the same chunk numbers; apply `Rounds.shifted` to the result to give each index its own chunks.
    `make` takes an array of group numbers and the number of groups, and returns the rounds of a plan that has a rank in
    place of each group.
    """
    group, slot = groups.locate(rank)
    starts, rank_at, own_slot = groups.starts, groups.make_rank_lookup(), np.minimum(slot, slots - 1)
    among = keep_ranks(make(group, len(groups.sizes)), slot < slots)
    return relabel_places(among, lambda peers, places: rank_at(starts[peers] + own_slot[places]))
