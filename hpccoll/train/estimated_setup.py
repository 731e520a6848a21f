"""Conversion of the options of `hpccoll train` to the `TrainingSetup` that the formulas of hpccoll/sizing take."""

from __future__ import annotations

from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import Mesh
from hpccoll.schedules.schedule_files import is_schedule_file
from hpccoll.sizing import Precision, TrainingSetup
from hpccoll.sizing.training_setup import TrainingProgram
from hpccoll.train.options import TrainOptions

PROGRAM = TrainingProgram(
    frees_gradients=True,
    keeps_outputs=True,
    pools_weights=True,
    defers_gathered=True,
    has_whole_scores=True,
    repeats_last_reduction=False,
)
OPTIMIZER_NAMES = {"adamw": "adam", "sgd": "sgd"}


def make_training_setup(options: TrainOptions, mesh: Mesh) -> TrainingSetup:
    """Return a training run with `options` on a mesh as a `TrainingSetup`, the input of the formulas of hpccoll/sizing.

    Raises UsageError if the mesh does not divide the batch or a GPT evenly, or if the schedule is from a file.
    """
    model = options.model
    if is_schedule_file(options.schedule):
        raise UsageError(
            f"--schedule {options.schedule} has no estimate: the formulas are for built-in schedules; "
            "give --schedule 1f1b"
        )
    setup = TrainingSetup(
        model.make_shape(),
        mesh,
        options.batch,
        model.tokens,
        options.count_microbatches(mesh),
        zero=options.zero,
        recompute="full" if options.recompute else "none",
        sequence_parallel=options.sequence_parallel,
        schedule=options.schedule,
        precision=Precision(options.dtype, OPTIMIZER_NAMES[options.optimizer.name]),
        program=PROGRAM,
        survive=options.survive,
    )
    setup.require_fits()
    return setup
