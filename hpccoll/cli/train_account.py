"""`hpccoll train --account`: bytes sent, times and memory of training steps, as measured, simulated and estimated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from math import isclose
from typing import TYPE_CHECKING

from hpccoll.cli.output import STDOUT, is_printing_rank, open_json_lines, print_table, print_text
from hpccoll.cli.run_record import make_run_record
from hpccoll.errors import UsageError
from hpccoll.measure.results.output_file import require_picture
from hpccoll.parallel.mesh import Mesh
from hpccoll.processes import joint_failure
from hpccoll.train.estimated_setup import make_training_setup
from hpccoll.train.options import TrainOptions, require_torch, split_strategy
from hpccoll.units import MB, format_count

if TYPE_CHECKING:
    from hpccoll.records import TrainAccountRecord

ACCOUNT_STEPS = 10
COLUMNS = ("strategy", "quantity", "measured", "simulated", "estimated")
TOLERANCES = {"peak bytes": 0.05}  # relative differences; ROUNDING for others
ROUNDING = 1e-12  # relative; (n-1)/n of a message is not always a whole number
EXPLANATIONS = {  # by the end of the names of quantities
    "bytes": "Bytes sent do not depend on the machine: the size of each message follows from model, batch and mesh.",
    "step s": "Measured steps include waits for late ranks; simulation and estimate use the speed of ranks that train "
    "without communication.",
    "communication share": "Measured communication includes the time in which a rank waits for late ranks; a simulated "
    "collective begins on all ranks at once.",
    "exposed share": "Measured and simulated gradients are summed in buckets, of which the last one is exposed; "
    "the estimate hides sums of gradients behind the last backward pass.",
    "bubble": "The measured bubble is the mean over stages, and includes the time to send. The last stage has the "
    "output layer, and the others wait for it; simulated and estimated passes of all stages take the same time.",
    "peak bytes": "The formulas leave out small tensors, such as statistics of norms and masks.",
}
ROUTING = (
    "Bytes and memory of experts depend on the tokens: simulation and estimate use the numbers of rows sent to "
    "experts in the first step. `even` is the estimate if tokens choose experts evenly and no choice is dropped."
)


def account_training(strategies: Sequence[str], options: TrainOptions, json_file: str | None, plot: str | None) -> int:
    """Train a few steps on each mesh of `strategies`, and compare bytes, times and memory with estimates; collective.

    Returns the exit status: 1 if bytes or memory are not as estimated, else 0. `plot` is the picture's file, or None.
    """
    from hpccoll.runtime import job

    if options.device != "cpu":
        raise UsageError(f"--account measures the memory of a CPU; leave --device {options.device} out")
    options.require_timed_steps("--account")
    split = [split_strategy(strategy, options) for strategy in strategies]
    world = job.get_world()
    runs = [(Mesh.parse(axes, world.size), own) for axes, own in split]
    for mesh, own in runs:
        own.require_mesh_fits(mesh)
        make_training_setup(own, mesh)
    if plot is not None:
        joint_failure.run_on_first_rank(world, lambda: require_picture(plot, "--plot"))
    require_torch()
    from hpccoll.communicator import Communicator
    from hpccoll.train.account import measure_machine, run_account
    from hpccoll.train.trainer import keep_freed_memory, limit_threads

    limit_threads(os.environ)
    keep_freed_memory()
    run, records = make_run_record(world), []
    with Communicator(world) as comm, open_json_lines(json_file) as lines:
        lines.write(run)
        machine = measure_machine(comm, options)
        for label, (mesh, own) in zip(strategies, runs, strict=True):
            records.append(run_account(comm, label, mesh, own, machine, lambda step: lines.write(step.as_dict())))
            lines.write(records[-1].as_dict())
    if json_file != STDOUT:
        print_account(records)
    if plot is not None and is_printing_rank():
        from hpccoll.report.account_picture import write_account_picture

        write_account_picture(records, plot)
    return int(any(map(find_wrong, records)))


def find_wrong(record: TrainAccountRecord) -> list[str]:
    """Return the names of measured quantities that are not as estimated.

    The bytes sent must equal the estimate up to rounding, and the peak of memory must be within 5 % of the estimate.
    Times may differ from the estimates by any amount.
    """
    return [
        entry.quantity
        for entry in record.entries
        if entry.quantity.endswith(" bytes")
        and not isclose(entry.measured, entry.estimated, rel_tol=TOLERANCES.get(entry.quantity, ROUNDING))
    ]


def print_account(records: Sequence[TrainAccountRecord]) -> None:
    """Print a table of the measured, simulated and estimated quantities of each strategy, and why they differ.

    Quantities that should be as estimated, and are not, are named below the table.
    """
    first, rows = records[0], list(format_rows(records))
    title = f"{first.model}, {format_count(first.ranks, 'rank')}, batch {first.batch}: a training step"
    print_table(title, COLUMNS, rows, numbers=COLUMNS[2:])
    shown = {entry.quantity for record in records for entry in record.entries}
    texts = [text for ending, text in EXPLANATIONS.items() if any(quantity.endswith(ending) for quantity in shown)]
    if any(entry.even is not None for record in records for entry in record.entries):
        texts.append(ROUTING)
    print_text("\n" + "\n".join(texts))
    for record in records:
        if wrong := find_wrong(record):
            print_text(f"{record.label}: {', '.join(wrong)} not as estimated")


def format_rows(records: Sequence[TrainAccountRecord]) -> Iterator[tuple[str, ...]]:
    """Yield the table cells of each quantity of each strategy, in the order of COLUMNS."""
    for record in records:
        for entry in record.entries:
            write = _make_format(entry.quantity)
            measured, simulated, estimated = map(write, (entry.measured, entry.simulated, entry.estimated))
            even = "" if entry.even is None else f" (even {write(entry.even)})"
            yield record.label, entry.quantity.replace("bytes", "MB"), measured, simulated, estimated + even


def _make_format(quantity: str) -> Callable[[float], str]:
    """Return the function that formats values of a quantity, by its name, such as `peak bytes` or `step s`.

    Bytes are formatted in MB, shares in percent, and seconds with three digits.
    """
    if quantity.endswith("bytes"):
        return lambda value: f"{value / MB:.3f}"
    return lambda value: f"{value:.3g}" if quantity.endswith(" s") else f"{value:.1%}"
