"""The verdict of a benchmark: which choice is the fastest at each message size, and by how much.

A choice is what a user can ask for: an algorithm of hpccoll by its name, or another library by the name of its engine.
A record of `auto` counts for the choice that `auto` selected. Where a choice has two records, the one with the smaller
median stands for the choice in all ratios and ties. Ratios are times of one choice divided by times of another, so a
ratio above 1 means that the second choice is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpccoll.measure.contenders import AUTO, OWN
from hpccoll.measure.results.comparison import REFERENCE, TableKey, compare_engines, compute_ratio, is_tie
from hpccoll.measure.statistics import Interval
from hpccoll.measure.verdict.measured_case import MeasuredCase, list_measured_cases
from hpccoll.records import CollectiveRecord


@dataclass(frozen=True, slots=True)
class SizeVerdict:
    """The verdict for one operation, kind of memory and message size, in place or out of place.

    Args:
        by_choice: the record of each choice, in order of median times; without wrong results.
        tied: the choices that tie with the fastest, in order of median times; without the fastest.
        auto: the record of `auto`, None if it was not measured or its result was wrong.
        rows: all records, also those of wrong results.
    """

    setting: TableKey
    in_place: bool
    nbytes: int
    by_choice: Mapping[str, CollectiveRecord]
    tied: tuple[str, ...]
    auto: CollectiveRecord | None
    rows: tuple[CollectiveRecord, ...]

    @property
    def choice(self) -> str:
        """The name of the fastest choice, `-` if all results are wrong."""
        return next(iter(self.by_choice), "-")

    @property
    def fastest(self) -> CollectiveRecord | None:
        """The record with the smallest median; None if all results are wrong."""
        return self.by_choice.get(self.choice)

    @property
    def best_choices(self) -> tuple[str, ...]:
        """The fastest choice and those that tie with it."""
        return (self.choice, *self.tied) if self.by_choice else ()

    def compare_engine(self, engine: str) -> Interval | None:
        """Return the ratio of another library's time to that of the fastest; None without a right result of it."""
        other = self.by_choice.get(engine)
        return compute_ratio(self.by_choice[self.choice], other) if other is not None else None

    def divide_times(self, engine: str, choice: str) -> float | None:
        """Return an engine's median time divided by a choice's; None if one of them was not measured or is wrong."""
        theirs, mine = self.by_choice.get(engine), self.by_choice.get(choice)
        return theirs.time_us.p50 / mine.time_us.p50 if theirs and mine and mine.time_us.p50 else None

    @property
    def auto_ratio(self) -> float:
        """The own time of `auto` divided by the fastest's; 1 without `auto`, or where the fastest took no time."""
        if self.auto is None or not (shortest := self.by_choice[self.choice].time_us.p50):
            return 1.0
        return self.auto.time_us.p50 / shortest

    @property
    def is_auto_best(self) -> bool:
        """Whether `auto` selected one of the best choices, and the own time of `auto` ties with the fastest's."""
        auto, fastest = self.auto, self.fastest
        return (
            auto is not None and fastest is not None and get_choice(auto) in self.best_choices and is_tie(auto, fastest)
        )

    @property
    def can_tuning_help(self) -> bool:
        """Whether a choice that `auto` can select is faster than the one that `auto` selected, and does not tie."""
        if self.auto is None:
            return False
        selectable = next(row for row in self.by_choice.values() if row.engine in (OWN, REFERENCE))
        return not is_tie(self.by_choice[get_choice(self.auto)], selectable)


def get_choice(record: CollectiveRecord) -> str:
    """Return the choice that a record measured, such as `ring`, `mpi` or `gloo`."""
    if record.engine != OWN:
        return record.engine
    return (record.selected if record.algorithm == AUTO else record.algorithm) or AUTO


def make_size_verdicts(records: Iterable[CollectiveRecord]) -> list[SizeVerdict]:
    """Return a verdict per setting, in place and out of place, and message size; sizes ascend within each setting."""
    verdicts = [_make_verdict(case) for case in list_measured_cases(compare_engines(records))]
    # The verdicts that differ in message size and kind of memory only follow each other, for a table of their own.
    tables, settings = (list(dict.fromkeys(map(key, verdicts))) for key in (get_table, lambda each: each.setting))
    return sorted(verdicts, key=lambda each: (tables.index(get_table(each)), settings.index(each.setting)))


def get_table(verdict: SizeVerdict) -> tuple[TableKey, bool]:
    """Return what the lines of one table of verdicts share: the setting without the kind of memory, and the place."""
    return verdict.setting._replace(buffer=""), verdict.in_place


def _make_verdict(case: MeasuredCase) -> SizeVerdict:
    """Return the verdict on the records of one message size."""
    rows = tuple(case.records.values())
    right = sorted((row for row in rows if not row.wrong), key=lambda row: row.time_us.p50)
    auto = next((row for row in right if row.algorithm == AUTO), None)
    by_choice: dict[str, CollectiveRecord] = {}
    for row in right:
        by_choice.setdefault(get_choice(row), row)
    tied = tuple(choice for choice, row in list(by_choice.items())[1:] if is_tie(row, right[0]))
    return SizeVerdict(case.setting, case.in_place, case.nbytes, by_choice, tied, auto, rows)
