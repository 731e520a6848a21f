"""The state from which a training run starts: initial parameters, or the newest checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpccoll.processes.joint_failure import run_on_first_rank
from hpccoll.train import full_parameters
from hpccoll.train.checkpoint import Checkpoint, CheckpointDirectory
from hpccoll.train.model import make_model
from hpccoll.train.options import TrainOptions

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator


@dataclass(frozen=True, slots=True)
class TrainingStart:
    """The state from which a run starts: the number of steps and samples done, and the full parameters by name."""

    step: int
    samples: int
    full: dict[str, Any]
    resumed: bool
    optimizer_state: dict[str, dict[str, Any]] = field(default_factory=dict)  # by state and parameter


def load_start(
    comm: Communicator, options: TrainOptions, directory: CheckpointDirectory | None
) -> tuple[TrainingStart, list[str]]:
    """Return the state to start from and warnings about damaged checkpoints; collective over `comm`.

    Rank 0 reads the newest intact checkpoint in `directory` and broadcasts it; without a checkpoint, the state is step
    0 with initial parameters. On other ranks `directory` is None and there are no warnings. Raises UsageError on all
    ranks if rank 0 finds damaged checkpoints only, or a checkpoint that was written with other options.
    """
    none: tuple[Checkpoint | None, list[str]] = None, []
    identity = options.get_checkpoint_identity()
    newest = run_on_first_rank(comm, lambda: none if directory is None else directory.load_newest(identity))
    checkpoint, damaged = newest or none
    counts = np.array([checkpoint.step, checkpoint.samples] if checkpoint else [-1, -1])
    comm.broadcast(counts)
    step, samples = map(int, counts)
    if step < 0:
        parameters = make_model(options.model).init_parameters(options.seed, getattr(torch, options.dtype))
        return TrainingStart(0, 0, parameters, resumed=False), damaged
    loaded = checkpoint.parameters if checkpoint else None
    return broadcast_start(comm, options, step, samples, loaded, resumed=True), damaged


def broadcast_start(
    comm: Communicator, options: TrainOptions, step: int, samples: int, full: Mapping[str, Any] | None, *, resumed: bool
) -> TrainingStart:
    """Broadcast the tensors of rank 0; return the state from which all ranks start; collective over `comm`.

    `full` has, on rank 0, full parameters and optimizer states by `join_name`; None on other ranks. `resumed` states
    whether the state is from a checkpoint; it is false for a recovery from memory.
    """
    model, dtype, names = make_model(options.model), getattr(torch, options.dtype), options.optimizer.state_names
    parameters, *states = (
        full_parameters.broadcast_parameters(comm, model, full, dtype, name) for name in ("", *names)
    )
    by_name = dict(zip(names, states, strict=True))
    return TrainingStart(step, samples, parameters, resumed=resumed, optimizer_state=by_name)
