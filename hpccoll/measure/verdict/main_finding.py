"""States in words how measured implementations compare: a benchmark's main finding, and the fastest at each size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpccoll.measure.results.measured_case import REFERENCE, Implementation, MeasuredCase, compute_ratio, is_tie
from hpccoll.measure.verdict.size_ranges import FastestRange, find_fastest_ranges
from hpccoll.selection.tuning_table import TIE_RATIO
from hpccoll.statistics import Interval
from hpccoll.units import format_list, format_size

_MAX_TIED = 2  # names of tied implementations in a sentence; more are counted
_MAX_OPERATIONS = 2


def describe_main_finding(cases: Iterable[MeasuredCase]) -> str:
    """Return the main finding of a benchmark in one sentence without a full stop; empty if all results are wrong.

    The sentence compares `auto` with the MPI library. If `auto` was not measured, the sentence compares hpccoll's
    fastest algorithm at each size with the MPI library. Where hpccoll or the MPI library was not measured, the sentence
    names the fastest implementations.
    """
    measured = [case for case in cases if case.fastest is not None]
    if not measured:
        return ""
    names = {(name.engine, name.algorithm) for case in measured for name in case.records}
    ratios = [ratio for case in measured if (ratio := _compare_with_mpi(case, ("hpccoll", "auto") in names))]
    if not ratios:
        return _describe_extremes(measured)
    subject = "auto" if ("hpccoll", "auto") in names else "hpccoll's fastest algorithm"
    operations = list(dict.fromkeys(case.setting.op for case in measured))
    return f"{', '.join(operations)}: {subject} {_describe_ratios(ratios)}"


def describe_fastest(cases: Sequence[MeasuredCase]) -> str:
    """Return a sentence that names the fastest implementation in each range of sizes and the ones that tie with it.

    `cases` differ only in message size, and are sorted by it.
    """
    ranges = find_fastest_ranges(cases, lambda case: case.tied)
    if not ranges:
        return "All results were wrong."
    if all(case.nbytes == 0 for case in cases):
        return f"Fastest: {_format_names(ranges[0])}."
    parts = (f"{_format_names(fastest)} {_format_sizes(fastest)}" for fastest in ranges)
    return f"Fastest: {'; '.join(parts)}. Tied: not shown to be more than {TIE_RATIO - 1:.0%} slower."


def _format_sizes(fastest: FastestRange[Implementation]) -> str:
    """Return the message sizes of a range as a string, such as `at 8 B` or `from 8 B to 2 KiB`."""
    first, last = fastest.cases[0].nbytes, fastest.cases[-1].nbytes
    return f"at {format_size(first)}" if first == last else f"from {format_size(first)} to {format_size(last)}"


def _format_names(fastest: FastestRange[Implementation]) -> str:
    """Return the name of the fastest implementation in a range of sizes, and the names or number of those that tie."""
    first, *tied = fastest.names
    if not tied:
        return first.label
    return f"{first.label} (tied: {format_list([name.label for name in tied], _MAX_TIED)})"


def _format_fastest(fastest: FastestRange[Implementation]) -> str:
    """Return the fastest implementation in a range of sizes as text, such as `ring (tied with 2)`."""
    first, *tied = fastest.names
    return f"{first.label} (tied with {len(tied)})" if tied else first.label


def _compare_with_mpi(case: MeasuredCase, with_auto: bool) -> tuple[Interval, bool] | None:
    """Return the time of MPI divided by that of hpccoll, and whether the two tie; None if one was not measured.

    hpccoll's time is that of `auto` if `with_auto` is set, else that of its fastest algorithm.
    """
    ours = [
        (record.time_us.p50, name)
        for name, record in case.records.items()
        if name.engine == "hpccoll" and not record.wrong and (name.algorithm == "auto" or not with_auto)
    ]
    if not ours or case.setting.ranks < 2:
        return None
    name = min(ours)[1]
    reference = case.records.get(Implementation(REFERENCE, None, name.library))
    if reference is None or reference.wrong:
        return None
    ratio = compute_ratio(case.records[name], reference)
    return None if ratio is None else (ratio, is_tie(case.records[name], reference))


def _describe_ratios(ratios: Sequence[tuple[Interval, bool]]) -> str:
    """Return the predicate of a sentence, such as `beats the MPI library in all 3 cases, up to 1.5 times as fast`.

    An item of `ratios` has the time of MPI divided by that of hpccoll, and whether the two tie.
    """
    faster = [ratio.value for ratio, tie in ratios if not tie and ratio.value > 1]
    slower = [ratio.value for ratio, tie in ratios if not tie and ratio.value < 1]
    ties = len(ratios) - len(faster) - len(slower)
    total = len(ratios)
    if ties == total:
        return f"ties with the MPI library in {_count_cases(total)}"
    best = f"up to {max(faster, default=1):.2g} times as fast"
    worst = f"up to {1 / min(slower, default=1):.2g} times as slow"
    if len(faster) == total:
        return f"beats the MPI library in {_count_cases(total)}, {best}"
    if len(slower) == total:
        return f"is slower than the MPI library in {_count_cases(total)}, {worst}"
    parts = [
        f"beats the MPI library in {len(faster)} of {total} cases ({best})" if faster else "",
        f"ties in {ties}" if ties else "",
        f"is slower in {len(slower)} ({worst})" if slower else "",
    ]
    *first, last = [part for part in parts if part]
    return f"{', '.join(first)} and {last}"


def _count_cases(total: int) -> str:
    """Return a number of cases as words: `all 3 cases` or `the only case`."""
    return f"all {total} cases" if total > 1 else "the only case"


def _describe_extremes(cases: Sequence[MeasuredCase]) -> str:
    """Return a string with the fastest implementations for the smallest and the largest messages, by operation.

    Operations after the first _MAX_OPERATIONS are only counted.
    """
    by_operation: dict[str, list[MeasuredCase]] = {}
    for case in cases:
        members = by_operation.setdefault(case.setting.op, [])
        if not members or (case.setting, case.in_place) == (members[0].setting, members[0].in_place):
            members.append(case)
    parts = []
    for op, members in list(by_operation.items())[:_MAX_OPERATIONS]:
        ranges = find_fastest_ranges(members, lambda case: case.tied)
        ends = [ranges[0], *ranges[1:][-1:]]
        named = (f"{_format_fastest(end)} {_format_sizes(end)}" for end in ends)
        parts.append(f"{op}: fastest is {' and '.join(named) if members[-1].nbytes else _format_fastest(ends[0])}")
    hidden = len(by_operation) - len(parts)
    return "; ".join(parts) + (f"; and {hidden} more operation{'s' * (hidden > 1)}" if hidden else "")
