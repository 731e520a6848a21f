"""`hpccoll barrier`: times barriers on a common clock, and names the rank that is late.

The output has one record of kind `barrier` per barrier and arrival pattern, then one record of kind `barrier_summary`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.machine_options import choose_machine, parse_seconds
from hpccoll.cli.options import option, take_options
from hpccoll.cli.output import json_field, print_table, print_text
from hpccoll.cli.run_output import RunOutput, open_resumed_file, read_resumed_file
from hpccoll.cli.run_record import make_run_record
from hpccoll.errors import UnavailableError, UnknownNameError, UsageError
from hpccoll.processes import joint_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern
    from hpccoll.barrier_suite.straggler import StragglerReport
    from hpccoll.barrier_suite.suite import BarrierSuite, SuiteOptions
    from hpccoll.measure.clock import JobClock
    from hpccoll.plan import Machine
    from hpccoll.records import BarrierRecord, BarrierSummaryRecord, InjectedDelay
    from hpccoll.runtime.job import RankLayout

STOPPED = 130  # exit status of a run that --stop-file ended early, as after an interrupt
ALL = "all"
ROUND_S = 5e-3  # a first guess of the time of a round, in seconds
MOST_COMMON_STARTS = 200  # all-reduces that are timed after a common start


@dataclass(frozen=True, slots=True)
class BarrierOptions:
    """The options of `hpccoll barrier`, which this class declares for click and whose values it holds."""

    engine: str | None = option(
        "--engine", help="hpccoll, mpi, gloo, nccl, torch-hpccoll, joined by commas; default: the first four."
    )
    algorithm: str | None = option("--algorithm", help="Names of barriers, joined by commas; default: all.")
    pattern: str = option("--pattern", default=ALL, show_default=True, help="Arrival patterns, joined by commas.")
    rounds: int = option(
        "-n", "--rounds", type=click.IntRange(1), default=100, show_default=True, help="Rounds per row."
    )
    scale: float = option(
        "--scale",
        type=click.FloatRange(0, min_open=True),
        default=1.0,
        show_default=True,
        help="Spread of a pattern, as a multiple of the barrier's time without skew.",
    )
    spread: str | None = option(
        "--spread", metavar="TIME", help="Spread of all patterns, such as 50us or 2s; replaces --scale."
    )
    inject_delay: str | None = option(
        "--inject-delay", metavar="RANK:US", help="Make a rank late by so many microseconds in every round."
    )
    noise: int | None = option(
        "--noise", type=click.IntRange(0), metavar="RANK", help="Keep the core of a rank busy by another process."
    )
    timeout: float = option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        default=60.0,
        show_default=True,
        help="Seconds after which a barrier counts as hung, or a rank that does not respond as stopped.",
    )
    clock: str | None = option(
        "--clock", help="hca3, skampi, jones_koenig, or host; default: host on one node, else hca3."
    )
    machine: str | None = option(
        "--machine", metavar="NAME|FILE.toml|fit:FILE", help="Machine model of predictions; default: fitted."
    )
    seed: int = option(
        "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of patterns and turns."
    )
    plot: str | None = option("--plot", metavar="FILE", help="Draw waits and exit skew per pattern (.png .svg .pdf).")
    json_file: str | None = json_field(
        "Write JSON Lines as rows finish; - for standard output.", all_ranks=True, appends_with="resume"
    )
    resume: str | None = option(
        "--resume", metavar="FILE", help="Append to a result file; its rows are not measured again."
    )
    stop_file: str | None = option(
        "--stop-file", metavar="FILE", help="Stop after the current pattern once this file exists (status 130)."
    )


@click.command()
@take_options(BarrierOptions)
def barrier(options: BarrierOptions) -> int:
    """Time barriers on a common clock: cost, exit skew, waits; and name the rank that is late.

    Prints answers first (which rank is late, which barrier is best), then tables. The exit status is 1 if a rank left a
    barrier before the last rank had entered it, and 4 if a barrier hangs.

    \b
    Example:
      mpirun -n 4 hpccoll barrier
      mpirun -n 4 hpccoll barrier --inject-delay 2:200 --pattern random --json barrier.jsonl
      mpirun -n 3 hpccoll barrier --engine mpi --algorithm barrier --pattern ascending --spread 2s -n 1
    """  # noqa: D301 - \b is click's, and keeps the lines apart
    from hpccoll.runtime import job

    world = job.get_world()  # before options are checked, so that a job by the wrong launcher is reported as such
    from hpccoll.barrier_suite.core_noise import CoreNoise
    from hpccoll.measure.core_share import find_core_share, is_shared

    layout = job.detect_layout(world)
    core_share = find_core_share(world, layout)
    layout = replace(layout, oversubscribed=layout.oversubscribed or is_shared(core_share))
    with _start_suite(options, world, layout) as (suite, clock), ExitStack() as stack:
        run = make_run_record(world, fields={"core_share": core_share})
        output = joint_failure.run_on_first_rank(world, lambda: _BarrierOutput(options, stack, suite, run))
        with CoreNoise(options.noise == world.rank):
            suite.begin(world.bcast(output.finished if output is not None else None))
            report = _find_straggler(suite, clock)
            early = _summarize(options, suite, clock, layout, report, None)
            if output is not None and early is not None:
                output.show_first_answer(early)
            if not _measure_rows(options, world, suite, output):
                return STOPPED
            common_start_us = _time_common_start(suite)
        summary = _summarize(options, suite, clock, layout, report, common_start_us)
        if output is not None and summary is not None:
            output.finish(summary)
        unsafe = world.bcast(sum(record.unsafe for record in suite.records))
    return 1 if unsafe else 0


def _measure_rows(options: BarrierOptions, world: Any, suite: BarrierSuite, output: _BarrierOutput | None) -> bool:
    """Time every barrier under every arrival pattern; return False if --stop-file ended the run early, else True.

    Collective over the MPI communicator `world`. Rank 0 passes each record to `output`, which is None on other ranks.
    """
    if output is not None:
        suite.on_share, suite.on_pattern_end = output.show_share, output.end_block
    for record in suite.run():
        if output is not None and record is not None:
            output.add(record)
        # Only rank 0 looks for the stop file, because network file systems show new files to some nodes later.
        if options.stop_file is not None and world.bcast(output is not None and output.should_stop):
            return False
    return True


@contextmanager
def _start_suite(options: BarrierOptions, world: Any, layout: RankLayout) -> Iterator[tuple[BarrierSuite, JobClock]]:
    """Check the options, start the engines and synchronise the clocks; close the engines when the `with` block ends.

    Yields the object that times all barriers, and the clock that all ranks share. Collective over `world`.
    """
    from hpccoll import peers
    from hpccoll.barrier_suite.barrier_calls import LIBRARY, OWN, prepare_barriers
    from hpccoll.barrier_suite.round_timer import RoundTimer
    from hpccoll.barrier_suite.suite import BarrierSuite
    from hpccoll.barrier_suite.time_limit import TimeLimit
    from hpccoll.communicator import Communicator
    from hpccoll.measure.clock import JobClock

    requested = options.engine.split(",") if options.engine else [OWN, *peers.OTHER_LIBRARIES]
    names = _check_names(options, requested)
    suite_options, machine = _make_suite_options(options, world), _choose_machine(options, layout)
    comm, own_world = Communicator(world), world.Dup()
    limit = TimeLimit(own_world, options.timeout)
    clock = JobClock(own_world, layout, options.clock)
    others = [name for name in requested if name not in (OWN, LIBRARY)]
    started, missing = peers.start_engines(own_world, others, requires_all=bool(options.engine))
    barriers, refused = prepare_barriers(comm, own_world, requested, started, names)
    if not barriers:
        raise UnavailableError(f"no barrier can run here: {'; '.join(refused)}")
    timer = RoundTimer(own_world, clock.current, layout.oversubscribed, limit)
    clock_calls = (clock.refresh, clock.measure_error_s) if clock.drifts else (None, None)
    nodes = layout.ranks_per_node
    suite = BarrierSuite(timer, barriers, suite_options, nodes, machine, clock.error_s, *clock_calls)
    suite.refused = [*refused, *missing]
    yield suite, clock
    # After an error, engines are not closed, because closing is collective and an error on one rank aborts the job.
    limit.close()
    for barrier_call in barriers:
        barrier_call.free()
    for peer in started:
        peer.close()
    comm.close()


def _check_names(options: BarrierOptions, engines: Sequence[str]) -> set[str]:
    """Return the set of barriers that --algorithm names (empty: all); raise UnknownNameError for unknown barriers.

    `engines` are the engines that --engine names. An unknown engine raises UnknownNameError, too.
    """
    from hpccoll import peers
    from hpccoll.barrier_suite.barrier_calls import OWN, list_barrier_names

    for engine in engines:
        if engine not in (OWN, *peers.ENGINE_NAMES):
            raise UnknownNameError("engine", engine, [OWN, *peers.ENGINE_NAMES])
    valid = sorted({name for engine in engines for name in list_barrier_names(engine)})
    names = set(options.algorithm.split(",")) - {ALL} if options.algorithm else set()
    for name in sorted(names):
        if name not in valid:
            raise UnknownNameError("barrier", name, valid)
    return names


def _make_suite_options(options: BarrierOptions, world: Any) -> SuiteOptions:
    """Return this rank's settings: patterns, rounds and delays; raise UsageError if an option has a wrong value."""
    from hpccoll.barrier_suite.suite import SuiteOptions

    injected = parse_inject_delay(options.inject_delay, world.size)
    if options.noise is not None and options.noise >= world.size:
        raise UsageError(f"--noise {options.noise} is not a rank of 0..{world.size - 1}")
    spread_s = None if options.spread is None else parse_seconds(options.spread, "--spread")
    return SuiteOptions(
        patterns=parse_patterns(options.pattern),
        rounds=options.rounds,
        scale=options.scale,
        spread_s=spread_s,
        seed=options.seed,
        extra_s=injected.us * 1e-6 if injected is not None and injected.rank == world.rank else 0.0,
    )


