"""`hpccoll simulate`: what algorithms take on a machine, in time, steps and bytes, and what they wait for.

The record of kind `plan`, one an algorithm, rank count and size: `command` ("simulate"), `op`, `algorithm`, `ranks`,
`nodes`, `machine`, `nbytes` (nccl-tests' S), `chunks`, `root` (null where there is none), `simulated_ranks` (how many
stood for all), `rounds`, `steps`, `messages`, `time_us`, `latency_bound_us` and `bandwidth_bound_us` (no plan of
messages is faster), `sent_mean` and `sent_most` (bytes that a rank sends, loads or stores), `within` and `between`
(bytes moved inside nodes and across them, by all ranks together), `critical_path` and `fit` (null without `--machine
fit:FILE`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from hpccoll.algorithms import Algorithm
from hpccoll.cli.machine_options import ChosenMachine, add_machine_options, resolve_machine
from hpccoll.cli.output import SCHEMA, STDOUT, is_printing_rank, open_json_lines, print_table
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import make_serial_run_record
from hpccoll.cli.verify import resolve_algorithms
from hpccoll.errors import UsageError
from hpccoll.plan.simulation.bounds import compute_bounds
from hpccoll.plan.simulation.simulate import Simulation
from hpccoll.predict.forecast import can_run_on, chunks_for, fill_nodes, forecast
from hpccoll.units import format_size, parse_size, sizes_between

if TYPE_CHECKING:
    from hpccoll.plan.simulation.critical_path import CriticalPath, MessageWait

MOST_RANKS = 2**17
TRACED = 2**27  # ranks times rounds up to which --full finds the critical path as well
SHOWN = 3  # waits at each end of a critical path that are printed
RECORDED = 32  # and that are recorded
TOLD = 4  # critical paths that are printed
COLUMNS = (
    *("algorithm", "ranks", "nodes", "size", "chunks", "steps"),
    *("sent mean", "sent most", "across", "time", "latency", "bandwidth"),
)
MAP_SIZES = sizes_between(8, 2**29, 4)
One: TypeAlias = tuple[Algorithm, int, Simulation]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be simulated: rank counts and sizes, and how."""

    ranks: Sequence[int]
    sizes: Sequence[int]
    chunks: int | None
    root: int
    full: bool
    named: frozenset[str] = frozenset()  # algorithms that must not be left out


def _whole_numbers(text: str, option: str) -> list[int]:
    numbers = [part.strip() for part in text.split(",")]
    if not all(number.isdecimal() and 1 <= int(number) <= MOST_RANKS for number in numbers):
        limits = f"from 1 to {MOST_RANKS} (memory grows with them)"
        raise UsageError(f"{option} {text!r}: need whole numbers {limits}, joined by commas, such as 8,64")
    return [int(number) for number in numbers]


def _sizes(text: str) -> list[int]:
    return [parse_size(part) for part in text.split(",")]


