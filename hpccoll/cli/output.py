"""Output of commands: tables for people, JSON Lines for scripts; in an MPI job only rank 0 prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from hpccoll.measure.result_file import SPACED, STDOUT, RecordWriter

__all__ = ["STDOUT", "get_launched_rank", "is_printing_rank", "open_json_lines", "print_table"]
# Environment variables in which launchers pass a rank; in a SLURM job, a variable that mpirun sets has precedence.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


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


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[str] = (),
    *,
    plain: bool = False,
) -> None:
    """Print a table on the printing rank only: by the library rich on a terminal, as aligned plain text otherwise.

    `numbers` are the headings of the columns to align right; `plain` selects plain text also for a terminal. On a
    terminal too narrow for all columns, the last one is left out.
    """
    if not is_printing_rank():
        return
    lines = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    if sys.stdout.isatty() and not plain:
        console, table = Console(), Table(title=title, title_justify="left")
        shown = len(columns) - (sum(widths) + 3 * len(widths) + 1 > console.width)
        for column in columns[:shown]:
            table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row[:shown])
        console.print(table)
        return
    print(title)
    for line in lines:
        cells = (
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        )
        print("  ".join(cells).rstrip())
