"""Measurements that are compared with each other: one operation at one message size, by several implementations.

An implementation is an engine (library) and its algorithm. A choice is what a user can ask for: an algorithm of hpccoll
by its name, or another library by the name of its engine. A measurement of `auto` counts as one of the choice that
`auto` selected. If a choice has two records, the record with the smaller median stands for the choice in all ratios and
ties. Ratios are times of one choice divided by times of another, so a ratio above 1 means that the second choice is
faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from hpccoll.measure.contenders import AUTO, OWN
from hpccoll.records import CollectiveRecord
from hpccoll.selection.tuning_table import TIE_RATIO
from hpccoll.statistics import Interval, ratio_of_medians

REFERENCE = "mpi"
_ENGINES = ("mpi", "nccl", "gloo", "torch-hpccoll", "hpccoll")  # the order of engines in tables and plots


class TableKey(NamedTuple):
    """The fields that all measurements of one table share, such as operation and number of ranks."""

    op: str
    dtype: str
    redop: str | None
    root: int | None
    buffer: str
    ranks: int
    nodes: int


class Implementation(NamedTuple):
    """The software that carried out a collective: a library (engine), its algorithm, and the MPI library below it.

    `algorithm` is None if the engine chose it; `library` is empty if all runs used the same MPI library.
    """

    engine: str
    algorithm: str | None
    library: str = ""

    @property
    def label(self) -> str:
        """The name that charts display, such as `ring`, `mpi` or `mpi (Open MPI 5.0.11)`."""
        names = [self.engine if self.engine != OWN or not self.algorithm else "", self.algorithm or ""]
        label = " ".join(name for name in names if name)
        return f"{label} ({self.library})" if self.library else label

    @property
    def sort_key(self) -> tuple[int, str, str, str]:
        """The sort key, by which engines of other libraries come before hpccoll, and algorithms are sorted by name."""
        known = _ENGINES.index(self.engine) if self.engine in _ENGINES else len(_ENGINES)
        return known, self.engine, self.algorithm or "", self.library


@dataclass(frozen=True)  # without slots, which `cached_property` does not support
class MeasuredCase:
    """The records of all implementations for one setting and message size, either in place or out of place."""

    setting: TableKey  # the operation, element type, number of ranks and other fields that all records share
    in_place: bool  # whether results overwrite the inputs
    nbytes: int  # the message size in bytes
    # The record of each implementation, sorted by implementation; also records with wrong results
    records: Mapping[Implementation, CollectiveRecord]

    @property
    def rows(self) -> tuple[CollectiveRecord, ...]:
        """All records, also those with wrong results."""
        return tuple(self.records.values())

    @cached_property
    def right(self) -> dict[Implementation, CollectiveRecord]:
        """The records without wrong results, by implementation, sorted by ascending median."""
        right = [(name, record) for name, record in self.records.items() if not record.wrong]
        return dict(sorted(right, key=lambda item: item[1].time_us.p50))

    @property
    def fastest(self) -> Implementation | None:
        """The implementation with the smallest median time; None if all results were wrong."""
        return next(iter(self.right), None)

    @property
    def fastest_record(self) -> CollectiveRecord | None:
        """The record with the smallest median time; None if all results were wrong."""
        return next(iter(self.right.values()), None)

    @cached_property
    def tied(self) -> tuple[Implementation, ...]:
        """The fastest implementation and all that tie with it, in order of their medians."""
        return tuple(name for name, record in self.right.items() if self._ties_with_fastest(record))

    @cached_property
    def by_choice(self) -> dict[str, CollectiveRecord]:
        """The fastest record of each choice (`ring`, `mpi`, `gloo`, ...) without wrong results, by ascending median."""
        by_choice: dict[str, CollectiveRecord] = {}
        for record in self.right.values():
            by_choice.setdefault(get_choice(record), record)
        return by_choice

    @property
    def choice(self) -> str:
        """The name of the fastest algorithm or other library, such as `ring` or `mpi`; `-` if all results are wrong."""
        return next(iter(self.by_choice), "-")

    @cached_property
    def best_choices(self) -> tuple[str, ...]:
        """The names of the fastest algorithm or other library and of those that tie with it, by ascending median."""
        return tuple(choice for choice, record in self.by_choice.items() if self._ties_with_fastest(record))

    def ratio_to_mpi(self, name: Implementation) -> Interval | None:
        """Return the median time of engine `mpi` divided by that of `name`, with the ratio's 95 % interval.

        The result is None for `mpi` itself, or if `mpi` was not measured.
        """
        reference = self.records.get(Implementation(REFERENCE, None, name.library))
        return None if reference is None or name.engine == REFERENCE else compute_ratio(self.records[name], reference)

    def compare_engine(self, engine: str) -> Interval | None:
        """Return an engine's median time divided by that of the fastest (`choice`), with the ratio's 95 % interval.

        The result is None if the engine was not measured or its result is wrong.
        """
        other = self.by_choice.get(engine)
        return compute_ratio(self.by_choice[self.choice], other) if other is not None else None

    def divide_times(self, engine: str, choice: str) -> float | None:
        """Return the median time of `engine` divided by that of `choice`; None if one was not measured or is wrong."""
        theirs, mine = self.by_choice.get(engine), self.by_choice.get(choice)
        return theirs.time_us.p50 / mine.time_us.p50 if theirs and mine and mine.time_us.p50 else None

    @property
    def auto(self) -> CollectiveRecord | None:
        """The record of hpccoll's selection (algorithm `auto`); None if it was not measured or its result was wrong."""
        return next((record for record in self.right.values() if record.algorithm == AUTO), None)

    @property
    def auto_ratio(self) -> float:
        """The median time of `auto` divided by that of the fastest (`choice`); 1 if `auto` was not measured."""
        if self.auto is None or not (shortest := self.by_choice[self.choice].time_us.p50):
            return 1.0
        return self.auto.time_us.p50 / shortest

    @property
    def is_auto_best(self) -> bool:
        """Whether `auto` selected one of `best_choices`, and the measured time of `auto` ties with the fastest."""
        auto = self.auto
        return auto is not None and get_choice(auto) in self.best_choices and self._ties_with_fastest(auto)

    @property
    def can_tuning_help(self) -> bool:
        """Whether the fastest algorithm that `auto` can select is faster than the selected one, and does not tie."""
        if self.auto is None:
            return False
        selectable = next(row for row in self.by_choice.values() if row.engine in (OWN, REFERENCE))
        return not is_tie(self.by_choice[get_choice(self.auto)], selectable)

    def _ties_with_fastest(self, record: CollectiveRecord) -> bool:
        """Whether a record is the fastest record of this case, or ties with the fastest (`is_tie`)."""
        fastest = self.fastest_record
        return fastest is not None and (record is fastest or is_tie(record, fastest))


