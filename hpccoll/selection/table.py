"""What was measured: the time of every candidate by operation, element size, kind of buffer and message size.

A size that was not measured belongs to the nearest one that was, by ratio; beyond both ends up to REACH times. Two
candidates tie where their intervals overlap and their medians are within TIE of each other: then the winner of the
next smaller size stays, and where it is not among them, the one with the lowest lower bound wins.

A table is read from JSON and written to it, schema `hpccoll-tuning/1`. It knows where it was measured (`Where`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.plan.operation import Operation

FAMILY = "hpccoll-tuning/"
SCHEMA = FAMILY + "1"
LIBRARY = "mpi"  # the MPI library's own collective, as a candidate
REACH = 4
SHORTEST = 8  # bytes; a shorter message takes no less time
TIE = 1.05


class BufferKind(StrEnum):
    """Where buffers live: ordinary host memory, memory that the ranks of a node share, or CUDA memory."""

    HOST = "host"
    SYMMETRIC = "symmetric"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Where:
    """Where a table holds: MPI library and version, class of host (processor, cores), and the ranks on the nodes."""

    mpi: str
    host: str
    layout: str

    @property
    def told(self) -> str:
        """The place in words."""
        return f"{self.mpi} with {self.layout} of {self.host}"


@dataclass(frozen=True, slots=True)
class Timing:
    """The median of a candidate and the 95 % interval around it, in microseconds."""

    name: str
    us: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """What the candidates took for messages of `nbytes` (nccl-tests' S); `measured` is the date."""

    nbytes: int
    measured: str
    timings: tuple[Timing, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The winner, the best of the others (None where there is none), and where they were measured."""

    winner: Timing
    second: Timing | None
    point: Point


@dataclass(frozen=True, slots=True)
class Series:
    """One operation on elements of `itemsize` bytes in one kind of buffer; points by size, ascending."""

    operation: Operation
    itemsize: int
    buffer: BufferKind
    points: tuple[Point, ...]

    @property
    def key(self) -> tuple[Operation, int, BufferKind]:
        """What two series must share to be of the same thing."""
        return self.operation, self.itemsize, self.buffer

    def nearest(self, nbytes: int) -> Point | None:
        """Return the point whose size is nearest by ratio, None where the message is out of reach."""
        if not self.points:
            return None
        size = max(nbytes, SHORTEST)
        point = min(self.points, key=lambda point: abs(math.log(max(point.nbytes, SHORTEST) / size)))
        near = max(point.nbytes, SHORTEST)
        return point if near <= REACH * size and size <= REACH * near else None

    def verdict(self, nbytes: int, allowed: Collection[str]) -> Verdict | None:
        """Return who wins among the `allowed` candidates, None where nothing near was measured of them."""
        target, before = self.nearest(nbytes), ""
        if target is None:
            return None
        for point in self.points:
            open_to = sorted((each for each in point.timings if each.name in allowed), key=lambda each: each.us)
            if open_to:
                winner = _winner(open_to, before)
                before = winner.name
                if point is target:
                    second = next((each for each in open_to if each is not winner), None)
                    return Verdict(winner, second, point)
        return None

    def merged(self, newer: Series) -> Series:
        """Return the points of both; within the sizes that `newer` covers, only its own."""
        if not newer.points:
            return self
        first, last = newer.points[0].nbytes, newer.points[-1].nbytes
        kept = [point for point in self.points if not first <= point.nbytes <= last]
        return replace(self, points=tuple(sorted([*kept, *newer.points], key=lambda point: point.nbytes)))


def _winner(by_time: list[Timing], before: str) -> Timing:
    best = by_time[0]
    tied = [each for each in by_time if each.us <= TIE * best.us and each.low <= best.high]
    return next((each for each in tied if each.name == before), min(tied, key=lambda each: each.low))


@dataclass(frozen=True, slots=True)
class Table:
    """All series of one place."""

    where: Where
    series: tuple[Series, ...]

    def best(
        self, operation: Operation, itemsize: int, buffer: BufferKind, nbytes: int, allowed: Collection[str]
    ) -> Verdict | None:
        """Return the verdict for a message, None where nothing near was measured.

        Args:
            operation: which collective.
            itemsize: bytes of an element; where it was not measured, the nearest that was.
            buffer: where the buffers live; another kind says nothing.
            nbytes: nccl-tests' S.
            allowed: names of the candidates that may be taken.
        """
        like = [each for each in self.series if (each.operation, each.buffer) == (operation, buffer)]
        like.sort(key=lambda each: (abs(math.log(each.itemsize / max(itemsize, 1))), each.itemsize))
        return like[0].verdict(nbytes, allowed) if like else None

    def merged(self, newer: Iterable[Series]) -> Table:
        """Return a table that also holds `newer`; what it does not cover stays."""
        series = {each.key: each for each in self.series}
        for each in newer:
            series[each.key] = series[each.key].merged(each) if each.key in series else each
        order = sorted(series, key=lambda key: (key[0].value, key[1], key[2]))
        return replace(self, series=tuple(series[key] for key in order))

    def as_json(self) -> dict[str, Any]:
        """Return the table as it is written."""
        return {
            "schema": SCHEMA,
            "where": asdict(self.where),
            "series": [
                {
                    "operation": each.operation.value,
                    "itemsize": each.itemsize,
                    "buffer": str(each.buffer),
                    "points": [_written(point) for point in each.points],
                }
                for each in self.series
            ],
        }

    @classmethod
    def from_json(cls, found: Any) -> Table:
        """Return the table that `as_json` wrote.

        Raises:
            UsageError: it is none, or of another schema, or damaged; says which.
        """
        schema = found.get("schema") if isinstance(found, Mapping) else None
        if schema != SCHEMA:
            raise UsageError(f"schema {schema!r} is not {SCHEMA}, which `hpccoll tune` of this version writes")
        try:
            return cls(Where(**found["where"]), tuple(_series(each) for each in found["series"]))
        except KeyError as error:
            raise UsageError(f"the tuning table lacks {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"the tuning table is damaged ({error})") from error


def _written(point: Point) -> dict[str, Any]:
    us = {each.name: [each.us, each.low, each.high] for each in point.timings}
    return {"nbytes": point.nbytes, "measured": point.measured, "us": us}


def _series(found: Mapping[str, Any]) -> Series:
    points = sorted((_point(each) for each in found["points"]), key=lambda point: point.nbytes)
    itemsize = int(found["itemsize"])
    if itemsize < 1:
        raise ValueError(f"itemsize {itemsize}")
    return Series(Operation(found["operation"]), itemsize, BufferKind(found["buffer"]), tuple(points))


def _point(found: Mapping[str, Any]) -> Point:
    timings = tuple(Timing(str(name), *map(float, us)) for name, us in found["us"].items())
    for each in timings:
        if not 0 <= each.low <= each.us <= each.high < math.inf:
            raise ValueError(f"{each.name} takes {each.us} us, between {each.low} and {each.high}")
    nbytes = int(found["nbytes"])
    if nbytes < 0:
        raise ValueError(f"a message of {nbytes} bytes")
    return Point(nbytes, str(found["measured"]), timings)
