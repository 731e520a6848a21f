"""`hpccoll demo`: runs a classic example on MPI ranks and prints the values of each rank; writes one `DemoRecord`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hpccoll.algorithms import Algorithm, get_algorithm, loader
from hpccoll.cli.completion import complete_examples
from hpccoll.cli.output import (
    STDOUT,
    is_printing_rank,
    json_option,
    list_given_options,
    open_json_lines,
    print_table,
    print_text,
    require_outputs_writable,
)
from hpccoll.demo.examples import EXAMPLES, Example, find_example, get_example
from hpccoll.errors import UsageError
from hpccoll.processes import joint_failure
from hpccoll.records import DemoRecord
from hpccoll.text_table import find_output_width
from hpccoll.units import format_count

if TYPE_CHECKING:
    from hpccoll.demo.run_example import RankValues

LINE_WIDTH = 110


@click.command(epilog="Example: mpirun -n 3 hpccoll demo broadcast --draw")
@click.argument("name", required=False, shell_complete=complete_examples)
@click.option("--draw", is_flag=True, help="Also draw the plan, round by round.")
@click.option("--algorithm", metavar="NAME | FILE.py:FUNCTION", help="Algorithm for the example's operation.")
@click.option("--force", is_flag=True, help="Run send_send_deadlock, although it deadlocks.")
@click.option(
    "--limit", type=click.FloatRange(0, min_open=True), default=3.0, show_default=True, help="Time limit of --force, s."
)
@json_option(all_ranks=True)
def demo(name: str | None, draw: bool, algorithm: str | None, force: bool, limit: float, json_file: str | None) -> None:
    """Run a classic example on MPI ranks; print each rank's values before and after, and the call in three libraries.

    Without NAME the examples are listed. NAME may also be FILE.py:FUNCTION, your own algorithm: it is proven correct
    and then runs the example of its collective. The exit status is 4 if an example deadlocks, as send_send_deadlock
    does with --force.
    """
    if name is None:
        _list_examples()
        return
    example, chosen = _resolve_example(name, algorithm)
    if force and example.name != "send_send_deadlock":
        raise UsageError(f"--force is for send_send_deadlock; {example.name} runs without it")
    from hpccoll.runtime import job

    world = job.get_world()  # before other imports load MPI, so that a job by the wrong launcher is reported as such
    from hpccoll.communicator import Communicator
    from hpccoll.demo import deadlock
    from hpccoll.demo.run_example import run_example

    if world.size != example.ranks:
        started = f"this job has {world.size}" if world.size > 1 else "this is one process"
        remedy = f"mpirun -n {example.ranks} hpccoll demo {name}"
        raise UsageError(f"{example.name} takes {format_count(example.ranks, 'rank')}, and {started}; run: {remedy}")
    joint_failure.run_on_first_rank(world, lambda: require_outputs_writable({"--json": json_file}))
    if json_file != STDOUT and is_printing_rank():
        _print_introduction(example, chosen, draw)
    if force:
        deadlock.force_deadlock(world, example.make_arguments(world.rank)[0], limit)
    with Communicator(world) as comm:
        values = world.gather(run_example(example, comm, chosen))
    _output_values(world, example, chosen, values, json_file)


def _list_examples() -> None:
    """Print a table of all examples; raise UsageError if the user gave an option that needs an example."""
    unused = list_given_options("draw", "algorithm", "force", "limit", "json_file")
    if unused:
        raise UsageError(f"{' and '.join(unused)}: name an example; hpccoll demo lists them")
    rows = [(x.name, str(x.ranks), f"mpirun -n {x.ranks} hpccoll demo {x.name}", x.description[0]) for x in EXAMPLES]
    columns = ("name", "ranks", "command", "what it shows")
    title = "Examples; start NAME by mpirun -n RANKS hpccoll demo NAME"
    print_table(title, columns, rows, numbers=("ranks",), wraps=columns[-1:], drops=("command",))


def _resolve_example(name: str, algorithm: str | None) -> tuple[Example, Algorithm | None]:
    """Return the example to run and its algorithm; None as algorithm if the example is not about one collective.

    A user's own algorithm is loaded and proven correct. Raises UsageError if the arguments do not go together.

    Args:
        name: the argument NAME: an example, or FILE.py:FUNCTION.
        algorithm: the value of --algorithm; None for the example's default.
    """
    if loader.is_file_reference(name):
        if algorithm is not None:
            raise UsageError(f"{name} is an algorithm itself; leave --algorithm out, or name an example before it")
        chosen = loader.load_algorithm(name)
        shown = find_example(chosen.operation)
        if shown is None:
            valid = sorted({example.operation.value for example in EXAMPLES if example.operation is not None})
            raise UsageError(f"no example shows {chosen.operation.value}; there are examples of {', '.join(valid)}")
        loader.prove_algorithm(chosen, shown.ranks)
        return shown, chosen
    example = get_example(name)
    operation = example.operation
    if algorithm is None:
        return example, get_algorithm(operation, example.algorithm) if operation is not None else None
    if operation is None or not example.accepts_algorithm:
        raise UsageError(f"{name} takes no other algorithm; leave --algorithm out")
    is_file = loader.is_file_reference(algorithm)
    chosen = loader.load_algorithm(algorithm) if is_file else get_algorithm(operation, algorithm)
    if chosen.operation is not operation:
        raise UsageError(f"--algorithm {algorithm} is for {chosen.operation.value}, and {name} shows {operation.value}")
    loader.prove_algorithm(chosen, example.ranks)
    return example, chosen


def _print_introduction(example: Example, algorithm: Algorithm | None, draw: bool) -> None:
    """Print an example's description, the proven cost of its algorithm and, if `draw` is set, the plan as text.

    `algorithm` is None if the example is not about one collective.
    """
    print(f"{example.name}, on {format_count(example.ranks, 'rank')}\n")
    print_text("\n".join(example.description), indent="")
    if example.name == "send_send_deadlock":
        from hpccoll.demo import deadlock

        message = f"The checker, before anything runs: {deadlock.explain_deadlock()}"
        print("\n" + "\n".join(textwrap.wrap(message, find_output_width() or LINE_WIDTH)))
    if algorithm is None:
        if draw:
            print("\nThere is no plan to draw: each rank follows its own program.")
        return
    plan = algorithm.plan(example.ranks)
    proof = loader.prove_algorithm(algorithm, example.ranks)
    steps = f"{proof.cost.steps} step{'s' * (proof.cost.steps != 1)}"
    sends = f"; the busiest rank sends {proof.cost.most} S, where S is the message size" if proof.cost.most else ""
    print_text(f"Runs {plan.name}, proven: {steps}{sends}.", indent="")
    if draw:
        from hpccoll.plan.drawing.history import record_history
        from hpccoll.plan.drawing.text_grid import format_text_grid

        print(f"\n{format_text_grid(record_history(plan))}", end="")


def _output_values(
    world: Any,
    example: Example,
    algorithm: Algorithm | None,
    values: Sequence[RankValues] | None,
    json_file: str | None,
) -> None:
    """Print the values of all ranks before and after the example, and write a record, both on rank 0 only. Collective.

    Args:
        algorithm: the algorithm that ran; None if the example is not about one collective.
        values: the values of each rank; None on all ranks but 0.
        json_file: the value of --json; with `-`, nothing but the records is printed.
    """
    from hpccoll.cli.run_record import make_run_record

    run = make_run_record(world) if json_file is not None else None
    if values is None:
        return
    with open_json_lines(json_file) as lines:
        if run is not None:
            lines.write(run)
            lines.write(_make_record(example, algorithm, values))
    if json_file != STDOUT:
        _print_values(example, values)


def _make_record(example: Example, algorithm: Algorithm | None, values: Sequence[RankValues]) -> dict[str, Any]:
    """Return the example's `DemoRecord` as a dict; `values` has each rank's variables before and after the example.

    The record maps the name of each variable to the list of its values on all ranks.
    """
    before, after = (
        {title: [getattr(value, side)[index] for value in values] for index, title in enumerate(titles)}
        for side, titles in zip(("before", "after"), example.titles, strict=True)
    )
    op, name = (algorithm.operation.value, algorithm.name) if algorithm else (None, None)
    return DemoRecord(example.name, example.ranks, op, name, before, after).as_dict()


def _print_values(example: Example, values: Sequence[RankValues]) -> None:
    """Print the table of all ranks' values before and after an example, and its code in each library."""
    from hpccoll.demo.library_calls import format_library_calls
    from hpccoll.demo.run_example import format_value

    before, after = example.titles
    rows = [
        (f"rank {rank}", *(format_value(value) for value in (*of_rank.before, *of_rank.after)))
        for rank, of_rank in enumerate(values)
    ]
    print()
    title = "The exchange without deadlock" if example.name == "send_send_deadlock" else "Values of each rank"
    # Print plain text even on a terminal, so that the output matches docs/course.md.
    print_table(title, ("", *before, *after), rows, plain=True)
    print("\nThe same call")
    for library, text in format_library_calls(example).items():
        print(f"\n{library}:\n{textwrap.indent(text, '    ')}")
