"""Prints the rows of a benchmark as each message size is finished, in columns of fixed width that fit the terminal.

All engines and algorithms are timed in turns at a message size, so their rows are finished almost together. The rows of
a message size are printed as one sorted block, with ratios to the time of the MPI library. The headings are printed
above the first block of every table. A table has the results of one operation, element type, reduction and root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TextIO

from hpccoll.measure.contenders import AUTO
from hpccoll.measure.display.table import (
    BEST,
    LEGEND,
    PLACES,
    UNSURE_LEGEND,
    format_interval,
    format_ratio,
    format_time,
    format_title,
)
from hpccoll.measure.results.measured_case import (
    Implementation,
    MeasuredCase,
    find_best,
    list_cases,
    list_implementations,
    pair_places,
)
from hpccoll.records import CollectiveRecord
from hpccoll.statistics import is_interval_full
from hpccoll.units import format_size

WRONG = "WRONG"
_LONGEST_SELECTION = len("hierarchical_doubling")  # room for the algorithm of `auto`; longer names move their line


class RowColumn(NamedTuple):
    """A column of the rows that `hpccoll bench` prints: its heading, unit, width in characters and alignment.

    On a narrow terminal, columns are left out by `drop_priority`, the largest first; columns with priority 0 are always
    printed.
    """

    name: str
    unit: str
    width: int
    left: bool = False
    drop_priority: int = 0


class ResultRows:
    """Prints the rows of `hpccoll bench`, one block of rows per message size, with a heading.

    Args:
        stream: where to print; flushed after each block.
        width: characters per line; columns that do not fit are left out.
        algorithms: the names of all algorithms that may be measured, for the width of their column.
        memory: whether to show the kind of memory of each row.
        place: whether to show a column that says which rows were measured in place.
    """

    def __init__(self, stream: TextIO, width: int, algorithms: Sequence[str], *, memory: bool, place: bool) -> None:
        self._stream = stream
        self._columns = _choose_columns(width, algorithms, memory=memory, place=place)
        self._title = ""

    def print_block(self, records: Sequence[CollectiveRecord]) -> None:
        """Print one row per record; the records are all of one message size, and the fastest is marked."""
        lines: list[str] = []
        for pair in pair_places(list_cases(records)):
            title = format_title(pair[0].setting, memory="memory" not in [column.name for column in self._columns])
            if title != self._title:
                lines += ["", f"# {title}", *self._format_heading()]
                self._title = title
            best = find_best(pair)
            lines += [
                self._format_row(case, name, is_best=name == best)
                for name in list_implementations(pair)
                for case in pair
                if name in case.records
            ]
        if lines:
            self._stream.write("\n".join([*lines, ""]) + "\n")
            self._stream.flush()

    def print_legend(self, records: Sequence[CollectiveRecord]) -> None:
        """Print the meaning of the marks in the rows of `records`."""
        unsure = not all(is_interval_full(record.samples_us) for record in records)
        self._stream.write("".join(f"# {line}\n" for line in (LEGEND, *([UNSURE_LEGEND] if unsure else []))))
        self._stream.flush()

    def _format_heading(self) -> list[str]:
        """Return the heading: the lines with the names and the units of the columns."""
        names, units = (self._align([getattr(column, part) for column in self._columns]) for part in ("name", "unit"))
        return [f"#{line[1:]}" for line in (names, units)]

    def _format_row(self, case: MeasuredCase, name: Implementation, *, is_best: bool) -> str:
        """Return the row of the implementation `name` as a line, with a mark if it is the fastest (`is_best`)."""
        record = case.records[name]
        ratio, bounds = format_ratio(case.ratio_to_mpi(name))
        cells = {
            "size": format_size(record.nbytes),
            "memory": record.buffer,
            "place": PLACES[record.in_place],
            "engine": record.engine,
            "algorithm": f"{AUTO}: {record.selected}" if record.selected else record.algorithm or "-",
            "time": format_time(record.time_us.p50),
            "time95": format_interval(record),
            "busbw": f"{record.busbw:.3f}",
            "ratio": ratio,
            "ratio95": bounds,
            "#wrong": "N/A" if record.wrong is None else str(record.wrong),
            BEST: WRONG if record.wrong else BEST if is_best else "",
        }
        return self._align([cells[column.name] for column in self._columns])

    def _align(self, cells: Sequence[str]) -> str:
        """Return cells as one line, each padded to its column's width and aligned left or right."""
        aligned = (
            cell.ljust(column.width) if column.left else cell.rjust(column.width)
            for cell, column in zip(cells, self._columns, strict=True)
        )
        return " ".join(aligned).rstrip()


def _choose_columns(width: int, algorithms: Sequence[str], *, memory: bool, place: bool) -> list[RowColumn]:
    """Return the columns that fit into `width` characters; the other arguments are those of `ResultRows`."""
    auto = [f"{AUTO}: {'x' * _LONGEST_SELECTION}"] if AUTO in algorithms else []
    columns = [
        RowColumn("size", "", 9),
        *([RowColumn("memory", "", len("symmetric"), left=True)] if memory else []),
        *([RowColumn("place", "", len("out-of-place"), left=True)] if place else []),
        RowColumn("engine", "", 7, left=True),
        RowColumn("algorithm", "", max(map(len, ["algorithm", *algorithms, *auto])), left=True),
        RowColumn("time", "(us)", 7),
        RowColumn("time95", "(us)", 17, drop_priority=3),
        RowColumn("busbw", "(GB/s)", 7, drop_priority=2),
        RowColumn("ratio", "to mpi", 7),
        RowColumn("ratio95", "", 15, drop_priority=4),
        RowColumn("#wrong", "", 6, drop_priority=1),  # the last column also marks wrong results
        RowColumn(BEST, "", len(WRONG), left=True),
    ]
    droppable = sorted((column for column in columns if column.drop_priority), key=lambda column: column.drop_priority)
    while sum(column.width + 1 for column in columns) - 1 > width and droppable:
        columns.remove(droppable.pop())
    return columns
