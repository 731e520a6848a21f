"""Pipeline schedules in `hpccoll verify`, `simulate`, `draw` and `export`: options, proofs, simulations and charts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal

import click

from hpccoll.cli.output import STDOUT, is_printing_rank, list_given_options, print_table, print_text
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import open_serial_output
from hpccoll.errors import HpccollError, PlanError, UsageError
from hpccoll.plan import PassTimes, Schedule, ScheduleProof, check_schedule, simulate_schedule
from hpccoll.plan.interchange.torch_schedules import CSV_FORMATS, CsvFormat
from hpccoll.records import ScheduleRecord
from hpccoll.schedules import ScheduleFamily, get_schedule, list_schedule_names
from hpccoll.schedules.schedule_files import is_schedule_file, prove_schedule_file
from hpccoll.units import format_count, parse_rank_counts

ALL = "schedules"  # the name that stands for all built-in schedules
MOST_FAILURES = 5  # printed in one message


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """The values of the options for pipeline schedules, which several commands have."""

    stages: list[int]  # numbers of stages, each of which is combined with each number of micro-batches
    microbatches: list[int]
    stages_per_rank: int | None  # None for the default of the schedule
    csv_format: CsvFormat | None  # of a schedule's file; None for the format that the file shows
    times: PassTimes


@dataclass(frozen=True, slots=True)
class ScheduleCase:
    """A pipeline schedule to prove: a built-in one with its numbers of stages and micro-batches, or one from a file."""

    name: str
    family: ScheduleFamily | None  # None for a file
    options: ScheduleOptions
    stages: int = 0
    microbatches: int = 0

    def prove(self) -> tuple[Schedule, ScheduleProof]:
        """Return the schedule and its proof; raise PlanError if the schedule is wrong."""
        if self.family is None:
            return prove_schedule_file(self.name, self.options.csv_format)
        schedule = self.family.plan(self.stages, self.microbatches, self.options.stages_per_rank)
        return schedule, check_schedule(schedule)

    def describe(self) -> str:
        """Return the start of an error message, such as `1f1b with 4 stages and 8 micro-batches: `.

        The result is empty for a file, because errors about a file name the file themselves.
        """
        counts = f"with {format_count(self.stages, 'stage')} and {self.microbatches} micro-batches"
        return f"{self.name} {counts}: " if self.family else ""

    def compute_published_idle_time(self) -> float | None:
        """Return the idle time of a rank by the formula in the schedule's publication, in units of --pass-times.

        The result is None for files, and if no formula holds for the numbers of stages and micro-batches.
        """
        if self.family is None:
            return None
        shape = self.family.shape(self.stages, self.microbatches, self.options.stages_per_rank)
        return self.family.idle_time(shape, self.options.times)


def add_schedule_options(stages: str, microbatches: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options for pipeline schedules, as parameter `schedule_options`, to a command.

    The arguments are the defaults of --stages and --microbatches, such as `4` or `2:8`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for click that has the options for schedules as well, and calls `function`."""

        @click.option("--stages", default=stages, show_default=True, metavar="N,...", help="Stages of a schedule.")
        @click.option("--microbatches", default=microbatches, show_default=True, metavar="N,...", help="Micro-batches.")
        @click.option(
            "--stages-per-rank",
            type=click.IntRange(1),
            help="Stages of each rank, for schedules that allow 2 or more; default 2.",
        )
        @click.option("--pass-times", default="1,1,1", show_default=True, metavar="F,I,W", help="Times of a pass.")
        @click.option("--transfer", type=click.FloatRange(0), default=0.0, help="Time of a message between stages.")
        @click.option("--format", "csv_format", type=click.Choice(CSV_FORMATS), help="Format of a schedule's CSV file.")
        @wraps(function)
        def command(
            *arguments: Any,
            stages: str,
            microbatches: str,
            stages_per_rank: int | None,
            csv_format: CsvFormat | None,
            pass_times: str,
            transfer: float,
            **options: Any,
        ) -> Any:
            """Call the command with the values of the schedule options as one object."""
            times = _parse_pass_times(pass_times, transfer)
            counts = parse_rank_counts(stages), parse_rank_counts(microbatches)
            chosen = ScheduleOptions(*counts, stages_per_rank, csv_format, times)
            return function(*arguments, schedule_options=chosen, **options)

        return command

    return decorate


