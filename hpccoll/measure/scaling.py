"""How rows change with the number of nodes: results of several runs, such as the tasks of a sweep, side by side.

For each operation, size, place and contender, its time on every number of ranks that was measured, and each time over
the first: 1 where a larger job costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hpccoll.errors import UsageError
from hpccoll.measure import result_file
from hpccoll.measure.record import SCHEMA, CollectiveRecord
from hpccoll.measure.statistics import TimeSummary


class Series(NamedTuple):
    """What is compared over nodes; as in a row of `hpccoll bench`."""

    op: str
    nbytes: int
    in_place: bool
    dtype: str
    buffer: str
    engine: str
    algorithm: str | None


class Place(NamedTuple):
    """Where a row was measured."""

    nodes: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Point:
    """One series on one number of nodes.

    Args:
        place: nodes and ranks.
        time_us: as it was measured there.
        busbw: in GB/s, at the median.
    """

    place: Place
    time_us: TimeSummary
    busbw: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """A series with its points, the fewest nodes first."""

    series: Series
    points: tuple[Point, ...]

    @property
    def ratios(self) -> tuple[float, ...]:
        """Each median over that of the fewest nodes."""
        return tuple(point.time_us.p50 / self.points[0].time_us.p50 for point in self.points)

    def record(self) -> dict[str, Any]:
        """Return the record of kind `scaling`."""
        return {
            "schema": SCHEMA,
            "kind": "scaling",
            **self.series._asdict(),
            "points": [
                {
                    **point.place._asdict(),
                    "p50_us": point.time_us.p50,
                    "p50_low_us": point.time_us.p50_low,
                    "p50_high_us": point.time_us.p50_high,
                    "busbw_GBps": point.busbw,
                    "ratio": ratio,
                }
                for point, ratio in zip(self.points, self.ratios, strict=True)
            ],
        }


def find_result_files(paths: Sequence[str]) -> list[Path]:
    """Return the result files that `paths` name; a folder stands for all `.jsonl` files beneath it.

    Raises:
        UsageError: a path is not there, or a folder holds none.
    """
    found: list[Path] = []
    for name in paths:
        path = Path(name)
        if not path.exists():
            raise UsageError(f"{name}: no such file or folder; name what `hpccoll bench --json` wrote")
        files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        if not files:
            raise UsageError(f"{name}: no .jsonl file is in this folder; name what `hpccoll bench --json` wrote")
        found += files
    return found


def scalings(records: Iterable[CollectiveRecord]) -> list[Scaling]:
    """Return what was measured on two numbers of ranks at least; of what was measured twice there, the last counts."""
    found: dict[Series, dict[Place, Point]] = {}
    for record in records:
        row = record.row
        series = Series(row.op, row.nbytes, row.in_place, row.dtype, row.buffer, row.engine, row.algorithm)
        place = Place(row.nodes, row.ranks)
        found.setdefault(series, {})[place] = Point(place, record.time_us, record.busbw)
    ordered = sorted(found.items(), key=lambda item: (*item[0][:5], item[0].engine != "mpi", item[0].algorithm or ""))
    return [
        Scaling(series, tuple(points[place] for place in sorted(points)))
        for series, points in ordered
        if len(points) > 1
    ]


def read_measurements(files: Iterable[Path]) -> list[CollectiveRecord]:
    """Return the measurements in result files; a torn last line is left out.

    Raises:
        UsageError: a file is not one of hpccoll's.
    """
    return [record for file in files for record in result_file.read_records(file, "FILE").collectives()]
