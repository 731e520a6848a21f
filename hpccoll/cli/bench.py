"""`hpccoll bench`: times engines (libraries) and algorithms side by side in one run, and validates every result."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.output import STDOUT, json_option
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import make_run_record
from hpccoll.cli.start_options import StartOptions, make_starter, start_options, take_start_options
from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Operation
from hpccoll.records import CaseKey, CollectiveRecord
from hpccoll.text_table import find_output_width
from hpccoll.units import format_size, list_message_sizes

if TYPE_CHECKING:
    from hpccoll.measure.hardware_limit import HardwareLimit
    from hpccoll.measure.session import BenchmarkConfig, BenchmarkSession
    from hpccoll.measure.verdict.trust import RunConditions
    from hpccoll.runtime.job import RankLayout

STOPPED = 130  # exit status of a run that --stop-file ended early, as after an interrupt
TIGHT = 0.025  # a case ends when half its interval's width is at most this fraction of the median
FEWEST, MOST = 7, 2000  # iterations per case; the 95 % interval of a ratio needs 7
WHOLE_BUDGET_S = 45.0  # for all cases; large messages may take longer, because every case has a minimum of iterations
PLACES = {"in": (True,), "out": (False,), "both": (False, True)}
DEFAULT_PLACE = "in"
WIDTH = 120  # of rows and verdict where the terminal's width is unknown


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of `hpccoll bench` as parsed by click."""

    operations: tuple[str, ...]
    min_bytes: str | None
    max_bytes: str
    factor: int
    dtype: str
    redop: str
    root: int
    iterations: int | None
    budget: float | None
    warmup: int
    check: bool
    engine: str | None
    algorithm: str | None
    full: bool
    buffer: str
    place: str | None
    seed: int
    plot: str | None
    csv: str | None
    json_file: str | None
    resume: str | None
    report_hint: bool
    stop_file: str | None
    starting: StartOptions

    @property
    def sizes(self) -> list[int]:
        """The message sizes to measure, in bytes."""
        return list_message_sizes(self.min_bytes, self.max_bytes, self.factor)

    @property
    def algorithms(self) -> list[str]:
        """The algorithms to measure: those of --algorithm, or else the default ones."""
        from hpccoll.measure.contenders import AUTO
        from hpccoll.measure.session import ALL, SHORTLIST

        names = self.algorithm.split(",") if self.algorithm else [ALL if self.full else SHORTLIST, AUTO]
        return [*names, AUTO] if ALL in names else names

    @property
    def places(self) -> tuple[bool, ...]:
        """Whether to measure in place (True), out of place (False) or both."""
        return PLACES[self.place or ("both" if self.full else DEFAULT_PLACE)]


@click.command()
@click.argument("operations", metavar="[OP]...", nargs=-1)
@click.option("-b", "--min-bytes", help="Smallest message; default: 8, then the powers of the factor.")
@click.option("-e", "--max-bytes", default="64M", show_default=True, help="Largest message.")
@click.option("-f", "--factor", default=4, show_default=True, help="Ratio of successive sizes.")
@click.option("-d", "--dtype", default="float32", show_default=True, help="Element type.")
@click.option("-o", "--redop", default="sum", show_default=True, help="Reduction.")
@click.option("-r", "--root", default=0, show_default=True, help="Root rank.")
@click.option("-n", "-i", "--iterations", "--iters", type=click.IntRange(1), help="Iterations per row; default: auto.")
@click.option(
    "--budget", type=click.FloatRange(0, min_open=True), help="Most seconds per row; default: 45 s for all rows."
)
@click.option("-w", "--warmup", type=click.IntRange(0), default=1, show_default=True, help="Untimed iterations.")
@click.option("-c", "--check", type=click.IntRange(0, 1), default=1, show_default=True, help="Validate every result.")
@click.option("--engine", help="mpi, hpccoll, nccl, gloo, torch-hpccoll, joined by commas; default: the first four.")
@click.option(
    "--algorithm",
    help="auto, all, mpi, names or FILE.py:FUNCTION, joined by commas; default: auto and those likely to be fastest.",
)
@click.option("--full", is_flag=True, help="All algorithms, in and out of place, in a table like that of nccl-tests.")
@click.option("--buffer", default="host", show_default=True, help="host, symmetric, cuda, joined by commas.")
@click.option("--in-place", "place", flag_value="in", help="In place (the default).")
@click.option("--out-of-place", "place", flag_value="out", help="Out of place.")
@click.option("--both", "place", flag_value="both", help="In place and out of place.")
@click.option("--seed", default=0, show_default=True, help="Seed of the data and of the order of turns.")
@click.option("--plot", metavar="FILE", help="Plot latency and bus bandwidth against size (.png .svg .pdf).")
@click.option("--csv", metavar="FILE", help="Write the table as CSV, one line per row.")
@json_option("Write JSON Lines as rows finish; - for standard output.", all_ranks=True, appends_with="resume")
@click.option("--resume", metavar="FILE", help="Append to a result file; its rows are not measured again.")
@click.option("--report-hint/--no-report-hint", default=True, help="Whether to name the command that makes a report.")
@click.option("--stop-file", metavar="FILE", help="Stop after the current row once this file exists (exit status 130).")
@start_options
def bench(**options: Any) -> int:
    """Time collectives of other libraries, of auto and of hpccoll's algorithms side by side (default: all_reduce).

    Prints the rows of each message size as they finish, then a verdict: the fastest at each size, what auto selects,
    and whether the times can be trusted. The exit status is 1 if a result is wrong.

    \b
    Example:
      mpirun -n 4 hpccoll bench
      mpirun -n 2 hpccoll bench all_gather reduce_scatter -b 1K -e 1M --engine mpi,hpccoll --json results.jsonl
      mpirun -n 4 hpccoll bench --buffer host,symmetric
    """  # noqa: D301 - \b is click's, and keeps the lines apart
    json_file, resume = options["json_file"], options["resume"]
    if json_file is not None and resume is not None:
        raise UsageError(
            f"--json {json_file} and --resume {resume} both name the file for the records; give one of them"
        )
    return _run(BenchOptions(starting=take_start_options(options), **options))