def are_schedules(names: Sequence[str], *others: str) -> bool:
    """Whether `names`, given on the command line, are pipeline schedules; False for collective algorithms.

    Args:
        others: parameters of the command that are for collective algorithms alone.

    Raises:
        UsageError: `names` has schedules and algorithms, or the user gave an option that the named plans do not use.
    """
    known = {*list_schedule_names(), ALL}
    schedules = [name for name in names if name in known or is_schedule_file(name)]
    if schedules and len(schedules) < len(names):
        other = next(name for name in names if name not in schedules)
        raise UsageError(f"{schedules[0]} is a pipeline schedule and {other} is not; use two commands")
    own = ("stages", "microbatches", "stages_per_rank", "csv_format", "pass_times", "transfer")
    unused = list_given_options(*(others if schedules else own))
    if unused:
        what = "collectives" if schedules else "pipeline schedules"
        raise UsageError(f"{' and '.join(unused)}: only for {what}; leave {'it' if len(unused) == 1 else 'them'} out")
    return bool(schedules)


def list_cases(names: Sequence[str], options: ScheduleOptions) -> list[ScheduleCase]:
    """Return the named schedules, each with all numbers of stages and micro-batches in `options` that it allows.

    `names` are names of schedules, files with schedules, or `schedules` for all built-in schedules. Raises UsageError
    if a schedule allows no combination of the numbers of stages and micro-batches.
    """
    cases = []
    expanded = [schedule for name in names for schedule in (list_schedule_names() if name == ALL else [name])]
    for name in dict.fromkeys(expanded):
        if is_schedule_file(name):
            cases.append(ScheduleCase(name, None, options))
            continue
        family, of_family = get_schedule(name), []
        for stages, microbatches in product(options.stages, options.microbatches):
            if family.allows(stages, microbatches, options.stages_per_rank):
                of_family.append(ScheduleCase(name, family, options, stages, microbatches))
        if not of_family:
            family.shape(options.stages[0], options.microbatches[0], options.stages_per_rank)
        cases += of_family
    return cases


def run_cases(
    command: Literal["verify", "simulate"], names: Sequence[str], options: ScheduleOptions, json_file: str | None
) -> None:
    """Prove and simulate pipeline schedules, and write their records; print a table, or raise HpccollError.

    HpccollError is raised if a schedule is wrong. `command` decides which table is printed: that of the proofs, or that
    of the simulations. No table is printed if the records go to standard output.
    """
    cases = list_cases(names, options)
    if not is_printing_rank():
        return
    records: list[ScheduleRecord] = []
    with open_serial_output(json_file) as lines, show_progress("proven", len(cases)) as advance:
        for case in cases:
            records.append(_run_case(command, case))
            lines.write(records[-1].as_dict())
            advance(case.name)
    failures = [record.failure for record in records if record.failure is not None]
    if failures:
        more = f"; {len(failures) - MOST_FAILURES} more are wrong" if len(failures) > MOST_FAILURES else ""
        raise HpccollError("; ".join(failures[:MOST_FAILURES]) + more)
    if json_file != STDOUT:
        _print_proofs(records) if command == "verify" else _print_simulations(records, options.times)


def _run_case(command: Literal["verify", "simulate"], case: ScheduleCase) -> ScheduleRecord:
    """Return the record of a schedule with its proof and its simulation, or with the failure if it is wrong.

    `command` is a field of the record.
    """
    try:
        schedule, proof = case.prove()
    except PlanError as error:
        return ScheduleRecord(command, case.name, proven=False, failure=f"{case.describe()}{error}")
    simulation = simulate_schedule(schedule, case.options.times)
    return ScheduleRecord(
        command,
        case.name,
        proven=True,
        stages=schedule.stages,
        ranks=schedule.ranks,
        microbatches=schedule.microbatches,
        messages=proof.messages,
        activations=proof.activations,
        rank_activations=proof.rank_activations,
        time=simulation.time,
        idle_time=max(simulation.get_idle_times()),
        published_idle_time=case.compute_published_idle_time(),
        bubble=simulation.bubble,
    )