@click.command(epilog="Example: hpccoll simulate all_reduce/ring all_reduce/double_tree --ranks 24576 --machine summit")
@click.argument("names", nargs=-1, metavar="OP/ALGORITHM...")
@click.option("--ranks", default="16", show_default=True, metavar="N,...", help="Rank counts; with --map the largest.")
@click.option("--size", default="8K", show_default=True, metavar="SIZE,...", help="Message sizes S: 8, 64K, 1.5M.")
@add_machine_options
@click.option("--chunks", type=click.IntRange(1), help="Into how many a message is pipelined; default: by stated cost.")
@click.option("--root", type=click.IntRange(0), default=0, show_default=True, help="Of operations that have one.")
@click.option("--full", is_flag=True, help="Simulate every rank, also where a few can stand for all.")
@click.option("--map", "picture", metavar="FILE", help="Draw which algorithm wins over ranks and sizes: .png .svg .pdf")
@click.option("--json", "target", metavar="FILE", help="Write one JSON record a line; - for standard output.")
def simulate(
    names: tuple[str, ...],
    ranks: str,
    size: str,
    chunks: int | None,
    root: int,
    full: bool,
    picture: str | None,
    target: str | None,
    **machine: Any,
) -> None:
    """Predict what algorithms take on a machine: time, steps, bytes, and who waits for whom.

    OP alone means all algorithms of an operation, FILE.py:FUNCTION one's own. The machine is one that comes along
    (summit, dgx-h100, h200, workstation, laptop), a TOML file, fit:FILE for what a bench record says of this one, or
    --alpha, --beta and --gamma.
    """
    algorithms = resolve_algorithms(names or ("all_reduce",))
    asked = Asked(_whole_numbers(ranks, "--ranks"), _sizes(size), chunks, root, full, frozenset(names))
    choice = resolve_machine(asked.ranks, machine, algorithms if names else [])
    if not is_printing_rank():
        return
    if picture is not None:
        _draw(algorithms, choice, max(asked.ranks), picture)
        return
    with open_json_lines(target) as lines:
        if target is not None:
            lines.write(make_serial_run_record())
        found = []
        for one in _simulated(algorithms, choice, asked):
            lines.write(_record(*one, choice))
            found.append(one)
    if target != STDOUT:
        _show(found, choice)


def _simulated(algorithms: Sequence[Algorithm], choice: ChosenMachine, asked: Asked) -> Iterator[One]:
    """Yield each algorithm, its chunks and what was found, over rank counts and sizes.

    One that was not asked for by name is left out where its ranks would share memory across nodes.
    """
    jobs = [
        (each, n, nbytes)
        for n in asked.ranks
        for nbytes in asked.sizes
        for each in algorithms
        if can_run_on(each, n, choice.of(n)) or each.full_name in asked.named
    ]
    with show_progress("simulated", len(jobs)) as advance:
        for each, n, nbytes in jobs:
            on = choice.of(n)
            cut = asked.chunks if asked.chunks is not None else chunks_for(each, n, on, nbytes)
            cost = each.plan(n, 0, cut, fill_nodes(n, on)).cost
            trace = not asked.full or (cost is not None and cost.steps * n <= TRACED)
            yield each, cut, forecast(each, n, on, nbytes, chunks=cut, root=asked.root, full=asked.full, trace=trace)
            advance(each.full_name)


def _record(algorithm: Algorithm, chunks: int, done: Simulation, choice: ChosenMachine) -> dict[str, Any]:
    plan, n = done.plan, done.plan.ranks
    least = compute_bounds(plan.operation, n, done.machine, done.nbytes)
    stands_for = n / done.simulated_ranks
    sent = done.within + done.between
    return {
        "schema": SCHEMA,
        "kind": "plan",
        "command": "simulate",
        "op": plan.operation.value,
        "algorithm": algorithm.name,
        "ranks": n,
        "nodes": done.machine.nodes(n),
        "machine": done.machine.name,
        "nbytes": done.nbytes,
        "chunks": chunks,
        "root": plan.root if plan.operation.has_root else None,
        "simulated_ranks": done.simulated_ranks,
        "rounds": done.rounds,
        "steps": done.steps,
        "messages": done.messages,
        "time_us": done.seconds * 1e6,
        "latency_bound_us": least.latency_s * 1e6,
        "bandwidth_bound_us": least.bandwidth_s * 1e6,
        "sent_mean": float(sent.mean()),
        "sent_most": float(sent.max()),
        "within": float(done.within.sum() * stands_for),
        "between": float(done.between.sum() * stands_for),
        "critical_path": None if done.path is None else _path_record(done.path),
        "fit": None if choice.errors is None else dict(zip(("fitted", "left_out"), choice.errors, strict=True)),
    }


def _ends(path: CriticalPath, most: int) -> list[MessageWait | None]:
    """Return the first and the last waits, None between them where some are left out."""
    if len(path) <= 2 * most:
        return [path.wait(at) for at in range(len(path))]
    return [*(path.wait(at) for at in range(most)), None, *(path.wait(at) for at in range(-most, 0))]


