"""Ranges of message sizes in which the same implementations are the fastest or tie with the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from hpccoll.measure.results.measured_case import MeasuredCase

Name = TypeVar("Name", bound=Hashable)


class FastestRange(NamedTuple, Generic[Name]):
    """Successive message sizes; at each of them, every one of `names` is the fastest or ties with the fastest."""

    names: tuple[Name, ...]  # the one that is the fastest at most sizes comes first
    cases: tuple[MeasuredCase, ...]


def find_fastest_ranges(
    cases: Sequence[MeasuredCase], list_fastest: Callable[[MeasuredCase], Sequence[Name]]
) -> list[FastestRange[Name]]:
    """Divide message sizes into ranges in which one implementation is always the fastest, or tied with the fastest.

    Each range is as long as possible.

    Args:
        cases: measurements that differ in message size only, sorted by message size.
        list_fastest: returns, for one case, the name of the fastest and then the names that tie with it. If all results
            of the case are wrong, `list_fastest` returns no name, and the message size is in no range.
    """
    fastest = [list_fastest(case) for case in cases]
    groups: list[tuple[list[Name], list[int]]] = []
    for position, names in enumerate(fastest):
        kept = [name for name in groups[-1][0] if name in names] if groups else []
        if kept:
            groups[-1] = (kept, [*groups[-1][1], position])
        elif names:
            groups.append((list(names), [position]))
    ranges = []
    for names, positions in groups:
        wins = Counter(fastest[position][0] for position in positions)
        ordered = tuple(sorted(names, key=wins.__getitem__, reverse=True))
        ranges.append(FastestRange(ordered, tuple(cases[position] for position in positions)))
    return ranges
