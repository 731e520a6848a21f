"""Output of commands: tables for people, JSON Lines for scripts; under MPI only rank 0 prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from hpccoll.measure.result_file import SPACED, STDOUT, RecordWriter
from hpccoll.records import SCHEMA

__all__ = ["SCHEMA", "STDOUT", "get_launched_rank", "is_printing_rank", "open_json_lines", "print_table"]
# Launchers set these to a process's rank. SLURM's comes last: an mpirun inside a SLURM job sets its own as well.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def get_launched_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return this process's rank from its launcher's environment variables; None without a launcher. Loads no MPI."""
    for name in _RANK_VARIABLES:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return None


def is_printing_rank() -> bool:
    """Whether this process prints: it is rank 0, or was not started by a launcher."""
    return not get_launched_rank()


def open_json_lines(target: str | None, option: str = "--json") -> RecordWriter:
    """Return the writer of a command's records; used in a `with` statement, it closes the file.

    Args:
        target: a path, `-` for standard output, None to write nothing; only the printing rank opens it.
        option: the option that named it, for error messages.

    Raises:
        UsageError: the file cannot be written.
    """
    return RecordWriter(target if is_printing_rank() else None, option, separators=SPACED)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Print a table on the printing rank: with rich on a terminal, as plain aligned text otherwise.

    Args:
        title: what the table shows.
        columns: headings; the last column is left out if the terminal is too narrow for it.
        rows: cells, as strings.
        numbers: headings of the columns to align right.
    """
    if not is_printing_rank():
        return
    lines = [list(columns), *(list(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    if sys.stdout.isatty():
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
