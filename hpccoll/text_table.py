"""Tables for people: aligned text that fits the width of the terminal without cutting a number or a word.

A table that is too wide for the terminal is made narrower step by step until it fits. First, headings break at blanks.
Second, cells break at blanks, in the columns that `wraps` marks. Third, columns with a `drop_priority` are left out,
and a line below the table names them. Last, the columns are printed in several blocks, each of which begins with the
table's first column. In a pipe or a file, which have no width, a table is as wide as its cells.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from rich.table import Table

GAP = 2  # blanks between columns
MIN_TEXT_WIDTH = 30  # columns that wrap are made no narrower than this
# Process names of launchers; the output of the ranks goes to the standard output of their launcher.
_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "prterun", "orterun", "srun"}


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of a table: its heading, and how the column may be made narrower.

    Columns with a larger `drop_priority` are left out earlier where a table is too wide; columns with 0 never are.
    """

    heading: str
    is_number: bool = False  # aligned right
    wraps: bool = False  # cells may be broken at blanks
    drop_priority: int = 0


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The layout of a table: the indices of the columns in each block, the widths of columns, the dropped columns.

    A table that is too wide is printed as several blocks, one below the other.
    """

    blocks: tuple[tuple[int, ...], ...]
    widths: Mapping[int, int]
    dropped: tuple[int, ...] = ()


def find_output_width(stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of characters per line of `stream` (None: standard output), None where there is no limit.

    The width is that of the variable COLUMNS in `environ`, of the stream's terminal, or of the terminal to which the
    launcher of an MPI job on this host writes the output of its ranks.
    """
    if environ.get("COLUMNS", "").isdecimal() and int(environ["COLUMNS"]):
        return int(environ["COLUMNS"])
    stream = sys.stdout if stream is None else stream
    try:
        if stream.isatty():  # Open MPI gives its ranks terminals; without a terminal of mpirun, their width is 0
            return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None
    return _find_launcher_width() if stream is sys.stdout else None


def _find_launcher_width() -> int | None:
    """Return the width of the terminal to which mpirun, which started this process, prints; None if there is none."""
    import psutil

    try:
        launcher = next((parent for parent in psutil.Process().parents() if parent.name() in _LAUNCHERS), None)
        if launcher is None:
            return None
        output = os.open(f"/proc/{launcher.pid}/fd/1", os.O_WRONLY | os.O_NOCTTY)  # `open` would truncate a file
        try:
            return os.get_terminal_size(output).columns or None
        finally:
            os.close(output)
    except (OSError, psutil.Error):
        return None


def lay_out_table(columns: Sequence[TextColumn], rows: Sequence[Sequence[str]], width: int | None) -> TableLayout:
    """Return the layout in which a table with cells `rows` has at most `width` characters per line (None: no limit)."""
    everything = tuple(range(len(columns)))
    natural = {i: max([len(columns[i].heading), *(len(row[i]) for row in rows)]) for i in everything}
    if width is None or _add_widths(everything, natural) <= width:
        return TableLayout((everything,), natural)
    narrow = {i: _get_narrow_width(columns[i], [row[i] for row in rows]) for i in everything}
    kept = list(everything)
    droppable = sorted((i for i in everything if columns[i].drop_priority), key=lambda i: (columns[i].drop_priority, i))
    while True:
        fitted = _shrink_text(columns, kept, narrow, width)
        if _add_widths(kept, fitted) <= width:
            dropped = tuple(i for i in everything if i not in kept)
            return TableLayout((tuple(kept),), _share_spare_width(kept, fitted, natural, width), dropped)
        if not droppable:
            return _split_into_blocks(kept, fitted, width, everything)
        kept.remove(droppable.pop())


def _get_narrow_width(column: TextColumn, cells: Sequence[str]) -> int:
    """Return the least width of a column whose heading is broken at every blank, and whose cells are not broken."""
    return max([0, *map(len, column.heading.split()), *map(len, cells)])


def _add_widths(indices: Sequence[int], widths: Mapping[int, int]) -> int:
    """Return the width in characters of the columns `indices` beside each other; `widths` has each column's width."""
    return sum(widths[i] for i in indices) + GAP * (len(indices) - 1)


