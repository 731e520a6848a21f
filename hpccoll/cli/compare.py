"""`hpccoll compare`: decides which differences between two sets of results are real, and checks guidelines in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpccoll.cli.options import argument, option, take_options
from hpccoll.cli.output import STDOUT, is_printing_rank, json_field
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import write_serial_records
from hpccoll.errors import HpccollError, UsageError

if TYPE_CHECKING:
    from hpccoll.compare.drift import Control
    from hpccoll.compare.measured_runs import ComparedSide
    from hpccoll.compare.rounds import RoundOptions
    from hpccoll.records import StopCause

INTERRUPTED = 130
AUTO_CONTROL = "auto"
CONTROLS = (AUTO_CONTROL, "mpi", "rows", "none")


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Arguments and options of `hpccoll compare`, which this class declares for click and whose values it holds."""

    a: str | None = argument(metavar="[A]", required=False)
    b: str | None = argument(metavar="[B]", required=False)
    also_a: tuple[str, ...] = option(
        "--also-a", metavar="FILE", multiple=True, help="Another run of A; may be repeated."
    )
    also_b: tuple[str, ...] = option(
        "--also-b", metavar="FILE", multiple=True, help="Another run of B; may be repeated."
    )
    paired: bool = option("--paired", is_flag=True, help="The k-th runs of A and B were measured one after the other.")
    guidelines: bool = option("--guidelines", is_flag=True, help="Check the guidelines in A, as without B.")
    run: str | None = option(
        "--run", metavar="COMMAND", help="Run this command, as B, in turns with that of --against."
    )
    against: str | None = option("--against", metavar="COMMAND", help="The command of the baseline, A.")
    rounds: int = option("--rounds", type=click.IntRange(2), default=8, show_default=True, help="Runs of each command.")
    output: str | None = option(
        "--output", metavar="DIRECTORY", help="Where the runs' files are kept; default: a new directory here."
    )
    limit: float = option(
        "--limit",
        type=click.FloatRange(0, min_open=True),
        default=600.0,
        show_default=True,
        help="Most seconds per run.",
    )
    seed: int = option("--seed", default=0, show_default=True, help="Seed of the order of the two runs of a round.")
    tolerance: str = option(
        "--tolerance", default="0%", show_default=True, help="Slowdown that is no regression: 5% or 0.05."
    )
    control: str = option(
        "--control",
        type=click.Choice(CONTROLS),
        default=AUTO_CONTROL,
        show_default=True,
        help="Rows whose common change is removed as drift.",
    )
    rows: bool = option("--rows", is_flag=True, help="Print all rows, also of long comparisons.")
    json_file: str | None = json_field("Write JSON Lines; - for standard output.")

    @property
    def allowed_slowdown(self) -> float:
        """The largest slowdown of B that counts as no regression, as a fraction: 0.05 for `--tolerance 5%`."""
        return parse_tolerance(self.tolerance)

    @property
    def chosen_control(self) -> Control | None:
        """The rows (--control) whose common change of speed is removed from all ratios; None if the results decide."""
        from hpccoll.compare.drift import Control

        return None if self.control == AUTO_CONTROL else Control(self.control)


@click.command()
@take_options(CompareOptions)
def compare(options: CompareOptions) -> int:
    """Decide which differences between results of `hpccoll bench` are real, and which are noise.

    A and B are result files, or directories with several runs each. A is the baseline; a ratio above 1 means that B is
    slower. With A alone, guidelines are checked: for example, an all_reduce should take no longer than a reduce and a
    broadcast. With --run and --against, both commands run in turns, each with --json FILE added, or with FILE in place
    of {json}.

    The exit status is 1 if B is slower than A by more than --tolerance, if a guideline is violated, or if a result is
    wrong.

    \b
    Example:
      hpccoll compare before.jsonl after.jsonl --tolerance 5%
      hpccoll compare --against 'mpirun -n 2 hpccoll bench --algorithm ring' \\
          --run 'env MPIR_CVAR_NOLOCAL=1 mpirun -n 2 hpccoll bench --algorithm ring'
      hpccoll compare results.jsonl
    """  # noqa: D301 - \b is click's, and keeps the lines apart
    if not is_printing_rank():
        return 0
    return _run(options)


def parse_tolerance(text: str) -> float:
    """Return a tolerance such as `5%` or `0.05` as a fraction (0.05 for both); raise UsageError for another string."""
    number, is_percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number) / 100 if is_percent else float(number)
    except ValueError:
        value = -1.0
    if not 0 <= value < (float("inf") if is_percent else 1):
        raise UsageError(f"--tolerance {text}: write a percentage such as 5%, or a fraction below 1 such as 0.05")
    return value


