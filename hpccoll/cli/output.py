"""Output of commands: tables for people, JSON Lines for scripts; under MPI only rank 0 prints."""

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


@dataclass(frozen=True, slots=True)
class JsonLinesWriter:
    """Writes one record per line and flushes each, so that an interrupted run leaves its finished records readable."""

    stream: IO[str] | None
    target: str
    option: str

    def write(self, record: Mapping[str, Any]) -> None:
        """Write `record` as one line; does nothing without a stream.

        Raises:
            UsageError: the file can no longer be written, such as on a full disk.
        """
        if self.stream is None:
            return
        try:
            self.stream.write(json.dumps(record, allow_nan=False) + "\n")
            self.stream.flush()
        except BrokenPipeError:
            raise  # the reader closed the pipe; `main` exits quietly
        except OSError as error:
            raise unwritable(self.target, self.option, error) from error


@contextmanager
def open_json_lines(target: str | None, option: str = "--json", mode: str = "w") -> Iterator[JsonLinesWriter]:
    """Open the file that records are written to.

    Args:
        target: a path, `-` for standard output, None to write nothing; only the printing rank opens it.
        option: the option that named it, for error messages.
        mode: `w` to replace the file, `a` to append.

    Raises:
        UsageError: the file cannot be written; the message names option and path.
    """
    if target is None or not is_printing_rank():
        yield JsonLinesWriter(None, "", option)
    elif target == STDOUT:
        yield JsonLinesWriter(sys.stdout, target, option)
    else:
        try:
            stream = Path(target).open(mode, encoding="utf-8")  # noqa: SIM115 - errors of the body must not be caught
        except OSError as error:
            raise unwritable(target, option, error) from error
        try:
            yield JsonLinesWriter(stream, target, option)
        finally:
            with suppress(OSError):  # every line was flushed; only one that failed to be written can be left
                stream.close()


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
