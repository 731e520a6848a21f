"""Output of commands: tables for people, JSON Lines for scripts; in an MPI job only rank 0 prints."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence

from hpccoll.measure.result_file import SPACED, STDOUT, RecordWriter
from hpccoll.text_table import TextColumn, find_output_width, format_table

__all__ = ["STDOUT", "get_launched_rank", "is_printing_rank", "open_json_lines", "print_table", "print_text"]
# Environment variables in which launchers pass a rank; in a SLURM job, a variable that mpirun sets has precedence.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")

_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:[mun]?s|[KMGT]?i?B(?:/s)?)\b|%)")


def get_launched_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the rank that the launcher put into the environment, None without a launcher; does not import MPI."""
    for name in _RANK_VARIABLES:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return None


def is_printing_rank() -> bool:
    """Whether this process may print: it is rank 0 or was not launched. `is_printing_rank` does not import MPI."""
    return not get_launched_rank()


def open_json_lines(json_file: str | None, option: str = "--json") -> RecordWriter:
    """Open a file for a command's records on the printing rank, and return the writer, a context manager.

    `json_file` is a path, `-` for standard output, or None to write nothing. On ranks that do not print, the writer
    writes nothing. Raises a UsageError that names `option` if the file cannot be written.
    """
    return RecordWriter(json_file if is_printing_rank() else None, option, separators=SPACED)


def print_text(text: str, indent: str = "  ") -> None:
    """Print each line of `text`, broken at blanks where it is wider than the terminal; on the printing rank only.

    All but the first of the lines that a line is broken into begin with the line's own indentation and `indent`.
    """
    if not is_printing_rank():
        return
    width = find_output_width()
    for each in text.splitlines():
        own = each[: len(each) - len(each.lstrip())]
        line = _NUMBER_AND_UNIT.sub("\u00a0", each)  # textwrap does not break at no-break spaces
        broken = textwrap.wrap(
            line, width or len(line) + 1, subsequent_indent=own + indent, break_long_words=False, break_on_hyphens=False
        )
        print("\n".join(broken).replace("\u00a0", " "))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[str] = (),
    *,
    wraps: Sequence[str] = (),
    drops: Sequence[str] = (),
    plain: bool = False,
) -> None:
    """Print a table that fits the width of the terminal, on the printing rank only.

    Args:
        title: a line above the table.
        columns: the headings.
        rows: the cells, one per column.
        numbers: headings of the columns to align right.
        wraps: headings of the columns whose cells may be broken at blanks.
        drops: headings of the columns that are left out where a table is too wide, the least important one first.
        plain: no colours and lines, also on a terminal.
    """
    if not is_printing_rank():
        return
    width = find_output_width()
    importance = {heading: len(drops) - place for place, heading in enumerate(drops)}
    shape = [TextColumn(each, each in numbers, each in wraps, importance.get(each, 0)) for each in columns]
    styled = width is not None and sys.stdout.isatty() and not plain
    print_text(title)
    print(format_table(shape, rows, width, styled=styled))
