"""The output of `hpccoll barrier` for people: answers to four questions first, then tables with the details."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern
from hpccoll.records import BarrierCost, BarrierRecord, BarrierSummaryRecord
from hpccoll.selection.tuning_table import TIE_RATIO
from hpccoll.units import format_count

MAX_RANK_ROWS = 16  # with more ranks, the table of ranks shows those with the greatest excess
_COST_COLUMNS = (
    *("barrier", "time", "95 % interval", "predicted", "exit skew", "predicted skew", "absorbs"),
    *("all_reduce after it", "bias", "unsafe"),
)
_SHARED = "ranks share cores, so times include waits for a core"


@dataclass(frozen=True, slots=True)
class SuiteTable:
    """A table that `hpccoll barrier` prints: title, headings, rows of cells, and layout on narrow terminals."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[str, ...]  # the columns of numbers, which are aligned right
    drops: tuple[str, ...] = ()  # the columns to leave out first on narrow terminals


def format_first_answer(summary: BarrierSummaryRecord) -> str:
    """Return the output line that names the late rank, or states why none is named."""
    return f"who is late?    {_describe_straggler(summary)}"


def format_answers(summary: BarrierSummaryRecord, rows: Sequence[BarrierRecord]) -> list[str]:
    """Return the output lines on the best barriers, on whether barriers are safe, and on reasons to doubt the times.

    A barrier is safe if no rank leaves it before the last rank has entered.
    """
    unsafe = [row for row in rows if row.unsafe]
    timed = sum(row.rounds for row in rows)
    safe = f"yes: no rank left a barrier before the last rank had entered it, in {format_count(timed, 'round')}"
    if unsafe:
        names = ", ".join(sorted({row.name for row in unsafe}))
        safe = (
            f"NO: ranks left before the last rank had entered, in {sum(row.unsafe for row in unsafe)} rounds: {names}"
        )
    return [
        f"which barrier?  {_describe_best(summary)}",
        f"is it safe?     {safe}",
        f"trust:          {_describe_trust(summary, rows)}",
    ]


def _describe_straggler(summary: BarrierSummaryRecord) -> str:
    """Return a phrase that names the late rank with its node and the reason, or states why no rank is named."""
    if summary.straggler is None:
        return summary.reason
    node = summary.lateness[summary.straggler].node
    whole = f", like every rank of node {node}" if summary.straggler_node is not None else f" on {node}"
    return f"rank {summary.straggler}{whole}: {summary.reason}"


def _describe_best(summary: BarrierSummaryRecord) -> str:
    """Return a phrase that names the barriers with the shortest time and those with the smallest exit skew."""
    if not summary.barriers:
        return "no barrier was measured without skew"
    fastest, even = (_list_best(summary, attrgetter(name)) for name in ("completion_us", "exit_skew_us"))
    return f"fastest {fastest} after the last entry; most even {even} between the first exit and the last"


def _list_best(summary: BarrierSummaryRecord, get_us: Callable[[BarrierCost], float]) -> str:
    """Return the names of up to three barriers that tie for the least value, and this value: `hpccoll/tree (3.2 us)`.

    `get_us` returns the value of a barrier, its median time or its median exit skew in microseconds.
    """
    least = min(map(get_us, summary.barriers))
    best = [f"{cost.engine}/{cost.algorithm}" for cost in summary.barriers if get_us(cost) <= TIE_RATIO * least]
    return f"{', '.join(best[:3])}{' and others' if len(best) > 3 else ''} ({format_us(least)} us)"


def _describe_trust(summary: BarrierSummaryRecord, rows: Sequence[BarrierRecord]) -> str:
    """Return in words the error of the common clock, and the conditions that make the times doubtful."""
    error = f"clocks ({summary.clock}) within {format_us(summary.clock_residual_us)} us after the run"
    parts = [f"{error}, synchronised in {summary.clock_cost_s:.2g} s"]
    if summary.oversubscribed:
        parts.append(_SHARED)
    late, timed = sum(row.late_rounds for row in rows), sum(row.rounds for row in rows)
    is_disturbed_by_options = summary.inject_delay is not None or summary.noise_rank is not None
    if timed and late > 0.2 * timed and not is_disturbed_by_options:
        parts.append(f"in {late / timed:.0%} of the rounds a rank entered late, so other programs use the cores")
    return "; ".join(parts)


def list_tables(summary: BarrierSummaryRecord, rows: Sequence[BarrierRecord]) -> list[SuiteTable]:
    """Return the tables that `hpccoll barrier` prints for a run, the most important first."""
    patterns = list(dict.fromkeys(row.pattern for row in rows))
    tables = [_make_cost_table(summary, rows)]
    if len(patterns) > 1:
        completion, exit_skew = attrgetter("completion_us.p50"), attrgetter("exit_skew_us.p50")
        tables.append(_make_pattern_table("Time from the last entry to the last exit", rows, patterns, completion))
        tables.append(_make_pattern_table("Exit skew", rows, patterns, exit_skew))
    if len({row.name for row in rows}) == 1 and summary.ranks <= MAX_RANK_ROWS:
        tables += [_make_rank_table(row) for row in rows]
    if summary.ranks > 1:
        tables.append(_make_lateness_table(summary))
        if summary.nodes > 1:
            tables.append(_make_node_table(summary))
    return tables