def _shrink_text(
    columns: Sequence[TextColumn], kept: Sequence[int], widths: Mapping[int, int], width: int
) -> dict[int, int]:
    """Return the widths of the columns, by index, after narrowing the columns whose cells may break, the widest first.

    Columns are made narrower until those in `kept` fit into `width` characters, if possible.
    """
    shrunk = dict(widths)
    while _add_widths(kept, shrunk) > width:
        wide = [i for i in kept if columns[i].wraps and shrunk[i] > MIN_TEXT_WIDTH]
        if not wide:
            break
        shrunk[max(wide, key=lambda i: shrunk[i])] -= 1
    return shrunk


def _share_spare_width(
    kept: Sequence[int], widths: Mapping[int, int], natural: Mapping[int, int], width: int
) -> dict[int, int]:
    """Return the columns' widths, by index, after sharing the unused characters of `width` among the columns.

    From left to right, each column in `kept` gets its width with an unbroken heading (`natural`) if there is room for
    it.
    """
    shared = dict(widths)
    for i in kept:
        missing = natural[i] - shared[i]
        if missing <= width - _add_widths(kept, shared):
            shared[i] = natural[i]
    return shared


def _split_into_blocks(
    kept: Sequence[int], widths: Mapping[int, int], width: int, everything: Sequence[int]
) -> TableLayout:
    """Return a layout that shows the columns in several blocks of at most `width` characters.

    Each block has the first column and at least one other. `kept` has the numbers of the columns to show and
    `everything` those of all columns; `widths` are the columns' widths in characters.
    """
    key, blocks = kept[0], [[kept[0]]]
    for i in kept[1:]:
        if len(blocks[-1]) > 1 and _add_widths([*blocks[-1], i], widths) > width:
            blocks.append([key])
        blocks[-1].append(i)
    return TableLayout(tuple(map(tuple, blocks)), widths, tuple(i for i in everything if i not in kept))


def make_block(
    columns: Sequence[TextColumn],
    rows: Iterable[Sequence[str]],
    widths: Mapping[int, int],
    indices: Sequence[int],
    *,
    styled: bool,
) -> Table:
    """Return the columns `indices` of a table as a table of the library rich.

    `widths` are the widths of columns in characters; `styled` adds colours and a line below the headings.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    frame = box.SIMPLE_HEAD if styled else None
    padding = (0, GAP - 1 if styled else GAP, 0, 0)
    table = Table(box=frame, padding=padding, pad_edge=False, show_edge=False, header_style="bold" if styled else "")
    headings = {i: textwrap.wrap(columns[i].heading, max(widths[i], 1)) for i in indices}
    height = max(map(len, headings.values()))
    for i, lines in headings.items():
        heading = Text("\n".join([""] * (height - len(lines)) + lines))  # aligned at the bottom
        justify: Literal["left", "right"] = "right" if columns[i].is_number else "left"
        table.add_column(heading, justify=justify, width=widths[i], overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[i]) for i in indices))
    return table


def format_table(
    columns: Sequence[TextColumn],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    styled: bool = False,
) -> str:
    """Return a table as text, at most `width` characters wide if that is possible without cutting a number.

    Args:
        columns: headings and properties of the columns; the first one is repeated where a table is split into blocks.
        rows: the rows, each with one cell per column.
        width: characters per line; None prints the table as wide as its cells.
        styled: whether to use colours and a line below the headings, for a terminal.
    """
    from rich.console import Console

    layout = lay_out_table(columns, rows, width)
    texts = []
    for indices in layout.blocks:
        table = make_block(columns, rows, layout.widths, indices, styled=styled)
        console = Console(width=_add_widths(indices, layout.widths), force_terminal=styled, highlight=False)
        with console.capture() as captured:
            console.print(table)
        texts.append("\n".join(line.rstrip() for line in captured.get().splitlines()))
    if layout.dropped:
        names = ", ".join(columns[i].heading for i in layout.dropped)
        texts[-1] += "\n" + textwrap.fill(f"(left out at {width} characters per line: {names})", width or 80)
    return "\n\n".join(texts)