def parse_patterns(text: str) -> tuple[ArrivalPattern, ...]:
    """Return the arrival patterns in `text`, the value of --pattern; raise UnknownNameError for an unknown one.

    `text` is `all`, or names joined by commas. The result omits `none`, a pattern that is always measured.
    """
    from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern

    names = [pattern.value for pattern in ArrivalPattern] if text == ALL else text.split(",")
    for name in names:
        if name not in list(ArrivalPattern):
            raise UnknownNameError("pattern", name, [ALL, *ArrivalPattern])
    return tuple(ArrivalPattern(name) for name in dict.fromkeys(names) if name != ArrivalPattern.NONE)


def parse_inject_delay(text: str | None, ranks: int) -> InjectedDelay | None:
    """Return the value RANK:US of --inject-delay, `text`, as an `InjectedDelay`; None if `text` is None.

    Raises UsageError for another format, or if the job's number of ranks, `ranks`, is not larger than RANK.
    """
    from hpccoll.records import InjectedDelay

    if text is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+(?:\.\d*)?)(?:us)?", text)
    if match is None:
        raise UsageError(f"--inject-delay {text!r} is not RANK:US; write a rank and microseconds, such as 1:200")
    rank, us = int(match[1]), float(match[2])
    if rank >= ranks:
        raise UsageError(f"--inject-delay {text}: {rank} is not a rank of 0..{ranks - 1}")
    return InjectedDelay(rank, us)


