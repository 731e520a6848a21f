"""`hpccoll bench`: times engines (libraries) and algorithms side by side in one run, and validates every result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import make_run_record
from hpccoll.errors import UnavailableError, UnknownNameError, UsageError
from hpccoll.plan import Operation
from hpccoll.records import CaseKey, CollectiveRecord
from hpccoll.units import format_size, parse_size, sizes_between

if TYPE_CHECKING:
    from hpccoll.measure.session import BenchmarkConfig, BenchmarkSession
    from hpccoll.peers import LibraryEngine

OWN = "hpccoll"
STOPPED = 130  # exit status of a run that --stop-file ended early, as after an interrupt
TIGHT = 0.025  # a case ends when half its interval's width is at most this fraction of the median
FEWEST, MOST = 3, 2000
WHOLE_BUDGET_S = 45.0  # for all cases; large messages may take longer, because every case has a minimum of iterations
PLACES = {"in": (True,), "out": (False,), "both": (False, True)}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of `hpccoll bench` as parsed by click."""

    operations: tuple[str, ...]
    min_bytes: str
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
    algorithm: str
    buffer: str
    place: str
    seed: int
    plot: str | None
    csv: str | None
    json_file: str | None
    resume: str | None
    stop_file: str | None


@click.command()
@click.argument("operations", metavar="[OP]...", nargs=-1)
@click.option("-b", "--min-bytes", default="8", show_default=True, help="Smallest message.")
@click.option("-e", "--max-bytes", default="64M", show_default=True, help="Largest message.")
@click.option("-f", "--factor", default=4, show_default=True, help="Ratio of successive sizes.")
@click.option("-d", "--dtype", default="float32", show_default=True, help="Element type.")
@click.option("-o", "--redop", default="sum", show_default=True, help="Reduction.")
@click.option("-r", "--root", default=0, show_default=True, help="Root rank.")
@click.option("-n", "-i", "--iterations", "--iters", type=click.IntRange(1), help="Iterations per row; default: auto.")
@click.option("--budget", type=click.FloatRange(0, min_open=True), help="Seconds per row; default: 45 for all rows.")
@click.option("-w", "--warmup", type=click.IntRange(0), default=1, show_default=True, help="Untimed iterations.")
@click.option("-c", "--check", type=click.IntRange(0, 1), default=1, show_default=True, help="Validate every result.")
@click.option("--engine", help="mpi, hpccoll, nccl, gloo, joined by commas; default: all that are available.")
@click.option(
    "--algorithm", default="all", show_default=True, help="Names, FILE.py:FUNCTION, all or auto, joined by commas."
)
@click.option("--buffer", type=click.Choice(["host", "symmetric", "cuda"]), default="host", show_default=True)
@click.option("--in-place", "place", flag_value="in", help="Only in place.")
@click.option("--out-of-place", "place", flag_value="out", help="Only out of place.")
@click.option("--both", "place", flag_value="both", default="both", help="Both (the default).")
@click.option("--seed", default=0, show_default=True, help="Seed of the data and of the order of turns.")
@click.option("--plot", metavar="FILE", help="Plot latency and bus bandwidth against size (.png .svg .pdf).")
@click.option("--csv", metavar="FILE", help="Write the table as CSV, one line per row.")
@click.option("--json", "json_file", metavar="FILE", help="Write JSON Lines as rows finish; - for standard output.")
@click.option("--resume", metavar="FILE", help="Append to a result file; its rows are not measured again.")
@click.option("--stop-file", metavar="FILE", help="Stop after the current row once this file exists (exit status 130).")
def bench(**options: Any) -> int:
    """Time collectives of all engines and algorithms side by side (default: all_reduce).

    The exit status is 1 if a result is wrong.

    \b
    Example:
      mpirun -n 4 hpccoll bench
      mpirun -n 2 hpccoll bench all_gather reduce_scatter -b 1K -e 1M --engine mpi,hpccoll --json results.jsonl
    """  # noqa: D301 - \b is click's, and keeps the lines apart
    return _run(BenchOptions(**options))


def _run(options: BenchOptions) -> int:
    """Run the benchmark on all ranks, with output by rank 0; return the exit status. Collective."""
    from hpccoll.runtime import job

    world = job.get_world()  # before options are checked, so that a job by the wrong launcher is reported as such
    with _start_session(options, world.Dup()) as session, ExitStack() as stack:
        run = make_run_record(world)
        outputs = _BenchOutput(options, stack, session, run) if world.rank == 0 else None
        wrong, stopped = 0, False
        records = session.run(world.bcast(outputs.finished if outputs else None))
        for record in records:
            wrong += record.wrong or 0
            if outputs is not None:
                outputs.add(record)
            # Only rank 0 looks for the stop file, because network file systems show a new file to some nodes later.
            stopped = options.stop_file is not None and world.bcast(outputs.should_stop if outputs else None)
            if stopped:
                records.close()
                break
    return 1 if wrong else STOPPED if stopped else 0