def _run(options: BenchOptions) -> int:
    """Run the benchmark on all ranks, with output by rank 0; return the exit status. Collective."""
    from hpccoll.runtime import job, joint_failure

    world = job.get_world()  # before options are checked, so that a job by the wrong launcher is reported as such
    from hpccoll.measure.other_process_load import OtherProcessLoad

    options.starting.check()
    layout = job.detect_layout(world)
    with _start_sessions(options, world.Dup(), layout) as (sessions, missing), ExitStack() as stack:
        limit = _measure_limit(options, world, layout)
        starter = make_starter(options.starting, sessions[0].world, layout)
        for session in sessions:
            session.starter = starter
        run = make_run_record(world, sizes=options.sizes, limit=limit, clock=starter.describe_clock())
        outputs = joint_failure.run_on_first_rank(world, lambda: _BenchOutput(options, stack, sessions, run))
        other_load = OtherProcessLoad(world)
        wrong, stopped = _run_cases(options, world, sessions, outputs)
        busy_cores = other_load.measure_busy_cores() if layout.nodes == 1 else None
        if outputs is not None:
            known = _describe_conditions(options, layout)
            outputs.conditions = replace(
                known, busy_cores=busy_cores, unavailable=missing, stopped=stopped, limit=limit
            )
    return 1 if wrong else STOPPED if stopped else 0


def _run_cases(
    options: BenchOptions, world: Any, sessions: Sequence[BenchmarkSession], outputs: _BenchOutput | None
) -> tuple[int, bool]:
    """Measure all cases that are left; return the number of wrong elements, and whether --stop-file ended the run."""
    from hpccoll.measure.session import run_workloads

    wrong = 0
    for records in run_workloads(sessions, world.bcast(outputs.finished if outputs else None)):
        stopped = False
        for record in records:
            wrong += record.wrong or 0
            if outputs is not None:
                outputs.add(record)
            # Only rank 0 looks for the stop file, because network file systems show new files to some nodes later.
            stopped = options.stop_file is not None and world.bcast(outputs.should_stop if outputs else None)
            if stopped:
                records.close()
                break
        if outputs is not None:
            outputs.end_block()
        if stopped:
            return wrong, True
    return wrong, False


def _measure_limit(options: BenchOptions, world: Any, layout: RankLayout) -> HardwareLimit | None:
    """Return the measured speed of host memory or of links, None for one rank or GPUs; collective, takes 0.1 s."""
    from hpccoll.measure.hardware_limit import measure_hardware_limit

    if world.size < 2 or options.sizes[-1] == 0 or "cuda" in options.buffer:
        return None
    return measure_hardware_limit(world, layout, options.sizes[-1])


