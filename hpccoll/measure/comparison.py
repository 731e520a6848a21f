"""Compares engines and algorithms on the same operation and size.

The ratio of a record is the median of engine `mpi`, in the same place (in place or out of place), over the record's
median: above 1 the record is faster. The best is the smallest median without wrong results.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hpccoll.measure.statistics import Interval, ratio_of_medians
from hpccoll.records import CollectiveRecord

REFERENCE = "mpi"
_ENGINES = ("mpi", "nccl", "gloo", "hpccoll")  # libraries to compare with come first


class TableKey(NamedTuple):
    """The fields that all rows of one table share."""

    op: str
    dtype: str
    redop: str | None
    root: int | None
    buffer: str
    ranks: int
    nodes: int


@dataclass(frozen=True, slots=True)
class EngineRecords:
    """The records of one engine and algorithm at one size; None for a place that was not measured."""

    engine: str
    algorithm: str | None
    out_of_place: CollectiveRecord | None
    in_place: CollectiveRecord | None

    @property
    def records(self) -> tuple[CollectiveRecord, ...]:
        """The measured records."""
        return tuple(record for record in (self.out_of_place, self.in_place) if record is not None)

    def get_record(self, in_place: bool) -> CollectiveRecord | None:
        """Return the record in place or out of place, None if it was not measured."""
        return self.in_place if in_place else self.out_of_place


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """All records of one table key and size."""

    setting: TableKey
    nbytes: int
    entries: tuple[EngineRecords, ...]

    def ratio_to_mpi(self, record: CollectiveRecord) -> Interval | None:
        """Return median(mpi) / median(record) with its interval; None for mpi itself and if mpi was not measured."""
        if record.engine == REFERENCE:
            return None
        for entry in self.entries:
            reference = entry.get_record(record.in_place)
            if entry.engine == REFERENCE and reference is not None:
                return compute_ratio(record, reference)
        return None

    @property
    def best(self) -> EngineRecords | None:
        """The entry with the smallest median in either place; None if all results were wrong."""
        medians = [
            (record.time_us.p50, at)
            for at, entry in enumerate(self.entries)
            for record in entry.records
            if not record.wrong
        ]
        return self.entries[min(medians)[1]] if medians else None


def compute_ratio(record: CollectiveRecord, reference: CollectiveRecord) -> Interval | None:
    """Return median(reference) / median(record) with its interval; None if a sample of the record is zero."""
    if record.time_us.min <= 0:
        return None
    return ratio_of_medians(reference.samples_us, record.samples_us)


def compare_engines(records: Iterable[CollectiveRecord]) -> list[EngineComparison]:
    """Return one comparison per table key and size: keys in order of appearance, sizes ascending.

    Of a case that was measured twice, the last record counts.
    """
    found: dict[TableKey, dict[int, list[CollectiveRecord]]] = {}
    for record in records:
        row = record
        setting = TableKey(*(getattr(row, name) for name in TableKey._fields))
        found.setdefault(setting, {}).setdefault(row.nbytes, []).append(record)
    return [
        EngineComparison(setting, nbytes, _entries(sizes[nbytes]))
        for setting, sizes in found.items()
        for nbytes in sorted(sizes)
    ]


def engine_order(name: tuple[str, str | None]) -> tuple[int, str, str]:
    """Return the sort key of (engine, algorithm): other libraries first, then hpccoll's algorithms by name."""
    engine, algorithm = name
    known = _ENGINES.index(engine) if engine in _ENGINES else len(_ENGINES)
    return known, engine, algorithm or ""


def _entries(records: list[CollectiveRecord]) -> tuple[EngineRecords, ...]:
    places = {(record.engine, record.algorithm, record.in_place): record for record in records}
    names = sorted({(engine, algorithm) for engine, algorithm, _ in places}, key=engine_order)
    return tuple(EngineRecords(*name, places.get((*name, False)), places.get((*name, True))) for name in names)
