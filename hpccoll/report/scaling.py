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
from hpccoll.report.series import Curve, Name, Picture

_ALIKE = 0.1  # of log2: 1048572 B on 3 ranks is the 1 MiB of 4


class Kind(NamedTuple):
    """What pictures of one scaling have in common."""

    op: str
    dtype: str
    redop: str | None
    root: int | None
    buffer: str
    in_place: bool


@dataclass(frozen=True, slots=True)
class Scaling:
    """The pictures of one kind by ranks, and the sizes that can be followed through them: small, middle, large."""

    kind: Kind
    pictures: tuple[Picture, ...]
    over: str  # "nodes" or "ranks"
    sizes: tuple[int, ...]

    @property
    def names(self) -> tuple[Name, ...]:
        """Every line of it."""
        return tuple(
            sorted({curve.name for picture in self.pictures for curve in picture.curves}, key=lambda name: name.order)
        )

    def x(self, picture: Picture) -> int:
        """Return where a picture's values stand."""
        return picture.setting.nodes if self.over == "nodes" else picture.setting.ranks

    def at(self, name: Name, nbytes: int) -> list[tuple[int, CollectiveRecord]]:
        """Return a line's measurements of a size, with where they stand."""
        found = []
        for picture in self.pictures:
            for curve in picture.curves:
                record = _near(curve, nbytes) if curve.name == name else None
                if record is not None:
                    found.append((self.x(picture), record))
        return found


def scalings(pictures: Sequence[Picture]) -> list[Scaling]:
    """Return the scalings that the pictures hold."""
    found: dict[Kind, list[Picture]] = {}
    for picture in pictures:
        if picture.setting.ranks > 1:
            of = picture.setting
            kind = Kind(of.op, of.dtype, of.redop, of.root, of.buffer, picture.in_place)
            found.setdefault(kind, []).append(picture)
    return [_scaling(kind, several) for kind, several in found.items() if len(several) > 1]


def _scaling(kind: Kind, pictures: list[Picture]) -> Scaling:
    ordered = tuple(sorted(pictures, key=lambda each: (each.setting.ranks, each.setting.nodes)))
    nodes = [picture.setting.nodes for picture in ordered]
    over = "nodes" if len(set(nodes)) == len(nodes) else "ranks"
    common = [size for size in ordered[-1].sizes if all(_has(picture, size) for picture in ordered)]
    sizes = dict.fromkeys([common[0], common[len(common) // 2], common[-1]] if common else [])
    return Scaling(kind, ordered, over, tuple(sizes))


def _has(picture: Picture, nbytes: int) -> bool:
    return any(_alike(size, nbytes) for size in picture.sizes)


def _near(curve: Curve, nbytes: int) -> CollectiveRecord | None:
    return next((record for record in curve.records if _alike(record.row.nbytes, nbytes)), None)


def _alike(one: int, other: int) -> bool:
    """Whether two sizes were asked for as one: where a message is blocks, it is rounded to whole elements a block."""
    return one == other or (min(one, other) > 0 and abs(math.log2(one / other)) < _ALIKE)
