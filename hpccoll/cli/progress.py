"""Progress of a command: a bar on the terminal or, without a terminal, lines on standard error.

The bar is drawn on /dev/tty, because under mpirun standard output is a pipe. Callers end the bar before they print
results, because the results may go to the same terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

LINE_INTERVAL_S = 5.0  # without a terminal, a line is printed at most this often
BAR_WIDTH = 50  # columns that the bar, the counts, the unit and the remaining time take


@contextmanager
def show_progress(
    unit: str, total: int, get_seconds_left: Callable[[], float] | None = None
) -> Iterator[Callable[..., None]]:
    """Show a progress bar, or lines on standard error without a terminal, until the `with` block ends.

    Yields a function `advance(description, steps=1)` that advances the bar and shows the description; with steps=0,
    only the time left is shown again.

    Args:
        unit: a noun for the steps, such as `rows`.
        total: the number of steps.
        get_seconds_left: estimates the time left; None assumes that all steps take the same time.
    """
    terminal: IO[str] | None = None
    with suppress(OSError):
        terminal = Path("/dev/tty").open("w", encoding="utf-8")  # noqa: SIM115 - closed below
    if terminal is None:
        yield ProgressLines(unit, total, sys.stderr, get_seconds_left=get_seconds_left).advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(file=terminal)
    # On a narrow terminal, the last column (the description) is broken, so that the other columns keep their room.
    left_column = TimeRemainingColumn() if get_seconds_left is None else TextColumn("{task.fields[left]}")
    bar_columns = (BarColumn(20), MofNCompleteColumn(), TextColumn(unit), left_column)
    room = max(console.width - BAR_WIDTH, 10)
    description = TextColumn("{task.description}", markup=False, table_column=Column(max_width=room))
    with terminal, Progress(*bar_columns, description, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, left="")

        def advance(description: str, steps: int = 1) -> None:
            """Advance the progress bar by `steps`, and show the description and the time left."""
            left = "" if get_seconds_left is None else f"{get_seconds_left():.0f} s left"
            bar.update(task, advance=steps, description=description, left=left)

        yield advance


class ProgressLines:
    """Prints progress to `stream`, in place of a bar, as a line at most every LINE_INTERVAL_S seconds.

    Args:
        unit: a noun for the steps, such as `rows`.
        total: the number of steps.
        get_seconds: the clock.
        get_seconds_left: estimates the time left; None assumes that all steps take the same time.
    """

    def __init__(
        self,
        unit: str,
        total: int,
        stream: IO[str],
        get_seconds: Callable[[], float] = time.monotonic,
        get_seconds_left: Callable[[], float] | None = None,
    ) -> None:
        self._unit, self._total, self._stream, self._get_seconds = unit, total, stream, get_seconds
        self._get_seconds_left = get_seconds_left
        self._done = 0
        self._begin = self._printed = get_seconds()

    def advance(self, description: str, steps: int = 1) -> None:
        """Count `steps` finished steps, and print the progress if the last line is LINE_INTERVAL_S seconds old.

        An example of a line is `# 12 of 91 rows, 60 s left: all_reduce 64 KiB`; its last words are `description`.
        """
        self._done += steps
        now = self._get_seconds()
        if now - self._printed < LINE_INTERVAL_S:
            return
        self._printed = now
        if self._get_seconds_left is not None:
            left = self._get_seconds_left()
        else:
            left = (now - self._begin) / max(self._done, 1) * max(self._total - self._done, 0)
        self._stream.write(f"# {self._done} of {self._total} {self._unit}, {left:.0f} s left: {description}\n")
        self._stream.flush()
