"""`hpccoll bench`: times engines (libraries) and algorithms side by side in one run, and validates every result."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.bench_output import BenchOutput
from hpccoll.cli.completion import complete_operations
from hpccoll.cli.network_options import NETWORK_KINDS, load_network
from hpccoll.cli.options import Decorator, argument, declare, option, option_group, take_options
from hpccoll.cli.output import STDOUT, json_field, read_given_options
from hpccoll.cli.run_record import make_run_record
from hpccoll.cli.start_options import StartOptions, make_starter
from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Operation
from hpccoll.processes import joint_failure
from hpccoll.units import list_message_sizes

if TYPE_CHECKING:
    from hpccoll.measure.hardware_limit import HardwareLimit
    from hpccoll.measure.memory_need import MemoryNeed
    from hpccoll.measure.session import BenchmarkConfig, BenchmarkSession
    from hpccoll.measure.verdict.trust import RunConditions
    from hpccoll.runtime.job import RankLayout
    from hpccoll.synthesis import Network

STOPPED = 130  # exit status of a run that --stop-file ended early, as after an interrupt
TIGHT = 0.025  # a case ends when half its interval's width is at most this fraction of the median
FEWEST, MOST = 7, 2000  # iterations per case; the 95 % interval of a ratio needs 7
# The budgets in seconds for the whole run, and for each operation and size.
# Large messages may exceed a budget, because each case runs a least number of iterations.
WHOLE_BUDGET_S, SIZE_BUDGET_S = 45.0, 10.0
PLACES = {"in": (True,), "out": (False,), "both": (False, True)}
DEFAULT_PLACE = "in"
# Operations for which the OSU benchmarks state the size of one rank's block as the message size.
BLOCK_OPERATIONS = Operation.ALL_GATHER, Operation.GATHER, Operation.SCATTER, Operation.ALL_TO_ALL

# The options that the commands to run next repeat: all but those of files, of data and of the form of the output.
REPEATED = (
    *("min_bytes", "max_bytes", "message_size", "factor", "dtype", "redop", "root", "iterations", "budget", "engine"),
    *("algorithm", "full", "buffer", "place", "machine", "start", "clock", "window_us"),
)
SIZE_HELP = "Largest message: a rank's array; all n blocks together where there is a block per rank, as in all_gather."


def _add_place_options(name: str) -> Decorator:
    """Return a decorator that adds --in-place, --out-of-place and --both to a click command.

    The command's parameter `name` is `in`, `out` or `both`, or None if none of these options is given.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        """Return the command with the options --in-place, --out-of-place and --both."""
        for flag, value, text in (
            ("--both", "both", "In place and out of place."),
            ("--out-of-place", "out", "Out of place."),
            ("--in-place", "in", "In place (the default)."),
        ):
            command = click.option(flag, name, flag_value=value, help=text)(command)
        return command

    return decorate


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Arguments and options of `hpccoll bench`, which this class declares for click and whose values it holds."""

    operations: tuple[str, ...] = argument(metavar="[OP]...", nargs=-1, shell_complete=complete_operations)
    min_bytes: str | None = option(
        "-b", "--min-bytes", help="Smallest message; default: 8, then the powers of the factor. See -e."
    )
    max_bytes: str = option("-e", "--max-bytes", default="64M", show_default=True, help=SIZE_HELP)
    message_size: str | None = option(
        "-m",
        "--message-size",
        metavar="[MIN:]MAX",
        help="Message sizes as in the OSU benchmarks, in place of -b and -e: a rank's array, or its block in "
        "all_gather, gather, scatter and all_to_all.",
    )
    factor: int = option("-f", "--factor", default=4, show_default=True, help="Ratio of successive sizes.")
    dtype: str = option("-d", "--dtype", default="float32", show_default=True, help="Element type.")
    redop: str = option("-o", "--redop", default="sum", show_default=True, help="Reduction.")
    root: int = option("-r", "--root", default=0, show_default=True, help="Root rank.")
    iterations: int | None = option(
        "-n", "-i", "--iterations", "--iters", type=click.IntRange(1), help="Iterations per row; default: auto."
    )
    budget: float | None = option(
        "--budget",
        type=click.FloatRange(0, min_open=True),
        help="Most seconds per row; default: 10 s per operation and size, 45 s for all.",
    )
    warmup: int = option(
        "-w", "--warmup", type=click.IntRange(0), default=1, show_default=True, help="Untimed iterations."
    )
    check: bool = option(
        "-c", "--check", type=click.IntRange(0, 1), default=1, show_default=True, help="Validate every result."
    )
    engine: str | None = option(
        "--engine", help="mpi, hpccoll, nccl, gloo, torch-hpccoll, joined by commas; default: the first four."
    )
    algorithm: str | None = option(
        "--algorithm",
        help="auto, all, mpi, names, FILE.py:FUNCTION or FILE.json, joined by commas; default: auto and those likely "
        "to be fastest.",
    )
    full: bool = option(
        "--full", is_flag=True, help="All algorithms, in and out of place, in a table like that of nccl-tests."
    )
    buffer: str = option("--buffer", default="host", show_default=True, help="host, symmetric, cuda, joined by commas.")
    place: str | None = declare(_add_place_options)
    seed: int = option("--seed", default=0, show_default=True, help="Seed of the data and of the order of turns.")
    machine: str | None = option("--machine", metavar=NETWORK_KINDS, help="The network, to compare with its optimum.")
    plot: str | None = option(
        "--plot", metavar="FILE", help="Plot latency and bus bandwidth against size (.png .svg .pdf)."
    )
    csv: str | None = option("--csv", metavar="FILE", help="Write the table as CSV, one line per row.")
    json_file: str | None = json_field(
        "Write JSON Lines as rows finish; - for standard output.", all_ranks=True, appends_with="resume"
    )
    resume: str | None = option(
        "--resume", metavar="FILE", help="Append to a result file; its rows are not measured again."
    )
    report_hint: bool = option(
        "--report-hint/--no-report-hint", default=True, help="Whether to name the command that makes a report."
    )
    stop_file: str | None = option(
        "--stop-file", metavar="FILE", help="Stop after the current row once this file exists (exit status 130)."
    )
    starting: StartOptions = option_group(StartOptions)
    blocks: int = 1  # message size divided by the sizes of --message-size: the number of ranks if these are of blocks

    @property
    def sizes(self) -> list[int]:
        """The message sizes to measure, in bytes, smallest first."""
        return [self.blocks * size for size in list_message_sizes(self.min_bytes, self.max_bytes, self.factor)]

    def take_message_size(self, ranks: int) -> BenchOptions:
        """Return the options with the sizes of --message-size, if it is given, times `ranks` if these are of blocks.

        Raises UsageError if -b is given, too, or if --message-size means a block in some of the operations only.
        """
        if self.message_size is None:
            return self
        if self.min_bytes is not None:
            raise UsageError(f"-m {self.message_size} and -b {self.min_bytes} both choose the sizes; give one of them")
        names = self.operations or ("all_reduce",)
        of_block = [name for name in names if Operation.from_name(name) in BLOCK_OPERATIONS]
        if of_block and len(of_block) < len(names):
            raise UsageError(
                f"-m {self.message_size} is the size of a block in {', '.join(of_block)}, and that of a whole array in "
                "the other operations; measure them apart, or use -b and -e"
            )
        smallest, _, largest = self.message_size.rpartition(":")
        return replace(self, min_bytes=smallest or None, max_bytes=largest, blocks=ranks if of_block else 1)

    @property
    def algorithms(self) -> list[str]:
        """The values of --algorithm, with `auto` beside `all`; by default `auto` and `all` (--full) or `shortlist`."""
        from hpccoll.measure.contenders import AUTO
        from hpccoll.measure.session import ALL, SHORTLIST

        names = self.algorithm.split(",") if self.algorithm else [ALL if self.full else SHORTLIST, AUTO]
        return [*names, AUTO] if ALL in names else names

    @property
    def places(self) -> tuple[bool, ...]:
        """The values of `in_place` to measure: True if the output overwrites the input, False if not, or both."""
        return PLACES[self.place or ("both" if self.full else DEFAULT_PLACE)]


@click.command()
@take_options(BenchOptions)
def bench(options: BenchOptions) -> int:
    """Time collectives of other libraries, of auto and of hpccoll's algorithms side by side (default: all_reduce).

    Prints the rows of each message size as they finish, then a verdict: the fastest at each size, what auto selects,
    and whether the times can be trusted. The exit status is 1 if a result is wrong.

    \b
    Example:
      mpirun -n 4 hpccoll bench
      mpirun -n 2 hpccoll bench all_gather reduce_scatter -b 1K -e 1M --engine mpi,hpccoll --json results.jsonl
      mpirun -n 4 hpccoll bench --buffer host,symmetric
    """  # noqa: D301 - \b is click's, and keeps the lines apart
    if options.json_file is not None and options.resume is not None:
        raise UsageError(
            f"--json {options.json_file} and --resume {options.resume} both name the file for the records; "
            "give one of them"
        )
    return _run(options)


def _run(options: BenchOptions) -> int:
    """Run the benchmark on all ranks, with output by rank 0; return the command's exit status. Collective."""
    from hpccoll.runtime import job

    world = job.get_world()  # before options are checked, so that a job by the wrong launcher is reported as such
    from hpccoll.measure.core_share import find_core_share
    from hpccoll.measure.memory_need import require_memory
    from hpccoll.measure.other_process_load import OtherProcessLoad

    options.starting.check()
    options = options.take_message_size(world.size)
    layout = job.detect_layout(world)
    need = require_memory(world, layout, options.sizes, set(options.buffer.split(",")))
    with _start_sessions(options, need, world.Dup(), layout) as (sessions, missing), ExitStack() as stack:
        limit = _measure_limit(options, need, world, layout)
        network = _load_network(options, layout)
        core_share = find_core_share(world, layout)
        starter = make_starter(options.starting, sessions[0].world, layout, core_share)
        for session in sessions:
            session.starter = starter
        clock_fields = {**starter.describe_clock(), "core_share": core_share}
        run = make_run_record(world, sizes=options.sizes, limit=limit, fields=clock_fields)
        outputs = joint_failure.run_on_first_rank(
            world, lambda: BenchOutput(options, stack, sessions, run, need, limit, network)
        )
        other_load = OtherProcessLoad(world)
        wrong, stopped = _run_cases(options, world, sessions, outputs)
        busy_cores = other_load.measure_busy_cores() if layout.nodes == 1 else None
        peak_bytes = max(world.allgather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)) * 1024
        if outputs is not None:
            outputs.conditions = replace(
                _describe_conditions(options, layout),
                busy_cores=busy_cores,
                core_share=core_share,
                barrier_reason=starter.barrier_reason,
                unavailable=missing, stopped=stopped, limit=limit, network=network,
            )  # fmt: skip
        _end_output(world, outputs, stack, peak_bytes, starter.sync_s, stopped=stopped)
    return 1 if wrong else STOPPED if stopped else 0


