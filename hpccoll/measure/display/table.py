"""The full table of results, as plain text that parsers of nccl-tests can also read, and the cells of all tables.

The table has one line per size, engine and algorithm; comment lines begin with #. The first 13 columns are those of
nccl-tests: five describe the case, four hold out-of-place results and four in-place results (N/A if not measured). The
next columns are engine and algorithm, then, for out-of-place and in-place results, the median's 95 % interval, the
ratio to `mpi` (above 1x, the row is faster than `mpi`) and the ratio's interval. The last column marks the fastest row
of each message size with an asterisk. No cell contains a blank. A question mark after an interval means that there were
too few iterations to cover 95 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from hpccoll.measure.results.measured_case import (
    Implementation,
    MeasuredCase,
    TableKey,
    find_best,
    list_cases,
    list_implementations,
    pair_places,
)
from hpccoll.records import CollectiveRecord
from hpccoll.statistics import CONFIDENCE, Interval, is_interval_full

NOTHING = "N/A"  # nccl-tests' mark of a missing value
BEST = "*"
FULL_WIDTH = 220  # characters per line of a table of in-place and out-of-place results
GAP_BEFORE = ("time", "engine", "time95")  # first columns of groups, with a wider gap before them
PLACES = {False: "out-of-place", True: "in-place"}
LEGEND = "* smallest median of its size; time95, ratio95: 95 % intervals; ratio: time of mpi / time"
UNSURE_LEGEND = "? too few iterations for 95 %: the interval is the range of the samples"


class TableColumn(NamedTuple):
    """A column of the table of `hpccoll bench --full`: heading, unit, alignment.

    `place` is True for columns of in-place times, False for columns of out-of-place times, and None for others.
    """

    name: str
    unit: str
    place: bool | None
    left: bool = False


def list_table_columns(places: Sequence[bool]) -> list[TableColumn]:
    """Return the columns of the table of `hpccoll bench --full`.

    `places` are the measured values of `in_place`: False, True or both.
    """
    units = {"size": "(B)", "count": "(elements)", "type": "", "redop": "", "root": ""}
    timing_units = {"time": "(us)", "algbw": "(GB/s)", "busbw": "(GB/s)", "#wrong": ""}
    extra_units = {"time95": "(us)", "ratio": "to mpi", "ratio95": ""}
    return [
        *(TableColumn(name, unit, None) for name, unit in units.items()),
        *(TableColumn(name, unit, place) for place in PLACES for name, unit in timing_units.items()),
        *(TableColumn(name, "", None, left=True) for name in ("engine", "algorithm")),
        *(TableColumn(name, unit, place) for place in PLACES if place in places for name, unit in extra_units.items()),
        TableColumn(BEST, "", None),
    ]


def format_cells(name: Implementation, places: Sequence[bool], pair: Sequence[MeasuredCase]) -> list[str]:
    """Return the cells of one line of the table, one per column of `list_table_columns(places)`.

    Args:
        name: the engine and algorithm of the line.
        places: the measured values of `in_place`.
        pair: the measurements of one message size, out of place and in place, as far as they exist.
    """
    cases = {case.in_place: case for case in pair if name in case.records}
    records = {place: case.records[name] for place, case in cases.items()}
    row = next(iter(records.values()))
    root = -1 if row.root is None else row.root
    head = [str(row.nbytes), str(row.count), row.dtype, row.redop or "none", str(root)]
    timings = [cell for place in PLACES for cell in format_timings(records.get(place))]
    extras: list[str] = []
    for place in (place for place in PLACES if place in places):
        record, case = records.get(place), cases.get(place)
        extras += [format_interval(record), *format_ratio(case.ratio_to_mpi(name))] if record and case else ["-"] * 3
    mark = BEST if name == find_best(pair) else ""
    return [*head, *timings, name.engine, name.algorithm or "-", *extras, mark]


def format_timings(record: CollectiveRecord | None) -> list[str]:
    """Return the cells of the columns time (us), algbw, busbw (GB/s) and #wrong; N/A in all if `record` is None."""
    if record is None:
        return [NOTHING] * 4
    wrong = NOTHING if record.wrong is None else str(record.wrong)
    return [format_time(record.time_us.p50), f"{record.algbw:.3f}", f"{record.busbw:.3f}", wrong]


