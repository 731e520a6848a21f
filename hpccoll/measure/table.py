"""Tables of results: plain text that nccl-tests' parsers read as well, and a rich table on a terminal.

Plain text: the first 13 columns are nccl-tests' (four for out of place, then four for in place, N/A for a place that
was not measured), one line per engine and algorithm; comment lines begin with #. Then follow engine and algorithm,
and for each measured place the median's 95 % interval, the ratio to `mpi` (above 1x is faster) and its interval; the
last column marks the best row of a size with *. No cell contains a blank. An interval followed by ? comes from too few
iterations to cover 95 %.

Under mpirun standard output is a pipe, so most users see the plain table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TextIO

from hpccoll.measure.comparison import EngineComparison, EngineRecords, TableKey, compare_engines
from hpccoll.measure.statistics import CONFIDENCE, Interval, median_ranks
from hpccoll.records import CollectiveRecord

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NOTHING = "N/A"  # as nccl-tests writes it
BEST = "*"
GAP_BEFORE = ("time", "engine", "time95")  # where a group of columns begins
PLACES = {False: "out-of-place", True: "in-place"}


class TableColumn(NamedTuple):
    """A heading, its unit, the place it belongs to (None: both), and its alignment."""

    name: str
    unit: str
    place: bool | None
    left: bool = False


def table_columns(places: Sequence[bool]) -> list[TableColumn]:
    """Return the columns of the plain table for the measured `places` (False: out of place)."""
    units = {"size": "(B)", "count": "(elements)", "type": "", "redop": "", "root": ""}
    timing_units = {"time": "(us)", "algbw": "(GB/s)", "busbw": "(GB/s)", "#wrong": ""}
    extra_units = {"time95": "(us)", "ratio": "to mpi", "ratio95": ""}
    return [
        *(TableColumn(name, unit, None) for name, unit in units.items()),
        *(TableColumn(name, unit, place) for place in PLACES for name, unit in timing_units.items()),
        *(TableColumn(name, "", None, left=True) for name in ("engine", "algorithm")),
        *(TableColumn(name, unit, at) for at in PLACES if at in places for name, unit in extra_units.items()),
        TableColumn(BEST, "", None),
    ]


def format_cells(entry: EngineRecords, places: Sequence[bool], case: EngineComparison) -> list[str]:
    """Return the cells of one line of the plain table, one per column of `table_columns(places)`."""
    row = entry.records[0]
    root = -1 if row.root is None else row.root
    head = [str(row.nbytes), str(row.count), row.dtype, row.redop or "none", str(root)]
    timings = [cell for place in PLACES for cell in format_timings(entry.get_record(place))]
    extras = [cell for place in PLACES if place in places for cell in _extra_cells(entry.get_record(place), case)]
    mark = BEST if entry is case.best else ""
    return [*head, *timings, entry.engine, entry.algorithm or "-", *extras, mark]


def format_timings(record: CollectiveRecord | None) -> list[str]:
    """Return time, algbw, busbw and #wrong."""
    if record is None:
        return [NOTHING] * 4
    wrong = NOTHING if record.wrong is None else str(record.wrong)
    return [_time(record.time_us.p50), f"{record.algbw:.3f}", f"{record.busbw:.3f}", wrong]


def format_interval(record: CollectiveRecord) -> str:
    """Return the median's interval, such as `[3.02,3.31]`; with a ? where it covers less than 95 %."""
    sure = median_ranks(len(record.samples_us))[1] >= CONFIDENCE
    return f"[{_time(record.time_us.p50_low)},{_time(record.time_us.p50_high)}]{'' if sure else '?'}"


def _time(microseconds: float) -> str:
    """Format a time in at most six characters up to a second."""
    return f"{microseconds:.{2 if microseconds < 1e3 else 1 if microseconds < 1e4 else 0}f}"


def format_ratio(ratio: Interval | None) -> tuple[str, str]:
    """Return a ratio and its interval, such as `1.31x` and `[1.22,1.40]`."""
    if ratio is None:
        return "-", "-"
    value, low, high = (f"{x:.2f}" if x >= 0.1 else f"{x:.2g}" for x in (ratio.value, ratio.low, ratio.high))
    return f"{value}x", f"[{low},{high}]{'' if ratio.coverage >= CONFIDENCE else '?'}"


def _extra_cells(record: CollectiveRecord | None, case: EngineComparison) -> list[str]:
    if record is None:
        return ["-"] * 3
    return [format_interval(record), *format_ratio(case.ratio_to_mpi(record))]


def format_title(setting: TableKey) -> str:
    """Format a table key as a title of one line."""
    ranks = f"{setting.ranks} rank{'s' * (setting.ranks > 1)}"
    nodes = f"{setting.nodes} node{'s' * (setting.nodes > 1)}"
    parts = [setting.op, setting.dtype, setting.redop or "", "" if setting.root is None else f"root {setting.root}"]
    return ", ".join([*(part for part in parts if part), f"{ranks} on {nodes}", f"{setting.buffer} memory"])


def format_plain_table(records: Iterable[CollectiveRecord]) -> str:
    """Return the table as plain text: a heading per table key, a blank line between sizes, best rows marked."""
    cases = compare_engines(records)
    places = _measured(cases)
    shape = table_columns(places)
    rows = [format_cells(entry, places, case) for case in cases for entry in case.entries]
    widths = [max([len(c.name), len(c.unit), *(len(row[at]) for row in rows)]) for at, c in enumerate(shape)]
    widths[0] += 2  # for the "# " in front of the headings
    lines: list[str] = []
    for setting, sizes in groupby(cases, key=lambda case: case.setting):
        lines += ["", f"# {format_title(setting)}", *_heading(shape, widths)]
        for at, case in enumerate(sizes):
            lines += [""] * (at > 0)
            lines += [_line(format_cells(entry, places, case), shape, widths) for entry in case.entries]
    legend = (f"# {line}" for line in _legend(unsure=any("]?" in line for line in lines)))
    return "\n".join([*lines[1:], *legend])


