"""The verdict of a benchmark: which choice is the fastest at each message size, and by how much.

A choice is what a user can ask for: an algorithm of hpccoll by its name, or another library by the name of its engine.
A record of `auto` counts for the choice that `auto` selected. Where a choice has two records, the one with the smaller
median stands for the choice in all ratios and ties. Ratios are times of one choice divided by times of another, so a
ratio above 1 means that the second choice is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpccoll.measure.contenders import AUTO
from hpccoll.measure.results.comparison import TableKey, compare_engines, compute_ratio, is_tie
from hpccoll.measure.statistics import Interval
from hpccoll.measure.verdict.size_ranges import group_sizes_by_fastest
from hpccoll.records import CollectiveRecord

OWN = "hpccoll"


@dataclass(frozen=True, slots=True)
class SizeVerdict:
    """The verdict for one operation, kind of memory and message size, in place or out of place.

    Args:
        fastest: the record with the smallest median; None if all results are wrong.
        tied: the other choices that tie with `fastest`, in order of their median times.
        over: by name of another library's engine, the ratio of its time to that of `fastest`, unless it is the fastest.
        auto: the record of `auto`, None if it was not measured or its result was wrong.
        auto_ratio: the ratio of the own time of `auto` to the fastest's; None without `auto` or with a time of zero.
        rows: all records, also those of wrong results.
    """

    setting: TableKey
    in_place: bool
    nbytes: int
    fastest: CollectiveRecord | None
    tied: tuple[str, ...]
    over: Mapping[str, Interval]
    auto: CollectiveRecord | None
    auto_ratio: Interval | None
    rows: tuple[CollectiveRecord, ...]

    @property
    def choice(self) -> str:
        """The name of the fastest choice, `-` if all results are wrong."""
        return get_choice(self.fastest) if self.fastest else "-"

    @property
    def best_choices(self) -> tuple[str, ...]:
        """The fastest choice and those that tie with it."""
        return (self.choice, *self.tied) if self.fastest else ()

    def find_ratio(self, engine: str, choice: str) -> float | None:
        """Return the ratio of an engine's time to a choice's time; None if one of them was not measured or is wrong."""
        times = {
            name: min((row.time_us.p50 for row in self.rows if get_choice(row) == name and not row.wrong), default=None)
            for name in (engine, choice)
        }
        mine, theirs = times[choice], times[engine]
        return theirs / mine if mine and theirs is not None else None

    @property
    def is_auto_best(self) -> bool:
        """Whether `auto` selected one of the best choices, and the own time of `auto` ties with the fastest's."""
        auto, fastest = self.auto, self.fastest
        return self.selects_best and auto is not None and fastest is not None and is_tie(auto, fastest)

    @property
    def selects_best(self) -> bool:
        """Whether `auto` selected the fastest choice or one that ties with it."""
        return self.auto is not None and get_choice(self.auto) in self.best_choices


@dataclass(frozen=True, slots=True)
class VerdictRange:
    """A range of message sizes in which each of `choices` is the fastest or ties with the fastest."""

    choices: tuple[str, ...]  # the one that is the fastest at most sizes comes first
    sizes: tuple[SizeVerdict, ...]


def get_choice(record: CollectiveRecord) -> str:
    """Return the choice that a record measured, such as `ring`, `mpi` or `gloo`."""
    if record.engine != OWN:
        return record.engine
    return (record.selected if record.algorithm == AUTO else record.algorithm) or AUTO


def make_size_verdicts(records: Iterable[CollectiveRecord]) -> list[SizeVerdict]:
    """Return a verdict per setting, in place and out of place, and message size; sizes ascend within each setting."""
    verdicts = []
    for case in compare_engines(records):
        for in_place in (True, False):
            rows = [row for entry in case.entries if (row := entry.get_record(in_place)) is not None]
            if rows:
                verdicts.append(_make_verdict(case.setting, in_place, case.nbytes, rows))
    order = list(dict.fromkeys((each.setting, each.in_place) for each in verdicts))
    return sorted(verdicts, key=lambda each: order.index((each.setting, each.in_place)))


def _make_verdict(setting: TableKey, in_place: bool, nbytes: int, rows: Sequence[CollectiveRecord]) -> SizeVerdict:
    """Return the verdict on rows that differ in engine and algorithm only."""
    right = sorted((row for row in rows if not row.wrong), key=lambda row: row.time_us.p50)
    fastest = right[0] if right else None
    auto = next((row for row in right if row.algorithm == AUTO), None)
    by_choice: dict[str, CollectiveRecord] = {}
    for row in right:
        by_choice.setdefault(get_choice(row), row)
    others = {choice: row for choice, row in by_choice.items() if row is not fastest}
    tied = tuple(choice for choice, row in others.items() if fastest and is_tie(row, fastest))
    engines = dict.fromkeys(row.engine for row in right if row.engine != OWN)
    ratios = {engine: compute_ratio(fastest, others[engine]) for engine in engines if fastest and engine in others}
    over = {engine: ratio for engine, ratio in ratios.items() if ratio is not None}
    auto_ratio = compute_ratio(fastest, auto) if fastest and auto else None
    return SizeVerdict(setting, in_place, nbytes, fastest, tied, over, auto, auto_ratio, tuple(rows))


def find_ranges(verdicts: Sequence[SizeVerdict]) -> list[VerdictRange]:
    """Return ranges of message sizes with the same fastest choice; a tie does not end a range.

    `verdicts` differ in message size only, which ascends. Sizes whose results are all wrong are in no range.
    """
    groups = group_sizes_by_fastest([each.best_choices for each in verdicts])
    return [VerdictRange(names, tuple(verdicts[at] for at in positions)) for names, positions in groups]
