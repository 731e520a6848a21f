"""The output of `hpccoll bench` on rank 0: records, rows as they finish, progress, and the verdict at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.run_output import RunOutput, open_resumed_file, read_resumed_file
from hpccoll.errors import HpccollError
from hpccoll.measure.bandwidth import compute_count, compute_message_bytes
from hpccoll.measure.hardware_limit import set_bound
from hpccoll.plan import Operation
from hpccoll.records import BenchSummaryRecord, CaseKey, CollectiveRecord
from hpccoll.text_table import find_output_width
from hpccoll.units import format_count, format_list, format_size

if TYPE_CHECKING:
    from hpccoll.cli.bench import BenchOptions
    from hpccoll.measure.hardware_limit import HardwareLimit
    from hpccoll.measure.memory_need import MemoryNeed
    from hpccoll.measure.session import BenchmarkConfig, BenchmarkSession
    from hpccoll.measure.time_left import TimeLeft
    from hpccoll.synthesis import Network

MOST_ROUNDED = 3  # sizes that are named if they are rounded
TIMES_LIMIT = 6  # a rough mean of all implementations, with resetting and checking the buffers, for a first guess
WIDTH = 120  # of rows and verdict where the terminal's width is unknown


def _read_finished(path: str | None, run: dict[str, Any]) -> list[CollectiveRecord]:
    """Return the records of collectives in the file of --resume, whose cases this run need not measure again.

    Records of other hosts, ranks, devices or versions are left out, and their number is printed to standard error.

    Args:
        path: the value of --resume; the result is empty if `path` is None or the file does not exist.
        run: this run's record of kind `run`.
    """
    resumed = read_resumed_file(path, run)
    if resumed is None:
        return []
    contents, comparable = resumed
    ignored = len(contents.records) - len(comparable.records)
    if ignored:
        reason = "of other hosts, ranks, devices or versions"
        click.echo(f"# --resume {path}: {format_count(ignored, 'record')} {reason} ignored", err=True)
    if contents.torn:
        click.echo(f"# {contents.torn}", err=True)
    return comparable.collectives()


def print_memory_need(need: MemoryNeed) -> None:
    """Print to standard error the host memory that the largest message needs, and the message sizes that need too much.

    Call this function on rank 0 only. Nothing is printed if all buffers are in GPU memory.
    """
    if not need.messages:
        return
    click.echo(f"# {need.describe()}", err=True)
    if need.left_out:
        click.echo(f"# left out: {need.explain_left_out()}", err=True)


def print_rounded_sizes(config: BenchmarkConfig, ranks: int) -> None:
    """Print to standard error which sizes of the user differ from those that are measured, and why, on rank 0.

    A message has a whole number of elements, and of equal blocks in operations with a block per rank.
    """
    rounded = []
    for operation in config.operations:
        for size in config.sizes if operation is not Operation.BARRIER else ():
            count = compute_count(operation, size, config.dtype.itemsize, ranks)
            measured = compute_message_bytes(operation, count, config.dtype.itemsize, ranks)
            if measured != size:
                rounded.append(f"{operation.value} {size} B to {measured} B")
    if rounded:
        reason = f"to whole elements of {config.dtype.name} ({config.dtype.itemsize} B) and blocks of equal size"
        click.echo(f"# sizes rounded {reason}: {format_list(rounded, MOST_ROUNDED)}", err=True)


class BenchOutput(RunOutput):
    """The output of `hpccoll bench` on rank 0: writes each record, prints rows as they finish, and then a verdict.

    The constructor tests that all output files can be written, reads the file of --resume and writes the run record.
    When the caller closes the ExitStack `stack`, `finish` is called. With `--json -`, rows and verdict go to stderr.
    """

    def __init__(
        self,
        options: BenchOptions,
        stack: ExitStack,
        sessions: Sequence[BenchmarkSession],
        run: dict[str, Any],
        need: MemoryNeed,
        limit: HardwareLimit | None,
        network: Network | None = None,
    ) -> None:
        from hpccoll.measure.results import output_file
        from hpccoll.measure.verdict.trust import RunConditions

        self.options, self.sessions, self.need, self.network = options, sessions, need, network
        self.conditions = RunConditions()
        self._block: list[CollectiveRecord] = []
        if options.plot:
            output_file.require_picture(options.plot, "--plot")
        if options.csv:
            output_file.require_writable(options.csv, "--csv")
        self.records = _read_finished(options.resume, run)
        writer = open_resumed_file(options.json_file, options.resume)
        super().__init__(stack, run, writer, options.json_file, options.stop_file)
        stack.push(self._write_files_after_failure)
        stack.callback(self.finish)  # so that an exception does not prevent it
        self._time_left = self._estimate_time(limit)
        print_memory_need(need)
        print_rounded_sizes(sessions[0].config, sessions[0].world.size)
        self._open_text(stack)

    def _open_text(self, stack: ExitStack) -> None:
        """Choose the stream and the form of the output for people.

        Rows are printed as they finish. With --full or `--algorithm all`, all rows are printed as one table at the end,
        if lines are wide enough. If a table follows at the end, or without a terminal, progress is shown until `stack`
        is closed.
        """
        from hpccoll.measure.display.result_rows import ResultRows
        from hpccoll.measure.display.table import FULL_WIDTH
        from hpccoll.measure.session import ALL

        aside = self.has_records_on_stdout
        self._stream = sys.stderr if aside else sys.stdout
        width = find_output_width(self._stream)
        self._full = (self.options.full or ALL in self.options.algorithms) and (width is None or width >= FULL_WIDTH)
        names = {name for session in self.sessions for task in session.tasks for name in session.list_algorithms(task)}
        places = {task.in_place for session in self.sessions for task in session.tasks}
        self._rows = ResultRows(
            *(self._stream, width or WIDTH, sorted(names)), memory=len(self.sessions) > 1, place=len(places) > 1
        )
        # Rows are printed as they finish, but a log (no terminal) should also state the time left.
        has_terminal = find_output_width(self._stream, {}) is not None
        if self._full or not (has_terminal or aside):
            self.show_progress(stack, "rows", self._count_left())
        self._width = width

    def _estimate_time(self, limit: HardwareLimit | None) -> TimeLeft:
        """Return an object that estimates the time left, at first from the measured speed `limit` unless it is None."""
        from hpccoll.measure.session import list_blocks
        from hpccoll.measure.time_left import RowLimits, TimeLeft

        rule = self.sessions[0].config.method.rule
        limits = RowLimits(rule.min_iterations, rule.budget_s)
        byte_s = 0.0 if limit is None else TIMES_LIMIT * rule.min_iterations * limit.us * 1e-6 / limit.nbytes
        return TimeLeft(list_blocks(self.sessions, self.finished), rule.budget_s / 3, byte_s, limits)

    @property
    def finished(self) -> set[CaseKey]:
        """The keys of the benchmark cases whose records exist, from the file of --resume or from this run."""
        return {record.key for record in self.records}

    @property
    def should_stop(self) -> bool:
        """Whether cases are left to measure and the file of --stop-file exists, which other ranks may see later."""
        return super().should_stop and self._count_left() > 0

    def _count_left(self) -> int:
        """Return the number of cases that are left to measure; some of them may turn out to be unable to run."""
        refused = sum(session.refused_count for session in self.sessions)
        return len({key for session in self.sessions for key in session.list_cases()} - self.finished) - refused

    def add(self, record: CollectiveRecord) -> None:
        """Write a record to the result file, keep the record for the verdict, and advance the progress bar."""
        if self.network is not None:
            record = set_bound(record, self.network)
        self.write(record, f"{record.op} {format_size(record.nbytes)}")
        self.records.append(record)
        self._block.append(record)

    def end_size(self) -> None:
        """Print the rows of a message size after its last measurement, unless a table of all rows follows later."""
        from hpccoll.measure.time_left import Iterations

        if not self._full:
            self._rows.print_block(self._block)
        rows = [Iterations(record.iterations, record.time_us.p50 * 1e-6) for record in self._block]
        self._block = []
        self.end_block(rows)

    def write_summary(self, peak_bytes: int, sync_s: float, *, stopped: bool) -> None:
        """Write the summary record to the file of --json.

        Args:
            peak_bytes: the largest resident memory of a rank.
            sync_s: the time spent on synchronizing clocks, in seconds.
            stopped: whether --stop-file ended the run.
        """
        import psutil

        seconds = time.time() - psutil.Process().create_time()
        busy = self.conditions.busy_cores
        summary = BenchSummaryRecord(
            seconds=round(seconds, 3),
            sync_s=round(sync_s, 3),
            peak_bytes=peak_bytes,
            left_out_sizes=self.need.left_out,
            stopped=stopped,
            busy_cores=None if busy is None else round(busy, 3),
        )
        self.write(summary)

    def finish(self) -> None:
        """Print the verdict, and the engines and algorithms that could not run."""
        from hpccoll.measure.display.table import format_plain_table
        from hpccoll.measure.results.measured_case import list_table_cases
        from hpccoll.measure.verdict.text import format_footer, format_verdict

        if self._block:
            self.end_size()
        if self._full:
            print(format_plain_table(self.records), file=self._stream)
        else:
            self._rows.print_legend(self.records)
        cases = list_table_cases(self.records)
        print(format_footer(cases), file=self._stream)
        for reason in dict.fromkeys(reason for session in self.sessions for reason in session.refused):
            click.echo(f"# left out: {reason}", err=True)
        print(f"\n{format_verdict(cases, self.conditions, self._width)}", file=self._stream, flush=True)

    def _write_files_after_failure(self, kind: object, *_: object) -> None:
        """Try to write the files of --csv and --plot if the run ends by an exception, such as Ctrl-C."""
        if kind is not None:
            with suppress(HpccollError):
                self.write_files()

    def write_files(self) -> None:
        """Write the files of --csv and --plot; raise UsageError if one cannot be written."""
        from hpccoll.measure.display import plot
        from hpccoll.measure.results import csv_file

        if self.options.csv:
            csv_file.write_csv(self.records, self.options.csv)
        if self.options.plot and self.records:
            plot.write_plot(self.records, self.options.plot)
