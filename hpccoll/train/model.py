"""The trained model on a mesh of ranks: the parameter shards and the layers of each rank.

This file has the perceptrons; gpt.py has the GPT. Layers of a perceptron with even index are split by output and layers
with odd index by input, so an even layer and the next odd layer need no communication between them. If the last layer
has an even index, all tensor-parallel ranks hold a copy of it. With the option `split` "all_gather", all layers are
split by output, and each layer gathers its outputs. Each pipeline stage holds consecutive layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from hpccoll.parallel.mesh import Mesh, split_evenly
from hpccoll.parallel.tensor_parallel import ColumnParallelLinear, GatheredColumnLinear, RowParallelLinear
from hpccoll.parallel.weight_gradients import apply_linear
from hpccoll.train.gpt import (
    GptLayers,
    init_gpt_parameters,
    list_gpt_shards,
    list_gpt_tied_ranks,
    run_gpt_in_one_process,
)
from hpccoll.train.options import CourseConfig, GptConfig, MlpConfig, ModelConfig
from hpccoll.train.rank_layers import RankLayers, StagePart
from hpccoll.train.shards import ParameterShard


def list_stage_layers(model: MlpConfig, mesh: Mesh, stage: int) -> range:
    """Return the indices of the layers in a pipeline stage."""
    layers = split_evenly(model.layers, mesh.stages)[stage]
    return range(layers.start, layers.stop)


def list_rank_layers(model: MlpConfig, mesh: Mesh, rank: int) -> list[int]:
    """Return the indices of the layers in all pipeline stages of a rank."""
    return [layer for stage in mesh.list_stages(rank) for layer in list_stage_layers(model, mesh, stage)]


def list_shards(model: ModelConfig, mesh: Mesh, rank: int) -> list[ParameterShard]:
    """Return a rank's parameter shards: for each layer of its pipeline stages, a weight (out, in) and a bias (out)."""
    if isinstance(model, GptConfig):
        return list_gpt_shards(model, mesh, rank)
    shards = []
    for layer in list_rank_layers(model, mesh, rank):
        out_features, in_features = model.weight_shape(layer)
        split, tp = model.choose_split(layer), mesh.get_coordinates(rank)["tp"]
        by_output = split in ("column", "gathered")
        rows = split_evenly(out_features, mesh.tp)[tp] if by_output else slice(0, out_features)
        columns = split_evenly(in_features, mesh.tp)[tp] if split == "row" else slice(0, in_features)
        weight_shape = (out_features, in_features)
        is_copy = tp > 0 and split == "replicated", tp > 0 and not by_output
        shards.append(ParameterShard(f"layers.{layer}.weight", weight_shape, (rows, columns), is_copy[0]))
        shards.append(ParameterShard(f"layers.{layer}.bias", (out_features,), (rows,), is_copy[1]))
    return shards


def list_full_parameters(model: ModelConfig) -> list[ParameterShard]:
    """Return all parameters unsplit, that is, as the shards of a mesh of one rank."""
    return list_shards(model, Mesh(), 0)


def list_tied_ranks(model: ModelConfig, mesh: Mesh, rank: int) -> list[int]:
    """Return the ranks that hold the shard of the tied weight for different stages, if `rank` is one of them."""
    return list_gpt_tied_ranks(mesh, rank) if isinstance(model, GptConfig) else []


def init_parameters(model: ModelConfig, seed: int, dtype: Any) -> dict[str, Any]:
    """Return the full initial parameters by name, uniform in [-1/sqrt(in), 1/sqrt(in)] as in torch.nn.Linear.

    The parameters depend only on the arguments, so the model is the same on every mesh if each rank calls this function
    and keeps its own shards. The values are drawn in float64 and then converted to `dtype`.
    """
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, GptConfig):
        return init_gpt_parameters(model, generator, dtype)
    parameters = {}
    for shard in list_full_parameters(model):
        layer = int(shard.name.split(".")[1])
        bound = model.weight_shape(layer)[1] ** -0.5
        numbers = torch.rand(shard.full_shape, dtype=torch.float64, generator=generator)
        parameters[shard.name] = ((2 * numbers - 1) * bound).to(dtype)
    return parameters


def get_activation(model: MlpConfig) -> Any:
    """Return the activation function that is applied between two layers."""
    return torch.tanh if model.activation == "tanh" else torch.nn.functional.gelu