def _choose_machine(options: BarrierOptions, layout: RankLayout) -> Machine | None:
    """Return the machine model of --machine for this job; None without --machine (a model is fitted later)."""
    if options.machine is None:
        return None
    return choose_machine(options.machine, layout.nodes).for_ranks(layout.ranks)


def _find_straggler(suite: BarrierSuite, clock: JobClock) -> StragglerReport | None:
    """Time barriers to find the rank that enters them late; return the report on rank 0, None elsewhere. Collective."""
    from hpccoll.barrier_suite.straggler import find_straggler

    times = suite.time_straggler_rounds()
    return None if times is None else find_straggler(times, clock.resolution_s)


def _time_common_start(suite: BarrierSuite) -> float | None:
    """Return the median time in us of an all-reduce that all ranks start at once; None except on rank 0. Collective."""
    from statistics import median

    from hpccoll.barrier_suite.all_reduce_after import time_all_reduce_at_start

    times = time_all_reduce_at_start(suite.timer, min(suite.options.rounds, MOST_COMMON_STARTS))
    return None if times is None else round(median(times) * 1e6, 3)


def _summarize(
    options: BarrierOptions,
    suite: BarrierSuite,
    clock: JobClock,
    layout: RankLayout,
    report: StragglerReport | None,
    common_start_us: float | None,
) -> BarrierSummaryRecord | None:
    """Measure the final error of the common clock; return the summary record on rank 0, None elsewhere. Collective.

    Args:
        report: the result of `_find_straggler`, None on all ranks but 0.
        common_start_us: the result of `_time_common_start`; None if `_time_common_start` has not run.
    """
    from hpccoll.barrier_suite.summary import make_summary, name_nodes

    residual_us = clock.measure_residual_us()
    if report is None:
        return None
    return make_summary(
        suite.records,
        report,
        name_nodes(layout.hosts, layout.node),
        common_start_us,
        clock=clock.name,
        clock_residual_us=round(residual_us, 3),
        clock_cost_s=round(clock.cost_s, 3),
        oversubscribed=layout.oversubscribed,
        inject_delay=parse_inject_delay(options.inject_delay, layout.ranks),
        noise_rank=options.noise,
    )


