"""A progress bar on /dev/tty, because under mpirun standard output is a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def show_progress(unit: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar of `total` steps on the terminal, if there is one, until the `with` block ends.

    Yields a function that advances the bar by one step and shows its argument beside the bar. `unit` names the steps,
    such as `rows`.
    """
    terminal: IO[str] | None = None
    with suppress(OSError):
        terminal = Path("/dev/tty").open("w", encoding="utf-8")  # noqa: SIM115 - closed below
    if terminal is None:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = ("{task.description}", BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with terminal, Progress(*shown, console=Console(file=terminal), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda description: bar.update(task, advance=1, description=description)
