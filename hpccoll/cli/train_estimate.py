"""`hpccoll train --dry-run`: the memory and the time of each rank, estimated before anything starts."""

from __future__ import annotations

import re
from math import prod

from hpccoll.cli.estimate import make_estimate_record
from hpccoll.cli.estimate_tables import format_gb, print_estimate, print_rank_estimates
from hpccoll.cli.machine_options import choose_machine
from hpccoll.cli.output import STDOUT, get_launched_rank, is_printing_rank
from hpccoll.cli.run_record import write_serial_records
from hpccoll.errors import UnavailableError
from hpccoll.parallel.mesh import Mesh
from hpccoll.sizing import make_estimate
from hpccoll.train.estimated_setup import make_training_setup
from hpccoll.train.options import TrainOptions


def estimate_training(strategy: str, options: TrainOptions, machine: str | None, json_file: str | None) -> int:
    """Print the estimated memory and time of a training run, without training; return the exit status.

    Args:
        strategy: the mesh, such as `dp=2,tp=2`; an axis without a number gets the number of ranks divided by the other
            numbers.
        machine: the value of --machine; None for the default machine model.

    Raises:
        UsageError: the mesh does not fit the job or the model, or the machine model has no peak rate or no memory size.
        UnavailableError: the memory of a rank does not suffice.
    """
    mesh = Mesh.parse(strategy, _count_ranks(strategy))
    options.require_mesh_fits(mesh)
    setup, model = make_training_setup(options, mesh), options.model.name
    step_estimate = make_estimate(setup, choose_machine(machine).machine)
    if not is_printing_rank():
        return 0 if step_estimate.fits else UnavailableError.exit_status
    write_serial_records(json_file, [make_estimate_record(model, step_estimate)])
    if json_file != STDOUT:
        print_estimate(model, step_estimate)
        print_rank_estimates(step_estimate)
    if not step_estimate.fits:
        raise UnavailableError(
            f"{mesh} needs {format_gb(step_estimate.memory.total)} GB per rank, but a rank of "
            f"{step_estimate.machine.name} has {format_gb(step_estimate.usable_bytes)} GB for it; "
            "give more ranks along tp or pp, --recompute, or a smaller --batch"
        )
    return 0


def _count_ranks(strategy: str) -> int:
    """Return the number of ranks of the job, or of the mesh `strategy` if no launcher started this process."""
    if get_launched_rank() is None:
        return prod(int(number) for number in re.findall(r"=\s*(\d+)", strategy))
    from hpccoll.runtime import job

    return job.get_world().size
