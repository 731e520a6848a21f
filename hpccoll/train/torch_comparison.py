"""Time hpccoll's training steps and those of torch's own parallelism in turns, on the same model and batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hpccoll.errors import UsageError
from hpccoll.measure.statistics import median_interval, ratio_of_medians
from hpccoll.parallel.mesh import AXES, Mesh
from hpccoll.peers.torch_training import (
    TORCH_SCHEDULES,
    TorchDataParallel,
    TorchPipeline,
    TorchTensorParallel,
    TorchTraining,
)
from hpccoll.records import TrainCompareRecord, TrainStepRecord
from hpccoll.train.model import COLUMN, ROW, choose_split, init_parameters, list_stage_layers, sum_loss
from hpccoll.train.model import run_single_process as run_whole_model
from hpccoll.train.optimizer import ShardOptimizer
from hpccoll.train.options import UNTIMED_STEPS, GptConfig, MlpConfig, ModelConfig, TrainOptions
from hpccoll.train.record import describe_mesh

if TYPE_CHECKING:
    from hpccoll.train.trainer import Trainer

ACTIVATION_MODULES = {"tanh": torch.nn.Tanh, "gelu": torch.nn.GELU}


def require_comparable(mesh: Mesh, options: TrainOptions) -> None:
    """Raise UsageError unless torch has the same parallelism: one axis, and equal parts of the batch."""
    used = [axis for axis in AXES if getattr(mesh, axis) > 1]
    if len(used) != 1:
        raise UsageError(f"--compare needs a mesh of one axis with two ranks or more, not {mesh}; give dp, tp or pp")
    options.require_timed_steps("--compare")
    microbatches = options.count_microbatches(mesh)
    if isinstance(options.model, GptConfig) and options.model.experts is not None:
        raise UsageError(
            f"--compare is not available for --experts {options.model.experts.count}; leave one of them out"
        )
    if isinstance(options.model, GptConfig) and used != ["dp"]:
        raise UsageError(f"--compare of --model gpt is available for dp only, not for {mesh}; choose --model course")
    if options.batch % (mesh.dp * microbatches):
        raise UsageError(
            f"--compare needs parts of equal size: --batch {options.batch} is no multiple of {mesh.dp * microbatches}; "
            f"give --batch {max(round(options.batch / mesh.dp / microbatches), 1) * mesh.dp * microbatches}"
        )
    if mesh.pp > 1 and options.schedule not in TORCH_SCHEDULES:
        raise UsageError(
            f"--compare has no --schedule {options.schedule} of torch; choose {' or '.join(TORCH_SCHEDULES)}"
        )
    if mesh.pp > 1 and microbatches < mesh.pp:
        raise UsageError(
            f"--compare with pp={mesh.pp} needs at least as many micro-batches, not {microbatches}; "
            f"give --microbatches {mesh.pp}"
        )
    if mesh.tp > 1 and options.model.width % mesh.tp:
        raise UsageError(f"--compare with tp={mesh.tp} needs a multiple of it as --width, not {options.model.width}")


class WholeModel(torch.nn.Module):  # type: ignore[misc] # torch has no types here
    """The unsplit model as a module of torch, with the given full parameters."""

    def __init__(self, model: ModelConfig, full: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.names = model, list(full)
        self.values = torch.nn.ParameterList(full.values())

    def forward(self, x: Any) -> Any:
        """Return the output of the model."""
        return run_whole_model(self.model, dict(zip(self.names, self.values, strict=True)), x)


def make_perceptron(model: MlpConfig, layers: Iterable[int], full: dict[str, Any]) -> Any:
    """Return consecutive layers of a perceptron as modules of torch; layer n is named `n`, its activation `actn`."""
    module = torch.nn.Sequential()
    for layer in layers:
        linear = torch.nn.Linear(*reversed(model.weight_shape(layer)), dtype=next(iter(full.values())).dtype)
        linear.load_state_dict({name: full[f"layers.{layer}.{name}"] for name in ("weight", "bias")})
        module.add_module(str(layer), linear)
        if layer < model.layers - 1:
            module.add_module(f"act{layer}", ACTIVATION_MODULES[model.activation]())
    return module


def make_torch_training(mesh: Mesh, options: TrainOptions, rank: int, device: str) -> TorchTraining:
    """Return torch's training of the model of `options` with its initial parameters; collective."""
    model, microbatches = options.model, options.count_microbatches(mesh)
    full = init_parameters(model, options.seed, getattr(torch, options.dtype))

    def loss(y: Any, targets: Any) -> Any:
        return sum_loss(model, y, targets) / len(targets)

    if isinstance(model, GptConfig) or mesh.dp > 1:
        return TorchDataParallel(WholeModel(model, full).to(device), loss, microbatches)
    if mesh.tp > 1:
        module = make_perceptron(model, range(model.layers), full).to(device)
        columns, rows = (
            [str(layer) for layer in range(model.layers) if choose_split(model, layer) == split]
            for split in (COLUMN, ROW)
        )
        return TorchTensorParallel(module, loss, microbatches, columns, rows, device)
    stage = make_perceptron(model, list_stage_layers(model, mesh, rank), full).to(device)
    return TorchPipeline(stage, loss, microbatches, options.schedule, torch.device(device))