def _path_record(path: CriticalPath) -> dict[str, Any]:
    keys = ("round", "rank", "source", "nbytes", "between", "entered_us")
    shown = [
        dict(zip(keys, (w.round, w.rank, w.source, w.nbytes, w.far, w.at_s * 1e6), strict=True))
        for w in _ends(path, RECORDED)
        if w is not None
    ]
    return {"last_rank": path.rank, "waits": len(path), "waits_between": int(path.far.sum()), "ends": shown}


def _show(found: Sequence[One], choice: ChosenMachine) -> None:
    rows = [_row(*each) for each in found]
    print_table(f"Simulated on {choice.title}", COLUMNS, rows, numbers=COLUMNS[1:])
    print("across: what leaves nodes, of all that is sent; latency, bandwidth: time in multiples of the lower bounds")
    if len(found) > TOLD:
        print(f"critical paths are told for up to {TOLD} lines, and recorded by --json")
        return
    for _, _, done in found:
        if done.path is not None and len(done.path):
            print(_told(done, done.path))


def _row(algorithm: Algorithm, chunks: int, done: Simulation) -> tuple[str, ...]:
    n, sent = done.plan.ranks, done.within + done.between
    least = compute_bounds(done.plan.operation, n, done.machine, done.nbytes)
    whole = float(sent.sum())
    return (
        algorithm.full_name,
        f"{n}",
        f"{done.machine.nodes(n)}",
        format_size(done.nbytes),
        f"{chunks}" if "chunks" in algorithm.parameters else "-",
        f"{done.steps}",
        format_size(round(float(sent.mean()))),
        format_size(int(sent.max())),
        f"{float(done.between.sum()) / whole:.1%}" if whole else "-",
        _time(done.seconds),
        *(f"{done.seconds / bound:.3g}x" if bound else "-" for bound in (least.latency_s, least.bandwidth_s)),
    )


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds * 1e6:.4g} us"


def _told(done: Simulation, path: CriticalPath) -> str:
    far = int(path.far.sum())
    head = f"{done.plan.name} on {done.plan.ranks} ranks, {format_size(done.nbytes)}"
    head += f": rank {path.rank} is last, after {len(path)} waits in a row, {far} of them across nodes"
    if done.simulated_ranks < done.plan.ranks:
        few = done.simulated_ranks
        head += f" ({few} ranks stand for all)" if few > 1 else " (one rank stands for all)"
    lines = [
        "  ..."
        if wait is None
        else f"  round {wait.round + 1}: rank {wait.rank} waits for {format_size(wait.nbytes)} from rank {wait.source}"
        f" {'across nodes' if wait.far else 'on its node'}, who began the round at {_time(wait.at_s)}"
        for wait in _ends(path, SHOWN)
    ]
    return "\n".join([head, *lines])


def _draw(algorithms: Sequence[Algorithm], choice: ChosenMachine, most: int, picture: str) -> None:
    """Write the map of winners."""
    from hpccoll.measure.output_file import require_writable, unwritable
    from hpccoll.predict.forecast_grid import forecast_grid, list_rank_counts
    from hpccoll.predict.winner_map import SUFFIXES, draw_winner_map

    if not picture.lower().endswith(SUFFIXES):
        raise UsageError(f"--map {picture}: the suffix gives the format; use one of {', '.join(SUFFIXES)}")
    require_writable(picture, "--map")
    machine = choice.of(most)
    counts = list_rank_counts(most, machine)
    if len(counts) < 2 or len({each.operation for each in algorithms}) > 1:
        raise UsageError("--map compares algorithms of one OP over rank counts: name one OP, and --ranks 4 or more")
    with show_progress("simulated", len(algorithms) * len(counts)) as advance:
        winners = forecast_grid(algorithms, machine, counts, MAP_SIZES, advance)
    try:
        draw_winner_map(winners).savefig(picture, dpi=160)
    except OSError as error:
        raise unwritable(picture, "--map", error) from error
