"""The verdict of a benchmark as one screen of text: a line per message size, then findings and commands to run next."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from hpccoll.measure.bandwidth import find_timed_operation
from hpccoll.measure.contenders import OWN
from hpccoll.measure.display.table import PLACES, format_ratio, format_title
from hpccoll.measure.hardware_limit import LEAST_LIMITED, HardwareLimit, compute_lower_bounds, find_network_optimum
from hpccoll.measure.results.measured_case import REFERENCE, MeasuredCase, get_choice, get_table
from hpccoll.measure.verdict.next_commands import list_next_commands
from hpccoll.measure.verdict.size_ranges import FastestRange, find_fastest_ranges
from hpccoll.measure.verdict.trust import RunConditions, describe_trust, is_uncertain
from hpccoll.plan import Operation
from hpccoll.selection.tuning_table import TIE_RATIO
from hpccoll.statistics import MAX_UNCERTAINTY
from hpccoll.text_table import TextColumn, format_table, lay_out_table
from hpccoll.units import format_size

if TYPE_CHECKING:
    from hpccoll.synthesis import Network

DEFAULT_WIDTH = 120
UNCERTAIN = "~"  # before uncertain times
_MAX_LISTED = 3
AS_FAST = "times as fast as"
_INDENT = " " * 7
_NO_BREAK = "\xa0"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:B|[KMGT]iB|GB/s|us|ms|s|%)(?!\w))")


def format_verdict(cases: Sequence[MeasuredCase], conditions: RunConditions, width: int | None = None) -> str:
    """Return the verdict that `hpccoll bench` prints as its last screen of text.

    Lines have at most `width` characters. If `width` is None, lines have at most 120 characters, and tables are as wide
    as needed.
    """
    if not cases:
        return "No results: nothing was measured."
    fill = width or DEFAULT_WIDTH
    lines: list[str] = []
    for _, group in groupby(cases, key=get_table):
        members = list(group)
        table = _format_sizes(members, conditions, width)
        lines += [*[""] * bool(lines), *table, *_format_ranges(members, fill)]
    lines += _wrap("auto", describe_auto(cases), fill)
    lines += _wrap("limit", describe_limit(cases, conditions.limit, conditions.network), fill)
    for at, finding in enumerate(describe_trust(cases, conditions)):
        lines += _wrap("" if at else "trust", finding, fill)
    for command in list_next_commands(cases, conditions):
        lines += _wrap("next", command, fill)
    return "\n".join(lines)


def format_footer(cases: Sequence[MeasuredCase]) -> str:
    """Return two lines like the last ones of nccl-tests: number of wrong elements, mean bus bandwidth over all sizes.

    The second line begins with the bandwidth of `auto`; if `auto` was not measured, it begins with the bandwidth of the
    fastest implementation at each size. Without any bandwidth to average, there is no second line.
    """
    rows = [row for case in cases for row in case.rows]
    wrong = sum(row.wrong or 0 for row in rows)
    columns = {"auto": [case.auto for case in cases], "the fastest": [case.fastest_record for case in cases]}
    for engine in dict.fromkeys(row.engine for row in rows if row.engine != OWN):
        columns[engine] = [next((row for row in case.rows if row.engine == engine), None) for case in cases]
    means = {
        name: sum(row.busbw for row in members) / len(members)
        for name, column in columns.items()
        if (members := [row for row in column if row is not None])
    }
    lines = [f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"]
    if means:
        (first, value), *others = means.items()
        more = "".join(f"; {name} {mean:.3f}" for name, mean in others)
        lines.append(f"# Avg bus bandwidth    : {value:.3f} (GB/s, {first}{more})")
    return "\n".join(lines)


def _wrap(keyword: str, text: str, width: int) -> list[str]:
    """Return the lines of `text`, wrapped at `width`; the first begins with `keyword:`. [] if `text` is empty."""
    first = (f"{keyword}:" if keyword else "").ljust(len(_INDENT))
    kept = _BEFORE_UNIT.sub(_NO_BREAK, text)
    lines = textwrap.wrap(
        kept, width, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def _format_sizes(cases: Sequence[MeasuredCase], conditions: RunConditions, width: int | None) -> list[str]:
    """Return the lines of a table of the fastest choice at each size; `cases` differ in size and memory only."""
    first = cases[0]
    several = len({case.setting.buffer for case in cases}) > 1
    engines = _list_other_engines(cases)
    with_auto = any(case.auto for case in cases)
    is_slower = any(case.auto and not case.is_auto_best for case in cases)
    with_mpi = any(row.engine == REFERENCE for case in cases for row in case.rows)
    columns = [
        TextColumn("size", is_number=True),
        *([TextColumn("memory")] if several else []),
        TextColumn("fastest"),
        TextColumn("time", is_number=True),
        *(
            [TextColumn(f"x {REFERENCE}", is_number=True), TextColumn("95 % interval", drop_priority=1)]
            if with_mpi
            else []
        ),
        *(TextColumn(f"x {engine}", is_number=True) for engine in engines),
        *([TextColumn(f"auto takes{' (x time)' * is_slower}")] if with_auto else []),
    ]
    ordered = sorted(cases, key=lambda case: case.nbytes)
    rows = [
        [
            format_size(case.nbytes),
            *([case.setting.buffer] if several else []),
            _join_choices(case.best_choices, 1) or case.choice,
            _format_fastest_time(case),
            *(_format_over(case, REFERENCE) if with_mpi else []),
            *(_format_over(case, engine)[0] for engine in engines),
            *([_format_auto(case)] if with_auto else []),
        ]
        for case in ordered
    ]
    _name_second_choices(rows, columns, ordered, width or DEFAULT_WIDTH)
    title = f"{format_title(first.setting, memory=not several)}, {PLACES[first.in_place]}"
    legend = f"({'; '.join(_list_legend(cases, conditions))})"
    return [title, *format_table(columns, rows, width).splitlines(), *textwrap.wrap(legend, width or DEFAULT_WIDTH)]


def _name_second_choices(
    rows: Sequence[list[str]], columns: Sequence[TextColumn], cases: Sequence[MeasuredCase], width: int
) -> None:
    """Change cells of the column `fastest` in `rows` to name two choices where none is clearly the fastest.

    A cell is changed only if the table then still fits into `width` characters.
    """
    at = [column.heading for column in columns].index("fastest")
    for row, case in zip(rows, cases, strict=True):
        shorter, dropped = row[at], lay_out_table(columns, rows, width).dropped
        row[at] = _join_choices(case.best_choices) or shorter
        layout = lay_out_table(columns, rows, width)
        if layout.dropped != dropped or len(layout.blocks) > 1:
            row[at] = shorter


def _format_fastest_time(case: MeasuredCase) -> str:
    """Return the median time of the fastest choice as a string, such as `54.2 us`, after a mark if it is uncertain."""
    if case.fastest_record is None:
        return "all wrong"
    return UNCERTAIN * is_uncertain(case.fastest_record) + format_us(case.fastest_record.time_us.p50)


def _list_legend(cases: Sequence[MeasuredCase], conditions: RunConditions) -> Iterator[str]:
    """Yield phrases that explain the names and marks in a table."""
    rows = [row for case in cases for row in case.rows]
    measured = {row.engine for row in rows}
    if REFERENCE in measured:
        yield f"{REFERENCE}: {conditions.mpi_library or 'the MPI library'}"
    others = _list_other_engines(cases)
    if others:
        yield f"{', '.join(others)}: torch.distributed"
    if any(get_choice(row) not in (REFERENCE, *others) for row in rows):
        yield "others: hpccoll's algorithms"
    if measured & {REFERENCE, *others}:
        yield "x: times as fast as"
    if any(len(case.best_choices) > 1 for case in cases):
        yield f'"or", "ties": the 95 % interval of their ratio begins at {TIE_RATIO} or less'
    if any(case.fastest_record is not None and is_uncertain(case.fastest_record) for case in cases):
        yield f"{UNCERTAIN}: uncertain by over {100 * MAX_UNCERTAINTY:.0f} %"


def _join_choices(choices: Sequence[str], most: int = 2) -> str:
    """Return the names of choices that tie, such as `ring or mpi`; after the first `most`, only their number."""
    return " or ".join([*choices[:most], *([f"{len(choices) - most} more"] if len(choices) > most else [])])


def format_us(microseconds: float) -> str:
    """Return a time as a string with about three digits and a unit, such as `54.2 us`, `1.31 ms` or `2.04 s`."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= 0.9995 * factor:
            return f"{_format_digits(microseconds / factor)} {unit}"
    return f"{_format_digits(microseconds)} us"


