"""`hpccoll tune`: measures every candidate here and stores which is fastest, for `algorithm="auto"` to read."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.output import is_printing_rank, open_json_lines, print_table
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import make_run_record
from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Operation
from hpccoll.units import format_size, parse_size, sizes_between

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpccoll.measure.record import CollectiveRecord
    from hpccoll.measure.tuning import TuningSession, TuningSweep
    from hpccoll.selection.tuning_table import TuningSeries, TuningSite, TuningTable

WHOLE_BUDGET_S = 60.0  # what all rows share; the fewest iterations of the largest messages come on top
BUFFERS = ("host", "symmetric", "cuda")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    operations: tuple[str, ...]
    min_bytes: str
    max_bytes: str
    factor: int
    dtype: str
    buffer: str
    budget: float | None
    seed: int
    output: str | None
    json: str | None
    show: bool


@click.command()
@click.argument("operations", metavar="[OP]...", nargs=-1)
@click.option("-b", "--min-bytes", default="8", show_default=True, help="Smallest message.")
@click.option("-e", "--max-bytes", default="64M", show_default=True, help="Largest message.")
@click.option("-f", "--factor", default=4, show_default=True, help="From one size to the next.")
@click.option("-d", "--dtype", default="float32", show_default=True, help="Element types, joined by commas.")
@click.option("--buffer", help="Of host, symmetric, cuda, joined by commas; default host,symmetric on one node.")
@click.option("--budget", type=click.FloatRange(0, min_open=True), help="Seconds a row; default 60 s over all rows.")
@click.option("--seed", default=0, show_default=True, help="Of the data and of the order of turns.")
@click.option("--output", metavar="FILE", help="The table's file; default where auto reads it.")
@click.option("--json", metavar="FILE", help="JSON Lines, written as rows finish; - for standard output.")
@click.option("--show", is_flag=True, help="Print the stored table and measure nothing.")
def tune(**given: Any) -> int:
    """Measure every algorithm and the MPI library here, and store which is fastest (default: all operations).

    `algorithm="auto"` reads the table in the next job with this MPI library, kind of host and layout of ranks. What is
    not measured anew stays in it.

    \b
    Example:
      mpirun -n 4 hpccoll tune
      mpirun -n 4 hpccoll tune all_reduce -b 1K -e 16M --buffer symmetric
      mpirun -n 4 hpccoll tune --show
    """  # noqa: D301 - \b is click's, and keeps the lines apart
    return _run(Options(**given))


def _run(options: Options) -> int:
    from hpccoll.communicator import Communicator
    from hpccoll.measure.tuning import BUSY, OtherProcessLoad, make_tuning_sessions
    from hpccoll.runtime import job
    from hpccoll.selection import tuning_files

    world = job.get_world().Dup()
    layout = job.detect_layout(world)
    where = world.bcast(
        tuning_files.describe_site(job.get_mpi_library(), layout.ranks_per_node, oversubscribed=layout.oversubscribed)
    )
    path = (
        Path(options.output)
        if options.output
        else tuning_files.find_table_path(where) or tuning_files.default_table_path(where)
    )
    if options.show:
        if world.rank == 0:
            _show(options, path, where)
        return 0
    if world.size < 2:
        raise UsageError("one rank has nothing to choose from; start tune as your jobs run: mpirun -n 4 hpccoll tune")
    sweep = _sweep(options, layout.nodes)
    run, wrong = make_run_record(world), 0
    with Communicator(world) as comm, ExitStack() as stack:
        ready = make_tuning_sessions(sweep, world, comm, WHOLE_BUDGET_S, options.budget)
        outputs = _Outputs(options, stack, path, where, ready, run) if world.rank == 0 else None
        bystanders = OtherProcessLoad(world)
        for trial in ready:
            for record in trial.trial():
                wrong += record.wrong or 0
                if outputs is not None:
                    outputs.add(record)
        others = bystanders.cores() if layout.nodes == 1 else 0.0
    if others > BUSY and world.rank == 0:
        click.echo(f"# other programs kept {others:.1f} cores busy meanwhile: tune again when they are done", err=True)
    return 1 if wrong else 0


def _sweep(options: Options, nodes: int) -> TuningSweep:
    from hpccoll.measure.tuning import TuningSweep
    from hpccoll.runtime.arrays import get_dtype
    from hpccoll.selection.tuning_table import BufferKind

    asked = options.buffer.split(",") if options.buffer else ["host", "symmetric"] if nodes == 1 else ["host"]
    for name in asked:
        if name not in BUFFERS:
            raise UnknownNameError("buffer", name, list(BUFFERS))
    dtypes = {get_dtype(name).itemsize: get_dtype(name) for name in options.dtype.split(",")}
    return TuningSweep(
        tuple(dict.fromkeys(Operation.from_name(name) for name in options.operations)) or tuple(Operation),
        tuple(sizes_between(parse_size(options.min_bytes), parse_size(options.max_bytes), options.factor)),
        tuple(dtypes.values()),
        tuple(dict.fromkeys(BufferKind(name) for name in asked)),
        nodes,
        options.seed,
        datetime.now(UTC).date().isoformat(),
    )


def _show(options: Options, path: Path, where: TuningSite) -> None:
    from hpccoll.selection import tuning_files

    if not path.exists():
        raise UsageError(
            f"no table is stored for {where.description} ({path}); measure one: mpirun -n RANKS hpccoll tune"
        )
    table = tuning_files.read_table(path)
    if options.json:
        with open_json_lines(options.json) as lines:
            lines.write(table.as_json())
    if options.json != "-":
        _print(table, path, table.series)


class _Outputs:
    """Where rows and points go as they finish; rank 0 only."""

    def __init__(
        self,
        options: Options,
        stack: ExitStack,
        path: Path,
        where: TuningSite,
        ready: list[TuningSession],
        run: dict[str, Any],
    ) -> None:
        from hpccoll.measure.output_file import require_writable
        from hpccoll.selection import tuning_files

        self.options, self.path, self.where, self.ready = options, path, where, ready
        if path.parent.exists():
            require_writable(path, "--output")
        tuning_files.read_table_to_extend(path, where)  # what may not be overwritten shows before anything is measured
        self.stored = 0
        self.lines = stack.enter_context(open_json_lines(options.json))
        self.lines.write(run)
        self.progress = stack.enter_context(show_progress("rows", sum(trial.rows for trial in ready)))
        stack.callback(self.end)  # also when the run is cut short

    @property
    def found(self) -> list[TuningSeries]:
        """What was measured so far."""
        return [series for trial in self.ready for series in trial.found]

    def add(self, record: CollectiveRecord) -> None:
        """Keep a row, and the points that are complete."""
        self.lines.write(record.as_dict())
        self.progress(f"{record.row.op} {format_size(record.row.nbytes)}")
        if len(self.found) > self.stored:
            self._store()

    def _store(self) -> TuningTable:
        from hpccoll.selection import tuning_files
        from hpccoll.selection.tuning_table import TuningTable

        # Read again each time: another job may have stored something meanwhile.
        table = tuning_files.read_table_to_extend(self.path, self.where).merge(
            TuningTable(self.where, ()).merge(self.found).series
        )
        tuning_files.write_table(self.path, table)
        self.stored = len(self.found)
        return table

    def end(self) -> None:
        """Store all that is complete, and show it."""
        if not self.found:
            return
        table = self._store()
        for trial in self.ready:
            for reason in trial.refused:
                click.echo(f"# left out: {reason}", err=True)
        if self.options.json != "-":
            keys = {series.key for series in self.found}
            _print(table, self.path, [series for series in table.series if series.key in keys])


def _print(table: TuningTable, path: Path, series: Sequence[TuningSeries]) -> None:
    """Print who wins at each size, a table for each series."""
    if not is_printing_rank():
        return
    click.echo(f"{table.site.description}: {path}")
    click.echo("auto takes the fastest; a tie stays with the smaller size\n")
    for each in series:
        rows = []
        for point in each.points:
            winner = each.find_winner(point.nbytes, {timing.name for timing in point.timings})
            if winner is None:
                continue
            best, other = winner.fastest, winner.runner_up
            against = [other.name, f"{other.us:.2f}"] if other else ["-", "-"]
            rows.append([format_size(point.nbytes), best.name, f"{best.us:.2f}", *against, point.measured])
        title = f"{each.operation.value}, elements of {each.itemsize} B, {each.buffer} memory"
        print_table(title, ("size", "fastest", "us", "next", "its us", "measured"), rows, ("size", "us", "its us"))
        click.echo()
