"""The tuning table: the measured time of every candidate, per operation, element size, kind of buffer and message size.

The winner for a message size that was not measured is that of the nearest measured size, at most a factor
`MAX_SIZE_RATIO` away. Two candidates (algorithms) tie if their 95 % intervals overlap and their medians differ by at
most 5 %. The winner of a tie is the winner of the next smaller size if that candidate is tied, else the candidate whose
interval has the lowest lower end.

Tables convert to and from JSON, schema `hpccoll-tuning/1`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.plan import Operation

SCHEMA_FAMILY = "hpccoll-tuning/"
SCHEMA = SCHEMA_FAMILY + "1"
MPI_LIBRARY = "mpi"  # the candidate name of the MPI library's own collective
MAX_SIZE_RATIO = 4
MIN_BYTES = 8  # shorter messages are treated as 8 bytes, because they take as long
TIE_RATIO = 1.05


class BufferKind(StrEnum):
    """The kind of memory of buffers: ordinary host memory, memory shared by the ranks of a node, or CUDA memory."""

    HOST = "host"
    SYMMETRIC = "symmetric"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class TuningSite:
    """The circumstances for which measured times are valid: MPI library and version, host, layout of ranks on nodes."""

    mpi: str
    host: str
    layout: str

    @property
    def description(self) -> str:
        """The MPI library, the layout of ranks and the host in words, for error messages."""
        return f"{self.mpi} with {self.layout} of {self.host}"


@dataclass(frozen=True, slots=True)
class CandidateTiming:
    """The median time of a candidate (an algorithm, or the MPI library) and its 95 % interval, in microseconds."""

    name: str
    us: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class TuningPoint:
    """The timings of all candidates (algorithms and the MPI library) for messages of `nbytes` bytes.

    `measured` is the date of the measurement.
    """

    nbytes: int
    measured: str
    timings: tuple[CandidateTiming, ...]


@dataclass(frozen=True, slots=True)
class MeasuredWinner:
    """The winner at a message size, the next fastest (None if only one algorithm was measured), and all timings.

    The winner is the fastest algorithm, or one that ties with it.
    """

    fastest: CandidateTiming
    runner_up: CandidateTiming | None
    point: TuningPoint

    @property
    def has_tie(self) -> bool:
        """Whether the two fastest algorithms tie: overlapping intervals, and medians at most 5 % apart."""
        return self.runner_up is not None and _is_tie(self.fastest, self.runner_up)


@dataclass(frozen=True, slots=True)
class TuningSeries:
    """All timings of one operation, element size and kind of buffer: one point per message size, in ascending order."""

    operation: Operation
    itemsize: int
    buffer: BufferKind
    points: tuple[TuningPoint, ...]

    @property
    def key(self) -> tuple[Operation, int, BufferKind]:
        """The operation, element size and kind of buffer, which identify this series in a table."""
        return self.operation, self.itemsize, self.buffer

    def find_nearest_point(self, nbytes: int) -> TuningPoint | None:
        """Return the `TuningPoint` (the timings at one message size) of the measured size nearest to `nbytes`.

        The result is None if the ratio of the two sizes exceeds `MAX_SIZE_RATIO`.
        """
        if not self.points:
            return None
        size = max(nbytes, MIN_BYTES)
        point = min(self.points, key=lambda point: abs(math.log(max(point.nbytes, MIN_BYTES) / size)))
        nearest = max(point.nbytes, MIN_BYTES)
        return point if nearest <= MAX_SIZE_RATIO * size and size <= MAX_SIZE_RATIO * nearest else None

    def find_winner(self, nbytes: int, allowed: Collection[str]) -> MeasuredWinner | None:
        """Return the `MeasuredWinner` of the `allowed` algorithms; None if none was measured near `nbytes` bytes."""
        nearest, previous = self.find_nearest_point(nbytes), ""
        if nearest is None:
            return None
        for point in self.points:
            timings = sorted(
                (timing for timing in point.timings if timing.name in allowed), key=lambda timing: timing.us
            )
            if timings:
                fastest = _break_tie(timings, previous)
                previous = fastest.name
                if point is nearest:
                    runner_up = next((timing for timing in timings if timing is not fastest), None)
                    return MeasuredWinner(fastest, runner_up, point)
        return None

    def interpolate(self, name: str, nbytes: int) -> CandidateTiming | None:
        """Return the median time and interval of candidate `name` for messages of `nbytes` bytes, interpolated.

        Between two measured sizes, the logarithm of the time is linear in the logarithm of the size. The result is None
        unless a size of at most `nbytes` bytes and a size of at least `nbytes` bytes were measured, both at most a
        factor `MAX_SIZE_RATIO` away from `nbytes`.
        """
        size = max(nbytes, MIN_BYTES)
        measured = {
            max(point.nbytes, MIN_BYTES): timing for point in self.points for timing in point.timings
            if timing.name == name and timing.low > 0
        }  # fmt: skip
        below = max((known for known in measured if known <= size), default=0)
        above = min((known for known in measured if known >= size), default=0)
        if not below or not above or max(size / below, above / size) > MAX_SIZE_RATIO:
            return None
        share = math.log(size / below) / math.log(above / below) if below < above else 0.0
        pairs = ((getattr(measured[known], field) for known in (below, above)) for field in ("us", "low", "high"))
        return CandidateTiming(name, *(a ** (1 - share) * b**share for a, b in pairs))

    def merge(self, newer: TuningSeries) -> TuningSeries:
        """Return a new series: the timings of `newer`, and this series' timings outside the size range of `newer`."""
        if not newer.points:
            return self
        first, last = newer.points[0].nbytes, newer.points[-1].nbytes
        kept = [point for point in self.points if not first <= point.nbytes <= last]
        return replace(self, points=tuple(sorted([*kept, *newer.points], key=lambda point: point.nbytes)))


