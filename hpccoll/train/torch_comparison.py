"""Time hpccoll's training steps and those of torch's own parallelism in turns, on the same model and batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpccoll.errors import UsageError, WrongResultError
from hpccoll.parallel.mesh import Mesh
from hpccoll.peers.torch_training import TORCH_SCHEDULES, TorchTraining, get_own_gradient
from hpccoll.records import TrainCompareRecord, TrainStepRecord
from hpccoll.statistics import median_interval, ratio_of_medians
from hpccoll.train.full_parameters import assemble_parameters, gather_shards
from hpccoll.train.gradient_check import TOLERANCE, GradientCheck, compare_gradients
from hpccoll.train.model import make_model
from hpccoll.train.optimizer import ShardOptimizer
from hpccoll.train.options import UNTIMED_STEPS, TrainOptions
from hpccoll.train.record import describe_mesh
from hpccoll.train.torch_models import list_tensor_parallel_styles, make_torch_stage
from hpccoll.units import format_nearest_divisors

if TYPE_CHECKING:
    from hpccoll.train.trainer import Trainer

COMPARED_AXES = ("pp", "dp", "tp")  # the axes that torch supports, from the outermost to the innermost one


def require_comparable(mesh: Mesh, options: TrainOptions) -> None:
    """Raise UsageError unless torch can train on the mesh too, with equal parts of the batch and of each layer."""
    model, microbatches = options.model, options.count_microbatches(mesh)
    if mesh.ranks == 1 or mesh.count(*COMPARED_AXES) < mesh.ranks:
        raise UsageError(
            f"--compare needs a mesh of dp, tp and pp with two ranks or more, not {mesh}; give one such as dp=2,tp=2"
        )
    options.require_timed_steps("--compare")
    if model.experts is not None:
        raise UsageError(f"--compare is not available for --experts {model.experts.count}; leave one of them out")
    for name in ("sequence_parallel", "recompute"):
        if getattr(options, name):
            raise UsageError(f"--compare is not available with --{name.replace('_', '-')}; leave one of them out")
    if mesh.pp > 1 and options.schedule not in TORCH_SCHEDULES:
        raise UsageError(
            f"--compare cannot run --schedule {options.schedule} by torch; choose {' or '.join(TORCH_SCHEDULES)}"
        )
    if mesh.pp > 1 and microbatches < mesh.pp:
        raise UsageError(
            f"--compare with pp={mesh.pp} needs at least as many micro-batches, not {microbatches}; "
            f"give --microbatches {mesh.pp}"
        )
    _require_equal_parts(mesh, options)


def _require_equal_parts(mesh: Mesh, options: TrainOptions) -> None:
    """Raise UsageError unless the batch, and the layers that tp splits, can be cut into parts of equal size."""
    parts = mesh.dp * options.count_microbatches(mesh)
    if options.batch % parts:
        raise UsageError(
            f"--compare needs parts of equal size: --batch {options.batch} is no multiple of {parts}; "
            f"give --batch {max(round(options.batch / parts), 1) * parts}"
        )
    for shard in make_model(options.model).list_shards(Mesh(tp=mesh.tp), 0):
        for full, own in zip(shard.full_shape, shard.shape, strict=True):
            if own * mesh.tp != full and own != full:
                raise UsageError(
                    f"--compare with tp={mesh.tp} needs equal parts of each layer, but {full} features of "
                    f"{shard.name} cannot be split equally; give tp={format_nearest_divisors(mesh.tp, full)}"
                )


def make_torch_training(mesh: Mesh, options: TrainOptions, rank: int, device: str) -> TorchTraining:
    """Return torch's own training of the model of `options`, with its initial parameters, for this rank; collective."""
    model = make_model(options.model)
    full = model.init_parameters(options.seed, getattr(torch, options.dtype))
    stage = make_torch_stage(options.model, mesh, rank, full, device)
    pairs = {tuple(model.list_tied_ranks(mesh, rank)) for rank in range(mesh.ranks)} - {()}

    def loss(y: Any, targets: Any) -> Any:
        """Return a micro-batch's addend of the mean loss over the samples of this rank's replica."""
        return model.sum_loss(y, targets) * mesh.dp / options.batch

    return TorchTraining(
        stage,
        loss,
        options.count_microbatches(mesh),
        options.schedule,
        {axis: getattr(mesh, axis) for axis in COMPARED_AXES},
        list_tensor_parallel_styles(stage),
        {"embedding.weight": sorted(pairs)} if pairs else {},
    )


