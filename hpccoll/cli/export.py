"""`hpccoll export`: writes a plan for other tools, after proving it: JSON, GOAL (LogGOPSim) or MSCCL XML."""

from __future__ import annotations

from pathlib import Path

import click

from hpccoll.algorithms import get_algorithm, list_algorithm_names, loader
from hpccoll.cli.output import is_printing_rank
from hpccoll.errors import UnknownNameError, UsageError
from hpccoll.plan import Operation, Plan, check
from hpccoll.units import parse_size

SUFFIXES = {".json": "a plan, round by round", ".goal": "LogGOPSim's GOAL", ".xml": "MSCCL's algorithm file"}
ITEMSIZE = 4


@click.command(epilog="Example: hpccoll export all_reduce/ring -o ring.xml --ranks 8")
@click.argument("name", metavar="OP/ALGORITHM | FILE.py:FUNCTION | FILE.json")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to; .json, .goal or .xml says what.")
@click.option("--ranks", type=int, help="How many ranks [default: 4; a FILE.json says].")
@click.option("-r", "--root", type=int, default=0, show_default=True, help="Root rank.")
@click.option("--chunks", type=int, help="For pipelined plans [default: what a message of --size runs in].")
@click.option("--size", default="1M", show_default=True, help="The message S, for .goal (elements of 4 bytes).")
def export(name: str, output: str, ranks: int | None, root: int, chunks: int | None, size: str) -> None:
    """Write a plan for other tools: .json to read it anywhere and back, .goal to simulate it, .xml to run it on GPUs.

    The plan is proven first. FILE.json, written by this command or by hand, may be proven and converted as well.
    """
    suffix, nbytes = Path(output).suffix, parse_size(size)
    if suffix not in SUFFIXES:
        valid = ", ".join(f"{known} ({what})" for known, what in SUFFIXES.items())
        raise UsageError(f"-o {output}: {suffix or 'no suffix'} says nothing; end the name in {valid}")
    plan = (
        _read(name, ranks)
        if name.endswith(".json")
        else _made(name, 4 if ranks is None else ranks, root, chunks, nbytes)
    )
    if not is_printing_rank():
        return
    proof = check(plan)
    text = _written(plan, suffix, nbytes)
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        from hpccoll.measure.output_file import describe_write_error

        raise describe_write_error(output, "-o", error) from error
    found = f"{proof.cost.steps} steps, {proof.messages} messages"
    click.echo(f"{output}: {plan.name} on {plan.ranks} ranks, proven ({found}), as {SUFFIXES[suffix]}")


def _made(name: str, ranks: int, root: int, chunks: int | None, nbytes: int) -> Plan:
    """Return the plan of an algorithm that is built in or a user's own, proven."""
    from hpccoll.selection import choose_chunk_count

    if loader.is_file_reference(name):
        algorithm = loader.load_algorithm(name)
    else:
        of, slash, called = name.partition("/")
        operation = Operation.from_name(of)
        if not slash:
            raise UnknownNameError(f"algorithm for {of}", called, list_algorithm_names(operation))
        algorithm = get_algorithm(operation, called)
    if chunks is None:
        chunks = choose_chunk_count(algorithm, ranks, nbytes) if ranks >= 1 else 1
    loader.prove_algorithm(algorithm, ranks, root, chunks)
    return algorithm.plan(ranks, root, chunks)


def _read(name: str, ranks: int | None) -> Plan:
    from hpccoll.plan.interchange.json_plans import from_json

    try:
        text = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} cannot be read: {error}") from error
    plan = from_json(text, name)
    if ranks not in (None, plan.ranks):
        raise UsageError(f"{name} is a plan for {plan.ranks} ranks, and --ranks asks for {ranks}; leave --ranks out")
    return plan


def _written(plan: Plan, suffix: str, nbytes: int) -> str:
    if suffix == ".json":
        from hpccoll.plan.interchange.json_plans import to_json

        return to_json(plan)
    if suffix == ".xml":
        from hpccoll.plan.interchange.msccl import to_msccl

        return to_msccl(plan)
    from hpccoll.measure.bandwidth import count_for_bytes
    from hpccoll.plan.interchange.goal import to_goal

    return to_goal(plan, count_for_bytes(plan.operation, nbytes, ITEMSIZE, plan.ranks), ITEMSIZE)
