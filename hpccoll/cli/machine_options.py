"""The options that say on which machine to simulate, and the machine that they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpccoll.errors import HpccollError, UsageError
from hpccoll.plan.simulation.machine import Machine
from hpccoll.predict.machine_catalogue import load_machine

if TYPE_CHECKING:
    from hpccoll.algorithms import Algorithm
    from hpccoll.measure.record import CollectiveRecord
    from hpccoll.predict.fit import MeasuredRow

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT = "dgx-h100"
FIT = "fit:"
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?"


@dataclass(frozen=True, slots=True)
class ChosenMachine:
    """The machine that was asked for; `nodes` where the user says how many, `errors` of a fit (fitted, left out)."""

    machine: Machine
    nodes: int | None
    errors: tuple[float, float] | None

    def of(self, ranks: int) -> Machine:
        """Return the machine as `ranks` ranks fill it."""
        if self.nodes is None:
            return self.machine
        return self.machine.with_ranks_per_node(-(-ranks // self.nodes))

    @property
    def title(self) -> str:
        """What to call it above a table."""
        if self.errors is None:
            return self.machine.name
        fitted, left_out = self.errors
        return f"{self.machine.name}; median error {left_out:.1%} on sizes left out, {fitted:.1%} on those fitted"


def add_machine_options(command: Command) -> Command:
    """Add --machine, --nodes, --alpha, --beta and --gamma."""
    for option in (
        click.option("--gamma", metavar="TIME|BANDWIDTH", help="To reduce a byte; 1e-11 (seconds) or 100GB/s."),
        click.option("--beta", metavar="TIME|BANDWIDTH", help="A byte of a message; 8e-11 (seconds) or 12.5GB/s."),
        click.option(
            "--alpha", metavar="TIME", help="A message: 3.7us. Instead of --machine: all links alike, one-port."
        ),
        click.option("--nodes", type=click.IntRange(1), help="Spread the ranks over so many nodes."),
        click.option("--machine", metavar="NAME|FILE.toml|fit:FILE", help=f"Default {DEFAULT}."),
    ):
        command = option(command)
    return command


def resolve_machine(
    counts: Sequence[int], options: Mapping[str, Any], algorithms: Sequence[Algorithm]
) -> ChosenMachine:
    """Return the machine that the options mean.

    Args:
        counts: the rank counts that it is for.
        options: of `machine_options`.
        algorithms: those whose rows a fit is restricted to; none for all.

    Raises:
        UsageError: options that do not go together, or more nodes than ranks.
    """
    name, nodes = options["machine"], options["nodes"]
    costs = {key: options[key] for key in ("alpha", "beta", "gamma") if options[key] is not None}
    if name is not None and costs:
        raise UsageError(f"--machine {name} and --{next(iter(costs))} both say what a message costs; give one of them")
    if nodes is not None and nodes > min(counts):
        raise UsageError(f"--nodes {nodes} is more than --ranks {min(counts)}; every node needs a rank")
    errors = None
    if costs:
        alpha = parse_seconds(costs.get("alpha", "0"), "--alpha")
        machine = Machine.flat(
            alpha, *(parse_seconds_per_byte(costs.get(key, "0"), f"--{key}") for key in ("beta", "gamma"))
        )
    elif name is not None and name.startswith(FIT):
        machine, errors = _fitted(name.removeprefix(FIT), {each.full_name for each in algorithms})
    else:
        machine = load_machine(name if name is not None else DEFAULT)
    return ChosenMachine(machine, nodes, errors)


def parse_seconds(text: str, option: str) -> float:
    """Return the seconds that `text` names: 3.7us, 1.2ms, 1e-6."""
    match = re.fullmatch(rf"\s*({_NUMBER})\s*(s|ms|us|ns|)\s*", text.replace("µ", "u"), re.IGNORECASE)
    if match is None or float(match[1]) > 1e6:
        raise UsageError(f"{option} {text!r} is not a time; write seconds or a unit, such as 3.7us, 1e-6 or 0")
    return float(match[1]) * _SECONDS[match[2].lower()]


def parse_seconds_per_byte(text: str, option: str) -> float:
    """Return the seconds a byte that `text` names: as a time, or as a bandwidth (12.5GB/s, 1e9 bytes a GB)."""
    match = re.fullmatch(rf"\s*({_NUMBER})\s*GB/s\s*", text, re.IGNORECASE)
    if match is None:
        try:
            return parse_seconds(text, option)
        except UsageError:
            raise UsageError(
                f"{option} {text!r} is neither a time a byte, such as 8e-11, nor a bandwidth, such as 12.5GB/s"
            ) from None
    if not 1e-9 < float(match[1]) < 1e12:
        raise UsageError(f"{option} {text!r}: need a bandwidth above 0")
    return 1 / (float(match[1]) * 1e9)


def _fitted(path: str, names: set[str]) -> tuple[Machine, tuple[float, float]]:
    """Fit the machine to a bench record, by the rows of `names` or, without any, by all."""
    from hpccoll.predict.fit import fit_machine

    rows = read_measured_rows(path, "--machine fit:")
    if names and any(row.algorithm.full_name in names for row in rows):
        rows = [row for row in rows if row.algorithm.full_name in names]
    found = fit_machine(rows, path)
    return found.machine, (found.median_error(fitted=True), found.median_error(fitted=False))


def read_measured_rows(path: str, option: str) -> list[MeasuredRow]:
    """Return the rows of a bench record that a machine can be fitted to: those of plans, on 2 ranks or more.

    Raises:
        UsageError: the file cannot be read or is no record; the message names `option`.
    """
    from hpccoll.measure.result_file import read_records

    found = (_measured(record) for record in read_records(path, option).collectives())
    return [row for row in found if row is not None]


def _measured(record: CollectiveRecord) -> MeasuredRow | None:
    """Return the row as a plan and its time; None where it is not of a plan that is known here."""
    import numpy as np

    from hpccoll.algorithms import get_algorithm
    from hpccoll.plan.operation import Operation
    from hpccoll.predict.fit import MeasuredRow
    from hpccoll.selection import choose_chunk_count

    row = record.row
    if row.engine != "hpccoll" or row.ranks < 2 or not row.nbytes or row.algorithm in (None, "auto"):
        return None
    try:
        algorithm = get_algorithm(Operation.from_name(row.op), str(row.algorithm))
        itemsize = 2 if row.dtype == "bfloat16" else np.dtype(row.dtype).itemsize
    except (HpccollError, TypeError):
        return None
    # As the engine cut it.
    chunks = choose_chunk_count(algorithm, row.ranks, row.nbytes, row.count)
    # As a fitted machine has them: full nodes in rank order, the last with what is left.
    full, rest = divmod(row.ranks, -(-row.ranks // row.nodes))
    nodes = [-(-row.ranks // row.nodes)] * full + [rest] * bool(rest)
    plan = algorithm.plan(row.ranks, row.root or 0, chunks, nodes)
    return MeasuredRow(algorithm, plan, row.nodes, row.count, itemsize, row.nbytes, record.time_us.p50 * 1e-6)
