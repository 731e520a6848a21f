"""What becomes of a size when there are more ranks or nodes: the runs of a sweep, or files of several jobs.

A scaling holds one operation in one place, measured on two numbers of ranks or more. It is laid out over nodes where
these differ and each number of nodes has one number of ranks, else over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpccoll.measure.record import CollectiveRecord
from hpccoll.report.curves import Curve, CurveGroup, Implementation

_ALIKE = 0.1  # of log2: 1048572 B on 3 ranks is the 1 MiB of 4


class ScalingKey(NamedTuple):
    """What pictures of one scaling have in common."""

    op: str
    dtype: str
    redop: str | None
    root: int | None
    buffer: str
    in_place: bool


@dataclass(frozen=True, slots=True)
class ScalingCurves:
    """The pictures of one kind by ranks, and the sizes that can be followed through them: small, middle, large."""

    key: ScalingKey
    groups: tuple[CurveGroup, ...]
    over: str  # "nodes" or "ranks"
    sizes: tuple[int, ...]

    @property
    def implementations(self) -> tuple[Implementation, ...]:
        """Every line of it."""
        return tuple(
            sorted(
                {curve.implementation for picture in self.groups for curve in picture.curves},
                key=lambda name: name.sort_key,
            )
        )

    def get_x(self, picture: CurveGroup) -> int:
        """Return where a picture's values stand."""
        return picture.setting.nodes if self.over == "nodes" else picture.setting.ranks

    def records_at(self, name: Implementation, nbytes: int) -> list[tuple[int, CollectiveRecord]]:
        """Return a line's measurements of a size, with where they stand."""
        found = []
        for picture in self.groups:
            for curve in picture.curves:
                record = _find_record(curve, nbytes) if curve.implementation == name else None
                if record is not None:
                    found.append((self.get_x(picture), record))
        return found


def group_scaling_curves(pictures: Sequence[CurveGroup]) -> list[ScalingCurves]:
    """Return the scalings that the pictures hold."""
    found: dict[ScalingKey, list[CurveGroup]] = {}
    for picture in pictures:
        if picture.setting.ranks > 1:
            of = picture.setting
            kind = ScalingKey(of.op, of.dtype, of.redop, of.root, of.buffer, picture.in_place)
            found.setdefault(kind, []).append(picture)
    return [_make_scaling_curves(kind, several) for kind, several in found.items() if len(several) > 1]


def _make_scaling_curves(kind: ScalingKey, pictures: list[CurveGroup]) -> ScalingCurves:
    ordered = tuple(sorted(pictures, key=lambda each: (each.setting.ranks, each.setting.nodes)))
    nodes = [picture.setting.nodes for picture in ordered]
    over = "nodes" if len(set(nodes)) == len(nodes) else "ranks"
    common = [size for size in ordered[-1].sizes if all(_has_size(picture, size) for picture in ordered)]
    sizes = dict.fromkeys([common[0], common[len(common) // 2], common[-1]] if common else [])
    return ScalingCurves(kind, ordered, over, tuple(sizes))


def _has_size(picture: CurveGroup, nbytes: int) -> bool:
    return any(_is_same_size(size, nbytes) for size in picture.sizes)


def _find_record(curve: Curve, nbytes: int) -> CollectiveRecord | None:
    return next((record for record in curve.records if _is_same_size(record.row.nbytes, nbytes)), None)


def _is_same_size(one: int, other: int) -> bool:
    """Whether two sizes were asked for as one: where a message is blocks, it is rounded to whole elements a block."""
    return one == other or (min(one, other) > 0 and abs(math.log2(one / other)) < _ALIKE)
