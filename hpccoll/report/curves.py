"""Groups measurements into curves (one engine and algorithm over message sizes) and curves into comparable groups.

If the runs used several MPI libraries, each library has its own curves. If a case was measured several times, the last
measurement is drawn, and findings/noise.py compares the repetitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpccoll.measure.bandwidth import compute_busbw, find_timed_operation
from hpccoll.measure.display.table import PLACES
from hpccoll.measure.results.comparison import TableKey
from hpccoll.measure.verdict.measured_case import Implementation, MeasuredCase
from hpccoll.records import CollectiveRecord
from hpccoll.report.load import RunMeasurement


@dataclass(frozen=True, slots=True)
class Curve:
    """The measurements of one implementation, in order of message size."""

    implementation: Implementation
    records: tuple[CollectiveRecord, ...]

    def get_record(self, nbytes: int) -> CollectiveRecord | None:
        """Return the record of a message of exactly `nbytes` bytes, or None."""
        return next((record for record in self.records if record.nbytes == nbytes), None)


@dataclass(frozen=True, slots=True)
class CurveGroup:
    """The curves of one operation on one job size, in place or out of place, that are drawn and compared together."""

    setting: TableKey
    in_place: bool
    curves: tuple[Curve, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The message sizes of all curves, in ascending order."""
        return tuple(sorted({record.nbytes for curve in self.curves for record in curve.records}))

    @property
    def place(self) -> str:
        """`in-place` or `out-of-place`."""
        return PLACES[self.in_place]

    def list_cases(self) -> list[MeasuredCase]:
        """Return the measurements of all curves as one case per message size, in ascending order."""
        by_size: dict[int, dict[Implementation, CollectiveRecord]] = {nbytes: {} for nbytes in self.sizes}
        for curve in self.curves:
            for record in curve.records:
                by_size[record.nbytes][curve.implementation] = record
        return [MeasuredCase(self.setting, self.in_place, nbytes, records) for nbytes, records in by_size.items()]

    def find_fastest(self, nbytes: int) -> tuple[Implementation, CollectiveRecord] | None:
        """Return the implementation of least median time at a size, and its record; None if all results are wrong."""
        case = next(case for case in self.list_cases() if case.nbytes == nbytes)
        return None if case.fastest is None else (case.fastest, case.records[case.fastest])

    def find_mpi_record(self, nbytes: int, library: str) -> CollectiveRecord | None:
        """Return the record of engine `mpi` with the MPI library `library` at a message size, or None."""
        names = [(curve.implementation.engine, curve.implementation.library) for curve in self.curves]
        return self.curves[names.index(("mpi", library))].get_record(nbytes) if ("mpi", library) in names else None


def group_curves(rows: Iterable[RunMeasurement]) -> list[CurveGroup]:
    """Return the groups of comparable curves in order of appearance, but in-place groups before out-of-place ones."""
    kept = list(rows)
    has_several_libraries = len({row.run.mpi for row in kept}) > 1
    groups: dict[TableKey, dict[bool, dict[Implementation, dict[int, CollectiveRecord]]]] = {}
    for row in kept:
        record = row.record
        setting = TableKey(*(getattr(record, name) for name in TableKey._fields))
        implementation = Implementation(record.engine, record.algorithm, row.run.mpi if has_several_libraries else "")
        curves = groups.setdefault(setting, {}).setdefault(record.in_place, {})
        curves.setdefault(implementation, {})[record.nbytes] = record
    return [
        CurveGroup(setting, in_place, _make_curves(curves))
        for setting, places in groups.items()
        for in_place, curves in sorted(places.items(), reverse=True)
    ]


def _make_curves(records: dict[Implementation, dict[int, CollectiveRecord]]) -> tuple[Curve, ...]:
    """Return one curve per implementation, sorted; `records` maps each implementation's message sizes to records."""
    ordered = sorted(records.items(), key=lambda item: item[0].sort_key)
    return tuple(Curve(name, tuple(by_size[nbytes] for nbytes in sorted(by_size))) for name, by_size in ordered)


def get_time_interval_s(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return the median time and the low and high end of its confidence interval, in seconds."""
    time = record.time_us
    return time.p50 * 1e-6, time.p50_low * 1e-6, time.p50_high * 1e-6


def compute_busbw_interval(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return the bus bandwidth at the median time and both ends of its confidence interval, in bytes/s."""
    op, row = find_timed_operation(record.op), record
    middle, high, low = (compute_busbw(op, row.nbytes, time, row.ranks) * 1e9 for time in get_time_interval_s(record))
    return middle, low, high