def _describe_conditions(options: BenchOptions, layout: RankLayout) -> RunConditions:
    """Return the circumstances of the run that are known before it."""
    from hpccoll.measure.verdict.trust import RunConditions
    from hpccoll.runtime import job

    return RunConditions(
        layout.cores,
        layout.oversubscribed,
        has_report=not options.report_hint,
        mpi_library=job.get_mpi_library(),
        results=options.resume or (options.json_file if options.json_file != STDOUT else None),
    )


def _make_configs(options: BenchOptions, nodes: int) -> list[BenchmarkConfig]:
    """Check the options and return the cases to measure; load FILE.py:FUNCTION and prove the algorithm correct."""
    from hpccoll.algorithms import list_algorithm_names
    from hpccoll.algorithms.loader import load_and_prove
    from hpccoll.measure.contenders import AUTO
    from hpccoll.measure.interleaved import TimingOptions
    from hpccoll.measure.session import ALL, SHORTLIST, BenchmarkConfig
    from hpccoll.measure.stopping import StoppingRule
    from hpccoll.runtime import job
    from hpccoll.runtime.arrays import Reduction, get_dtype
    from hpccoll.selection import MPI_LIBRARY, BufferKind

    operations = tuple(Operation.from_name(name) for name in options.operations or ("all_reduce",))
    algorithms = load_and_prove(options.algorithms, operations, job.get_world().size, options.root)
    known = {name for operation in operations for name in list_algorithm_names(operation)} | {ALL, AUTO, MPI_LIBRARY}
    for name in algorithms:
        if name not in known and (options.algorithm or name != SHORTLIST):
            raise UnknownNameError("algorithm", name, sorted(known))
    buffers = tuple(dict.fromkeys(options.buffer.split(",")))
    for name in buffers:
        if name not in [*BufferKind]:
            raise UnknownNameError("buffer", name, [*BufferKind])
    few, many = (options.iterations, options.iterations) if options.iterations else (FEWEST, MOST)
    rule = StoppingRule(few, many, TIGHT, options.budget or WHOLE_BUDGET_S)
    timing = TimingOptions(rule, options.warmup, bool(options.check), options.seed)
    redop = Reduction.parse(options.redop).name
    what = tuple(options.sizes), get_dtype(options.dtype), redop, options.root, options.places, algorithms
    first = BenchmarkConfig(operations, *what, buffers[0], nodes, timing)
    with_data = tuple(each for each in operations if each is not Operation.BARRIER)
    return [first, *(replace(first, operations=with_data, buffer=name) for name in buffers[1:] if with_data)]


@contextmanager
def _start_sessions(
    options: BenchOptions, world: Any, layout: RankLayout
) -> Iterator[tuple[list[BenchmarkSession], tuple[str, ...]]]:
    """Start the requested (or all available) engines; yield a session per kind of memory, and the missing engines.

    The engines are closed at the end. Missing engines are strings `NAME: REASON`. Collective over `world`.
    Raises UnavailableError if a requested engine cannot start.
    """
    from hpccoll import peers
    from hpccoll.communicator import Communicator
    from hpccoll.measure.buffers import make_buffer_module
    from hpccoll.measure.contenders import OWN
    from hpccoll.measure.session import BenchmarkSession, share_budget

    configs = _make_configs(options, layout.nodes)
    if not 0 <= options.root < world.size:
        raise UsageError(f"--root {options.root} is not a rank of 0..{world.size - 1}")
    requested = options.engine.split(",") if options.engine else [OWN, *peers.OTHER_LIBRARIES]
    for name in requested:
        if name not in (OWN, *peers.ENGINE_NAMES):
            raise UnknownNameError("engine", name, [OWN, *peers.ENGINE_NAMES])
    comm = Communicator(world)
    modules = [make_buffer_module(each.buffer, comm, each.max_buffer_bytes(world.size)) for each in configs]
    names = [name for name in requested if name != OWN]
    started, missing = peers.start_engines(world, names, requires_all=bool(options.engine))
    sessions = [
        BenchmarkSession(config, world, comm, started, module, OWN in requested)
        for config, module in zip(configs, modules, strict=True)
    ]
    if options.budget is None:
        share_budget(sessions, WHOLE_BUDGET_S)
    yield sessions, tuple(missing)
    # After an error, engines are not closed, because closing is collective and an error on one rank aborts the job.
    for peer in started:
        peer.close()
    comm.close()


