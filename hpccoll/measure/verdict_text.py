"""The verdict of a benchmark as one screen of text: a line per message size, then findings and the next commands."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from hpccoll.measure.bandwidth import find_timed_operation
from hpccoll.measure.comparison import REFERENCE
from hpccoll.measure.hardware_limit import HardwareLimit
from hpccoll.measure.other_process_load import BUSY
from hpccoll.measure.statistics import CONFIDENCE, Interval, median_ranks
from hpccoll.measure.table import PLACES, format_ratio, format_title
from hpccoll.measure.verdict import OWN, SizeVerdict, VerdictRange, find_ranges, get_choice
from hpccoll.plan import Operation
from hpccoll.records import CollectiveRecord
from hpccoll.text_table import TextColumn, format_table
from hpccoll.units import format_count, format_size

DEFAULT_WIDTH = 120
LEAST_LIMITED = 2**20  # bytes; shorter messages are limited by latency and caches
MAX_UNCERTAIN = 0.5  # fraction of uncertain medians above which a benchmark says little
MAX_UNCERTAINTY = 0.10  # half the width of a median's interval, divided by the median
_MAX_LISTED = 3
_INDENT = " " * 7


@dataclass(frozen=True, slots=True)
class RunConditions:
    """The circumstances of a benchmark that its records do not contain.

    Args:
        cores: the number of cores that each rank may run on; empty if unknown.
        oversubscribed: whether a node has more ranks than cores that they may run on.
        busy_cores: the number of cores that other programs kept busy; None if unknown.
        unavailable: sentences about engines that could not be started.
        stopped: whether the run ended before all cases were measured.
        limit: the measured speed of memory or links; None if it was not measured.
        results: the result file; None if the results were not written.
    """

    cores: tuple[int, ...] = ()
    oversubscribed: bool = False
    busy_cores: float | None = None
    unavailable: tuple[str, ...] = field(default_factory=tuple)
    stopped: bool = False
    limit: HardwareLimit | None = None
    results: str | None = None


def format_verdict(verdicts: Sequence[SizeVerdict], conditions: RunConditions, width: int | None = None) -> str:
    """Return the verdict on a benchmark in lines of `width` characters (None: 120, tables as wide as needed)."""
    if not verdicts:
        return "No results: nothing was measured."
    fill = width or DEFAULT_WIDTH
    lines: list[str] = []
    for _, group in groupby(verdicts, key=lambda each: (each.setting._replace(buffer=""), each.in_place)):
        members = list(group)
        lines += [*[""] * bool(lines), *_format_sizes(members, width), *_format_ranges(members, fill)]
    lines += _wrap("auto", describe_auto(verdicts), fill)
    lines += _wrap("limit", describe_limit(verdicts, conditions.limit), fill)
    lines += _wrap("trust", describe_trust(verdicts, conditions), fill)
    for command in list_next_commands(verdicts, conditions):
        lines += _wrap("next", command, fill)
    return "\n".join(lines)


def format_footer(verdicts: Sequence[SizeVerdict]) -> str:
    """Return two lines like the last of nccl-tests: wrong elements, and the bus bandwidth, averaged over message sizes.

    The second line begins with the bandwidth of `auto`; without `auto`, with that of the fastest at each size.
    """
    rows = [row for each in verdicts for row in each.rows]
    wrong = sum(row.wrong or 0 for row in rows)
    columns = {"auto": [each.auto for each in verdicts], "the fastest": [each.fastest for each in verdicts]}
    for engine in dict.fromkeys(row.engine for row in rows if row.engine != OWN):
        columns[engine] = [next((row for row in each.rows if row.engine == engine), None) for each in verdicts]
    means = {
        name: sum(row.busbw for row in members) / len(members)
        for name, found in columns.items()
        if (members := [row for row in found if row is not None])
    }
    if not means:
        return f"# Out of bounds values : {wrong} FAILED"
    (first, value), *others = means.items()
    more = "".join(f"; {name} {mean:.3f}" for name, mean in others)
    return "\n".join(
        [
            f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
            f"# Avg bus bandwidth    : {value:.3f} (GB/s, {first}{more})",
        ]
    )


def _wrap(keyword: str, text: str, width: int) -> list[str]:
    """Return a paragraph that begins with a keyword, as lines; no line if `text` is empty."""
    first = f"{keyword}:".ljust(len(_INDENT))
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=_INDENT, break_on_hyphens=False, break_long_words=False
    )


def _format_sizes(verdicts: Sequence[SizeVerdict], width: int | None) -> list[str]:
    """Return the table with a line per message size; `verdicts` differ in message size and kind of memory only."""
    first = verdicts[0]
    several = len({each.setting.buffer for each in verdicts}) > 1
    engines = _list_other_engines(verdicts)
    with_auto = any(each.auto for each in verdicts)
    columns = [
        TextColumn("size", is_number=True),
        *([TextColumn("memory")] if several else []),
        TextColumn("fastest"),
        TextColumn("time", is_number=True),
        TextColumn("over mpi", is_number=True),
        TextColumn("interval", drop_priority=1),
        *(TextColumn(f"over {engine}", is_number=True) for engine in engines),
        *([TextColumn("auto takes")] if with_auto else []),
    ]
    rows = []
    for each in sorted(verdicts, key=lambda each: each.nbytes):
        over_mpi, interval = _format_over(each, REFERENCE)
        rows.append(
            [
                format_size(each.nbytes),
                *([each.setting.buffer] if several else []),
                each.choice + (" (tie)" if each.tied else ""),
                format_us(each.fastest.time_us.p50) if each.fastest else "all wrong",
                *(over_mpi, interval),
                *(_format_over(each, engine)[0] for engine in engines),
                *([_format_auto(each)] if with_auto else []),
            ]
        )
    title = f"{format_title(first.setting, memory=not several)}, {PLACES[first.in_place]}"
    legend = "over: how many times as fast; interval: 95 %; tie: not shown to differ by more than 5 %"
    table = format_table(columns, rows, width)
    return [title, *table.splitlines(), *textwrap.wrap(f"({legend})", width or DEFAULT_WIDTH)]


def format_us(microseconds: float) -> str:
    """Return a time with three digits and its unit, such as `54.2 us`, `1.31 ms` or `2.04 s`."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= 0.9995 * factor:
            return f"{_format_digits(microseconds / factor)} {unit}"
    return f"{_format_digits(microseconds)} us"