class TorchSide:
    """Torch's training of the same model as `trainer`, on the same batches, for the comparison with hpccoll.

    Constructor and steps are collective.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, options = trainer, trainer.options
        self.training = make_torch_training(trainer.mesh, options, trainer.comm.rank, trainer.device)
        self.parameters = self.training.parameters
        self.optimizers = [  # one per type, because torch updates DTensors and other tensors in separate calls
            ShardOptimizer(options.optimizer, [x for x in self.parameters.values() if type(x) is kind], options.steps)
            for kind in {type(x) for x in self.parameters.values()}
        ]
        self.samples = 0

    def run_step(self) -> tuple[float, float]:
        """Run the next training step; return its seconds (the maximum over ranks) and its loss; collective."""
        trainer, options = self.trainer, self.trainer.options
        begin = time.perf_counter()
        batch = trainer.train.get_batch(options.seed, self.samples, options.batch)
        inputs, targets = map(trainer.to_device, batch)
        for parameter in self.parameters.values():
            parameter.grad = None
        loss = self.training.run_backward(inputs, targets)
        for optimizer in self.optimizers:
            optimizer.apply()
        if trainer.device != "cpu":
            torch.cuda.synchronize()
        self.samples += options.batch
        rows = trainer.comm.all_gather(np.array([time.perf_counter() - begin, loss])).reshape(-1, 2)
        return float(rows[:, 0].max()), float(rows[:, 1].sum())

    def check_gradients(self) -> float:
        """Return the largest difference of torch's and hpccoll's last gradients; collective.

        Differences are relative to the largest gradient of the parameter. Raises WrongResultError on all ranks if the
        difference is larger than rounding explains.
        """
        trainer, model, mesh = self.trainer, self.trainer.model, self.trainer.mesh
        shards = trainer.layers.shards
        own, other = (
            gather_shards(trainer.comm, mesh, model, gradients)
            for gradients in (
                [shard.grad for shard in trainer.replicas.shards],
                [get_own_gradient(self.parameters[shard.name]) for shard in shards],
            )
        )
        check = GradientCheck(0, 0.0, None)
        if own is not None and other is not None:
            tolerance = TOLERANCE[trainer.options.dtype]
            check = compare_gradients(model, mesh, other, assemble_parameters(mesh, model, own), tolerance)
        wrong, error = trainer.comm.broadcast(np.array([float(check.wrong), check.error]))
        if wrong:
            parameter = f" of {check.first}" if check.first else ""
            raise WrongResultError(
                f"torch's gradient{parameter} differs from hpccoll's by more than rounding explains (the largest "
                f"difference in any gradient is {error:.1g} of its largest element), so the steps cannot be compared; "
                "run the command with --check instead of --compare to compare hpccoll's gradients with those of one "
                "process"
            )
        return float(error)


def run_comparison(trainer: Trainer, backend: str, on_step: Callable[[TrainStepRecord], None]) -> TrainCompareRecord:
    """Run all training steps by hpccoll and by torch in turns, and return the comparison of their times; collective.

    hpccoll and torch train from the same parameters on the same batches, and must have the same gradients in the first
    step. The order of hpccoll and torch alternates from step to step. `on_step` is called with the record of each of
    hpccoll's steps.
    """
    options = trainer.options
    side = TorchSide(trainer)
    own_s, torch_s, differences = [], [], []
    gradient_difference = 0.0
    steps = trainer.run_steps()
    for number in range(options.steps):
        if number % 2:
            seconds, loss = side.run_step()
            record = next(steps)
        else:
            record = next(steps)
            seconds, loss = side.run_step()
        on_step(record)
        if number == 0:
            gradient_difference = side.check_gradients()
        differences.append(abs(record.loss - loss) / abs(loss))
        if number >= UNTIMED_STEPS:
            own_s.append(record.step_s)
            torch_s.append(seconds)
    return TrainCompareRecord(
        **describe_mesh(trainer.mesh, trainer.options),
        **_describe_times(own_s, torch_s),
        model=options.model.name,
        torch=f"{side.training.name} over {backend}",
        steps=len(own_s),
        loss_difference=max(differences),
        gradient_difference=gradient_difference,
    )


def _describe_times(own_s: Sequence[float], torch_s: Sequence[float]) -> dict[str, Any]:
    """Return the fields of a TrainCompareRecord that describe the times of hpccoll's and of torch's steps."""
    own, other, ratio = median_interval(own_s), median_interval(torch_s), ratio_of_medians(own_s, torch_s)
    return {
        "step_s": own.value,
        "step_low_s": own.low,
        "step_high_s": own.high,
        "torch_step_s": other.value,
        "torch_step_low_s": other.low,
        "torch_step_high_s": other.high,
        "ratio": ratio.value,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
    }