class MlpLayers(RankLayers[MlpConfig]):
    """The linear layers of a rank's pipeline stages; `recompute` applies to each pair of layers."""

    def sum_loss(self, y: Any, targets: Any) -> Any:
        """Return the sum over samples of the loss of the last stage's output (b, out)."""
        return sum_loss(self.model, y, targets)

    def _list_shards(self, rank: int) -> list[ParameterShard]:
        """Return a rank's parameter shards."""
        return list_shards(self.model, self.mesh, rank)

    def _list_parts(self, stage: int) -> list[StagePart]:
        """Return one layer per part, or two with recomputation, because recomputing a pair communicates least."""
        layers, count = list_stage_layers(self.model, self.mesh, stage), 2 if self.recompute else 1
        return [self._make_part(layers[first : first + count]) for first in range(0, len(layers), count)]

    def _make_part(self, layers: range) -> StagePart:
        """Return a part of consecutive layers."""
        names = [f"layers.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
        return StagePart(names, partial(self._run_layers, layers))

    def _get_input_shape(self, stage: int) -> tuple[int, ...]:
        """Return the number of input features of a stage's first layer on this rank."""
        first = list_stage_layers(self.model, self.mesh, stage).start
        return (self._by_name[f"layers.{first}.weight"].shape[1],)

    def _make_layer(self, index: int) -> Callable[[Any], Any]:
        """Return layer number `index`, split over the tensor-parallel ranks by output, by input or not at all."""
        weight, bias = (self._by_name[f"layers.{index}.{kind}"] for kind in ("weight", "bias"))
        split = self.model.choose_split(index)
        if split == "replicated":
            return partial(apply_linear, weight=weight, bias=bias, deferred=self.deferred)
        if split == "gathered":
            parts = split_evenly(self.model.weight_shape(index)[0], self.tp.size)
            features = tuple(part.stop - part.start for part in parts)
            is_last = index == self.model.layers - 1
            return GatheredColumnLinear(weight, bias, self.tp, features, is_last, self.deferred)
        layer = ColumnParallelLinear if split == "column" else RowParallelLinear
        return layer(weight, bias, self.tp, self.deferred)

    def _run_layers(self, layers: range, x: Any) -> Any:
        """Return the output of consecutive layers: x (b, in) -> (b, out). The model's last layer has no activation."""
        for index in layers:
            x = self._make_layer(index)(x)
            if index < self.model.layers - 1:
                x = get_activation(self.model)(x)
        return x


def make_layers(model: ModelConfig, *arguments: Any, **options: Any) -> RankLayers[Any]:
    """Return the layers of a rank's pipeline stages; the other arguments are those of RankLayers."""
    layers: type[RankLayers[Any]] = GptLayers if isinstance(model, GptConfig) else MlpLayers
    return layers(model, *arguments, **options)


def sum_loss(model: ModelConfig, y: Any, targets: Any) -> Any:
    """Return the sum over samples of the loss of the unsplit model's output; a GPT's loss is a mean over positions."""
    if isinstance(model, GptConfig):
        return torch.nn.functional.cross_entropy(y.flatten(0, 1), targets.flatten(), reduction="sum") / model.context
    if isinstance(model, CourseConfig):
        return (y - targets).square().mean(1).sum()
    return torch.nn.functional.cross_entropy(y, targets, reduction="sum")


def sum_single_process_loss(model: ModelConfig, full: Mapping[str, Any], x: Any, targets: Any, cp: int) -> Any:
    """Return the sum over samples of the loss of the unsplit model, the reference for the check; no communication.

    The loss of a mixture of experts includes its load-balancing losses. The positions that a rank of `cp` ranks has in
    all samples are one group of its router.
    """
    if isinstance(model, GptConfig):
        logits, balance_loss = run_gpt_in_one_process(model, full, x, cp)
        return sum_loss(model, logits, targets) + balance_loss * len(x)
    return sum_loss(model, run_single_process(model, full, x), targets)


def run_single_process(model: ModelConfig, full: Mapping[str, Any], x: Any) -> Any:
    """Return the output of the unsplit model: x (b, in) -> (b, out); no communication."""
    if isinstance(model, GptConfig):
        return run_gpt_in_one_process(model, full, x)[0]
    for layer in range(model.layers):
        x = torch.nn.functional.linear(x, full[f"layers.{layer}.weight"], full[f"layers.{layer}.bias"])
        if layer < model.layers - 1:
            x = get_activation(model)(x)
    return x
