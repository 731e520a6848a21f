"""`hpccoll export`: prove a plan and write it for other tools, as JSON, GOAL (LogGOPSim) or MSCCL XML."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from hpccoll.algorithms import get_algorithm, list_algorithm_names, loader
from hpccoll.algorithms.plan_files import is_published_file, read_plan
from hpccoll.atomic_files import write_atomically
from hpccoll.cli.output import is_printing_rank
from hpccoll.cli.schedules import ScheduleOptions, add_schedule_options, are_schedules, get_single_schedule
from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.measure.results.output_file import explain_write_errors
from hpccoll.plan import Operation, Plan, check
from hpccoll.units import format_count, parse_size

DEFAULT_RANKS = 4
SUFFIXES = {".json": "a plan, round by round", ".goal": "LogGOPSim's GOAL", ".xml": "MSCCL's algorithm file"}


@click.command(epilog="Example: hpccoll export all_reduce/ring -o ring.xml --ranks 8")
@click.argument("name", metavar="OP/ALGORITHM | FILE.py:FUNCTION | FILE.json | FILE.xml | SCHEDULE | FILE.csv")
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="FILE",
    help="Output file; its suffix is the format: .json .goal .xml, .csv for a schedule",
)
@click.option("--ranks", type=int, help="Number of ranks [default: 4, or that of FILE.json].")
@click.option("-r", "--root", type=int, default=0, show_default=True, help="Root rank.")
@click.option("--chunks", type=int, help="Chunks of a pipelined plan [default: as for a run of --size].")
@click.option("--size", default="1M", show_default=True, help="Message size S of a .goal file, in elements of 4 bytes.")
@add_schedule_options("4", "8")
def export(
    name: str,
    output: str,
    ranks: int | None,
    root: int,
    chunks: int | None,
    size: str,
    schedule_options: ScheduleOptions,
) -> None:
    """Write a plan for other tools: .json for any tool, .goal to simulate it with LogGOPSim, .xml for MSCCL on GPUs.

    The plan is proven before it is written. FILE.json is a plan that this command wrote, or one written by hand, or
    like FILE.xml a published schedule, as in `hpccoll verify`. A pipeline schedule, such as 1f1b, is written as .csv
    for torch.distributed.pipelining, in the format of --format.
    """
    if are_schedules([name], "ranks", "root", "chunks", "size"):
        _export_schedule(name, output, schedule_options)
        return
    suffix, nbytes = Path(output).suffix, parse_size(size)
    if suffix not in SUFFIXES:
        valid = ", ".join(f"{known} ({what})" for known, what in SUFFIXES.items())
        raise UsageError(f"-o {output}: {suffix or 'no suffix'} is not a format; end the name in {valid}")
    plan = (
        _read_plan(name, ranks)
        if name.endswith(".json") and not is_published_file(name)
        else _make_plan(name, ranks, root, chunks, nbytes)
    )
    if not is_printing_rank():
        return
    proof = check(plan)
    text = _format_plan(plan, suffix, nbytes)
    with explain_write_errors(output, "-o"):
        write_atomically(output, text)
    counts = f"{proof.cost.steps} steps, {proof.messages} messages"
    click.echo(f"{output}: {plan.name} on {format_count(plan.ranks, 'rank')}, proven ({counts}), as {SUFFIXES[suffix]}")


def _export_schedule(name: str, output: str, options: ScheduleOptions) -> None:
    """Prove the pipeline schedule `name` and write it to `output`, as a CSV file for torch.distributed.pipelining."""
    from hpccoll.plan.interchange.torch_schedules import format_schedule_csv

    if Path(output).suffix != ".csv":
        raise UsageError(f"-o {output}: a pipeline schedule is written as .csv; end the name in .csv")
    schedule = get_single_schedule(name, replace(options, csv_format=None))
    csv_format = options.csv_format or "compute_comms"
    if not is_printing_rank():
        return
    with explain_write_errors(output, "-o"):
        write_atomically(output, format_schedule_csv(schedule, csv_format))
    click.echo(f"{output}: {schedule.name} on {format_count(schedule.ranks, 'rank')}, proven, as {csv_format}")


def _make_plan(name: str, ranks: int | None, root: int, chunks: int | None, nbytes: int) -> Plan:
    """Return the plan of the algorithm `name` (OP/ALGORITHM, or a file), after proving it.

    Args:
        ranks: the number of ranks; None for the number that the file states or, without a file, DEFAULT_RANKS.
        chunks: the number of chunks; None for the number that a run of `nbytes` bytes would use.
        nbytes: the message size in bytes.
    """
    from hpccoll.selection import choose_chunk_count

    if loader.is_file_reference(name):
        algorithm = loader.load_algorithm(name)
    else:
        operation_name, slash, algorithm_name = name.partition("/")
        operation = Operation.from_name(operation_name)
        if not slash:
            raise UnknownNameError(f"algorithm for {operation_name}", algorithm_name, list_algorithm_names(operation))
        algorithm = get_algorithm(operation, algorithm_name)
    if ranks is None:
        ranks = algorithm.only_ranks or DEFAULT_RANKS
    if chunks is None:
        chunks = choose_chunk_count(algorithm, ranks, nbytes) if ranks >= 1 else 1
    loader.prove_algorithm(algorithm, ranks, root, chunks)
    return algorithm.plan(ranks, root, chunks)


def _read_plan(name: str, ranks: int | None) -> Plan:
    """Return the plan in the JSON file `name`, without proving it; raise UsageError if it is not for `ranks` ranks.

    If `ranks` is None, a plan for any number of ranks is accepted.
    """
    plan = read_plan(name)
    if ranks not in (None, plan.ranks):
        raise UsageError(
            f"{name} is a plan for {format_count(plan.ranks, 'rank')}, and --ranks asks for {ranks}; leave --ranks out"
        )
    return plan


def _format_plan(plan: Plan, suffix: str, nbytes: int) -> str:
    """Return the contents of a file with the plan.

    Args:
        suffix: the format: .json, .xml (MSCCL), or .goal (LogGOPSim).
        nbytes: the message size in bytes, which only .goal states.
    """
    if suffix == ".json":
        from hpccoll.plan.interchange.json_plans import to_json

        return to_json(plan)
    if suffix == ".xml":
        from hpccoll.plan.interchange.msccl import to_msccl

        return to_msccl(plan)
    from hpccoll.plan.interchange.goal import to_goal
    from hpccoll.predict.forecast import ITEMSIZE

    return to_goal(plan, plan.operation.count_elements(nbytes, ITEMSIZE, plan.ranks), ITEMSIZE)
