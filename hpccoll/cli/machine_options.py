"""The command-line options that select the machine model to simulate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hpccoll.cli.completion import complete_machines
from hpccoll.cli.options import option
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

DEFAULT_MACHINE = "dgx-h100"
FIT_PREFIX = "fit:"
_SECONDS_PER_UNIT = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?"


@dataclass(frozen=True, slots=True)
class ChosenMachine:
    """The machine model that the options select.

    Args:
        machine: the machine model.
        nodes: the number of nodes to spread the ranks over; None: as many ranks per node as the model has.
        errors: the median relative errors of a fitted model, on the sizes it was fitted to and on others; else None.
        limit: for a fitted model, the number of ranks and the measured hardware limit of the fitted run; else None.
    """

    machine: Machine
    nodes: int | None
    errors: tuple[float, float] | None = None
    limit: tuple[int, HardwareLimit] | None = None

    def compute_bounds(self, simulation: Simulation) -> Bounds:
        """Return lower bounds of the time of a simulated operation, by latency and by bandwidth.

        If the hardware limit was measured on as many ranks and nodes as are simulated, it bounds the times of messages
        from 1 MiB on. All other bounds come from the machine model and its network.
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
        """Return a lower bound of the simulated operation's time per byte, and its cause; None if no bound is known."""
        from hpccoll.synthesis import find_machine_optimum

        plan = simulation.plan
        return find_machine_optimum(simulation.machine, plan.operation, plan.ranks, plan.root)

    def for_ranks(self, ranks: int) -> Machine:
        """Return the machine model for a job of `ranks` ranks; --nodes puts ceil(`ranks` / nodes) ranks on a node."""
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


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The options that select a machine model; an option that is not given has the value None."""

    machine: str | None = option(
        "--machine",
        metavar="NAME|FILE.toml|fit:FILE",
        help=f"Default {DEFAULT_MACHINE}.",
        shell_complete=complete_machines,
    )
    nodes: int | None = option("--nodes", type=click.IntRange(1), help="Number of nodes to spread the ranks over.")
    alpha: str | None = option(
        "--alpha", metavar="TIME", help="Cost of a message: 3.7us. Replaces --machine; all links alike, one-port."
    )
    beta: str | None = option(
        "--beta", metavar="TIME|BANDWIDTH", help="Cost of sending a byte: 8e-11 (seconds) or 12.5GB/s."
    )
    gamma: str | None = option(
        "--gamma", metavar="TIME|BANDWIDTH", help="Cost of reducing a byte: 1e-11 (seconds) or 100GB/s."
    )

    def resolve(self, counts: Sequence[int], algorithms: Sequence[Algorithm]) -> ChosenMachine:
        """Return the selected machine model: built in, read from a TOML file, fitted to results, or with given costs.

        Args:
            counts: the rank counts to simulate.
            algorithms: the algorithms whose measurements a model is fitted to; empty for all algorithms.

        Raises:
            UsageError: --machine is given with --alpha, --beta or --gamma; nodes outnumber ranks; or a file is
                unusable.
        """
        given = next((name for name in ("alpha", "beta", "gamma") if getattr(self, name) is not None), None)
        if self.machine is not None and given is not None:
            raise UsageError(f"--machine {self.machine} and --{given} both say what a message costs; give one of them")
        if self.nodes is not None and self.nodes > min(counts):
            raise UsageError(f"--nodes {self.nodes} is more than --ranks {min(counts)}; every node needs a rank")
        if given is None:
            return choose_machine(self.machine, self.nodes, algorithms)
        alpha = parse_seconds(self.alpha or "0", "--alpha")
        beta = parse_seconds_per_byte(self.beta or "0", "--beta")
        gamma = parse_seconds_per_byte(self.gamma or "0", "--gamma")
        return ChosenMachine(Machine.flat(alpha, beta, gamma), self.nodes)


def choose_machine(name: str | None, nodes: int | None = None, algorithms: Sequence[Algorithm] = ()) -> ChosenMachine:
    """Return a machine model that is built in, read from a TOML file, or fitted to results.

    Args:
        name: the value of --machine; None for the default model.
        nodes: the number of nodes to spread the ranks over; None: as many ranks per node as the model has.
        algorithms: the algorithms whose measurements a model is fitted to; empty for all algorithms.

    Raises:
        UsageError: no machine model or file has the name, or the file is unusable.
    """
    if name is None or not name.startswith(FIT_PREFIX):
        return ChosenMachine(load_machine(name if name is not None else DEFAULT_MACHINE), nodes)
    path = name.removeprefix(FIT_PREFIX)
    machine, errors = _fit_to_file(path, {algorithm.full_name for algorithm in algorithms})
    return ChosenMachine(machine, nodes, errors, _read_limit(path))


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
    """Return a machine model that is fitted to measurements of `hpccoll bench`, and the two errors of the fit.

    Args:
        path: the result file.
        names: full names of the algorithms whose measurements are used; if `names` is empty, all measurements are used.

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
    """Return a record as a row (plan and median time) for fitting a machine model; None if the record is unsuitable.

    Records of other engines than hpccoll, of `auto`, of one rank, or of no bytes are unsuitable.
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
