"""`hpccoll simulate`: predicts the time, steps, bytes and critical path of algorithms on a machine model.

With --json, the command writes one `SimulatedPlanRecord` per algorithm, rank count and message size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from math import lcm
from typing import TYPE_CHECKING, Any

import click

from hpccoll.algorithms import Algorithm
from hpccoll.cli.completion import complete_plans
from hpccoll.cli.machine_options import ChosenMachine, MachineOptions
from hpccoll.cli.options import argument, declare, option, option_group, take_options
from hpccoll.cli.output import STDOUT, is_printing_rank, json_field, list_given_options, print_table, print_text
from hpccoll.cli.progress import show_progress
from hpccoll.cli.run_record import open_serial_output
from hpccoll.cli.schedules import ScheduleOptions, add_schedule_options, are_schedules, run_cases
from hpccoll.cli.verify import resolve_algorithms
from hpccoll.errors import UsageError
from hpccoll.plan import Machine, Operation, Simulation
from hpccoll.predict.forecast import (
    ITEMSIZE,
    MOST_UNSYMMETRIC_RANKS,
    can_run_on,
    choose_forecast_chunks,
    fill_nodes,
    forecast,
)
from hpccoll.records.plans import CriticalPathEntry, FitErrors, SimulatedPlanRecord, WaitEntry
from hpccoll.units import KiB, format_count, format_size, parse_size, sizes_between

if TYPE_CHECKING:
    from hpccoll.plan.simulation import CriticalPath, MessageWait

MAX_RANKS = 2**20
DEFAULT_RANKS = "16"
DEFAULT_SIZE = 8 * KiB
FEW_ROUNDS, MOST_STEPS = 2**10, 2**10  # rounds of all ranks, and messages of a round, that are simulated in seconds
MAX_TRACED_ROUNDS = 2**18  # rounds of a plan up to which its critical path is found
MAX_UNASKED_TRACE = 2**24  # ranks times rounds up to which the critical path is found without --path
MAX_FULL_TRACE = 2**27  # ranks times rounds up to which --full also finds the critical path
PRINTED_WAITS, RECORDED_WAITS = 3, 32  # waits at each end of a critical path that are printed, written with --json
MAX_PRINTED_PATHS = 4
MAX_PRINTED_OPTIMA = 8
COLUMNS = (
    *("algorithm", "ranks", "nodes", "size", "chunks", "steps"),
    *("sent mean", "sent most", "across", "time", "latency", "bandwidth"),
)
# Columns of the table that are left out on a narrow terminal, in this order.
LESS_IMPORTANT = ("chunks", "sent most", "across", "sent mean", "bandwidth", "latency", "nodes", "steps")
MAP_SIZES = sizes_between(8, 2**29, 4)


@dataclass(frozen=True, slots=True)
class SimulatedCase:
    """An algorithm, its number of chunks, and its simulation for one number of ranks and one message size."""

    algorithm: Algorithm
    chunks: int
    simulation: Simulation


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """Argument and options of `hpccoll simulate`, which this class declares for click and whose values it holds."""

    names: tuple[str, ...] = argument(
        nargs=-1, metavar="OP/ALGORITHM... | SCHEDULE... | FILE...", shell_complete=complete_plans
    )
    ranks: str = option(
        "--ranks",
        default=DEFAULT_RANKS,
        show_default=f"{DEFAULT_RANKS}, or those of the files",
        metavar="N,...",
        help="Rank counts; with --map the largest.",
    )
    size: str | None = option(
        "--size",
        metavar="SIZE,...",
        help=f"Message sizes S: 8, 64K, 1.5M.  [default: 8K; beyond {MOST_UNSYMMETRIC_RANKS} ranks, 4 bytes per rank "
        "for algorithms that cut the message into a chunk per rank]",
    )
    machine_options: MachineOptions = option_group(MachineOptions)
    chunks: int | None = option(
        "--chunks", type=click.IntRange(1), help="Chunks of a pipelined message; default: those of a run."
    )
    root: int = option(
        "--root", type=click.IntRange(0), default=0, show_default=True, help="Root rank of rooted operations."
    )
    full: bool = option("--full", is_flag=True, help="Simulate every rank, even if symmetry makes a few ranks enough.")
    show_path: bool = option("--path", is_flag=True, help="Print the waits of the critical path, round by round.")
    map_file: str | None = option(
        "--map", metavar="FILE", help="Draw the fastest algorithm by ranks and size: .png .svg .pdf"
    )
    schedule_options: ScheduleOptions = declare(lambda _: add_schedule_options("4", "8"))
    json_file: str | None = json_field()


def _parse_rank_counts(text: str) -> list[int]:
    """Return the numbers of ranks in `text`, such as `8,64`; raise UsageError for numbers outside 1 to MAX_RANKS."""
    counts = [part.strip() for part in text.split(",")]
    if not all(count.isdecimal() and 1 <= int(count) <= MAX_RANKS for count in counts):
        limits = f"from 1 to {MAX_RANKS} (memory grows with them)"
        raise UsageError(f"--ranks {text!r}: need whole numbers {limits}, joined by commas, such as 8,64")
    return [int(count) for count in counts]


def _find_rank_counts(text: str, algorithms: Sequence[Algorithm]) -> list[int]:
    """Return the rank counts in `text` (--ranks) or, without --ranks, those of plans from files, if there are any."""
    own = sorted({algorithm.only_ranks for algorithm in algorithms if algorithm.only_ranks is not None})
    return _parse_rank_counts(text) if list_given_options("ranks") or not own else own


def _parse_sizes(text: str | None) -> Sequence[int | None]:
    """Return the message sizes in bytes in `text` (--size); [None], the default size, if `text` is None."""
    return [None] if text is None else [parse_size(part) for part in text.split(",")]


@click.command(epilog="Example: hpccoll simulate all_reduce/ring all_reduce/double_tree --ranks 24576 --machine summit")
@take_options(SimulateOptions)
def simulate(options: SimulateOptions) -> None:
    """Predict the time, steps, bytes and critical path of algorithms on a machine model.

    OP without ALGORITHM selects all algorithms of an operation; FILE.py:FUNCTION is your own algorithm; FILE.json is a
    plan, and FILE.xml and FILE.json are published schedules, as in `hpccoll verify`, on their own number of ranks.
    --machine is the name of a built-in machine model (summit, dgx-h100, h200, workstation, laptop), a TOML file, or
    fit:FILE to fit a model to bench results. --alpha, --beta and --gamma replace --machine.

    SCHEDULE is a pipeline schedule such as 1f1b, `schedules` for all of them, or a CSV file. The prediction is for
    stages of equal times: the idle time and the live activations of the ranks.
    """
    names, of_machine = options.names, [declared.name for declared in fields(MachineOptions)]
    if are_schedules(names, "ranks", "size", "chunks", "root", "full", "show_path", "map_file", *of_machine):
        run_cases("simulate", names, options.schedule_options, options.json_file)
        return
    _reject_unused_options(options.map_file)
    algorithms = resolve_algorithms(names or ("all_reduce",))
    counts, sizes = _find_rank_counts(options.ranks, algorithms), _parse_sizes(options.size)
    chosen = options.machine_options.resolve(counts, algorithms if names else [])
    if not is_printing_rank():
        return
    if options.map_file is not None:
        _write_map(algorithms, chosen, max(counts), options.map_file)
        return
    combinations = [c for c in product(counts, sizes, algorithms) if c[2].only_ranks in (None, c[0])]
    selected = [c for c in combinations if can_run_on(c[2], c[0], chosen.for_ranks(c[0])) or c[2].full_name in names]
    cases = []
    with open_serial_output(options.json_file) as lines:
        for case in _simulate_cases(selected, chosen, options):
            lines.write(_make_record(case, chosen))
            cases.append(case)
    if options.json_file != STDOUT:
        _print_cases(cases, chosen, show_path=options.show_path)


def _reject_unused_options(map_file: str | None) -> None:
    """Raise UsageError if the user gave an option that --map does not use; `map_file` is the value of --map."""
    unused = list_given_options("size", "chunks", "root", "full", "show_path", "json_file")
    if unused and map_file is not None:
        raise UsageError(f"--map {map_file} draws all sizes and writes no records; leave {' and '.join(unused)} out")


def _simulate_cases(
    selected: Sequence[tuple[int, int | None, Algorithm]], chosen: ChosenMachine, options: SimulateOptions
) -> Iterator[SimulatedCase]:
    """Simulate each (number of ranks, bytes, algorithm) in `selected`, and yield the results one by one.

    None as bytes in `selected` stands for the default message size. The function shows a progress bar.
    """
    root, full = options.root, options.full
    with show_progress("simulated", len(selected)) as advance:
        for n, size, algorithm in selected:
            machine = chosen.for_ranks(n)
            nbytes = _choose_size(algorithm, n, machine) if size is None else size
            count = options.chunks or choose_forecast_chunks(algorithm, n, nbytes)
            plan = algorithm.plan(n, root, count, fill_nodes(n, machine))
            cost = plan.cost
            if full or not algorithm.grows_linearly:
                _require_symmetry(algorithm, n, machine, root)
            updates = (cost.steps * n if full else cost.steps) if cost is not None else n
            trace = updates <= (MAX_FULL_TRACE if full else MAX_TRACED_ROUNDS)
            trace &= (
                options.show_path
                or plan.period is not None
                or algorithm.is_two_level
                or updates * n <= MAX_UNASKED_TRACE
            )
            simulation = forecast(algorithm, n, machine, nbytes, chunks=count, root=root, full=full, trace=trace)
            yield SimulatedCase(algorithm, count, simulation)
            advance(algorithm.full_name)


def _choose_size(algorithm: Algorithm, n: int, machine: Machine) -> int:
    """Return the message size in bytes for `n` ranks if --size is not given.

    Many ranks can be simulated in seconds only if they are symmetric, and ranks that own a chunk each are symmetric
    only if all chunks have the same size.
    """
    if n <= MOST_UNSYMMETRIC_RANKS or algorithm.operation.has_blocks or "chunks" in algorithm.parameters:
        return DEFAULT_SIZE
    return ITEMSIZE * n if algorithm.plan(n, nodes=fill_nodes(n, machine)).column(0).chunks >= n else DEFAULT_SIZE


def _require_symmetry(algorithm: Algorithm, n: int, machine: Machine, root: int) -> None:
    """Raise UsageError if `n` exceeds MOST_UNSYMMETRIC_RANKS and the simulation of `n` ranks would take minutes."""
    if n <= MOST_UNSYMMETRIC_RANKS:
        return
    plan = algorithm.plan(n, root, 1, fill_nodes(n, machine))
    rounds, per_node = plan.column(0), machine.period
    steps = len(rounds.at(0)) if len(rounds) else 0
    is_symmetric = plan.period is not None and n % lcm(plan.period, per_node) == 0
    exchanges = plan.operation is Operation.ALL_TO_ALL
    if steps <= MOST_STEPS and (len(rounds) <= FEW_ROUNDS or (is_symmetric and not exchanges)):
        return
    many = f"{len(rounds)} rounds" if steps <= MOST_STEPS else f"{steps} messages per rank and round"
    why = "are the same for all ranks" if is_symmetric else "differ by rank"
    remedy = f"use --ranks {MOST_UNSYMMETRIC_RANKS} or fewer"
    if plan.period is not None and not exchanges and not is_symmetric:
        remedy += f", or a multiple of {lcm(plan.period, per_node)} ranks"
    raise UsageError(f"{plan.name} on {n} ranks has {many}, which {why}: its simulation would take minutes; {remedy}")


def _make_record(case: SimulatedCase, chosen: ChosenMachine) -> dict[str, Any]:
    """Return the `SimulatedPlanRecord` of a simulated algorithm, as a dict; `chosen` is the simulated machine."""
    simulation = case.simulation
    plan, machine = simulation.plan, simulation.machine
    bound = chosen.compute_bounds(simulation)
    ranks_per_simulated = plan.ranks / simulation.simulated_ranks
    sent = simulation.within + simulation.between
    return SimulatedPlanRecord(
        command="simulate",
        op=plan.operation.value,
        algorithm=case.algorithm.name,
        ranks=plan.ranks,
        nodes=machine.count_nodes(plan.ranks),
        machine=machine.name,
        nbytes=simulation.nbytes,
        chunks=case.chunks,
        root=plan.root if plan.operation.has_root else None,
        simulated_ranks=simulation.simulated_ranks,
        rounds=simulation.rounds,
        steps=simulation.steps,
        messages=simulation.messages,
        time_us=simulation.seconds * 1e6,
        latency_bound_us=bound.latency_s * 1e6,
        bandwidth_bound_us=bound.bandwidth_s * 1e6,
        binding=bound.binding or None,
        sent_mean=float(sent.mean()),
        sent_most=float(sent.max()),
        within=float(simulation.within.sum() * ranks_per_simulated),
        between=float(simulation.between.sum() * ranks_per_simulated),
        critical_path=None if simulation.path is None else _make_path_entry(simulation.path),
        fit=None if chosen.errors is None else FitErrors(*chosen.errors),
    ).as_dict()


def _take_end_waits(path: CriticalPath, count: int) -> list[MessageWait | None]:
    """Return the first and last `count` waits of a critical path, with None in place of waits that are left out."""
    if len(path.waits) <= 2 * count:
        return list(path.waits)
    return [*path.waits[:count], None, *path.waits[-count:]]


def _make_path_entry(path: CriticalPath) -> CriticalPathEntry:
    """Return a critical path as written to records: only its first and its last RECORDED_WAITS waits."""
    waits = tuple(
        WaitEntry(w.round, w.rank, w.source, w.nbytes, w.far, w.entered_s * 1e6)
        for w in _take_end_waits(path, RECORDED_WAITS)
        if w is not None
    )
    return CriticalPathEntry(path.rank, len(path.waits), sum(wait.far for wait in path.waits), waits)


def _print_cases(cases: Sequence[SimulatedCase], chosen: ChosenMachine, *, show_path: bool) -> None:
    """Print a table of all simulated algorithms and how near they come to the optimum.

    `show_path` also prints the critical paths, unless there are more than MAX_PRINTED_PATHS cases.
    """
    rows = [_make_row(case, chosen) for case in cases]
    print_table(f"Simulated on {chosen.title}", COLUMNS, rows, numbers=COLUMNS[1:], drops=LESS_IMPORTANT)
    print_text(
        "across: share of the bytes that leaves nodes; latency, bandwidth: time in multiples of the lower bounds; "
        "--path prints the waits of the rank that is last"
    )
    for line in _describe_optima(cases, chosen):
        print_text(line)
    if not show_path:
        return  # --json records the paths in any case
    if len(cases) > MAX_PRINTED_PATHS:
        print_text(f"critical paths are printed for up to {MAX_PRINTED_PATHS} rows; --json FILE records all")
        return
    for case in cases:
        path = case.simulation.path
        if path is not None and path.waits:
            print_text(_format_path(case.simulation, path))


def _describe_optima(cases: Sequence[SimulatedCase], chosen: ChosenMachine) -> list[str]:
    """Return a line per operation and rank count with a known optimum: how near the fastest algorithm comes to it."""
    fastest: dict[tuple[Operation, int], Simulation] = {}
    for case in cases:
        simulation = case.simulation
        key = simulation.plan.operation, simulation.plan.ranks
        best = fastest.get(key)
        if best is None or (-simulation.nbytes, simulation.seconds) < (-best.nbytes, best.seconds):
            fastest[key] = simulation
    lines = []
    for simulation in fastest.values():
        optimum = chosen.find_optimum(simulation)
        if optimum is not None and simulation.nbytes and chosen.limit is None:
            plan, nbytes = simulation.plan, simulation.nbytes
            share = optimum.describe_share(simulation.seconds, nbytes)
            lines.append(f"{plan.name} of {format_size(nbytes)} on {format_count(plan.ranks, 'rank')}: {share}")
    return lines[:MAX_PRINTED_OPTIMA]


def _make_row(case: SimulatedCase, chosen: ChosenMachine) -> tuple[str, ...]:
    """Return the table cells of a simulated algorithm, in the order of COLUMNS."""
    simulation = case.simulation
    n, sent = simulation.plan.ranks, simulation.within + simulation.between
    bound = chosen.compute_bounds(simulation)
    total = float(sent.sum())
    ratios = [
        _format_ratio(simulation.seconds / least) if least else "-" for least in (bound.latency_s, bound.bandwidth_s)
    ]
    return (
        case.algorithm.full_name,
        f"{n}",
        f"{simulation.machine.count_nodes(n)}",
        format_size(simulation.nbytes),
        f"{case.chunks}" if "chunks" in case.algorithm.parameters else "-",
        f"{simulation.steps}",
        format_size(round(float(sent.mean()))),
        format_size(int(sent.max())),
        f"{float(simulation.between.sum()) / total:.1%}" if total else "-",
        _format_seconds(simulation.seconds),
        *ratios,
    )


def _format_ratio(ratio: float) -> str:
    """Return a ratio as a string with three significant digits, or all digits of its integer: `1.25x`, `7193x`."""
    return f"{ratio:.0f}x" if ratio >= 1000 else f"{ratio:.3g}x"


def _format_seconds(seconds: float) -> str:
    """Return a time as a string with four significant digits in s, ms or us, such as `12.34 us`."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds * 1e6:.4g} us"