class TorchSide:
    """Torch's training of the same model as `trainer`, on the same batches; constructor and steps are collective."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, options = trainer, trainer.options
        self.training = make_torch_training(trainer.mesh, options, trainer.comm.rank, trainer.device)
        self.parameters = list(self.training.module.parameters())
        self.optimizer = ShardOptimizer(options.optimizer, self.parameters, options.steps)
        self.samples = 0

    def run_step(self) -> tuple[float, float]:
        """Run the next step; return its seconds (the maximum over ranks) and its loss."""
        trainer, options = self.trainer, self.trainer.options
        begin = time.perf_counter()
        batch = trainer.train.get_batch(options.seed, self.samples, options.batch)
        inputs, targets = map(trainer.to_device, batch)
        for parameter in self.parameters:
            parameter.grad = None
        loss = self.training.run_backward(inputs, targets)
        self.optimizer.apply()
        if trainer.device != "cpu":
            torch.cuda.synchronize()
        self.samples += options.batch
        rows = trainer.comm.all_gather(np.array([time.perf_counter() - begin, loss])).reshape(-1, 2)
        return float(rows[:, 0].max()), float(rows[:, 1].sum())


def run_comparison(trainer: Trainer, backend: str, on_step: Callable[[TrainStepRecord], None]) -> TrainCompareRecord:
    """Run all steps by hpccoll and by torch in turns, and return the comparison; collective.

    Both sides train from the same parameters on the same batches. The side that runs first alternates.
    """
    options = trainer.options
    side = TorchSide(trainer)
    own_s, torch_s, differences = [], [], []
    steps = trainer.run_steps()
    for number in range(options.steps):
        if number % 2:
            seconds, loss = side.run_step()
            record = next(steps)
        else:
            record = next(steps)
            seconds, loss = side.run_step()
        on_step(record)
        differences.append(abs(record.loss - loss) / abs(loss))
        if number >= UNTIMED_STEPS:
            own_s.append(record.step_s)
            torch_s.append(seconds)
    own, other, ratio = median_interval(own_s), median_interval(torch_s), ratio_of_medians(own_s, torch_s)
    return TrainCompareRecord(
        **describe_mesh(trainer.mesh, trainer.options),
        model=options.model.name,
        torch=f"{side.training.name} over {backend}",
        steps=len(own_s),
        step_s=own.value,
        step_low_s=own.low,
        step_high_s=own.high,
        torch_step_s=other.value,
        torch_step_low_s=other.low,
        torch_step_high_s=other.high,
        ratio=ratio.value,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        loss_difference=max(differences),
    )
