"""Compares the trainer of `hpccoll train` on meshes of all ranks with models of torch.nn in one process.

Each case is a mesh, a model, a pipeline schedule, a dtype, and whether activations are recomputed and sequence
parallelism is used. All cases for 8 ranks:

    mpirun -n 8 python -m tests.mpi.train_parity

A number runs as many cases, evenly chosen, and a second number leaves out as many of them at the beginning. The
comparison is that of `hpccoll parity`: within 1e-12 in float64, and within 1e-5 in float32.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

import hpccoll
from hpccoll.parallel.mesh import Mesh, slice_microbatches, split_evenly
from hpccoll.parity import ParityCase, ParityMesh, ParityOptions, check_parity
from hpccoll.records import ParitySummaryRecord
from hpccoll.schedules import list_schedules
from hpccoll.train.model import make_model
from hpccoll.train.options import (
    BYTES,
    CLASSES,
    INPUTS,
    CourseConfig,
    ExpertConfig,
    GptConfig,
    MlpConfig,
    ModelConfig,
    OptimizerConfig,
    TrainOptions,
)
from hpccoll.train.start import TrainingStart
from hpccoll.train.trainer import Trainer

GPT = GptConfig(context=3)
OPTIONS = ParityOptions(steps=2)
MODELS: tuple[ModelConfig, ...] = (
    MlpConfig(width=11, activation="gelu"),
    MlpConfig(width=13, split="all_gather"),
    CourseConfig(width=9),
    CourseConfig(width=10, split="all_gather"),
    GPT,
    replace(GPT, activation="swiglu"),
    replace(GPT, experts=ExpertConfig(4, capacity_factor=0.7, aux_loss_coeff=0.3)),
    replace(GPT, experts=ExpertConfig(4, top_k=1, capacity_factor=1.0, aux_loss_coeff=0.3), activation="swiglu"),
    replace(GPT, experts=ExpertConfig(4)),
)


@dataclass(frozen=True, slots=True)
class TrainCase:
    """A training run to compare with one process."""

    mesh: Mesh
    options: TrainOptions

    def __str__(self) -> str:
        options, model = self.options, self.options.model
        words = [str(self.mesh), model.name, model.activation, getattr(model, "split", ""), options.dtype]
        words += [options.schedule * (self.mesh.pp > 1), "recompute" * options.recompute]
        if isinstance(model, GptConfig) and model.experts:
            words += [f"top {model.experts.top_k} of {model.experts.count}, capacity {model.experts.capacity_factor}"]
        words += ["sequence-parallel" * options.sequence_parallel, f"zero{options.zero}" * (options.zero > 0)]
        return " ".join(filter(None, words))


def list_cases(ranks: int) -> list[TrainCase]:
    """Return all cases for a number of ranks."""
    found: list[TrainCase] = []
    flags = (False, True)
    for mesh in list_meshes(ranks):
        names = [each.name for each in list_schedules()] if mesh.pp > 1 else ["1f1b"]
        models = [model for model in MODELS if mesh.ep == 1 or has_experts(model)]
        for model, schedule, dtype, recompute, sequence_parallel, zero in itertools.product(
            models, names, ("float64", "float32"), flags, flags, range(4)
        ):
            if sequence_parallel and mesh.tp == 1:
                continue
            if (sequence_parallel or mesh.cp > 1) and not isinstance(model, GptConfig):
                continue
            if zero and mesh.samplers == 1:
                continue
            if zero > 1 and schedule not in ("1f1b", "gpipe"):
                continue
            microbatches = 2 * mesh.pp
            options = TrainOptions(
                model,
                steps=9,
                batch=mesh.samplers * microbatches + 1,
                microbatches=microbatches,
                dtype=dtype,
                schedule=schedule,
                recompute=recompute,
                sequence_parallel=sequence_parallel,
                zero=zero,
                optimizer=OptimizerConfig(lr=OPTIONS.lr),
            )
            stages = options.make_schedule(mesh).stages
            options = replace(options, model=fit_model(model, mesh, stages))
            options.require_mesh_fits(mesh)
            found.append(TrainCase(mesh, options))
    return found


def has_experts(model: ModelConfig) -> bool:
    """Whether the model is a mixture of experts."""
    return isinstance(model, GptConfig) and model.experts is not None


def fit_model(model: ModelConfig, mesh: Mesh, stages: int) -> ModelConfig:
    """Return the model with enough layers for the stages, and heads, positions and experts that ranks can share."""
    model = replace(model, layers=max(stages + 1, 3))
    if not isinstance(model, GptConfig):
        return model
    experts = model.experts and replace(model.experts, count=max(model.experts.count, 2 * mesh.ep))
    context = model.context * mesh.tp * (2 * mesh.cp if mesh.cp > 1 else 1)
    return replace(model, heads=2 * mesh.tp, width=8 * mesh.tp, context=context, experts=experts)


def list_meshes(ranks: int) -> list[Mesh]:
    """Return all meshes that split at most three axes."""
    sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
    meshes = [Mesh(dp, tp, pp, cp, ep) for dp, tp, pp, cp, ep in itertools.product(sizes, repeat=5)]
    return [mesh for mesh in meshes if mesh.ranks == ranks and str(mesh).count("=") <= 3]


class DensePerceptron(nn.Module):  # type: ignore[misc]
    """A perceptron in layers of torch.nn."""

    def __init__(self, config: MlpConfig) -> None:
        super().__init__()
        self.activation = {"tanh": torch.tanh, "gelu": nn.functional.gelu}[config.activation]
        self.layers = nn.ModuleList(nn.Linear(*reversed(config.weight_shape(at))) for at in range(config.layers))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output (batch, out), and 0."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x), torch.zeros(())


class DenseGpt(nn.Module):  # type: ignore[misc]
    """The GPT in layers of torch.nn; a block is a ModuleDict. Experts route the positions of each of `cp` ranks."""

    def __init__(self, config: GptConfig, cp: int) -> None:
        super().__init__()
        self.position_groups = list_position_groups(config.context, cp)
        width, self.heads, self.experts = config.width, config.heads, config.experts
        self.embedding, self.position = nn.Embedding(BYTES, width), nn.Embedding(config.context, width)
        self.blocks = nn.ModuleList(make_layers(config, f"blocks.{block}.") for block in range(config.layers))
        for block in range(config.layers if config.experts else 0):
            names = [f"blocks.{block}.experts.{expert}." for expert in range(config.experts.count)]
            self.blocks[block]["experts"] = nn.ModuleList(make_layers(config, name) for name in names)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits (batch, time, BYTES), and the weighted load-balancing loss of all samples as one group."""
        balance_loss = torch.zeros(())
        x = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        mask = torch.full((tokens.shape[1],) * 2, float("-inf"), dtype=x.dtype).triu(1)
        for block in self.blocks:
            h = block["norm1"](x)
            q, k, v = (
                block[name](h).unflatten(2, (self.heads, -1)).transpose(1, 2) for name in ("query", "key", "value")
            )
            scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + mask
            x = x + block["out"]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            h = block["norm2"](x)
            if self.experts is None:
                x = x + run_mlp(block, h)
            else:
                parts = [self.mix(block, h[:, positions].flatten(0, 1)) for positions in self.position_groups]
                rows = torch.cat([y.unflatten(0, (len(h), -1)) for y, _ in parts], 1)
                x = x + rows[:, torch.cat(self.position_groups).argsort()]
                balance_loss = balance_loss + self.experts.aux_loss_coeff * sum(loss for _, loss in parts) / len(parts)
        return self.norm(x) @ self.embedding.weight.T, balance_loss

    def mix(self, block: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the experts' outputs and the balance loss of tokens (n, h), which queue at the experts one by one."""
        config = self.experts
        capacity = math.ceil((config.capacity_factor or config.count) * len(tokens) * config.top_k / config.count)
        probabilities = block["router"](tokens).softmax(1)
        best = probabilities.sort(1, descending=True).indices[:, : config.top_k]
        weights = probabilities / (probabilities.gather(1, best).sum(1, keepdim=True) if config.top_k > 1 else 1)
        queues: list[list[int]] = [[] for _ in range(config.count)]
        for chosen in best.T.tolist():
            for token, expert in enumerate(chosen):
                queues[expert].append(token)
        fractions = torch.tensor([len(queue) / best.numel() for queue in queues], dtype=tokens.dtype)
        loss = config.count * (fractions * probabilities.mean(0)).sum()
        y = torch.zeros_like(tokens)
        for expert, queue in enumerate(queues):
            served = torch.tensor(queue[:capacity], dtype=torch.int64)
            outputs = run_mlp(block["experts"][expert], tokens[served])
            y = y.index_add(0, served, weights[served, expert, None] * outputs)
        return y, loss


def list_position_groups(context: int, cp: int) -> list[torch.Tensor]:
    """Return the positions of each rank of cp: two parts of 2 cp, the ones at the same distance from both ends."""
    part = context // (2 * cp)
    starts = [(rank * part, context - (rank + 1) * part) for rank in range(cp)]
    pairs = [(torch.arange(first, first + part), torch.arange(second, second + part)) for first, second in starts]
    return [torch.cat(each) for each in pairs] if cp > 1 else [torch.arange(context)]


def make_layers(config: GptConfig, prefix: str) -> nn.ModuleDict:
    """Return the layers whose names are `prefix` and one word."""
    shapes = {name.removeprefix(prefix): shape for name, shape in config.list_shapes().items() if prefix in name}
    layers = {name.removesuffix(".weight"): shape for name, shape in shapes.items() if name.endswith(".weight")}
    return nn.ModuleDict(
        {
            name: nn.LayerNorm(config.width)
            if "norm" in name
            else nn.Linear(*reversed(shape), bias=f"{name}.bias" in shapes)
            for name, shape in layers.items()
            if "." not in name
        }
    )


def run_mlp(layers: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the output of the MLP in a ModuleDict."""
    up = layers["up"](x)
    hidden = nn.functional.silu(layers["gate"](x)) * up if "gate" in layers else nn.functional.gelu(up)
    return layers["down"](hidden)


def compute_loss(groups: list[slice], model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of samples that are computed group by group.

    A load-balancing loss adds its gradient, but not its value, as in the records of `hpccoll train`.
    """
    total = torch.zeros(())
    for group in groups:
        wanted = targets[group]
        if not len(wanted):  # the diagnosis of a fault computes parts of the batch
            continue
        y, balance_loss = model(inputs[group])
        if wanted.is_floating_point():
            loss = nn.functional.mse_loss(y, wanted)
        else:
            loss = nn.functional.cross_entropy(y.flatten(0, -2), wanted.flatten())
        total = total + len(wanted) / len(inputs) * (loss + balance_loss - balance_loss.detach())
    return total


@dataclass(frozen=True, slots=True)
class FixedBatch:
    """Samples that are the next batch at any time, in their order."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def get_batch(self, *_: int) -> tuple[Any, Any]:
        """Return all inputs and targets."""
        return self.inputs.numpy(), self.targets.numpy()


class TrainerModule:
    """The trainer of `hpccoll train`, with its parameters by name as in a module of torch.

    With ZeRO, the module's parameters are copies of the gathered parameters. The trainer takes its own SGD steps on its
    shards, so that wrong steps of the trainer give wrong gradients in the next step.
    """

    def __init__(self, model: nn.Module, mesh: ParityMesh, options: TrainOptions, batch: list[torch.Tensor]) -> None:
        full = {name: x.detach() for name, x in model.named_parameters()}
        start = TrainingStart(0, 0, full, resumed=False)
        self.trainer: Any = Trainer(mesh.comm, mesh.sizes, options, start=start)
        self.batch, self.step = batch, 0
        self.parameters = self.trainer.layers.parameters
        if options.zero:
            with self.trainer.replicas.gathered():
                self.parameters = [x.detach().clone().requires_grad_() for x in self.parameters]

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield this rank's parameter shards by name."""
        return zip((shard.name for shard in self.trainer.layers.shards), self.parameters, strict=True)

    def named_buffers(self) -> list[tuple[str, Any]]:
        """Return no buffers."""
        return []

    def backward(self) -> float | None:
        """Compute the gradients of the mean loss of all samples, and return this sampler's mean loss or None."""
        trainer, replicas = self.trainer, self.trainer.replicas
        trainer.train = FixedBatch(*(torch.roll(x, self.step, 0) for x in self.batch))  # as ParityCase.get_batch
        self.step += 1
        if trainer.options.zero and self.step > 1:
            trainer.apply_gradients()
        loss = trainer.compute_gradients()
        if trainer.options.zero:
            gradients = replicas.gather_tensors([shard.grad for shard in replicas.shards])
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
        own = split_evenly(trainer.options.batch, trainer.mesh.samplers)[trainer.sampler]
        loss *= trainer.mesh.cp  # the mean over this rank's positions, of as many as each rank of cp has
        has_loss = trainer.schedule.stages - 1 in trainer.layers.stages
        return loss * trainer.options.batch / (own.stop - own.start) if has_loss else None


def build(case: TrainCase, modules: list[TrainerModule]) -> ParityCase:
    """Return the parity case; its `wrap` adds the wrapped module to `modules`."""
    options, config = case.options, case.options.model
    dtype, count = getattr(torch, options.dtype), options.batch
    model = DenseGpt(config, case.mesh.cp) if isinstance(config, GptConfig) else DensePerceptron(config)
    full = make_model(config).init_parameters(seed=3, dtype=dtype)
    # Larger weights than the initial ones make the attention depend on its input.
    scale = 8 if isinstance(config, GptConfig) else 1
    model.to(dtype).load_state_dict({name: x if x.dim() == 1 else scale * x for name, x in full.items()})
    if isinstance(config, GptConfig):
        batch = list(torch.randint(BYTES, (2, count, config.context)))
    elif isinstance(config, CourseConfig):
        batch = list(torch.randn(2, count, config.width, dtype=dtype))
    else:
        batch = [torch.randn(count, INPUTS, dtype=dtype), torch.randint(CLASSES, (count,))]

    def wrap(whole: nn.Module, mesh: ParityMesh) -> TrainerModule:
        modules.append(TrainerModule(whole, mesh, options, batch))
        return modules[-1]

    samplers = range(case.mesh.samplers if has_experts(config) else 0)
    parts = [
        slice_microbatches(count, case.mesh, sampler, options.count_microbatches(case.mesh)) for sampler in samplers
    ]
    groups = list(itertools.chain(*parts)) or [slice(0, count)]
    return ParityCase(model, batch, partial(compute_loss, groups), wrap, lambda module, *_: module.backward())


def compare(comm: hpccoll.Communicator, case: TrainCase) -> ParitySummaryRecord:
    """Return the summary of the comparison; collective."""
    modules: list[TrainerModule] = []
    summary = check_parity(comm, partial(build, case, modules), str(case.mesh), OPTIONS).summary
    for module in modules:
        module.trainer.close()
    return summary


def main() -> int:
    """Run the cases and return the number of those that differ."""
    torch.set_num_threads(1)
    wrong = 0
    with hpccoll.Communicator() as comm:
        cases = list_cases(comm.size)
        given = [int(word) for word in sys.argv[1:]]
        count, first = [*given, *[len(cases), 0][len(given) :]]
        for number in range(first, count):
            case = cases[number * len(cases) // count]
            summary = compare(comm, case)
            wrong += bool(summary.wrong)
            if comm.rank == 0:
                verdict = f"WRONG {summary}" if summary.wrong else f"{summary.max_error:.1g}"
                print(f"{number}: {case}: {verdict}", flush=True)
    if comm.rank == 0:
        print(f"{count - first} of {len(cases)} cases on {comm.size} ranks; {wrong} differ")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