def format_interval(record: CollectiveRecord) -> str:
    """Return the median's interval in microseconds, such as `[3.02,3.31]`, with a `?` if it covers less than 95 %."""
    sure = is_interval_full(record.samples_us)
    return f"[{format_time(record.time_us.p50_low)},{format_time(record.time_us.p50_high)}]{'' if sure else '?'}"


def format_time(microseconds: float) -> str:
    """Return a time in microseconds with 2, 1 or 0 decimals: at most six characters for times below a second."""
    return f"{microseconds:.{2 if microseconds < 1e3 else 1 if microseconds < 1e4 else 0}f}"


def format_ratio(ratio: Interval | None) -> tuple[str, str]:
    """Return a ratio and its interval, such as `1.31x` and `[1.22,1.40]`; two `-` if `ratio` is None."""
    if ratio is None:
        return "-", "-"
    value, low, high = (f"{x:.2f}" if x >= 0.1 else f"{x:.2g}" for x in (ratio.value, ratio.low, ratio.high))
    return f"{value}x", f"[{low},{high}]{'' if ratio.coverage >= CONFIDENCE else '?'}"


def format_title(setting: TableKey, *, memory: bool = True) -> str:
    """Return a table's title, such as `all_reduce, float32, sum, 4 ranks on 1 node, host memory`.

    `memory` states whether the title names the kind of memory.
    """
    ranks = f"{setting.ranks} rank{'s' * (setting.ranks > 1)}"
    nodes = f"{setting.nodes} node{'s' * (setting.nodes > 1)}"
    parts = [setting.op, setting.dtype, setting.redop or "", "" if setting.root is None else f"root {setting.root}"]
    kind = [f"{setting.buffer} memory"] if memory else []
    return ", ".join([*(part for part in parts if part), f"{ranks} on {nodes}", *kind])


def format_plain_table(records: Iterable[CollectiveRecord]) -> str:
    """Return the tables of `hpccoll bench --full` and their legend as text.

    Two records are in one table if they differ only in engine, algorithm, message size and `in_place`.
    """
    cases = list_cases(records)
    places = tuple(sorted({case.in_place for case in cases}))
    shape = list_table_columns(places)
    sizes = [
        (pair[0].setting, [format_cells(name, places, pair) for name in list_implementations(pair)])
        for pair in pair_places(cases)
    ]
    rows = [row for _, own in sizes for row in own]
    widths = [max([len(c.name), len(c.unit), *(len(row[i]) for row in rows)]) for i, c in enumerate(shape)]
    widths[0] += 2  # for the "# " in front of the headings
    lines: list[str] = []
    for setting, members in groupby(sizes, key=lambda size: size[0]):
        lines += ["", f"# {format_title(setting)}", *_format_heading(shape, widths)]
        for i, (_, own) in enumerate(members):
            lines += [""] * (i > 0)
            lines += [_format_line(row, shape, widths) for row in own]
    legend = [LEGEND, *([UNSURE_LEGEND] if any("]?" in line for line in lines) else [])]
    return "\n".join([*lines[1:], *(f"# {line}" for line in legend)])


def _get_gap(column: TableColumn) -> str:
    """Return the spaces that separate a column from the one before it."""
    return "  " if column.name in GAP_BEFORE else " "


def _format_line(row: Sequence[str], shape: Sequence[TableColumn], widths: Sequence[int]) -> str:
    """Return the cells of a row as one line; `shape` has the columns, and `widths` their widths in characters."""
    aligned = (
        _get_gap(column) + (cell.ljust(width) if column.left else cell.rjust(width))
        for cell, column, width in zip(row, shape, widths, strict=True)
    )
    return "".join(aligned)[1:].rstrip()


def _format_heading(shape: Sequence[TableColumn], widths: Sequence[int]) -> list[str]:
    """Return a table's three heading lines: the places (out-of-place, in-place), the columns' names, and their units.

    `shape` has the columns, and `widths` their widths in characters.
    """
    above = ""
    for place, group in groupby(zip(shape, widths, strict=True), key=lambda pair: pair[0].place):
        span = sum(width + len(_get_gap(column)) for column, width in group)
        above += " " * span if place is None else f"   {PLACES[place]} ".ljust(span, "-")
    names, units = (_format_line([getattr(c, part) for c in shape], shape, widths) for part in ("name", "unit"))
    return [f"#{line[1:]}" for line in (above[1:].rstrip(), names, units)]