def _format_digits(value: float) -> str:
    """Return a number with three digits, such as `1.31`, `54.2` or `120`."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _format_over(verdict: SizeVerdict, engine: str) -> tuple[str, str]:
    """Return the factor by which the fastest is faster than an engine, and the factor's interval."""
    if verdict.choice == engine:
        return "itself", ""
    ratio = verdict.over.get(engine)
    if ratio is None:
        return "-", ""
    return f"{_format_digits(ratio.value)}x", format_ratio(ratio)[1]


def _format_auto(verdict: SizeVerdict) -> str:
    """Return what `auto` selected and, if that is not the fastest, whether it ties or how much slower it is."""
    if verdict.auto is None:
        return "-"
    name = get_choice(verdict.auto)
    if name == verdict.choice:
        return name
    return f"{name}, tie" if verdict.is_auto_best else f"{name}, {_get_value(verdict.auto_ratio):.2f}x slower"


def _format_ranges(verdicts: Sequence[SizeVerdict], width: int) -> Iterator[str]:
    """Yield the lines that say what to use in each range of message sizes, per kind of memory."""
    several = len({each.setting.buffer for each in verdicts}) > 1
    for _, group in groupby(verdicts, key=lambda each: each.setting):
        members = list(group)
        engines = [REFERENCE, *_list_other_engines(members)]
        parts = [_describe_range(each, engines) for each in find_ranges(members)]
        memory = f"{members[0].setting.buffer} memory: " if several else ""
        yield from _wrap("use", memory + "; ".join(parts), width)


