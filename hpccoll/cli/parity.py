"""`hpccoll parity`: compare the gradients of a user's model on meshes with those of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpccoll.cli.output import STDOUT, json_option, open_json_lines, print_table, print_text, require_outputs_writable
from hpccoll.cli.run_record import make_run_record
from hpccoll.processes import joint_failure
from hpccoll.train.options import require_torch

if TYPE_CHECKING:
    from hpccoll.parity import ParityReport
    from hpccoll.records import ParityRecord

MAX_ROWS = 10
HEADINGS = ("tensor", "quantity", "step", "relative error", "tolerance", "likely fault")


@click.command(epilog="Example: mpirun -n 4 hpccoll parity my_model.py:build --mesh dp=4 --mesh dp=2,tp=2")
@click.argument("build", metavar="FILE.py:FUNCTION")
@click.option("--mesh", "meshes", multiple=True, metavar="AXES", help="A mesh of all ranks; repeatable; default dp.")
@click.option("--steps", type=click.IntRange(1), default=3, show_default=True, help="SGD steps to compare.")
@click.option("--lr", type=click.FloatRange(0, min_open=True), default=0.1, show_default=True, help="Learning rate.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, min_open=True),
    help="Relative to a tensor's largest magnitude; default 1e-12 in float64, 1e-5 in float32, 0.125 in bfloat16.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed before each call of FUNCTION.")
@click.option(
    "--backend",
    type=click.Choice(["gloo", "nccl", "hpccoll", "none"]),
    default="gloo",
    show_default=True,
    help="Backend of torch.distributed; none: torch.distributed is not started.",
)
@json_option(all_ranks=True)
def parity(build: str, meshes: tuple[str, ...], backend: str, json_file: str | None, **options: Any) -> int:
    """Compare a model's training on meshes of MPI ranks with its training in one process; status 1 if they differ.

    FILE.py:FUNCTION, or MODULE:FUNCTION, returns a hpccoll.parity.ParityCase: model, batch, loss, and how to wrap the
    model on a mesh. Losses, raw gradients, gradient norms, and parameters after SGD steps are compared. The report
    names the first parameter that differs, by how much, and the likely fault.
    """
    from hpccoll.runtime import job

    world = job.get_world()
    joint_failure.run_on_first_rank(world, lambda: require_outputs_writable({"--json": json_file}))
    require_torch()
    from hpccoll.communicator import Communicator
    from hpccoll.parity import ParityOptions, check_parity
    from hpccoll.parity.case import load_build_function
    from hpccoll.peers.process_group import open_process_group

    function = load_build_function(build)
    run = make_run_record(world)
    wrong = 0
    with Communicator(world) as comm, open_process_group(backend), open_json_lines(json_file) as lines:
        lines.write(run)
        for mesh in meshes or ("dp",):
            report = check_parity(comm, function, mesh, ParityOptions(**options))
            for record in [*report.records, report.summary]:
                lines.write(record.as_dict())
            if json_file != STDOUT:
                _print_report(report)
            wrong += report.summary.wrong
    return int(wrong > 0)


def _print_report(report: ParityReport) -> None:
    """Print up to MAX_ROWS tensors that differ from training in one process, and a summary; on rank 0 only."""
    from hpccoll.parity.check import format_summary

    wrong = [record for record in report.records if record.fault is not None]
    if wrong:
        rows = [_format_row(record) for record in wrong[:MAX_ROWS]]
        print_table(f"Differences on {report.summary.mesh}", HEADINGS, rows, numbers=HEADINGS[2:5])
        if len(wrong) > MAX_ROWS:
            print_text(f"and {len(wrong) - MAX_ROWS} more; --json FILE has all of them")
    print_text(format_summary(report.summary))


def _format_row(record: ParityRecord) -> list[str]:
    """Return the table cells of a compared tensor, in the order of HEADINGS."""
    error = "not finite" if record.relative_error is None else f"{record.relative_error:.2g}"
    return [record.name, record.quantity, str(record.step), error, f"{record.tolerance:.2g}", record.fault or ""]