class _BenchOutput:
    """The output of a run on rank 0: writes each record to a file, prints rows as they finish, and ends with a verdict.

    The constructor tests that all output files can be written, reads the file of --resume and writes the run record.
    When the caller closes the ExitStack `stack`, `finish` is called. With `--json -`, rows and verdict go to stderr.
    """

    def __init__(
        self, options: BenchOptions, stack: ExitStack, sessions: Sequence[BenchmarkSession], run: dict[str, Any]
    ) -> None:
        from hpccoll.measure.results import output_file, result_file
        from hpccoll.measure.verdict.trust import RunConditions

        self.options, self.sessions = options, sessions
        self.conditions = RunConditions()
        self.records: list[CollectiveRecord] = []
        self._block: list[CollectiveRecord] = []
        path = options.resume or options.json_file
        if options.plot:
            output_file.require_picture(options.plot, "--plot")
        if options.csv:
            output_file.require_writable(options.csv, "--csv")
        if options.resume and Path(options.resume).exists():  # a job that may be requeued always passes --resume
            contents = result_file.read_records(options.resume)
            self.records += contents.collectives()
            if contents.torn:
                click.echo(f"# {contents.torn}", err=True)
        option = "--resume" if options.resume else "--json"
        self.writer = stack.enter_context(result_file.RecordWriter(path, option, resume=bool(options.resume)))
        self.writer.write(run)
        stack.callback(self.finish)  # so that an exception does not prevent it
        self._open_text(stack)

    def _open_text(self, stack: ExitStack) -> None:
        """Choose between rows that are printed as they finish and the full table at the end, with a progress bar."""
        from hpccoll.measure.display.result_rows import ResultRows
        from hpccoll.measure.display.table import FULL_WIDTH
        from hpccoll.measure.session import ALL

        aside = self.options.json_file == STDOUT
        self._stream = sys.stderr if aside else sys.stdout
        width = find_output_width(self._stream)
        self._full = (self.options.full or ALL in self.options.algorithms) and (width is None or width >= FULL_WIDTH)
        names = {name for session in self.sessions for task in session.tasks for name in session.list_algorithms(task)}
        places = {task.in_place for session in self.sessions for task in session.tasks}
        self._rows = ResultRows(
            *(self._stream, width or WIDTH, sorted(names)), memory=len(self.sessions) > 1, place=len(places) > 1
        )
        hidden = self._full or (width is None and not aside)  # no terminal shows the rows as they finish
        self._advance = stack.enter_context(show_progress("rows", self._count_left())) if hidden else None
        self._width = width

    @property
    def finished(self) -> set[CaseKey]:
        """The benchmark cases whose records are already in the file of --resume."""
        return {record.key for record in self.records}

    @property
    def should_stop(self) -> bool:
        """Whether the file of --stop-file exists and there are cases left to measure; local."""
        file = self.options.stop_file
        return file is not None and Path(file).exists() and self._count_left() > 0

    def _count_left(self) -> int:
        """Return the number of cases that are left to measure, with those that may turn out to be unable to run."""
        refused = sum(session.refused_count for session in self.sessions)
        return len({key for session in self.sessions for key in session.list_cases()} - self.finished) - refused

    def add(self, record: CollectiveRecord) -> None:
        """Write a record to the result file, keep the record for the verdict, and advance the progress bar."""
        self.writer.write(record.as_dict())
        self.records.append(record)
        self._block.append(record)
        if self._advance is not None:
            self._advance(f"{record.op} {format_size(record.nbytes)}")

    def end_block(self) -> None:
        """Print the rows of a message size, unless the full table is printed at the end."""
        if not self._full:
            self._rows.print_block(self._block)
        self._block = []

    def finish(self) -> None:
        """Print the verdict, and the engines and algorithms that could not run; write the CSV file and the plot."""
        from hpccoll.measure.display import plot
        from hpccoll.measure.display.table import format_plain_table
        from hpccoll.measure.results import csv_file
        from hpccoll.measure.verdict.fastest import make_size_verdicts
        from hpccoll.measure.verdict.text import format_footer, format_verdict

        self.end_block()
        if self._full:
            print(format_plain_table(self.records), file=self._stream)
        else:
            self._rows.print_legend(self.records)
        verdicts = make_size_verdicts(self.records)
        print(format_footer(verdicts), file=self._stream)
        for reason in dict.fromkeys(reason for session in self.sessions for reason in session.refused):
            click.echo(f"# left out: {reason}", err=True)
        if self.options.csv:
            csv_file.write_csv(self.records, self.options.csv)
        if self.options.plot and self.records:
            plot.write_plot(self.records, self.options.plot)
        print(f"\n{format_verdict(verdicts, self.conditions, self._width)}", file=self._stream, flush=True)