def _list_other_engines(verdicts: Sequence[SizeVerdict]) -> list[str]:
    """Return the engines of other libraries than MPI that were measured."""
    engines = dict.fromkeys(row.engine for each in verdicts for row in each.rows)
    return [engine for engine in engines if engine not in (OWN, REFERENCE)]


def _describe_range(found: VerdictRange, engines: Sequence[str]) -> str:
    """Return what is the fastest in a range of sizes and by how much: `8 B to 2 KiB mpi (85x to 120x gloo)`."""
    first, last = (format_size(each.nbytes) for each in (found.sizes[0], found.sizes[-1]))
    where = first if first == last else f"{first} to {last}"
    names = " or ".join(found.choices[:2]) + (f" or {len(found.choices) - 2} more" if len(found.choices) > 2 else "")
    factors = [
        f"{_format_spread(ratios)} {engine}"
        for engine in engines
        if engine not in found.choices
        and (ratios := [x for each in found.sizes if (x := each.find_ratio(engine, found.choices[0])) is not None])
    ]
    return f"{where} {names}".removeprefix("0 B ") + (f" ({', '.join(factors)})" if factors else "")


def _format_spread(ratios: Sequence[float]) -> str:
    """Return the smallest and the largest ratio, such as `1.2x to 2.5x`."""
    low, high = (f"{each:.2g}x" if each < 100 else f"{each:.0f}x" for each in (min(ratios), max(ratios)))
    return low if low == high else f"{low} to {high}"


def describe_auto(verdicts: Sequence[SizeVerdict]) -> str:
    """Return a sentence that compares what `auto` selects with the fastest; empty if hpccoll was not measured."""
    measured = [each for each in verdicts if each.auto is not None]
    if not measured:
        ours = any(row.engine == OWN for each in verdicts for row in each.rows)
        return "not measured; add it by --algorithm auto" if ours else ""
    best = sum(each.is_auto_best for each in measured)
    slower = [each for each in measured if not each.is_auto_best]
    count = f"{best} of {len(measured)}" if slower else f"all {len(measured)}" if best > 1 else "the only"
    ops = list(dict.fromkeys(each.setting.op for each in verdicts))
    call = "hpccoll" if len(ops) > 1 else "comm.barrier()" if ops == ["barrier"] else f"comm.{ops[0]}(x)"
    subject = f"{call} runs auto, which takes"
    text = f"{subject} the fastest, or ties with it, at {count} size{'s' * (len(measured) > 1)}"
    if not slower:
        return text
    slower.sort(key=lambda each: -_get_value(each.auto_ratio))
    listed = [
        f"{format_size(each.nbytes)} ({_get_value(each.auto_ratio):.2f}x the time of {each.choice})"
        for each in slower[:_MAX_LISTED]
    ]
    return f"{text}; slower at {', '.join(listed)}" + (" and more" if len(slower) > _MAX_LISTED else "")


def _get_value(ratio: Interval | None) -> float:
    return ratio.value if ratio else 1.0


def describe_limit(verdicts: Sequence[SizeVerdict], limit: HardwareLimit | None) -> str:
    """Return a sentence that compares the fastest at the largest size with what memory or links allow."""
    found = [each for each in verdicts if each.fastest is not None and each.nbytes >= LEAST_LIMITED]
    if limit is None or not found:
        return ""
    last = max(found, key=lambda each: (each.nbytes, -each.fastest.time_us.p50 if each.fastest else 0.0))
    operation = find_timed_operation(last.setting.op)
    if last.fastest is None or not isinstance(operation, Operation):
        return ""
    shortest = limit.compute_us(operation, last.nbytes, last.setting.ranks)
    what = "one exchange between nodes" if limit.nodes > 1 else "reading and writing the data once"
    factor = last.fastest.time_us.p50 / shortest if shortest else 0.0
    return (
        f"at {format_size(last.nbytes)}, {what} takes {format_us(shortest)} here; the fastest takes "
        f"{factor:.2g} times that"
    )