def _make_cost_table(summary: BarrierSummaryRecord, rows: Sequence[BarrierRecord]) -> SuiteTable:
    """Return a table of each barrier's time, exit skew and other costs if all ranks enter together, fastest first."""
    even = {row.name: row for row in rows if row.pattern == ArrivalPattern.NONE}
    lines = []
    for cost in sorted(summary.barriers, key=lambda cost: cost.completion_us):
        row = even[f"{cost.engine}/{cost.algorithm}"]
        time = row.completion_us
        lines.append(
            (
                row.name,
                format_us(time.p50),
                f"[{format_us(time.p50_low)}, {format_us(time.p50_high)}]",
                format_us(row.predicted_us),
                format_us(cost.exit_skew_us),
                format_us(row.predicted_exit_skew_us),
                format_percent(cost.absorbed),
                format_us(cost.all_reduce_us),
                format_percent(cost.bias, sign="+"),
                str(cost.unsafe),
            )
        )
    start = "" if summary.all_reduce_us is None else f"; after a common start {format_us(summary.all_reduce_us)} us"
    machine = next((row.machine for row in rows if row.machine), None)
    model = f"; predictions by {machine}" if machine else ""
    shared = f"; {_SHARED}" if summary.oversubscribed else ""
    title = (
        f"Barriers without skew on {format_count(summary.ranks, 'rank')}, medians in us{shared}{model}; all_reduce of "
    )
    drops = ("predicted skew", "95 % interval", "unsafe")
    return SuiteTable(f"{title}8 B{start}", _COST_COLUMNS, tuple(lines), _COST_COLUMNS[1:], drops)


def _make_pattern_table(
    title: str, rows: Sequence[BarrierRecord], patterns: Sequence[str], get_us: Callable[[BarrierRecord], float]
) -> SuiteTable:
    """Return a table with a line per barrier and a column per arrival pattern.

    `get_us` returns the value that a cell shows, in microseconds, from the record of one barrier and pattern.
    """
    cells = {(row.name, row.pattern): format_us(get_us(row)) for row in rows}
    names = list(dict.fromkeys(row.name for row in rows))
    lines = tuple((name, *(cells.get((name, pattern), "-") for pattern in patterns)) for name in names)
    return SuiteTable(f"{title} by arrival pattern, medians in us", ("barrier", *patterns), lines, tuple(patterns))


def _make_rank_table(row: BarrierRecord) -> SuiteTable:
    """Return a table of when each rank entered and left one barrier, and how long the rank waited."""
    lines = tuple(
        (str(rank), *map(format_us, (row.planned_us[rank], row.entry_us[rank], row.exit_us[rank], row.wait_us[rank])))
        for rank in range(row.ranks)
    )
    columns = ("rank", "planned", "entered", "left", "waited")
    return SuiteTable(f"{row.name}, arrival pattern {row.pattern}: medians in us", columns, lines, columns)


def _make_lateness_table(summary: BarrierSummaryRecord) -> SuiteTable:
    """Return a table of how late each rank enters barriers and how long it waits in them, the latest rank first."""
    ordered = sorted(summary.lateness, key=lambda late: (-late.excess_us, late.rank))
    lines = tuple(
        (
            str(late.rank),
            late.node,
            str(late.last_arrivals),
            *map(format_us, (late.excess_us, late.wait_us, late.wait_deficit_us, late.caused_us)),
        )
        for late in ordered[:MAX_RANK_ROWS]
    )
    columns = ("rank", "node", "last in", "late by", "waits", "waits less by", "all waited for it")
    more = f"; the latest {MAX_RANK_ROWS} of {summary.ranks} ranks" if summary.ranks > MAX_RANK_ROWS else ""
    title = f"Lateness in {summary.rounds} rounds, medians in us; noise {format_us(summary.noise_us)} us{more}"
    numbers = tuple(name for name in columns if name != "node")
    return SuiteTable(title, columns, lines, numbers, ("waits", "all waited for it"))


def _make_node_table(summary: BarrierSummaryRecord) -> SuiteTable:
    """Return a table of how late the ranks of each node enter barriers, the latest node first."""
    ordered = sorted(summary.node_lateness, key=lambda late: -late.excess_us)
    lines = tuple(
        (
            late.node,
            str(late.ranks),
            str(late.last_arrivals),
            format_us(late.excess_us),
            format_us(late.wait_deficit_us),
        )
        for late in ordered[:MAX_RANK_ROWS]
    )
    columns = ("node", "ranks", "last in", "late by", "waits less by")
    return SuiteTable("Lateness by node, medians in us", columns, lines, columns[1:])


def format_us(value: float | None) -> str:
    """Return a time in microseconds as a number with about three significant digits; `-` for None."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def format_percent(value: float | None, sign: str = "-") -> str:
    """Return a fraction as a percentage, such as `12%`; `-` for None. With `sign` "+", positive values have a sign."""
    return "-" if value is None else f"{value:{sign}.0%}"