def _measured(cases: Iterable[EngineComparison]) -> tuple[bool, ...]:
    return tuple(sorted({record.in_place for case in cases for c in case.entries for record in c.records}))


def _legend(*, unsure: bool) -> Iterator[str]:
    yield f"{BEST} smallest median of its size; time95, ratio95: 95 % intervals; ratio: time of mpi / time"
    if unsure:
        yield "? too few iterations for 95 %: the interval is the range of the samples"


def _gap(column: TableColumn) -> str:
    return "  " if column.name in GAP_BEFORE else " "


def _line(row: Sequence[str], shape: Sequence[TableColumn], widths: Sequence[int]) -> str:
    aligned = (
        _gap(column) + (cell.ljust(width) if column.left else cell.rjust(width))
        for cell, column, width in zip(row, shape, widths, strict=True)
    )
    return "".join(aligned)[1:].rstrip()


def _heading(shape: Sequence[TableColumn], widths: Sequence[int]) -> list[str]:
    above = ""
    for place, group in groupby(zip(shape, widths, strict=True), key=lambda pair: pair[0].place):
        span = sum(width + len(_gap(column)) for column, width in group)
        above += " " * span if place is None else f"   {PLACES[place]} ".ljust(span, "-")
    names, units = (_line([getattr(c, part) for c in shape], shape, widths) for part in ("name", "unit"))
    return [f"#{line[1:]}" for line in (above[1:].rstrip(), names, units)]


def make_rich_table(cases: Sequence[EngineComparison], places: Sequence[bool], drop: Sequence[str] = ()) -> Table:
    """Return the table of one table key for a terminal, with engine and algorithm before the times.

    Args:
        cases: comparisons of one table key.
        places: places to show (False: out of place).
        drop: headings to leave out on a narrow terminal.
    """
    from rich import box
    from rich.table import Table

    shape = table_columns(places)
    shown = [at for at, c in enumerate(shape) if c.name not in drop and (c.place is None or c.place in places)]
    names = [column.name for column in shape]
    shown.sort(key=lambda at: (names[at] == BEST, {None: 0, False: 1, True: 2}[shape[at].place], at))
    where = f", {PLACES[places[0]]}" if len(places) == 1 else ""
    table = Table(
        title=format_title(cases[0].setting) + where, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for column in (shape[at] for at in shown):
        above = f"{PLACES[column.place]}\n" if column.place is not None and len(places) > 1 else ""
        head = f"{above if column.name == 'time' else ''}{column.name}\n{column.unit}".rstrip()
        table.add_column(head, justify="left" if column.left else "right", no_wrap=True, vertical="bottom")
    for case in cases:
        entries = [entry for entry in case.entries if any(entry.get_record(place) for place in places)]
        for entry in entries:
            row = format_cells(entry, places, case)
            row[:5] = row[:5] if entry is entries[0] else [""] * 5
            wrong = any(record.wrong for record in entry.records)
            style = "red" if wrong else "bold green" if entry is case.best else None
            table.add_row(*(row[at] for at in shown), style=style, end_section=entry is entries[-1])
    return table


# Dropped in this order: what the title repeats, then what follows from other columns.
_DISPENSABLE = (("type", "redop", "root"), ("count",), ("algbw",), ("ratio95",), ("time95",), (BEST,))


def print_table(records: Iterable[CollectiveRecord], stream: TextIO | None = None) -> None:
    """Print the final table to `stream` (standard output): by rich on a terminal, as plain text otherwise.

    On a terminal too narrow for both places, print a table per place, with fewer columns if needed.
    """
    stream = sys.stdout if stream is None else stream
    records = list(records)
    if not stream.isatty():
        print(format_plain_table(records), file=stream)
        return
    from rich.console import Console

    console = Console(file=stream)
    for _, group in groupby(compare_engines(records), key=lambda case: case.setting):
        cases = list(group)
        for table in _fitting(cases, console):
            console.print(table)
    few = any(median_ranks(len(record.samples_us))[1] < CONFIDENCE for record in records)
    console.print("\n".join(_legend(unsure=few)), markup=False, highlight=False)


def _fitting(cases: Sequence[EngineComparison], console: Console) -> list[Table]:
    """Return the tables with the most columns that fit the console's width."""
    places = _measured(cases)
    for drop in ((), _DISPENSABLE[0]):
        table = make_rich_table(cases, places, drop)
        if _fits(table, console):
            return [table]
    return [_narrow(cases, (place,), console) for place in places]


def _narrow(cases: Sequence[EngineComparison], places: Sequence[bool], console: Console) -> Table:
    mine = [case for case in cases if any(entry.get_record(place) for entry in case.entries for place in places)]
    drop: list[str] = []
    for more in _DISPENSABLE:
        table = make_rich_table(mine, places, drop)
        if _fits(table, console):
            return table
        drop += more
    return make_rich_table(mine, places, drop)


def _fits(table: Table, console: Console) -> bool:
    unbounded = console.options.update(max_width=10_000)
    return console.measure(table, options=unbounded).maximum <= console.width