def _make_config(options: BenchOptions, nodes: int) -> BenchmarkConfig:
    """Check the options and return the cases to measure; load FILE.py:FUNCTION and prove the algorithm correct."""
    from hpccoll.algorithms import list_algorithm_names
    from hpccoll.algorithms.loader import load_and_prove
    from hpccoll.measure.interleaved import TimingOptions
    from hpccoll.measure.session import BenchmarkConfig
    from hpccoll.measure.stopping import StoppingRule
    from hpccoll.runtime import job
    from hpccoll.runtime.arrays import Reduction, get_dtype

    operations = tuple(Operation.from_name(name) for name in options.operations or ("all_reduce",))
    algorithms = load_and_prove(options.algorithm.split(","), operations, job.get_world().size, options.root)
    known = {name for operation in operations for name in list_algorithm_names(operation)} | {"all", "auto"}
    for name in algorithms:
        if name not in known:
            raise UnknownNameError("algorithm", name, sorted(known))
    few, many = (options.iterations, options.iterations) if options.iterations else (FEWEST, MOST)
    sizes = sizes_between(parse_size(options.min_bytes), parse_size(options.max_bytes), options.factor)
    return BenchmarkConfig(
        operations,
        tuple(sizes),
        get_dtype(options.dtype),
        Reduction.parse(options.redop).name,
        options.root,
        PLACES[options.place or "both"],
        algorithms,
        options.buffer,
        nodes,
        TimingOptions(
            StoppingRule(few, many, TIGHT, options.budget or WHOLE_BUDGET_S),
            options.warmup,
            bool(options.check),
            options.seed,
        ),
    )


@contextmanager
def _start_session(options: BenchOptions, world: Any) -> Iterator[BenchmarkSession]:
    """Start the requested (or all available) engines and yield a benchmark; close the engines unless an error occurs.

    Collective over `world`. Raises UnavailableError if a requested engine cannot start.
    """
    from hpccoll import peers
    from hpccoll.communicator import Communicator
    from hpccoll.measure.buffers import make_buffer_module
    from hpccoll.measure.session import BenchmarkSession
    from hpccoll.runtime import job

    config = _make_config(options, job.detect_layout(world).nodes)
    if not 0 <= options.root < world.size:
        raise UsageError(f"--root {options.root} is not a rank of 0..{world.size - 1}")
    requested = options.engine.split(",") if options.engine else [OWN, *peers.ENGINE_NAMES]
    for name in requested:
        if name not in (OWN, *peers.ENGINE_NAMES):
            raise UnknownNameError("engine", name, [OWN, *peers.ENGINE_NAMES])
    comm = Communicator(world)
    module = make_buffer_module(options.buffer, comm, config.max_buffer_bytes(world.size))
    outcomes = peers.start_available_engines(world, [name for name in requested if name != OWN])
    started: list[LibraryEngine] = [peer for peer in outcomes.values() if not isinstance(peer, str)]
    missing = [f"{name}: {reason}" for name, reason in outcomes.items() if isinstance(reason, str)]
    if missing and options.engine:
        raise UnavailableError(f"requested engines are not available: {'; '.join(missing)}")
    session = BenchmarkSession(config, world, comm, started, module, OWN in requested)
    if options.budget is None:
        session.share_budget(WHOLE_BUDGET_S)
    yield session
    # After an error, engines are not closed, because closing is collective and an error on one rank aborts the job.
    for peer in started:
        peer.close()
    comm.close()


class _BenchOutput:
    """The output of a run on rank 0: writes each record to a file, and prints and plots all records at the end.

    The constructor tests that all output files can be written, reads the file of --resume, writes the run record and
    shows a progress bar. When the caller closes the ExitStack `stack`, `finish` is called.
    """

    def __init__(self, options: BenchOptions, stack: ExitStack, session: BenchmarkSession, run: dict[str, Any]) -> None:
        from hpccoll.measure import output_file, plot, result_file

        self.options, self.session = options, session
        self.records: list[CollectiveRecord] = []
        path = options.resume or options.json_file
        if options.plot:
            plot.require_plot(options.plot)
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
        self.progress = stack.enter_context(show_progress("rows", session.case_count))
        stack.callback(self.finish)  # so that an exception does not prevent it

    @property
    def finished(self) -> set[CaseKey]:
        """The benchmark cases whose records are already in the file of --resume."""
        return {record.key for record in self.records}

    @property
    def should_stop(self) -> bool:
        """Whether the file of --stop-file exists and there are cases left to measure; local."""
        left = len(self.records) < self.session.case_count - len(self.session.refused)
        return left and self.options.stop_file is not None and Path(self.options.stop_file).exists()

    def add(self, record: CollectiveRecord) -> None:
        """Write a record to the result file, keep the record for the final table, and advance the progress bar."""
        self.writer.write(record.as_dict())
        self.records.append(record)
        self.progress(f"{record.op} {format_size(record.nbytes)}")

    def finish(self) -> None:
        """Print the results and the engines and algorithms that could not run; write the CSV file and the plot."""
        from hpccoll.measure import csv_file, plot, table

        if self.options.json_file != "-":
            table.print_table(self.records)
        for reason in self.session.refused:
            click.echo(f"# left out: {reason}", err=True)
        if self.options.csv:
            csv_file.write_csv(self.records, self.options.csv)
        if self.options.plot and self.records:
            plot.write_plot(self.records, self.options.plot)