def _is_tie(one: CandidateTiming, other: CandidateTiming) -> bool:
    """Whether two algorithms tie: their 95 % intervals overlap and their medians differ by at most 5 %."""
    shorter, longer = sorted((one, other), key=lambda timing: timing.us)
    return longer.us <= TIE_RATIO * shorter.us and longer.low <= shorter.high


def _break_tie(by_time: list[CandidateTiming], previous: str) -> CandidateTiming:
    """Return the winner among `by_time`, timings sorted by median.

    Of the timings that tie with the first, the winner is that of `previous` (the winner at the next smaller message
    size), or, if `previous` is not among them, the timing whose interval has the lowest lower end.
    """
    best = by_time[0]
    tied = [timing for timing in by_time if _is_tie(best, timing)]
    return next((timing for timing in tied if timing.name == previous), min(tied, key=lambda timing: timing.low))


@dataclass(frozen=True, slots=True)
class TuningTable:
    """All timings that were measured at one site (MPI library, kind of host and layout of ranks)."""

    site: TuningSite
    series: tuple[TuningSeries, ...]

    def find_winner(
        self, operation: Operation, itemsize: int, buffer: BufferKind, nbytes: int, allowed: Collection[str]
    ) -> MeasuredWinner | None:
        """Return the `MeasuredWinner` of the `allowed` algorithms, or None if none was measured near `nbytes` bytes.

        The timings are those of the nearest measured element size (`itemsize` in bytes).
        """
        series = self.find_series(operation, itemsize, buffer)
        return None if series is None else series.find_winner(nbytes, allowed)

    def find_series(self, operation: Operation, itemsize: int, buffer: BufferKind) -> TuningSeries | None:
        """Return the series of an operation and kind of buffer with the nearest element size; None if there is none.

        `itemsize` is the element size in bytes.
        """
        matching = (series for series in self.series if (series.operation, series.buffer) == (operation, buffer))
        wanted = max(itemsize, 1)
        return min(
            matching, key=lambda series: (abs(math.log(series.itemsize / wanted)), series.itemsize), default=None
        )

    def merge(self, newer: Iterable[TuningSeries]) -> TuningTable:
        """Return a new table in which the timings of `newer` replace those of this table in the same range of sizes."""
        by_key = {series.key: series for series in self.series}
        for series in newer:
            by_key[series.key] = by_key[series.key].merge(series) if series.key in by_key else series
        order = sorted(by_key, key=lambda key: (key[0].value, key[1], key[2]))
        return replace(self, series=tuple(by_key[key] for key in order))

    def as_json(self) -> dict[str, Any]:
        """Return the table as dictionaries and lists that `json.dumps` accepts."""
        return {
            "schema": SCHEMA,
            "where": asdict(self.site),
            "series": [
                {
                    "operation": series.operation.value,
                    "itemsize": series.itemsize,
                    "buffer": str(series.buffer),
                    "points": [_point_as_json(point) for point in series.points],
                }
                for series in self.series
            ],
        }

    @classmethod
    def from_json(cls, data: Any) -> TuningTable:
        """Return the table in `data`, the result of `as_json`; raise UsageError if `data` is no tuning table."""
        schema = data.get("schema") if isinstance(data, Mapping) else None
        if schema != SCHEMA:
            raise UsageError(f"schema {schema!r} is not {SCHEMA}, which `hpccoll tune` of this version writes")
        try:
            return cls(TuningSite(**data["where"]), tuple(_parse_series(series) for series in data["series"]))
        except KeyError as error:
            raise UsageError(f"the tuning table lacks {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"the tuning table is damaged ({error})") from error


def _point_as_json(point: TuningPoint) -> dict[str, Any]:
    """Return the timings of one message size as an object of a tuning table's JSON file."""
    us = {timing.name: [timing.us, timing.low, timing.high] for timing in point.timings}
    return {"nbytes": point.nbytes, "measured": point.measured, "us": us}


def _parse_series(data: Mapping[str, Any]) -> TuningSeries:
    """Return the TuningSeries in an object of a JSON file; raise KeyError, TypeError or ValueError if it is damaged."""
    points = sorted((_parse_point(entry) for entry in data["points"]), key=lambda point: point.nbytes)
    itemsize = int(data["itemsize"])
    if itemsize < 1:
        raise ValueError(f"itemsize {itemsize} is not positive")
    return TuningSeries(Operation(data["operation"]), itemsize, BufferKind(data["buffer"]), tuple(points))


def _parse_point(data: Mapping[str, Any]) -> TuningPoint:
    """Return the TuningPoint in an object of a JSON file; raise KeyError, TypeError or ValueError if it is damaged."""
    timings = tuple(CandidateTiming(str(name), *map(float, us)) for name, us in data["us"].items())
    for timing in timings:
        if not 0 <= timing.low <= timing.us <= timing.high < math.inf:
            raise ValueError(
                f"{timing.name} has median {timing.us} us outside its interval {timing.low} to {timing.high}"
            )
    nbytes = int(data["nbytes"])
    if nbytes < 0:
        raise ValueError(f"message size {nbytes} bytes is negative")
    return TuningPoint(nbytes, str(data["measured"]), timings)