def describe_trust(verdicts: Sequence[SizeVerdict], conditions: RunConditions) -> str:
    """Return whether the results can be trusted, and the reasons why not."""
    rows = [row for each in verdicts for row in each.rows]
    wrong = sorted({get_choice(row) for row in rows if row.wrong})
    if wrong:
        bad = sum(bool(row.wrong) for row in rows)
        return f"NO: {bad} of {len(rows)} rows have wrong results ({', '.join(wrong)}); do not use these here"
    unchecked = sum(row.wrong is None for row in rows)
    right = f"all {len(rows)} results are right" if len(rows) > 1 else "the result is right"
    checked = f"{unchecked} of {format_count(len(rows), 'row')} not checked" if unchecked else right
    doubts = [*_list_doubts(rows, conditions)]
    if not doubts:
        return f"yes; {checked}, and the intervals are narrow"
    poor = sum(map(is_uncertain, rows)) > MAX_UNCERTAIN * len(rows)
    return f"{'little' if poor else 'with care'}: {'; '.join(doubts)}; {checked}"


def _list_doubts(rows: Sequence[CollectiveRecord], conditions: RunConditions) -> Iterator[str]:
    """Yield the reasons to doubt the times."""
    ranks = max(row.ranks for row in rows)
    if ranks == 1:
        yield "one rank sends nothing, so times are the cost of a call"
    if conditions.stopped:
        yield "the run was stopped early, so results are missing"
    if conditions.oversubscribed:
        own = set(conditions.cores)
        if own == {1}:
            yield f"WRONG BINDING: the {ranks} ranks are bound to fewer cores than ranks"
        else:
            cores = f"{max(own)} cores" if len(own) == 1 and max(row.nodes for row in rows) == 1 else "fewer cores"
            yield f"{ranks} ranks share {cores}, so times hold only for such jobs"
    uncertain = [row for row in rows if is_uncertain(row)]
    if uncertain:
        medians = format_count(len(rows), "median")
        yield f"{len(uncertain)} of {medians} uncertain by more than {MAX_UNCERTAINTY:.0%}"
    short = sum(median_ranks(len(row.samples_us))[1] < CONFIDENCE for row in rows)
    if short:
        yield f"{short} of {format_count(len(rows), 'interval')} below 95 %, for lack of iterations"
    if conditions.busy_cores is not None and conditions.busy_cores > BUSY:
        yield f"other programs kept {conditions.busy_cores:.1f} cores busy"
    yield from conditions.unavailable


def is_uncertain(row: CollectiveRecord) -> bool:
    """Whether half the width of the median's interval exceeds `MAX_UNCERTAINTY` of the median."""
    time = row.time_us
    return (time.p50_high - time.p50_low) / 2 > MAX_UNCERTAINTY * time.p50


def list_next_commands(verdicts: Sequence[SizeVerdict], conditions: RunConditions) -> list[str]:
    """Return up to three commands that are worth typing next, each with its purpose."""
    rows = [row for each in verdicts for row in each.rows]
    ranks, ops = rows[0].ranks, " ".join(dict.fromkeys(each.setting.op for each in verdicts))
    commands = []
    if conditions.oversubscribed and conditions.cores and set(conditions.cores) != {1}:
        commands.append(f"mpirun -n {max(conditions.cores)} hpccoll bench {ops}  (one rank per core)")
    if ranks == 1:
        commands.append(f"mpirun -n 4 hpccoll bench {ops}  (several ranks)")
    elif any(each.auto and not each.is_auto_best for each in verdicts):
        commands.append(f"mpirun -n {ranks} hpccoll tune {ops}  (so that auto takes the fastest)")
    elif sum(map(is_uncertain, rows)) > len(rows) / 4:
        commands.append(f"mpirun -n {ranks} hpccoll bench {ops} --budget 3  (measure longer)")
    if conditions.results:
        commands.append(f"hpccoll report {conditions.results} -o report.html  (curves and findings)")
    else:
        commands.append(f"mpirun -n {ranks} hpccoll bench {ops} --full  (all algorithms)")
    return commands[:_MAX_LISTED]