def _end_output(
    world: Any, outputs: BenchOutput | None, stack: ExitStack, peak_bytes: int, sync_s: float, *, stopped: bool
) -> None:
    """Write the summary record, print the verdict, then write the files of --csv and --plot. Collective over `world`.

    If a file cannot be written, all ranks raise UsageError. `outputs` is None on all ranks but 0; to close `stack`
    prints the verdict. The other arguments are those of `BenchOutput.write_summary`.
    """

    def write_summary() -> None:
        """Write the summary record, on rank 0."""
        if outputs is not None:
            outputs.write_summary(peak_bytes, sync_s, stopped=stopped)

    def write_files() -> None:
        """Write the files of --csv and --plot, on rank 0."""
        if outputs is not None:
            outputs.write_files()

    joint_failure.run_on_first_rank(world, write_summary)
    stack.close()
    joint_failure.run_on_first_rank(world, write_files)


def _run_cases(
    options: BenchOptions, world: Any, sessions: Sequence[BenchmarkSession], outputs: BenchOutput | None
) -> tuple[int, bool]:
    """Measure all cases that the file of --resume lacks; rank 0 writes records to `outputs` (None on other ranks).

    Returns the number of wrong elements, and whether --stop-file ended the run. Collective over `world`.
    """
    from hpccoll.measure.session import run_workloads

    wrong = 0
    for session in sessions:
        session.on_round = outputs.show_share if outputs is not None else None
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
            outputs.end_size()
        if stopped:
            return wrong, True
    return wrong, False