def _format_digits(value: float) -> str:
    """Return a number as a string with three significant digits, such as `1.31`, `54.2` or `120`."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _format_over(case: MeasuredCase, engine: str) -> tuple[str, str]:
    """Return two cells: how many times as fast as `engine` the fastest choice is, such as `1.31x`, and its interval."""
    if case.choice == engine:
        return "1x", ""
    ratio = case.compare_engine(engine)
    if ratio is None:
        return "-", ""
    return f"{_format_digits(ratio.value)}x", format_ratio(ratio)[1]


def _format_auto(case: MeasuredCase) -> str:
    """Return the cell for `auto`: the algorithm, and whether it ties with the fastest or how much longer it takes."""
    if case.auto is None:
        return "-"
    name = get_choice(case.auto)
    if not case.is_auto_best:
        return f"{name} ({case.auto_ratio:.2f}x)"
    return name if name == case.choice else f"{name} (ties)"


def _format_ranges(cases: Sequence[MeasuredCase], width: int) -> Iterator[str]:
    """Yield lines that name the fastest implementation in each range of message sizes, per kind of memory."""
    several = len({case.setting.buffer for case in cases}) > 1
    for _, group in groupby(cases, key=lambda case: case.setting):
        members = list(group)
        engines = [REFERENCE, *_list_other_engines(members)]
        parts: list[str] = []
        for fastest_range in find_fastest_ranges(members, lambda member: member.best_choices):
            parts.append(_describe_range(fastest_range, engines, is_first=not any(AS_FAST in part for part in parts)))
        memory = f"{members[0].setting.buffer} memory: " if several else ""
        has_ties = any(len(size.best_choices) > 1 for size in members)
        yield from _wrap("use", memory + "fastest or tied: " * has_ties + "; ".join(parts), width)


def _list_other_engines(cases: Sequence[MeasuredCase]) -> list[str]:
    """Return the measured engines except hpccoll and `mpi`, such as `gloo`."""
    engines = dict.fromkeys(row.engine for case in cases for row in case.rows)
    return [engine for engine in engines if engine not in (OWN, REFERENCE)]


def _describe_range(fastest_range: FastestRange[str], engines: Sequence[str], is_first: bool) -> str:
    """Return a phrase: the fastest choice in a range of sizes, and how many times as fast as `engines` it is.

    For example: `8 B to 2 KiB mpi (85.0 to 120x gloo)`. With `is_first`, the first factor is written in full:
    `85.0 to 120 times as fast as gloo`.
    """
    first, last = (format_size(case.nbytes) for case in (fastest_range.cases[0], fastest_range.cases[-1]))
    where = first if first == last else f"{first} to {last}"
    names, cases = _join_choices(fastest_range.names), fastest_range.cases
    factors = [
        (_format_spread(ratios), engine)
        for engine in engines
        if engine not in fastest_range.names
        and (ratios := [x for case in cases if (x := case.divide_times(engine, fastest_range.names[0])) is not None])
    ]
    spelled = [
        f"{spread} {AS_FAST} {engine}" if is_first and at == 0 else f"{spread}x {engine}"
        for at, (spread, engine) in enumerate(factors)
    ]
    return f"{where} {names}".removeprefix("0 B ") + (f" ({', '.join(spelled)})" if spelled else "")


def _format_spread(ratios: Sequence[float]) -> str:
    """Return the smallest and the largest of `ratios` as a string, such as `1.20 to 2.50`."""
    low, high = map(_format_digits, (min(ratios), max(ratios)))
    return low if low == high else f"{low} to {high}"


def describe_auto(cases: Sequence[MeasuredCase]) -> str:
    """Return a sentence that compares `auto` with the fastest choices; empty if hpccoll was not measured."""
    measured = [case for case in cases if case.auto is not None]
    if not measured:
        ours = any(row.engine == OWN for case in cases for row in case.rows)
        return "not measured; add it by --algorithm auto" if ours else ""
    best = sum(case.is_auto_best for case in measured)
    slower = [case for case in measured if not case.is_auto_best]
    count = f"{best} of {len(measured)}" if slower else f"all {len(measured)}" if best > 1 else "the only"
    ops = list(dict.fromkeys(case.setting.op for case in cases))
    call = "hpccoll" if len(ops) > 1 else "comm.barrier()" if ops == ["barrier"] else f"comm.{ops[0]}(x)"
    subject = f"{call} runs auto, which takes"
    text = f"{subject} the fastest, or one that ties with it, at {count} size{'s' * (len(measured) > 1)}"
    if not slower:
        return text
    slower.sort(key=lambda case: -case.auto_ratio)
    listed = [f"{format_size(case.nbytes)} ({_describe_slower_auto(case)})" for case in slower[:_MAX_LISTED]]
    return f"{text}; slower at {', '.join(listed)}" + (" and more" if len(slower) > _MAX_LISTED else "")


def _describe_slower_auto(case: MeasuredCase) -> str:
    """Return the algorithm that `auto` selected and its relative time, such as `ring: 1.16x the time of tree`."""
    name = get_choice(case.auto) if case.auto else "-"
    fastest = "the same algorithm called by name" if name == case.choice else case.choice
    return f"{name}: {case.auto_ratio:.2f}x the time of {fastest}"


def describe_limit(cases: Sequence[MeasuredCase], limit: HardwareLimit | None, network: Network | None = None) -> str:
    """Return a sentence that compares the fastest time at the largest size with a lower bound of the time.

    The bound is the optimum on `network`, or follows from `limit`, the measured speed of memory or links. Without both,
    the result is empty.
    """
    timed = [case for case in cases if case.fastest_record is not None and case.nbytes >= LEAST_LIMITED]
    if (limit is None and network is None) or not timed:
        return ""
    last = max(timed, key=lambda case: (case.nbytes, -case.fastest_record.time_us.p50 if case.fastest_record else 0.0))
    operation = find_timed_operation(last.setting.op)
    if last.fastest_record is None or not isinstance(operation, Operation):
        return ""
    subject = f" of {last.setting.op}" if len({case.setting.op for case in cases}) > 1 else ""
    optimum = None if network is None else find_network_optimum(last.fastest_record, network)
    shortest = compute_lower_bounds(operation, last.nbytes, last.setting.ranks, limit, None, optimum).seconds * 1e6
    if not shortest:
        return ""
    if optimum is not None:
        share = optimum.describe_share(last.fastest_record.time_us.p50 * 1e-6, last.nbytes)
        return (
            f"lower bound{subject} for {format_size(last.nbytes)}: {format_us(shortest)}; the fastest reaches {share}"
        )
    if limit is None:
        return ""
    factor = last.fastest_record.time_us.p50 / shortest
    return (
        f"lower bound{subject}: {_describe_bound(operation, last, limit)}: {format_us(shortest)}; "
        f"the fastest takes {factor:.2g} times that ({100 / factor:.0f} % of its speed)"
    )


def _describe_bound(operation: Operation, case: MeasuredCase, limit: HardwareLimit) -> str:
    """Return a phrase: the least data that an operation must move, and the measured speed of memory or links."""
    ranks, size = case.setting.ranks, format_size(case.nbytes)
    gigabytes = limit.nbytes / limit.us / 1e3 if limit.us else 0.0
    if limit.nodes > 1 and limit.unequal and operation is Operation.ALL_REDUCE:
        return f"the node with the slowest link sends {size} once (measured here: {gigabytes:.3g} GB/s)"
    if limit.nodes > 1:
        return f"each node sends its share of {size} once (exchange measured here: {gigabytes:.3g} GB/s)"
    copied = f"(copies measured here: {2 * ranks * gigabytes:.3g} GB/s)"
    if operation is Operation.ALL_REDUCE:
        return f"all {ranks} ranks read and write their {size} once {copied}"
    return f"a call in place on {size} reads its input and writes its output once {copied}"