class _BarrierOutput(RunOutput):
    """The output of `hpccoll barrier` on rank 0: writes each record at once, and prints conclusions and tables last."""

    def __init__(self, options: BarrierOptions, stack: ExitStack, suite: BarrierSuite, run: dict[str, Any]) -> None:
        from hpccoll.measure.results import output_file

        self.options, self.suite = options, suite
        if options.plot:
            output_file.require_picture(options.plot, "--plot")
        self.finished = _read_finished(options.resume, run)
        writer = open_resumed_file(options.json_file, options.resume)
        super().__init__(stack, run, writer, options.json_file, options.stop_file)
        self._running = "barriers without skew"
        self._bar = stack.enter_context(ExitStack())  # closed before results are printed to the same terminal
        for reason in suite.refused:
            click.echo(f"# not measured: {reason}", err=True)

    def add(self, record: BarrierRecord) -> None:
        """Write the record of one barrier under one arrival pattern to the file of --json, and advance the bar."""
        self.write(record, f"{record.name} {record.pattern}")

    def show_first_answer(self, summary: BarrierSummaryRecord) -> None:
        """Print which rank is late, which is known before barriers are timed; then show the progress of the timing."""
        from hpccoll.barrier_suite.display import format_first_answer
        from hpccoll.measure.time_left import Block, TimeLeft

        if not self.has_records_on_stdout:
            print_text(format_first_answer(summary), " " * 16)
            sys.stdout.flush()
        missing = self.suite.count_missing()
        self._time_left = TimeLeft([Block(0, rows) for rows in missing], ROUND_S * self.options.rounds)
        self.show_progress(self._bar, "rows", sum(missing))

    def finish(self, summary: BarrierSummaryRecord) -> None:
        """Write the summary record, draw the picture of --plot, and print all conclusions and tables."""
        self._bar.close()
        self.write(summary)
        if self.options.plot:
            from hpccoll.barrier_suite.pictures import write_picture

            write_picture(self.suite.records, self.options.plot)
        if not self.has_records_on_stdout:
            print_results(summary, self.suite.records)


def print_results(summary: BarrierSummaryRecord, rows: Sequence[BarrierRecord]) -> None:
    """Print the conclusions of a run of `hpccoll barrier`, except the late rank, then tables of its barriers."""
    from hpccoll.barrier_suite.display import format_answers, list_tables

    for line in format_answers(summary, rows):
        print_text(line, " " * 16)
    for table in list_tables(summary, rows):
        print()
        print_table(table.title, table.columns, table.rows, table.numbers, drops=table.drops)
    sys.stdout.flush()


def _read_finished(path: str | None, run: Mapping[str, Any]) -> list[BarrierRecord]:
    """Return the records in the result file of --resume, whose barriers this run need not measure again.

    Args:
        path: the value of --resume; the result is empty if `path` is None or the file does not exist.
        run: this run's record of kind `run`. Records of other hosts, versions or numbers of ranks are left out.
    """
    from hpccoll.records import BarrierRecord

    resumed = read_resumed_file(path, run)
    if resumed is None:
        return []
    _, contents = resumed
    if contents.torn:
        click.echo(f"# {contents.torn}", err=True)
    rows = (
        BarrierRecord.from_dict(record, contents.locate(index))
        for index, record in enumerate(contents.records)
        if record["kind"] == BarrierRecord.kind
    )
    return list({row.key: row for row in rows if row.ranks == run["ranks"]}.values())