def _measure_limit(options: BenchOptions, need: MemoryNeed, world: Any, layout: RankLayout) -> HardwareLimit | None:
    """Return the measured speed of copies of host memory or, on several nodes, of messages; collective, takes 0.1 s.

    For one rank, for GPU buffers, or if the largest message has no bytes, nothing is measured and the result is None.
    """
    from hpccoll.measure.hardware_limit import measure_hardware_limit

    if world.size < 2 or need.sizes[-1] == 0 or "cuda" in options.buffer:
        return None
    return measure_hardware_limit(world, layout, need.sizes[-1])


def _load_network(options: BenchOptions, layout: RankLayout) -> Network | None:
    """Return the network that bounds the measured times from below: the one of --machine, or of this job's nodes.

    The network of the job's nodes is made of the link rates that `hpccoll preflight --save` stored; the result is None
    if no rates are stored.
    """
    if options.machine is not None:
        return load_network(options.machine, layout.ranks, layout.nodes)
    from hpccoll.selection.link_rates import load_link_rates

    rates = load_link_rates([layout.hosts[members[0]] for members in layout.members])
    if rates is None:
        return None
    from hpccoll.synthesis.measured_network import make_star

    return make_star("the measured links", rates, layout.members)


def _describe_conditions(options: BenchOptions, layout: RankLayout) -> RunConditions:
    """Return the conditions of the run (cores, MPI library, result file), which the verdict on the times names."""
    from hpccoll.measure.verdict.trust import RunConditions
    from hpccoll.runtime import job

    return RunConditions(
        layout.cores,
        layout.oversubscribed,
        has_report=not options.report_hint,
        mpi_library=job.get_mpi_library(),
        results=options.resume or (options.json_file if options.json_file != STDOUT else None),
        options=read_given_options(*REPEATED),
    )


