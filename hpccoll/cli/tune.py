"""`hpccoll tune`: times every algorithm and stores the times in the table that `algorithm="auto"` reads."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.bench_output import print_memory_need
from hpccoll.cli.completion import complete_operations
from hpccoll.cli.options import argument, option, take_options
from hpccoll.cli.output import (
    STDOUT,
    is_printing_rank,
    json_field,
    list_given_options,
    open_json_lines,
    print_table,
    print_text,
)
from hpccoll.cli.run_output import RunOutput
from hpccoll.cli.run_record import make_run_record
from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Operation
from hpccoll.processes import joint_failure
from hpccoll.units import format_size, list_message_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpccoll.arrays import DType
    from hpccoll.measure.tuning import TuningSession, TuningSweep
    from hpccoll.records import CollectiveRecord
    from hpccoll.selection.tuning_table import TuningSeries, TuningSite, TuningTable

LINK_SWEEPS, LINK_LIMIT_S = 2, 20.0  # measurements of each link; seconds after which a message counts as lost
TOTAL_BUDGET_S = 60.0  # shared by all rows; large messages may take longer for their minimum of iterations
EXPORT_BUDGET_S = 120.0  # of --export, which measures every choice twice


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """Arguments and options of `hpccoll tune`, which this class declares for click and whose values it holds."""

    operations: tuple[str, ...] = argument(metavar="[OP]...", nargs=-1, shell_complete=complete_operations)
    min_bytes: str | None = option(
        "-b", "--min-bytes", help="Smallest message; default: 8, then the powers of the factor."
    )
    max_bytes: str = option("-e", "--max-bytes", default="64M", show_default=True, help="Largest message.")
    factor: int = option(
        "-f", "--factor", default=4, show_default=True, help="Ratio of one message size to the one before."
    )
    dtype: str = option(
        "-d", "--dtype", default="float32", show_default=True, help="Element types, separated by commas."
    )
    buffer: str = option(
        "--buffer", help="host, symmetric, cuda, separated by commas; default host,symmetric on one node."
    )
    budget: float | None = option(
        "--budget", type=click.FloatRange(0, min_open=True), help="Most seconds per row; default: 60 s for all rows."
    )
    seed: int = option("--seed", default=0, show_default=True, help="Seed of the data and of the order of candidates.")
    output: str | None = option(
        "-o", "--output", metavar="FILE", help="Tuning table to write; default the file that auto reads."
    )
    json_file: str | None = json_field("Write JSON Lines as rows finish; - for standard output.", all_ranks=True)
    show: bool = option("--show", is_flag=True, help="Print the stored table and measure nothing.")
    export: str | None = option(
        "--export",
        type=click.Choice(["openmpi", "mpich", "nccl"]),
        help="Measure the library's own algorithms, and write to -o FILE the rules by which the library selects them.",
    )
    multithreaded: bool = option(
        "--multithreaded",
        is_flag=True,
        help="With --export: measure as for programs that ask for MPI_THREAD_MULTIPLE; default as after MPI_Init.",
    )


@click.command()
@take_options(TuneOptions)
def tune(options: TuneOptions) -> int:
    """Measure every algorithm of each OP (default: all) and the MPI library's own collectives, and store their times.

    `algorithm="auto"` reads the table in later jobs with the same MPI library, kind of host and layout of ranks. New
    times replace stored times of the same message sizes; the rest of the table is kept.

    \b
    Example:
      mpirun -n 4 hpccoll tune
      mpirun -n 4 hpccoll tune all_reduce -b 1K -e 16M --buffer symmetric
      mpirun -n 4 hpccoll tune --show
      mpirun -n 4 hpccoll tune --export openmpi -o rules.conf
    """  # noqa: D301 - \b is click's, and keeps the lines apart
    if options.export:
        return _export(options)
    if options.multithreaded:
        raise UsageError("--multithreaded is for --export; the tuning table is always measured so")
    return _run(options)


def _export(options: TuneOptions) -> int:
    """Measure another library's algorithms and write its file of rules (--export); return the exit status.

    Collective over all ranks. Raises UsageError for options that --export does not take.
    """
    from hpccoll.cli.tune_export import ExportOptions, export_rules, list_operations

    unused = list_given_options("buffer", "show")
    if unused or options.output is None or "," in options.dtype:
        wrong = f"{unused[0]} is for the tuning table" if unused else "it takes -o FILE and one element type"
        raise UsageError(
            f"--export {options.export}: {wrong}; for example: hpccoll tune --export {options.export} -o rules"
        )
    named = tuple(dict.fromkeys(Operation.from_name(name) for name in options.operations))
    operations = list_operations(options.export or "", named)
    sizes = tuple(list_message_sizes(options.min_bytes, options.max_bytes, options.factor))
    budget_s = options.budget * len(operations) * len(sizes) if options.budget else EXPORT_BUDGET_S
    values = (operations, sizes, options.dtype, budget_s, options.seed, options.json_file, options.multithreaded)
    return export_rules(ExportOptions(options.export or "", options.output, *values))


def _run(options: TuneOptions) -> int:
    """Time all algorithms and store the times, or print stored times (--show); return the exit status. Collective."""
    from hpccoll.runtime import job

    world = job.get_world().Dup()  # before other imports load MPI, as in `hpccoll bench`
    from hpccoll.communicator import Communicator
    from hpccoll.measure.memory_need import require_memory
    from hpccoll.measure.other_process_load import BUSY, OtherProcessLoad
    from hpccoll.measure.tuning import make_tuning_sessions
    from hpccoll.selection.tuning_files import default_table_path, describe_site, find_table_path

    layout = job.detect_layout(world)
    own_site = describe_site(job.get_mpi_library(), layout.ranks_per_node, oversubscribed=layout.oversubscribed)
    site = world.bcast(own_site)
    path = Path(options.output) if options.output else find_table_path(site) or default_table_path(site)
    if options.show:
        joint_failure.run_on_first_rank(world, lambda: _show_stored_table(options, path, site))
        return 0
    if world.size < 2:
        raise UsageError("tuning takes two ranks or more; start it as your jobs run: mpirun -n 4 hpccoll tune")
    sweep = _make_sweep(options, layout.nodes)
    need = require_memory(world, layout, sweep.sizes, set(map(str, sweep.buffers)))
    sweep = replace(sweep, sizes=need.sizes)
    run = make_run_record(world)
    if layout.nodes > 1:
        _measure_link_rates(world)
    with Communicator(world) as comm, ExitStack() as stack:
        sessions = make_tuning_sessions(sweep, world, comm, TOTAL_BUDGET_S, options.budget)
        outputs = joint_failure.run_on_first_rank(world, lambda: _TuneOutput(options, stack, path, site, sessions, run))
        if outputs is not None:
            print_memory_need(need)
        other_load = OtherProcessLoad(world)
        wrong = _run_sessions(sessions, outputs)
        busy_cores = other_load.measure_busy_cores() if layout.nodes == 1 else 0.0
    if busy_cores > BUSY and world.rank == 0:
        click.echo(f"# other programs kept {busy_cores:.1f} cores busy: tune again when they have ended", err=True)
    return 1 if wrong else 0


def _measure_link_rates(world: Any) -> None:
    """Measure the rates of the links between nodes, and store them in the file that `auto` reads. Collective."""
    from hpccoll.preflight.coordinator import Coordinator, MeasurementOptions, run_worker
    from hpccoll.runtime import job
    from hpccoll.selection.link_rates import find_links_path, save_links

    options, failure = MeasurementOptions(LINK_SWEEPS, None, LINK_LIMIT_S), job.load_mpi().Exception
    if world.rank != 0:
        run_worker(world, options, failure)
        return
    coordinator, path = Coordinator(world, options, failure), find_links_path()
    coordinator.measure_all(lambda _: None)
    coordinator.end_workers()
    if path is not None:
        try:
            save_links(path, coordinator.results.compute_link_rates())
        except UsageError as error:  # the times of the algorithms are worth measuring without it
            click.echo(f"# {error}", err=True)


def _run_sessions(sessions: list[TuningSession], outputs: _TuneOutput | None) -> int:
    """Time all algorithms; return the number of wrong elements in their results. Collective.

    Rank 0 writes each record to `outputs`, which is None on other ranks.
    """
    wrong = 0
    for session in sessions:
        for record in session.run_candidates():
            wrong += record.wrong or 0
            if outputs is not None:
                outputs.add(record)
    return wrong


def _make_sweep(options: TuneOptions, nodes: int) -> TuningSweep:
    """Return the `TuningSweep` to measure: its operations, message sizes, element types and kinds of buffer.

    `nodes` is the number of nodes of the job. Raises UsageError if an option is wrong.
    """
    from hpccoll.arrays import get_dtype
    from hpccoll.measure.tuning import TuningSweep
    from hpccoll.selection.tuning_table import BufferKind

    default_buffers = ["host", "symmetric"] if nodes == 1 else ["host"]
    buffers = options.buffer.split(",") if options.buffer else default_buffers
    for name in buffers:
        if name not in [*BufferKind]:
            raise UnknownNameError("buffer", name, [*BufferKind])
    dtypes: dict[int, DType] = {}
    for dtype in map(get_dtype, options.dtype.split(",")):
        other = dtypes.setdefault(dtype.itemsize, dtype)
        if other is not dtype:
            raise UsageError(
                f"--dtype {other.name},{dtype.name}: the table has one time per element size, and both have "
                f"{dtype.itemsize} B; name one of them"
            )
    return TuningSweep(
        _parse_operations(options),
        tuple(list_message_sizes(options.min_bytes, options.max_bytes, options.factor)),
        tuple(dtypes.values()),
        tuple(dict.fromkeys(BufferKind(name) for name in buffers)),
        nodes,
        options.seed,
        datetime.now(UTC).date().isoformat(),
    )


def _parse_operations(options: TuneOptions) -> tuple[Operation, ...]:
    """Return the operations that the user named, or all operations; raise UnknownNameError for an unknown name."""
    return tuple(dict.fromkeys(Operation.from_name(name) for name in options.operations)) or tuple(Operation)


def _show_stored_table(options: TuneOptions, path: Path, site: TuningSite) -> None:
    """Print the stored times of the operations that the user named, or of all operations, from the file `path`.

    With --json, the whole table is written as well; with `--json -`, only JSON is printed. If there is no table, the
    error names `site` (MPI library, host, layout of ranks).
    """
    from hpccoll.selection.tuning_files import read_table

    operations = _parse_operations(options)
    if not path.exists():
        raise UsageError(
            f"no table is stored for {site.description} ({path}); measure one: mpirun -n RANKS hpccoll tune"
        )
    table = read_table(path)
    if options.json_file:
        with open_json_lines(options.json_file) as lines:
            lines.write(table.as_json())
    if options.json_file != STDOUT:
        _print_series(table, path, [series for series in table.series if series.operation in operations])


class _TuneOutput(RunOutput):
    """The output of `hpccoll tune` on rank 0: writes records, the tuning table after each message size, and progress.

    The constructor raises UsageError if a file cannot be written. When the caller closes the ExitStack `stack`,
    `finish` is called.

    Args:
        path: the file of the tuning table.
        site: the MPI library, kind of host and layout of ranks for which the times are valid.
        run: the record of kind `run`.
    """

    def __init__(
        self,
        options: TuneOptions,
        stack: ExitStack,
        path: Path,
        site: TuningSite,
        sessions: list[TuningSession],
        run: dict[str, Any],
    ) -> None:
        from hpccoll.measure.results.output_file import require_writable
        from hpccoll.selection.tuning_files import read_table_to_extend

        self.options, self.path, self.site, self.sessions = options, path, site, sessions
        if path.parent.exists():
            require_writable(path, "--output")
        read_table_to_extend(path, site)  # fail before measuring if the file must not be overwritten
        self.stored = 0
        super().__init__(stack, run, open_json_lines(options.json_file), options.json_file)
        stack.callback(self.finish)  # also after an interruption, when the progress bar has ended
        self.show_progress(stack, "rows", sum(len(session.list_cases()) for session in sessions))

    @property
    def measured(self) -> list[TuningSeries]:
        """The times measured so far, as one `TuningSeries` per operation, buffer, type and message size."""
        return [series for session in self.sessions for series in session.measured]

    def add(self, record: CollectiveRecord) -> None:
        """Write the record of a measurement; after the last one of a message size, write the tuning table."""
        self.write(record, f"{record.op} {format_size(record.nbytes)}")
        if len(self.measured) > self.stored:
            self._store_table()

    def _store_table(self) -> TuningTable:
        """Add the measured times to the stored tuning table, which other jobs may have changed; return the result."""
        from hpccoll.selection.tuning_files import extend_stored_table
        from hpccoll.selection.tuning_table import TuningTable

        new = TuningTable(self.site, ()).merge(self.measured)
        table = extend_stored_table(self.path, new)
        self.stored = len(self.measured)
        return table

    def finish(self) -> None:
        """Write the tuning table, print the measured times, and warn of algorithms that could not run."""
        if not self.measured:
            return
        table = self._store_table()
        for session in self.sessions:
            for reason in session.refused:
                click.echo(f"# left out: {reason}", err=True)
        if not self.has_records_on_stdout:
            keys = {series.key for series in self.measured}
            _print_series(table, self.path, [series for series in table.series if series.key in keys])


def _print_series(table: TuningTable, path: Path, series: Sequence[TuningSeries]) -> None:
    """Print a table for each of `series`: the two fastest algorithms at each message size; on rank 0 only.

    `path` is the file of the tuning table, to be named in the heading. A series has the times of one operation, element
    size and kind of buffer.
    """
    if not is_printing_rank():
        return
    click.echo(f"{table.site.description}: {path}")
    print_text("auto takes the fastest; of candidates that tie, the winner of the next smaller size")
    print_text("tie: the 95 % intervals of the fastest and the next overlap, and their medians differ by at most 5 %")
    click.echo()
    for member in series:
        rows = []
        for point in member.points:
            winner = member.find_winner(point.nbytes, {timing.name for timing in point.timings})
            if winner is None:
                continue
            fastest, runner_up = winner.fastest, winner.runner_up
            tie = " (tie)" if winner.has_tie else ""
            next_cells = [runner_up.name + tie, f"{runner_up.us:.2f}"] if runner_up else ["-", "-"]
            rows.append([format_size(point.nbytes), fastest.name, f"{fastest.us:.2f}", *next_cells, point.measured])
        title = f"{member.operation.value}, elements of {member.itemsize} B, {member.buffer} memory"
        print_table(title, ("size", "fastest", "us", "next", "next us", "measured"), rows, ("size", "us", "next us"))
        click.echo()
