"""A progress bar on /dev/tty: under mpirun standard output is a pipe, but the terminal can still be opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def show_progress(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar of `total` steps while the body runs; show nothing if there is no terminal.

    Yields a function to call after each step with a word about it. The bar is erased at the end.
    """
    terminal: IO[str] | None = None
    with suppress(OSError):
        terminal = Path("/dev/tty").open("w", encoding="utf-8")  # noqa: SIM115 - closed below
    if terminal is None:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = ("{task.description}", BarColumn(), MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn())
    with terminal, Progress(*shown, console=Console(file=terminal), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda word: bar.update(task, advance=1, description=word)
