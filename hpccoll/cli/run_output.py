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
        stack: the ExitStack that closes the file of records.
        run: the record of kind `run` (command, versions, hosts), as a dict.
        writer: the writer of records, whose file is open.
        json_file: the value of --json.
        stop_file: the value of --stop-file, a file whose existence stops the run; None for no such file.
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
        """Show the progress of `total` steps until `stack` is closed; `unit` is a noun for them, such as `rows`."""
        time_left = self._time_left
        get_seconds_left = None if time_left is None else lambda: time_left.seconds
        self._advance = stack.enter_context(show_progress(unit, total, get_seconds_left))

    def write(self, record: Record, description: str | None = None) -> None:
        """Write a record; with a `description`, advance the progress by one step and show the description."""
        self._writer.write(record.as_dict())
        if description is not None:
            self._running = description
            if self._advance is not None:
                self._advance(description)

    def show_share(self, share: float) -> None:
        """Show the time left, when the fraction `share` of the measurements of the current message size is done."""
        if self._time_left is not None:
            self._time_left.update(share)
            if self._advance is not None:
                self._advance(self._running, 0)

    def end_block(self, rows: Sequence[Iterations] = ()) -> None:
        """When all rows of a message size are measured, update the estimate of the time left; write nothing.

        For each row of the message size, `rows` has the number of iterations and the time of one iteration.
        """
        if self._time_left is not None:
            self._time_left.end_block(rows)

    @property
    def should_stop(self) -> bool:
        """Whether the file of --stop-file exists."""
        return self._stop_file is not None and Path(self._stop_file).exists()


def open_resumed_file(json_file: str | None, resume: str | None) -> RecordWriter:
    """Return a writer that appends records to the file of --resume or, without --resume, writes the file of --json.

    `json_file` and `resume` are the values of --json and --resume; if both are None, nothing is written.
    """
    return RecordWriter(resume or json_file, "--resume" if resume else "--json", resume=bool(resume))


def read_resumed_file(path: str | None, run: Mapping[str, Any]) -> tuple[FileContents, FileContents] | None:
    """Return the contents of the result file `path`, and the part of the contents that this run may continue.

    A run may continue the records of runs with the same hosts, ranks, devices and versions. `run` is this run's record
    of kind `run`, and `path` the value of --resume. The result is None if `path` is None, or if the file does not
    exist, because a job that may be requeued passes --resume at its first start, too.
    """
    if path is None or not Path(path).exists():
        return None
    contents = read_records(path)
    return contents, contents.keep_comparable(run)