def _format_path(simulation: Simulation, path: CriticalPath) -> str:
    """Return a critical path as a string: a heading, then one line per wait, for the first and the last waits."""
    plan, simulated = simulation.plan, simulation.simulated_ranks
    waits, far = format_count(len(path.waits), "wait"), sum(wait.far for wait in path.waits)
    head = f"{plan.name} on {format_count(plan.ranks, 'rank')}, {format_size(simulation.nbytes)}: "
    head += f"rank {path.rank} is last, after {waits} in a row, {far} of them across nodes"
    if simulated < plan.ranks:
        head += f" ({simulated} ranks represent all)" if simulated > 1 else " (one rank represents all)"
    lines = [
        "  ..."
        if wait is None
        else f"  round {wait.round + 1}: rank {wait.rank} waits for {format_size(wait.nbytes)} from rank {wait.source}"
        f" {'across nodes' if wait.far else 'on its node'}, which began the round at {_format_seconds(wait.entered_s)}"
        for wait in _take_end_waits(path, PRINTED_WAITS)
    ]
    return "\n".join([head, *lines])


def _write_map(algorithms: Sequence[Algorithm], chosen: ChosenMachine, max_ranks: int, map_file: str) -> None:
    """Simulate algorithms on up to `max_ranks` ranks for the sizes MAP_SIZES; draw the fastest ones into `map_file`."""
    from hpccoll.measure.results.output_file import require_picture, save_picture
    from hpccoll.predict.forecast_grid import forecast_grid, list_rank_counts
    from hpccoll.predict.winner_map import draw_winner_map

    require_picture(map_file, "--map")
    machine = chosen.for_ranks(max_ranks)
    counts = list_rank_counts(max_ranks, machine)
    if len(counts) < 2 or len({algorithm.operation for algorithm in algorithms}) > 1:
        raise UsageError("--map compares algorithms of one OP over rank counts: name one OP, and --ranks 4 or more")
    with show_progress("simulated", len(algorithms) * len(counts)) as advance:
        grid = forecast_grid(algorithms, machine, counts, MAP_SIZES, advance)
    save_picture(draw_winner_map(grid), map_file, "--map", dpi=160)