def _run(options: CompareOptions) -> int:
    """Compare two sets of results, check the guidelines in one, or run two commands in turns; return the exit status.

    The options decide whether results are compared, guidelines are checked, or commands are run; contradictory options
    raise UsageError.
    """
    options.allowed_slowdown  # noqa: B018 - raises UsageError before anything runs
    commands = options.run is not None or options.against is not None
    if commands and (options.run is None or options.against is None):
        raise UsageError("--run and --against belong together: --run COMMAND_OF_B --against COMMAND_OF_A")
    if commands and (options.a or options.b or options.also_a or options.also_b or options.guidelines):
        raise UsageError("--run and --against measure both sides; leave out files and --guidelines")
    if commands:
        return _compare_commands(options)
    if options.a is None:
        raise UsageError("name two result files to compare, one to check guidelines, or give --run and --against")
    if options.b is not None and options.guidelines:
        raise UsageError("--guidelines checks one set of results; leave out B")
    if options.b is None and options.also_b:
        raise UsageError("--also-b adds runs to B; name B, too: hpccoll compare A B --also-b FILE")
    if options.b is None:
        return _check_guidelines(options, options.a)
    from hpccoll.compare.measured_runs import order_by_turns, read_side

    a = read_side("A", (options.a, *options.also_a))
    b = read_side("B", (options.b, *options.also_b))
    return _compare(options, a, b, paired=options.paired or order_by_turns(a, b))


def _compare(
    options: CompareOptions, a: ComparedSide, b: ComparedSide, *, paired: bool, stop: StopCause = "complete"
) -> int:
    """Compare the results `a` (baseline) and `b`, print the differences and write the records; return the exit status.

    Args:
        paired: whether A and B were measured in turns: the first runs of both, then the second runs, and so on.
        stop: for the summary record: whether the runs were completed, interrupted, or ended by an error.
    """
    from hpccoll.cli.compare_tables import print_comparison
    from hpccoll.compare.comparison import compare_sides

    tolerance = options.allowed_slowdown
    comparison = compare_sides(a, b, paired=paired, control=options.chosen_control, tolerance=tolerance)
    names_a, names_b = ([run.name for run in side.runs] for side in (a, b))
    if options.run and options.against:
        names_a, names_b = [options.against], [options.run]
    summary = comparison.make_summary(names_a, names_b, stop)
    write_serial_records(options.json_file, [*comparison.rows, *comparison.operations, summary])
    for torn in (*a.torn, *b.torn):
        click.echo(f"# {torn}", err=True)
    if options.json_file != STDOUT:
        print_comparison(comparison, all_rows=options.rows)
    return 1 if comparison.list_regressions() or comparison.wrong else 0


def _check_guidelines(options: CompareOptions, path: str) -> int:
    """Check the guidelines in the results at `path`, print them and write their records; return the exit status.

    A guideline is a relation that times should satisfy, such as all_reduce <= reduce + broadcast.
    """
    from hpccoll.cli.compare_tables import print_guidelines
    from hpccoll.compare.guidelines import check_guidelines
    from hpccoll.compare.measured_runs import read_side
    from hpccoll.records import GuidelineVerdict

    side = read_side("A", (path, *options.also_a))
    checked = check_guidelines(side, options.allowed_slowdown)
    if not checked:
        raise UsageError(
            f"A {path}: no guideline can be checked, because it has neither two sizes of an operation nor "
            "operations that replace each other; measure some: `hpccoll bench all_reduce reduce broadcast --json FILE`"
        )
    write_serial_records(options.json_file, checked)
    for torn in side.torn:
        click.echo(f"# {torn}", err=True)
    if options.json_file != STDOUT:
        print_guidelines(checked, all_rows=options.rows)
    return 1 if side.wrong or any(guideline.verdict is GuidelineVerdict.VIOLATED for guideline in checked) else 0


def _compare_commands(options: CompareOptions) -> int:
    """Run the commands of --run and --against in turns, print and record the comparison; return the exit status.

    After an interrupt or an error, the rounds in which both commands have finished are compared.
    """
    from hpccoll.compare.rounds import BenchmarkCommand, RoundOptions, run_rounds

    directory = Path(options.output or f"hpccoll-compare-{datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005 - local time
    commands = BenchmarkCommand(str(options.against), "--against"), BenchmarkCommand(str(options.run), "--run")
    rounds = RoundOptions(commands, options.rounds, directory, options.limit, options.seed)
    try:
        with show_progress("runs", 2 * options.rounds) as advance:
            for description in run_rounds(rounds):
                advance(description)
    except KeyboardInterrupt:
        _compare_finished(options, rounds, "interrupted")
        click.echo(f"interrupted; the files of finished runs are in {directory}", err=True)
        return INTERRUPTED
    except HpccollError:
        _compare_finished(options, rounds, "failed")
        raise
    return _compare_finished(options, rounds, "complete")


def _compare_finished(options: CompareOptions, rounds: RoundOptions, stop: StopCause) -> int:
    """Compare the rounds that both commands have finished, print and record the result; return the exit status.

    Args:
        stop: whether the rounds were completed, interrupted, or ended by an error. After an interrupt or an error
            before each command has finished once, nothing is compared, and the exit status is 0.
    """
    from hpccoll.compare.measured_runs import read_side
    from hpccoll.compare.rounds import list_finished_pairs

    files: Sequence[Sequence[Path]] = list_finished_pairs(rounds.directory)
    if stop == "interrupted" or (stop == "failed" and files[0]):
        click.echo(f"# {len(files[0])} of {rounds.rounds} rounds are finished", err=True)
    if stop != "complete" and not files[0]:
        return 0
    a, b = (read_side(name, side) for name, side in zip("AB", files, strict=True))
    status = _compare(options, a, b, paired=True, stop=stop)
    if options.json_file != STDOUT:
        click.echo(f"files: {rounds.directory}")
    return status
