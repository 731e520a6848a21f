"""What commands print: tables for people, JSON Lines for their scripts; under MPI from rank 0 only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from hpccoll.measure.output_file import unwritable

SCHEMA = "hpccoll/1"
STDOUT = "-"
# What launchers tell a process about its place. An mpirun inside SLURM sets its own as well: SLURM's word comes last.
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def get_launched_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return this process's rank as its launcher says, without loading MPI; None where no launcher says so."""
    for name in _RANK_VARIABLES:
        if environ.get(name, "").isdecimal():
            return int(environ[name])
    return None


def is_printing_rank() -> bool:
    """Whether this process is the one that prints: rank 0, or no MPI job at all."""
    return not get_launched_rank()


@dataclass(frozen=True, slots=True)
class JsonLinesWriter:
    """Writes records, one a line, each flushed: a run that is cut short leaves every finished one readable."""

    stream: IO[str] | None
    target: str
    option: str

    def write(self, record: Mapping[str, Any]) -> None:
        """Write `record` as one line (nothing at all where no file was asked for).

        Raises:
            UsageError: the file cannot be written any more (a full disk).
        """
        if self.stream is None:
            return
        try:
            self.stream.write(json.dumps(record, allow_nan=False) + "\n")
            self.stream.flush()
        except BrokenPipeError:
            raise  # not a file that cannot be written, but a reader that has seen enough
        except OSError as error:
            raise unwritable(self.target, self.option, error) from error


@contextmanager
def open_json_lines(target: str | None, option: str = "--json", mode: str = "w") -> Iterator[JsonLinesWriter]:
    """Open where records go.

    Args:
        target: a path, `-` for standard output, None for nowhere; only the rank that prints opens anything.
        option: the option that named it, for the message.
        mode: `w` to begin anew, `a` to go on.

    Raises:
        UsageError: the file cannot be written; the message names option and path.
    """
    if target is None or not is_printing_rank():
        yield JsonLinesWriter(None, "", option)
    elif target == STDOUT:
        yield JsonLinesWriter(sys.stdout, target, option)
    else:
        try:
            stream = Path(target).open(mode, encoding="utf-8")  # noqa: SIM115 - an error of the body is not its own
        except OSError as error:
            raise unwritable(target, option, error) from error
        try:
            yield JsonLinesWriter(stream, target, option)
        finally:
            with suppress(OSError):  # every line was flushed: what may be left is one that has failed already
                stream.close()


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Print a table: by rich on a terminal, as plain aligned text otherwise.

    Args:
        title: what the table shows.
        columns: the headings; the last is a remark, left out where the terminal is too narrow for it.
        rows: cells as text.
        numbers: the columns that are aligned to the right.
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
