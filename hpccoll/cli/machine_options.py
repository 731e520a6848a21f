"""The command-line options that select the machine model to simulate."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpccoll.cli.completion import complete_machines
from hpccoll.errors import HpccollError, UsageError
from hpccoll.plan import Machine
from hpccoll.predict.machine_catalogue import load_machine

if TYPE_CHECKING:
    from hpccoll.algorithms import Algorithm
    from hpccoll.measure.hardware_limit import HardwareLimit
    from hpccoll.plan import Simulation
    from hpccoll.plan.simulation.bounds import Bounds
    from hpccoll.predict.fit import MeasuredRow
    from hpccoll.records import CollectiveRecord
    from hpccoll.synthesis import Optimum

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_MACHINE = "dgx-h100"
FIT_PREFIX = "fit:"
_SECONDS_PER_UNIT = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?"


@dataclass(frozen=True, slots=True)
class ChosenMachine:
    """The machine model that the options select.

    Args:
        machine: the machine model.
        nodes: the value of --nodes; None if it is not given.
        errors: the median relative errors of a fitted model, on the sizes it was fitted to and on others; else None.
        limit: number of ranks and measured hardware limit of the run that the model was fitted to; else None.
    """

    machine: Machine
    nodes: int | None
    errors: tuple[float, float] | None
    limit: tuple[int, HardwareLimit] | None = None

    def compute_bounds(self, simulation: Simulation) -> Bounds:
        """Return lower bounds of the time of a simulated operation, by latency and by bandwidth.

        The measured hardware limit is used if its run had the same ranks and nodes, else the machine model.
        """
        from hpccoll.measure.hardware_limit import compute_lower_bounds

        plan, machine = simulation.plan, simulation.machine
        ranks, limit = self.limit or (0, None)
        is_same = limit is not None and (ranks, limit.nodes) == (plan.ranks, machine.count_nodes(plan.ranks))
        return compute_lower_bounds(
            plan.operation,
            simulation.nbytes,
            plan.ranks,
            limit if is_same else None,
            machine,
            None if is_same else self.find_optimum(simulation),
        )

    def find_optimum(self, simulation: Simulation) -> Optimum | None:
        """Return the least time of the simulated operation on the machine's network; None if it cannot be computed."""
        from hpccoll.synthesis import find_machine_optimum

        plan = simulation.plan
        return find_machine_optimum(simulation.machine, plan.operation, plan.ranks, plan.root)

    def for_ranks(self, ranks: int) -> Machine:
        """Return the machine model for a job of `ranks` ranks; with --nodes, a node has `ranks` / nodes, rounded up."""
        if self.nodes is None:
            return self.machine
        return self.machine.with_ranks_per_node(-(-ranks // self.nodes))

    @property
    def title(self) -> str:
        """The machine model's name and, if the model was fitted to measurements, its median errors."""
        if self.errors is None:
            return self.machine.name
        fitted, left_out = self.errors
        return f"{self.machine.name}; median error {left_out:.1%} on sizes left out, {fitted:.1%} on those fitted"


def add_machine_options(command: Command) -> Command:
    """Return the click command with the options --machine, --nodes, --alpha, --beta and --gamma."""
    for option in (
        click.option("--gamma", metavar="TIME|BANDWIDTH", help="Cost of reducing a byte: 1e-11 (seconds) or 100GB/s."),
        click.option("--beta", metavar="TIME|BANDWIDTH", help="Cost of sending a byte: 8e-11 (seconds) or 12.5GB/s."),
        click.option(
            "--alpha", metavar="TIME", help="Cost of a message: 3.7us. Replaces --machine; all links alike, one-port."
        ),
        click.option("--nodes", type=click.IntRange(1), help="Number of nodes to spread the ranks over."),
        click.option(
            "--machine",
            metavar="NAME|FILE.toml|fit:FILE",
            help=f"Default {DEFAULT_MACHINE}.",
            shell_complete=complete_machines,
        ),
    ):
        command = option(command)
    return command


def resolve_machine(
    counts: Sequence[int], options: Mapping[str, Any], algorithms: Sequence[Algorithm]
) -> ChosenMachine:
    """Return the selected machine model: built in, read from a TOML file, fitted to results, or with given costs.

    Args:
        counts: the rank counts to simulate.
        options: values of the options of `add_machine_options`, by name.
        algorithms: the algorithms whose measurements a model is fitted to; empty for all algorithms.

    Raises:
        UsageError: --machine is given with --alpha, --beta or --gamma; nodes outnumber ranks; or a file is unusable.
    """
    name, nodes = options["machine"], options["nodes"]
    costs = {key: options[key] for key in ("alpha", "beta", "gamma") if options[key] is not None}
    if name is not None and costs:
        raise UsageError(f"--machine {name} and --{next(iter(costs))} both say what a message costs; give one of them")
    if nodes is not None and nodes > min(counts):
        raise UsageError(f"--nodes {nodes} is more than --ranks {min(counts)}; every node needs a rank")
    errors = limit = None
    if costs:
        alpha = parse_seconds(costs.get("alpha", "0"), "--alpha")
        per_byte = (parse_seconds_per_byte(costs.get(key, "0"), f"--{key}") for key in ("beta", "gamma"))
        machine = Machine.flat(alpha, *per_byte)
    elif name is not None and name.startswith(FIT_PREFIX):
        machine, errors = _fit_to_file(name.removeprefix(FIT_PREFIX), {algorithm.full_name for algorithm in algorithms})
        limit = _read_limit(name.removeprefix(FIT_PREFIX))
    else:
        machine = load_machine(name if name is not None else DEFAULT_MACHINE)
    return ChosenMachine(machine, nodes, errors, limit)


def parse_seconds(text: str, option: str) -> float:
    """Return a time such as `3.7us`, `1.2ms` or `1e-6` in seconds.

    Raises UsageError, which names the command-line option `option`, if `text` is no time.
    """
    match = re.fullmatch(rf"\s*({_NUMBER})\s*(s|ms|us|ns|)\s*", text.replace("µ", "u"), re.IGNORECASE)
    if match is None or float(match[1]) > 1e6:
        raise UsageError(f"{option} {text!r} is not a time; write seconds or a unit, such as 3.7us, 1e-6 or 0")
    return float(match[1]) * _SECONDS_PER_UNIT[match[2].lower()]


def parse_seconds_per_byte(text: str, option: str) -> float:
    """Return a time per byte (`8e-11`) or a bandwidth (`12.5GB/s`, 1 GB being 1e9 bytes) in seconds per byte.

    Raises UsageError, which names the command-line option `option`, if `text` is neither.
    """
    match = re.fullmatch(rf"\s*({_NUMBER})\s*GB/s\s*", text, re.IGNORECASE)
    if match is None:
        try:
            return parse_seconds(text, option)
        except UsageError:
            raise UsageError(
                f"{option} {text!r} is neither a time per byte, such as 8e-11, nor a bandwidth, such as 12.5GB/s"
            ) from None
    if not 1e-9 < float(match[1]) < 1e12:
        raise UsageError(f"{option} {text!r} is not a bandwidth above 0; write one such as 12.5GB/s")
    return 1 / (float(match[1]) * 1e9)


def _fit_to_file(path: str, names: set[str]) -> tuple[Machine, tuple[float, float]]:
    """Return a machine model that is fitted to measurements of `hpccoll bench`, and its two errors.

    Args:
        path: the result file.
        names: full names of the algorithms whose measurements are used; if there are none, all measurements are.

    Returns:
        The model, and its median relative errors on the fitted message sizes and on the sizes left out of the fit.
    """
    from hpccoll.predict.fit import fit_machine

    rows = read_measured_rows(path, "--machine fit:")
    named_rows = [row for row in rows if row.algorithm.full_name in names]
    fit = fit_machine(named_rows or rows, path)
    return fit.machine, (fit.compute_median_error(fitted=True), fit.compute_median_error(fitted=False))


def _read_limit(path: str) -> tuple[int, HardwareLimit] | None:
    """Return the number of ranks and the measured hardware limit of a result file's first run, None without limit."""
    from hpccoll.measure.hardware_limit import HardwareLimit
    from hpccoll.measure.results.result_file import read_records
    from hpccoll.records import RunRecord

    runs = (line for line in read_records(path, "--machine fit:").records if line["kind"] == RunRecord.kind)
    run = next(runs, {})
    limit = HardwareLimit.from_run(run)
    return None if limit is None else (int(run.get("ranks") or 0), limit)


def read_measured_rows(path: str, option: str) -> list[MeasuredRow]:
    """Return the measurements in the result file `path` to which a machine model can be fitted.

    A model is fitted to times of hpccoll's algorithms on two ranks or more. Raises UsageError, which names the
    command-line option `option`, if the file cannot be read or is not a result file.
    """
    from hpccoll.measure.results.result_file import read_records

    rows = (_make_measured_row(record) for record in read_records(path, option).collectives())
    return [row for row in rows if row is not None]


def _make_measured_row(record: CollectiveRecord) -> MeasuredRow | None:
    """Return the plan and the median time of a record; None if a machine model cannot be fitted to it.

    No model is fitted to records of other engines, of `auto`, of one rank, or of no bytes.
    """
    import numpy as np

    from hpccoll.algorithms import get_algorithm
    from hpccoll.plan import Operation
    from hpccoll.predict.fit import MeasuredRow
    from hpccoll.selection import choose_chunk_count

    row = record
    if row.engine != "hpccoll" or row.ranks < 2 or not row.nbytes or row.algorithm in (None, "auto"):
        return None
    try:
        algorithm = get_algorithm(Operation.from_name(row.op), str(row.algorithm))
        itemsize = 2 if row.dtype == "bfloat16" else np.dtype(row.dtype).itemsize
    except (HpccollError, TypeError):
        return None
    chunks = choose_chunk_count(algorithm, row.ranks, row.nbytes, row.count)
    # The fit assumes that ranks fill the nodes in order; the last node takes the remaining ranks.
    full, rest = divmod(row.ranks, -(-row.ranks // row.nodes))
    nodes = [-(-row.ranks // row.nodes)] * full + [rest] * bool(rest)
    plan = algorithm.plan(row.ranks, row.root or 0, chunks, nodes)
    return MeasuredRow(algorithm, plan, row.nodes, row.count, itemsize, row.nbytes, record.time_us.p50 * 1e-6)
