"""Which rows belong side by side: the same operation and size, by different engines and algorithms.

Within such a case every row is held against the `mpi` engine's of the same place (in place or out of place), as the
ratio of medians mpi / row: above 1 the row is faster. The best is the row with the smallest median whose results were
not found wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hpccoll.measure.statistics import Interval, ratio_of_medians
from hpccoll.records import CollectiveRecord

REFERENCE = "mpi"
_ENGINES = ("mpi", "nccl", "gloo", "hpccoll")  # whom one compares with comes first


class TableKey(NamedTuple):
    """What rows of one table have in common."""

    op: str
    dtype: str
    redop: str | None
    root: int | None
    buffer: str
    ranks: int
    nodes: int


@dataclass(frozen=True, slots=True)
class EngineRecords:
    """One engine and algorithm: its records out of place and in place, where measured."""

    engine: str
    algorithm: str | None
    out_of_place: CollectiveRecord | None
    in_place: CollectiveRecord | None

    @property
    def records(self) -> tuple[CollectiveRecord, ...]:
        """Those that were measured."""
        return tuple(record for record in (self.out_of_place, self.in_place) if record is not None)

    def get_record(self, in_place: bool) -> CollectiveRecord | None:
        """Return the record of one place, or None."""
        return self.in_place if in_place else self.out_of_place


@dataclass(frozen=True, slots=True)
class EngineComparison:
    """Everything measured of one setting and size."""

    setting: TableKey
    nbytes: int
    entries: tuple[EngineRecords, ...]

    def ratio_to_mpi(self, record: CollectiveRecord) -> Interval | None:
        """Return median(mpi) / median(record) with its interval; None for mpi itself and where it was not measured."""
        if record.engine == REFERENCE:
            return None
        for entry in self.entries:
            reference = entry.get_record(record.in_place)
            if entry.engine == REFERENCE and reference is not None:
                return compute_ratio(record, reference)
        return None

    @property
    def best(self) -> EngineRecords | None:
        """The entry with the smallest median, in whichever place; None where no result was right."""
        medians = [
            (record.time_us.p50, at)
            for at, entry in enumerate(self.entries)
            for record in entry.records
            if not record.wrong
        ]
        return self.entries[min(medians)[1]] if medians else None


def compute_ratio(record: CollectiveRecord, reference: CollectiveRecord) -> Interval | None:
    """Return median(reference) / median(record) with its interval; None where the record took no time at all."""
    if record.time_us.min <= 0:
        return None
    return ratio_of_medians(reference.samples_us, record.samples_us)


def compare_engines(records: Iterable[CollectiveRecord]) -> list[EngineComparison]:
    """Return the cases: settings in order of appearance, sizes ascending, entries in a fixed order.

    Of rows that were measured twice the last one counts.
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
    """Sort key of (engine, algorithm): peers first, then this project's algorithms by name."""
    engine, algorithm = name
    known = _ENGINES.index(engine) if engine in _ENGINES else len(_ENGINES)
    return known, engine, algorithm or ""


def _entries(records: list[CollectiveRecord]) -> tuple[EngineRecords, ...]:
    places = {(record.engine, record.algorithm, record.in_place): record for record in records}
    names = sorted({(engine, algorithm) for engine, algorithm, _ in places}, key=engine_order)
    return tuple(EngineRecords(*name, places.get((*name, False)), places.get((*name, True))) for name in names)
