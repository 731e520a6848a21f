"""The output of a measuring command on the rank that prints: records as they are made, progress, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpccoll.cli.output import STDOUT
from hpccoll.cli.progress import show_progress
from hpccoll.measure.results.result_file import FileContents, RecordWriter, read_records
from hpccoll.records import Record

if TYPE_CHECKING:
    from hpccoll.measure.time_left import Iterations, TimeLeft


class RunOutput:
    """Writes the records of a run, and shows its progress; the constructor writes the record of kind `run`.

    Args:
        stack: closes the file of records.
        run: the record of kind `run`, as a dict.
        writer: writes the records.
        json_file: the value of --json.
        stop_file: the value of --stop-file.
    """

    def __init__(
        self,
        stack: ExitStack,
        run: Mapping[str, Any],
        writer: RecordWriter,
        json_file: str | None,
        stop_file: str | None = None,
    ) -> None:
        self.has_records_on_stdout = json_file == STDOUT
        self._writer, self._stop_file = stack.enter_context(writer), stop_file
        self._writer.write(run)
        self._advance: Callable[..., None] | None = None
        self._time_left: TimeLeft | None = None
        self._running = ""  # what the bar describes

    def show_progress(self, stack: ExitStack, unit: str, total: int) -> None:
        """Show the progress of `total` steps until `stack` is closed, with the time left where it is estimated."""
        time_left = self._time_left
        get_seconds_left = None if time_left is None else lambda: time_left.seconds
        self._advance = stack.enter_context(show_progress(unit, total, get_seconds_left))

    def write(self, record: Record, description: str | None = None) -> None:
        """Write a record; one with a description is a step of the progress."""
        self._writer.write(record.as_dict())
        if description is not None:
            self._running = description
            if self._advance is not None:
                self._advance(description)

    def show_share(self, share: float) -> None:
        """Note which share of a block (a message size, a pattern) has run, and show the time left."""
        if self._time_left is not None:
            self._time_left.update(share)
            if self._advance is not None:
                self._advance(self._running, 0)

    def end_block(self, rows: Sequence[Iterations] = ()) -> None:
        """Note that all rows of a block are measured."""
        if self._time_left is not None:
            self._time_left.end_block(rows)

    @property
    def should_stop(self) -> bool:
        """Whether the file of --stop-file exists."""
        return self._stop_file is not None and Path(self._stop_file).exists()


def open_resumed_file(json_file: str | None, resume: str | None) -> RecordWriter:
    """Return the writer of the file of --json, or of that of --resume, to which it appends."""
    return RecordWriter(resume or json_file, "--resume" if resume else "--json", resume=bool(resume))


def read_resumed_file(path: str | None, run: Mapping[str, Any]) -> tuple[FileContents, FileContents] | None:
    """Return the contents of the file of --resume, and those that the run of a record may continue.

    A job that may be requeued always passes --resume, so the file need not exist: then the result is None.
    """
    if path is None or not Path(path).exists():
        return None
    contents = read_records(path)
    return contents, contents.keep_comparable(run)
