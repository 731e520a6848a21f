"""Collects the curves of one operation on several job sizes, to show how time depends on the number of ranks or nodes.

The x axis is the number of nodes if no two jobs have the same number of nodes, else the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpccoll.measure.results.measured_case import Implementation, TableKey, list_implementations
from hpccoll.records import CollectiveRecord
from hpccoll.report.curves import CurveGroup

_SIZE_TOLERANCE = 0.1  # difference in log2, so that 1048572 B on 3 ranks counts as equal to 1 MiB on 4 ranks


@dataclass(frozen=True, slots=True)
class ScalingCurves:
    """The measurements of one operation on several job sizes, to show how time grows with ranks or nodes.

    `groups` has one element per job size, in ascending order. `sizes` are up to three message sizes in bytes that were
    measured on all job sizes: the smallest, the middle and the largest one. `over` states whether the x axis counts
    nodes or ranks.
    """

    groups: tuple[CurveGroup, ...]
    over: str  # the x axis: "nodes" or "ranks"
    sizes: tuple[int, ...]

    @property
    def op(self) -> str:
        """The name of the collective operation."""
        return self.groups[0].setting.op

    @property
    def implementations(self) -> tuple[Implementation, ...]:
        """The implementations (engine and algorithm) that were measured on any job size, sorted."""
        return tuple(list_implementations(case for group in self.groups for case in group.cases))

    def find_records(self, implementation: Implementation, nbytes: int) -> list[tuple[int, CollectiveRecord]]:
        """Return (x, record) of an implementation at a message size, for each job size on which it was measured.

        `x`, the position on the x axis, is the job's number of nodes or ranks, as `over` states.
        """
        points = []
        for group in self.groups:
            x = group.setting.nodes if self.over == "nodes" else group.setting.ranks
            curve = group.list_curve(implementation)
            points += [(x, record) for record in curve if _is_same_size(record.nbytes, nbytes)][:1]
        return points


def group_scaling_curves(groups: Sequence[CurveGroup]) -> list[ScalingCurves]:
    """Return the scaling curves of operations and settings measured on at least two job sizes of several ranks."""
    by_setting: dict[tuple[TableKey, str], list[CurveGroup]] = {}
    for group in groups:
        if group.setting.ranks > 1:
            setting = group.setting._replace(ranks=0, nodes=0)
            by_setting.setdefault((setting, group.place), []).append(group)
    return [_make_scaling_curves(members) for members in by_setting.values() if len(members) > 1]


def _make_scaling_curves(groups: list[CurveGroup]) -> ScalingCurves:
    """Return the scaling curves of one operation, from one group per job size.

    Chooses whether the x axis counts nodes or ranks, and up to three message sizes that all groups have.
    """
    ordered = tuple(sorted(groups, key=lambda group: (group.setting.ranks, group.setting.nodes)))
    nodes = [group.setting.nodes for group in ordered]
    over = "nodes" if len(set(nodes)) == len(nodes) else "ranks"
    measured = [group.sizes for group in ordered]
    common = [size for size in measured[-1] if all(any(_is_same_size(s, size) for s in sizes) for sizes in measured)]
    sizes = dict.fromkeys([common[0], common[len(common) // 2], common[-1]] if common else [])
    return ScalingCurves(ordered, over, tuple(sizes))


def _is_same_size(a: int, b: int) -> bool:
    """Whether two message sizes are equal up to rounding to a whole number of elements per rank."""
    return a == b or (min(a, b) > 0 and abs(math.log2(a / b)) < _SIZE_TOLERANCE)