def _print_proofs(records: Sequence[ScheduleRecord]) -> None:
    """Print one row per schedule, with the number of pairs (stages, micro-batches) for which it was proven.

    The messages, live activations and bubble in a row are those for the largest numbers of stages and micro-batches.
    """
    columns = ("schedule", "proven", "stages", "micro-batches", "messages", "live activations", "bubble", "in words")
    rows = []
    for name, group in groupby(records, lambda record: record.schedule):
        own = list(group)
        largest = max(own, key=lambda record: (record.stages or 0, record.microbatches or 0))
        counts = (f"{min(record.stages or 0 for record in own)} to {largest.stages}", f"to {largest.microbatches}")
        most = max(largest.rank_activations or (0,))
        words = "" if is_schedule_file(name) else get_schedule(name).summary
        cells = (f"{len(own)}/{len(own)}", *counts, f"{largest.messages}", f"{most}", f"{largest.bubble:.1%}", words)
        rows.append((name, *cells))
    title = "Pipeline schedules proven; messages, live activations per rank and bubble of the largest one"
    print_table(title, columns, rows, numbers=columns[1:7], wraps=columns[-1:], drops=columns[-1:])


def _print_simulations(records: Sequence[ScheduleRecord], times: PassTimes) -> None:
    """Print one row per simulated schedule; `times` are the times of passes in the simulation."""
    columns = (
        "schedule",
        "ranks",
        "stages",
        "micro-batches",
        "time",
        "idle",
        "published idle",
        "bubble",
        "activations",
    )
    rows = [
        (
            *(record.schedule, f"{record.ranks}", f"{record.stages}", f"{record.microbatches}", f"{record.time:g}"),
            f"{record.idle_time:g}",
            "-" if record.published_idle_time is None else f"{record.published_idle_time:g}",
            f"{record.bubble:.1%}",
            f"{max(record.rank_activations or (0,))}",
        )
        for record in records
    ]
    passes = (
        f"F={times.forward:g}, I={times.backward_input:g}, W={times.backward_weight:g}, transfer={times.transfer:g}"
    )
    print_table(f"Pipeline schedules, with the times {passes} of a stage", columns, rows, numbers=columns[1:])
    print_text("idle: longest idle time of a rank; bubble: idle fraction; activations: most live ones on a rank")


def _parse_pass_times(text: str, transfer: float) -> PassTimes:
    """Return the times of passes and messages.

    Args:
        text: the value of --pass-times: times of a forward pass and of backward passes for inputs and for weights,
            such as `1,1,1`.
        transfer: the time of a message, in the unit of --pass-times.

    Raises:
        UsageError: `text` has another format, or a time that is not above 0.
    """
    words = [word.strip() for word in text.split(",")]
    if len(words) != 3 or not all(re.fullmatch(r"\d+(\.\d+)?", word) and float(word) > 0 for word in words):
        raise UsageError(f"--pass-times {text}: write the times of F, I and W of a stage, such as 1,1,1 or 2,2.5,1.5")
    forward, backward_input, backward_weight = map(float, words)
    return PassTimes(forward, backward_input, backward_weight, transfer)


def get_single_schedule(name: str, options: ScheduleOptions) -> Schedule:
    """Return the pipeline schedule `name` after proving it; raise UsageError if `options` ask for several."""
    cases = list_cases([name], options)
    if len(cases) > 1:
        raise UsageError(f"{name}: the options give {len(cases)} schedules; give one of --stages and --microbatches")
    return cases[0].prove()[0]


def render_schedule(schedule: Schedule, times: PassTimes, output: str) -> bytes:
    """Return the contents of a file with a chart of a schedule, drawn with the given times of passes.

    The suffix of the file name `output` decides the format: .txt, .svg, .png or .json; others raise UsageError.
    """
    from hpccoll.plan import drawing

    simulation, suffix = simulate_schedule(schedule, times), Path(output).suffix.lower()
    if suffix == ".txt":
        return drawing.format_schedule_grid(simulation).encode()
    if suffix == ".json":
        return drawing.format_trace_json(simulation.make_timeline()).encode()
    if suffix == ".svg":
        return drawing.render_svg(drawing.lay_out_schedule(simulation)).encode()
    if suffix == ".png":
        from hpccoll import raster

        return raster.render_png(drawing.lay_out_schedule(simulation))
    raise UsageError(f"-o {output}: a schedule is drawn as .txt, .svg, .png or .json; use one of these suffixes")
