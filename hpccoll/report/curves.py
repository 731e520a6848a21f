"""Measurements grouped into curves (one engine and algorithm over sizes) and groups of curves that are compared.

If the files hold runs with several MPI libraries, each library has its own curves. A row that was measured several
times is drawn with its last measurement; findings/noise.py compares the repetitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hpccoll.measure.bandwidth import compute_busbw, find_timed_operation
from hpccoll.measure.comparison import TableKey, get_engine_sort_key
from hpccoll.measure.table import PLACES
from hpccoll.records import CollectiveRecord
from hpccoll.report.load import RunMeasurement


class Implementation(NamedTuple):
    """An engine, its algorithm and its MPI library; `library` is empty if all runs use the same one."""

    engine: str
    algorithm: str | None
    library: str = ""

    @property
    def label(self) -> str:
        """The displayed name: `ring`, `mpi`, `mpi (Open MPI 5.0.11)`."""
        own = self.algorithm if self.engine == "hpccoll" and self.algorithm else self.engine
        own = f"{self.engine} {self.algorithm}" if self.algorithm and self.engine != "hpccoll" else own
        return f"{own} ({self.library})" if self.library else own

    @property
    def sort_key(self) -> tuple[int, str, str, str]:
        """Orders other engines before hpccoll, then by name."""
        return *get_engine_sort_key((self.engine, self.algorithm)), self.library


@dataclass(frozen=True, slots=True)
class Curve:
    """The measurements of one implementation, in order of size."""

    implementation: Implementation
    records: tuple[CollectiveRecord, ...]

    def record_at(self, nbytes: int) -> CollectiveRecord | None:
        """Return the record of a size, or None."""
        return next((record for record in self.records if record.nbytes == nbytes), None)


@dataclass(frozen=True, slots=True)
class CurveGroup:
    """The curves of one operation on one job size, in place or out of place, that are drawn and compared together."""

    setting: TableKey
    in_place: bool
    curves: tuple[Curve, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """All sizes of the curves, ascending."""
        return tuple(sorted({record.nbytes for curve in self.curves for record in curve.records}))

    @property
    def place(self) -> str:
        """`in-place` or `out-of-place`."""
        return PLACES[self.in_place]

    def find_fastest(self, nbytes: int) -> tuple[Implementation, CollectiveRecord] | None:
        """Return the fastest implementation at a size and its record, wrong results excluded; None without any."""
        candidates = [
            (curve.implementation, record)
            for curve in self.curves
            if (record := curve.record_at(nbytes)) and not record.wrong
        ]
        return min(candidates, key=lambda candidate: candidate[1].time_us.p50, default=None)

    def find_mpi_record(self, nbytes: int, library: str) -> CollectiveRecord | None:
        """Return the record of an MPI library's own collective at a size, or None."""
        names = [(curve.implementation.engine, curve.implementation.library) for curve in self.curves]
        return self.curves[names.index(("mpi", library))].record_at(nbytes) if ("mpi", library) in names else None


def group_curves(rows: Iterable[RunMeasurement]) -> list[CurveGroup]:
    """Return the groups of curves: settings in order of appearance, in place before out of place."""
    kept = list(rows)
    has_several_libraries = len({row.run.mpi for row in kept}) > 1
    groups: dict[TableKey, dict[bool, dict[Implementation, dict[int, CollectiveRecord]]]] = {}
    for row in kept:
        key = row.record
        setting = TableKey(*(getattr(key, name) for name in TableKey._fields))
        implementation = Implementation(key.engine, key.algorithm, row.run.mpi if has_several_libraries else "")
        curves = groups.setdefault(setting, {}).setdefault(key.in_place, {})
        curves.setdefault(implementation, {})[key.nbytes] = row.record
    return [
        CurveGroup(setting, in_place, _make_curves(curves))
        for setting, places in groups.items()
        for in_place, curves in sorted(places.items(), reverse=True)
    ]


def _make_curves(records: dict[Implementation, dict[int, CollectiveRecord]]) -> tuple[Curve, ...]:
    """Return the sorted curves from the records of each implementation by size."""
    ordered = sorted(records.items(), key=lambda item: item[0].sort_key)
    return tuple(Curve(name, tuple(by_size[nbytes] for nbytes in sorted(by_size))) for name, by_size in ordered)


def get_time_interval_s(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return the median time and the low and high end of its confidence interval, in seconds."""
    time = record.time_us
    return time.p50 * 1e-6, time.p50_low * 1e-6, time.p50_high * 1e-6


def compute_busbw_interval(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return the bus bandwidth at the median time and the low and high end of its interval, in bytes/s."""
    op, row = find_timed_operation(record.op), record
    middle, high, low = (compute_busbw(op, row.nbytes, time, row.ranks) * 1e9 for time in get_time_interval_s(record))
    return middle, low, high
