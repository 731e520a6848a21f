"""A whole training run: the gradient check, all steps, periodic checkpoints and the summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpccoll.records import TrainStepRecord, TrainSummaryRecord
from hpccoll.train.checkpoint import CheckpointDirectory
from hpccoll.train.gradient_check import GradientCheck
from hpccoll.train.options import CheckpointOptions
from hpccoll.train.profile import StepProfiler
from hpccoll.train.record import describe_mesh
from hpccoll.train.start import TrainingStart
from hpccoll.train.trainer import Trainer


def run_training(
    trainer: Trainer,
    start: TrainingStart,
    checkpoints: CheckpointOptions,
    directory: CheckpointDirectory | None,
    on_step: Callable[[TrainStepRecord], None],
    warn: Callable[[str], None],
    profile: str | None = None,
    *,
    before: Sequence[TrainStepRecord] = (),
    recovered: bool = False,
) -> TrainSummaryRecord:
    """Train until the last step or until the stop file exists, and return a summary of the run; collective.

    If the option `check` is set, gradients are checked first, and wrong gradients are reported by `warn`. `on_step` is
    called with the record of each step. Rank 0 writes the checkpoints to `directory`, which is None on other ranks,
    and a trace of some steps to the file `profile` if it is given.

    The summary includes `before`, the records of the steps before a recovery. After a recovery (`recovered`), gradients
    are not checked again, and a due checkpoint that the death may have prevented is written before the next step.
    """
    options = trainer.options
    check = trainer.check_gradients() if options.check and not recovered else None
    if check is not None and check.wrong:
        warn(f"{check.wrong} elements differ from those of one process, the first in {check.first}")
    records = [*before]
    saved = trainer.save_checkpoint(directory) if recovered and _is_due(trainer, checkpoints) else None
    steps = trainer.run_steps(checkpoints.stop_file)
    profiler = StepProfiler(trainer.comm, trainer.groups.log, options.steps - trainer.step) if profile else None
    for record in profiler.record(steps) if profiler else steps:
        on_step(record)
        records.append(record)
        if _is_due(trainer, checkpoints):
            saved = trainer.save_checkpoint(directory)
    if profiler and profile and profiler.has_recorded:
        profiler.write(profile)
    elif profile:
        warn(f"--profile {profile}: no step was left to record; give more --steps")
    return _make_summary(trainer, start, records, check, str(saved) if saved else None)


def _is_due(trainer: Trainer, checkpoints: CheckpointOptions) -> bool:
    """Whether to write a checkpoint now, after the last step done."""
    is_last = trainer.step == trainer.options.steps or trainer.stopped
    return checkpoints.directory is not None and (is_last or trainer.step % checkpoints.every == 0)


def _make_summary(
    trainer: Trainer,
    start: TrainingStart,
    records: list[TrainStepRecord],
    check: GradientCheck | None,
    saved: str | None,
) -> TrainSummaryRecord:
    """Return the record that summarizes a run. Collective: unless the run was stopped, held-out samples are evaluated.

    `check` is None if gradients were not checked, and `saved` if no checkpoint was written.
    """
    options = trainer.options
    stopped = trainer.step < options.steps
    held_out = None if stopped else trainer.evaluate()
    return TrainSummaryRecord(
        **describe_mesh(trainer.mesh, options),
        **{name: getattr(options.model, name) for name in ("width", "layers", "activation", "heads", "context")},
        **{name: getattr(options, name) for name in ("dtype", "device", "seed", "batch", "schedule")},
        model=options.model.name,
        optimizer=options.optimizer.name,
        lr=options.optimizer.lr,
        parameters=options.model.parameter_count,
        microbatches=options.count_microbatches(trainer.mesh),
        steps=trainer.step,
        resumed_at=start.step if start.resumed else None,
        stop="stop_file" if stopped else "complete",
        loss=records[-1].loss if records else None,
        held_out_loss=None if held_out is None else held_out[0],
        accuracy=held_out[1] if held_out is not None and options.model.has_classes else None,
        median_step_s=float(np.median([record.step_s for record in records])) if records else None,
        wrong=check.wrong if check else None,
        max_error=check.error if check else None,
        checkpoint=saved,
        sent_bytes=records[-1].sent_bytes if records else None,
        allocated_bytes=trainer.allocated_bytes,
    )
