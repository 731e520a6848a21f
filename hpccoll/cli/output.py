"""Output of commands: tables for people, JSON Lines for scripts; in an MPI job only rank 0 prints."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hpccoll.cli.options import declare
from hpccoll.errors import UsageError
from hpccoll.measure.results.output_file import require_writable
from hpccoll.measure.results.result_file import SPACED, STDOUT, RecordWriter
from hpccoll.processes.launched_rank import get_launched_rank, is_printing_rank
from hpccoll.text_table import TextColumn, find_output_width, format_table

__all__ = [
    "STDOUT", "get_launched_rank", "is_printing_rank", "json_field", "json_option", "list_given_options",
    "open_json_lines", "print_table", "print_text", "read_given_options", "require_outputs_writable",
]  # fmt: skip
_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:[mun]?s|[KMGT]?i?B(?:/s)?)\b|%)")


def json_option(
    text: str = "Write one JSON record per line; - for standard output.",
    *,
    all_ranks: bool = False,
    appends_with: str | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --json FILE and --overwrite to a command, which gets the parameter `json_file`.

    If FILE exists and is not empty, UsageError is raised before the command runs, unless --overwrite is given.

    Args:
        text: the help of --json.
        all_ranks: whether all ranks of an MPI job raise UsageError for an existing file; else only the rank that
            prints. If all ranks raise UsageError, the command must open the file after a collective call; otherwise a
            late rank takes the new file for an old one.
        appends_with: name of the option with which the command appends to the file; the file may then exist.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for click that has the options --json and --overwrite as well, and calls `function`."""

        @click.option("--json", "json_file", metavar="FILE", help=text)
        @click.option("--overwrite", is_flag=True, help="Replace the file of --json if it exists.")
        @wraps(function)
        def command(*arguments: Any, overwrite: bool, json_file: str | None, **options: Any) -> Any:
            """Raise UsageError if the file of --json exists and may not be replaced; else run the command."""
            appends = appends_with is not None and options[appends_with] is not None
            if json_file is not None and not (overwrite or appends) and (all_ranks or is_printing_rank()):
                _require_new(json_file, f", or --{appends_with} {json_file} to continue it" if appends_with else "")
            return function(*arguments, json_file=json_file, **options)

        return command

    return decorate


def json_field(*arguments: Any, **settings: Any) -> Any:
    """Return a dataclass field for --json FILE and --overwrite, for a command under `take_options`.

    The arguments are those of `json_option`.
    """
    return declare(lambda _: json_option(*arguments, **settings))


def _require_new(json_file: str, alternative: str) -> None:
    """Raise UsageError if `json_file`, the value of --json, is an existing regular file that is not empty.

    `alternative` is a remedy that the message adds to --overwrite; it may be empty.
    """
    file = Path(json_file)
    if json_file != STDOUT and file.is_file() and file.stat().st_size:
        remedy = f"add --overwrite to replace it{alternative}, or name another file"
        raise UsageError(f"--json {json_file}: the file exists; {remedy}")


def list_given_options(*names: str) -> list[str]:
    """Return the options, such as `--size`, that the user gave to the running click command.

    `names` are the names of the parameters to look at, such as `size`.
    """
    context = click.get_current_context()
    options = {param.name: max(param.opts, key=len) for param in context.command.params}
    return [options[name] for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]


def read_given_options(*names: str) -> dict[str, str]:
    """Return the options that the user gave to the running click command, with their values as strings.

    An option has its shortest name, such as `-b`; a flag has the value "". `names` are the names of the parameters to
    look at, such as `min_bytes`.
    """
    context = click.get_current_context()
    given = {}
    for param in context.command.params:
        value = context.params.get(param.name or "")
        if param.name not in names or context.get_parameter_source(param.name) is not ParameterSource.COMMANDLINE:
            continue
        if isinstance(param, click.Option) and param.is_flag:
            if value == param.flag_value:
                given[min(param.opts, key=len)] = ""
        else:
            given[min(param.opts, key=len)] = str(value)
    return given


def open_json_lines(json_file: str | None) -> RecordWriter:
    """Return a context manager that writes records to a file, one JSON object per line, on rank 0.

    `json_file` is a path, `-` for standard output, or None to write nothing. On other ranks nothing is written.
    Raises UsageError if the file cannot be written.
    """
    return RecordWriter(json_file if is_printing_rank() else None, separators=SPACED)


def require_outputs_writable(files: Mapping[str, str | None]) -> None:
    """Raise UsageError unless all output files can be opened for writing.

    `files` maps names of command-line options to paths; `-` (standard output) and None need no file.
    """
    for option, path in files.items():
        if path is not None and path != STDOUT:
            require_writable(path, option)


def print_text(text: str, indent: str = "  ", *, prints: bool | None = None) -> None:
    """Print `text` on rank 0; lines that are wider than the terminal are broken at blanks.

    Args:
        text: one or more lines.
        indent: the string before each continuation line, after the indentation of the broken line.
        prints: whether this rank prints; None stands for `is_printing_rank()`.
    """
    if not (is_printing_rank() if prints is None else prints):
        return
    width = find_output_width()
    for source in text.splitlines():
        own = source[: len(source) - len(source.lstrip())]
        line = _NUMBER_AND_UNIT.sub("\u00a0", source)  # textwrap does not break at no-break spaces
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
    prints: bool | None = None,
) -> None:
    """Print a table that fits the width of the terminal, on rank 0 only.

    Args:
        title: a line above the table.
        columns: the headings.
        rows: the rows, each with one cell per column.
        numbers: headings of the columns to align right.
        wraps: headings of the columns whose cells may be broken at blanks.
        drops: headings of the columns that are left out where a table is too wide, the least important one first.
        plain: whether the table has neither colours nor lines, even on a terminal.
        prints: whether this rank prints; None stands for `is_printing_rank()`.
    """
    if not (is_printing_rank() if prints is None else prints):
        return
    width = find_output_width()
    importance = {heading: len(drops) - place for place, heading in enumerate(drops)}
    shape = [TextColumn(column, column in numbers, column in wraps, importance.get(column, 0)) for column in columns]
    styled = width is not None and sys.stdout.isatty() and not plain
    print_text(title, prints=True)
    print(format_table(shape, rows, width, styled=styled))
