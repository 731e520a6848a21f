"""Measurements that are compared with each other: one operation at one message size, by several implementations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hpccoll.measure.results.comparison import EngineComparison, TableKey, get_engine_sort_key, is_tie
from hpccoll.records import CollectiveRecord


class Implementation(NamedTuple):
    """An engine, its algorithm and its MPI library; `library` is empty if all runs use the same MPI library."""

    engine: str
    algorithm: str | None
    library: str = ""

    @property
    def label(self) -> str:
        """The name that charts display, such as `ring`, `mpi` or `mpi (Open MPI 5.0.11)`."""
        names = [self.engine if self.engine != "hpccoll" or not self.algorithm else "", self.algorithm or ""]
        label = " ".join(name for name in names if name)
        return f"{label} ({self.library})" if self.library else label

    @property
    def sort_key(self) -> tuple[int, str, str, str]:
        """The sort key, by which engines of other libraries come before hpccoll, and algorithms are sorted by name."""
        return *get_engine_sort_key((self.engine, self.algorithm)), self.library


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """The records of all implementations for one setting and message size, either in place or out of place."""

    setting: TableKey
    in_place: bool
    nbytes: int
    records: Mapping[Implementation, CollectiveRecord]

    @property
    def fastest(self) -> Implementation | None:
        """The implementation with the smallest median; None if all results were wrong."""
        medians = [(record.time_us.p50, i) for i, record in enumerate(self.records.values()) if not record.wrong]
        return list(self.records)[min(medians)[1]] if medians else None

    def list_tied(self) -> tuple[Implementation, ...]:
        """Return the fastest implementation and all that tie with it, in order of their medians."""
        fastest = self.fastest
        if fastest is None:
            return ()
        best = self.records[fastest]
        right = [(record.time_us.p50, name) for name, record in self.records.items() if not record.wrong]
        ordered = [name for _, name in sorted(right, key=lambda pair: (pair[0], pair[1].sort_key))]
        return (fastest, *(n for n in ordered if n != fastest and is_tie(self.records[n], best)))


def list_measured_cases(comparisons: Iterable[EngineComparison]) -> list[MeasuredCase]:
    """Return the in-place and the out-of-place records of each comparison as cases of their own."""
    cases = []
    for comparison in comparisons:
        for in_place in (True, False):
            records = {
                Implementation(entry.engine, entry.algorithm): record
                for entry in comparison.entries
                if (record := entry.get_record(in_place)) is not None
            }
            if records:
                cases.append(MeasuredCase(comparison.setting, in_place, comparison.nbytes, records))
    return cases