def _make_configs(options: BenchOptions, sizes: tuple[int, ...], nodes: int) -> list[BenchmarkConfig]:
    """Check the options and return one configuration of the benchmark per kind of buffer.

    Algorithms given as FILE.py:FUNCTION are loaded and proven correct.

    Args:
        sizes: the message sizes in bytes.
        nodes: the number of nodes of the job.
    """
    from hpccoll.algorithms import list_algorithm_names
    from hpccoll.algorithms.loader import load_and_prove
    from hpccoll.algorithms.registry import RATES_MARK
    from hpccoll.arrays import Reduction, get_dtype
    from hpccoll.measure.contenders import AUTO
    from hpccoll.measure.interleaved import TimingOptions
    from hpccoll.measure.session import ALL, SHORTLIST, BenchmarkConfig
    from hpccoll.measure.stopping import StoppingRule
    from hpccoll.runtime import job
    from hpccoll.selection import MPI_LIBRARY, BufferKind

    operations = tuple(Operation.from_name(name) for name in options.operations or ("all_reduce",))
    algorithms = load_and_prove(options.algorithms, operations, job.get_world().size, options.root)
    known = {name for operation in operations for name in list_algorithm_names(operation)} | {ALL, AUTO, MPI_LIBRARY}
    for name in algorithms:
        if name.partition(RATES_MARK)[0] not in known and (options.algorithm or name != SHORTLIST):
            raise UnknownNameError("algorithm", name, sorted(known))
    buffers = tuple(dict.fromkeys(options.buffer.split(",")))
    for name in buffers:
        if name not in [*BufferKind]:
            raise UnknownNameError("buffer", name, [*BufferKind])
    few, many = (options.iterations, options.iterations) if options.iterations else (FEWEST, MOST)
    rule = StoppingRule(few, many, TIGHT, options.budget or WHOLE_BUDGET_S)
    timing = TimingOptions(rule, options.warmup, bool(options.check), options.seed)
    redop = Reduction.parse(options.redop).name
    what = sizes, get_dtype(options.dtype), redop, options.root, options.places, algorithms
    first = BenchmarkConfig(operations, *what, buffers[0], nodes, timing)
    with_data = tuple(operation for operation in operations if operation is not Operation.BARRIER)
    return [first, *(replace(first, operations=with_data, buffer=name) for name in buffers[1:] if with_data)]


@contextmanager
def _start_sessions(
    options: BenchOptions, need: MemoryNeed, world: Any, layout: RankLayout
) -> Iterator[tuple[list[BenchmarkSession], tuple[str, ...]]]:
    """Start the engines of --engine, or all that are available, and close them when the `with` block ends.

    Yields one session (the benchmark on one kind of buffer) per kind, and a string `NAME: REASON` per missing engine.
    Collective over the MPI communicator `world`. Raises UnavailableError if an engine of --engine cannot start.
    """
    from hpccoll import peers
    from hpccoll.communicator import Communicator
    from hpccoll.measure.buffers import make_buffer_module
    from hpccoll.measure.contenders import OWN
    from hpccoll.measure.session import BenchmarkSession, share_budget

    configs = _make_configs(options, need.sizes, layout.nodes)
    if not 0 <= options.root < world.size:
        raise UsageError(f"--root {options.root} is not a rank of 0..{world.size - 1}")
    requested = options.engine.split(",") if options.engine else [OWN, *peers.OTHER_LIBRARIES]
    for name in requested:
        if name not in (OWN, *peers.ENGINE_NAMES):
            raise UnknownNameError("engine", name, [OWN, *peers.ENGINE_NAMES])
    comm = Communicator(world)
    modules = [make_buffer_module(config.buffer, comm, config.max_buffer_bytes(world.size)) for config in configs]
    names = [name for name in requested if name != OWN]
    started, missing = peers.start_engines(world, names, requires_all=bool(options.engine))
    sessions = [
        BenchmarkSession(config, world, comm, started, module, OWN in requested)
        for config, module in zip(configs, modules, strict=True)
    ]
    if options.budget is None:
        count = sum(len(config.operations) * len(config.sizes) for config in configs)
        share_budget(sessions, min(WHOLE_BUDGET_S, SIZE_BUDGET_S * count))
    yield sessions, tuple(missing)
    # After an error, engines are not closed, because closing is collective and an error on one rank aborts the job.
    for peer in started:
        peer.close()
    comm.close()