def get_choice(record: CollectiveRecord) -> str:
    """Return the name of a record's algorithm, such as `ring`, or of the engine of another library, such as `mpi`.

    For a record of `auto`, return the algorithm that `auto` selected.
    """
    if record.engine != OWN:
        return record.engine
    return (record.selected if record.algorithm == AUTO else record.algorithm) or AUTO


def compute_ratio(record: CollectiveRecord, reference: CollectiveRecord) -> Interval | None:
    """Return median(reference) / median(record) with its 95 % interval; None if a sample of `record` is zero."""
    if record.time_us.min <= 0:
        return None
    return ratio_of_medians(reference.samples_us, record.samples_us)


def is_tie(record: CollectiveRecord, other: CollectiveRecord) -> bool:
    """Whether two records tie: the interval of their longer median / shorter median begins at `TIE_RATIO` or below.

    The lower end of the 95 % interval is rounded to two decimals, as tables print it, so that readers of a table find
    the same ties. Algorithms that tie in a tuning table also tie here; algorithms with wide intervals may tie here but
    not in a tuning table.
    """
    if record.time_us.min <= 0 or other.time_us.min <= 0:
        return record.time_us.p50 == other.time_us.p50
    shorter, longer = sorted((record, other), key=lambda row: row.time_us.p50)
    return round(ratio_of_medians(longer.samples_us, shorter.samples_us).low, 2) <= TIE_RATIO


def make_cases(measured: Iterable[tuple[Implementation, CollectiveRecord]]) -> list[MeasuredCase]:
    """Return one `MeasuredCase` for each setting, message size and value of `in_place` in the records.

    Settings (`TableKey`: operation, element type, ranks, ...) are in the order in which they first appear. The in-place
    cases of a setting come first, then its out-of-place cases, each by ascending message size. If an implementation has
    several records for one case, the last of them is used.
    """
    tables: dict[TableKey, dict[tuple[bool, int], dict[Implementation, CollectiveRecord]]] = {}
    for name, record in measured:
        setting = TableKey(*(getattr(record, field) for field in TableKey._fields))
        tables.setdefault(setting, {}).setdefault((not record.in_place, record.nbytes), {})[name] = record
    return [
        MeasuredCase(setting, not is_out, nbytes, dict(sorted(records.items(), key=lambda item: item[0].sort_key)))
        for setting, sizes in tables.items()
        for (is_out, nbytes), records in sorted(sizes.items(), key=lambda item: item[0])
    ]


def list_cases(records: Iterable[CollectiveRecord]) -> list[MeasuredCase]:
    """Return the cases of `records`, which all used one MPI library, grouped and sorted as by `make_cases`."""
    return make_cases((Implementation(record.engine, record.algorithm), record) for record in records)


def list_table_cases(records: Iterable[CollectiveRecord]) -> list[MeasuredCase]:
    """Return the cases of `list_cases`, sorted so that the cases of each printed table (`get_table`) are adjacent."""
    cases = list_cases(records)
    tables = list(dict.fromkeys(map(get_table, cases)))
    return sorted(cases, key=lambda case: tables.index(get_table(case)))


def get_table(case: MeasuredCase) -> tuple[TableKey, bool]:
    """Return the pair (setting without kind of memory, `in_place`), which is equal for all cases of a printed table."""
    return case.setting._replace(buffer=""), case.in_place


def pair_places(cases: Iterable[MeasuredCase]) -> list[tuple[MeasuredCase, ...]]:
    """Return a tuple for each setting and message size: those of its cases out of place and in place that exist."""
    settings: dict[TableKey, list[MeasuredCase]] = {}
    for case in cases:
        settings.setdefault(case.setting, []).append(case)
    return [
        tuple(pair)
        for members in settings.values()
        for _, pair in groupby(
            sorted(members, key=lambda case: (case.nbytes, case.in_place)), key=lambda case: case.nbytes
        )
    ]


def list_implementations(cases: Iterable[MeasuredCase]) -> list[Implementation]:
    """Return the implementations that were measured in any of the cases, sorted."""
    return sorted({name for case in cases for name in case.records}, key=lambda name: name.sort_key)


def find_best(pair: Sequence[MeasuredCase]) -> Implementation | None:
    """Return the implementation with the smallest median time in any case of `pair`; None if all results were wrong."""
    order = list_implementations(pair)
    medians = [(record.time_us.p50, order.index(name)) for case in pair for name, record in case.right.items()]
    return order[min(medians)[1]] if medians else None
