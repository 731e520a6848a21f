"""The trained perceptrons on a mesh of ranks.

Layers with even index are split by output and layers with odd index by input, so an even layer and the next odd layer
need no communication between them. If the last layer has an even index, all tensor-parallel ranks hold a copy of it.
With the option `split` "all_gather", all layers are split by output, and each layer gathers its outputs. Each pipeline
stage holds consecutive layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from hpccoll.parallel.mesh import Mesh, split_evenly
from hpccoll.parallel.tensor_parallel import apply_column_parallel, apply_row_parallel, gather_columns
from hpccoll.parallel.weight_gradients import apply_linear
from hpccoll.train.datasets import load_digits, make_course_samples
from hpccoll.train.options import MlpConfig
from hpccoll.train.rank_layers import RankLayers, StagePart, TrainedModel
from hpccoll.train.samples import Samples
from hpccoll.train.shards import ParameterShard


def list_stage_layers(model: MlpConfig, mesh: Mesh, stage: int) -> range:
    """Return the numbers of the layers in pipeline stage `stage`."""
    layers = split_evenly(model.layers, mesh.stages)[stage]
    return range(layers.start, layers.stop)


def list_rank_layers(model: MlpConfig, mesh: Mesh, rank: int) -> list[int]:
    """Return the numbers of the layers in all pipeline stages of a rank."""
    return [layer for stage in mesh.list_stages(rank) for layer in list_stage_layers(model, mesh, stage)]


def get_activation(model: MlpConfig) -> Any:
    """Return the activation function that is applied between two layers."""
    return torch.tanh if model.activation == "tanh" else torch.nn.functional.gelu


class MlpLayers(RankLayers[MlpConfig]):
    """The linear layers of a rank's pipeline stages; the option `recompute` applies to each pair of layers."""

    def sum_loss(self, y: Any, targets: Any) -> Any:
        """Return the sum over samples of the loss of the last stage's output y (b, out) and its targets; local."""
        return self.model.sum_loss(y, targets)

    def _list_parts(self, stage: int) -> list[StagePart]:
        """Return the parts of a stage: single layers, or pairs with recomputation, since pairs communicate least."""
        layers, count = list_stage_layers(self.config, self.mesh, stage), 2 if self.recompute else 1
        return [self._make_part(layers[first : first + count]) for first in range(0, len(layers), count)]

    def _make_part(self, layers: range) -> StagePart:
        """Return the consecutive layers with the numbers `layers` as one part of a stage."""
        names = [f"layers.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
        return StagePart(names, partial(self._run_layers, layers))

    def _get_input_shape(self, stage: int) -> tuple[int, ...]:
        """Return the shape, per sample, of a stage's input on this rank: the number of features."""
        first = list_stage_layers(self.config, self.mesh, stage).start
        return (self._by_name[f"layers.{first}.weight"].shape[1],)

    def _apply_layer(self, index: int, x: Any) -> Any:
        """Return the output of layer number `index`, split over tp by output, by input or not at all."""
        weight, bias = (self._by_name[f"layers.{index}.{kind}"] for kind in ("weight", "bias"))
        split = self.config.choose_split(index)
        if split == "column":
            return apply_column_parallel(x, weight, bias, self.tp, self.deferred)
        if split == "row":
            return apply_row_parallel(x, weight, bias, self.tp, self.deferred)
        y = apply_linear(x, weight, bias, self.deferred)
        if split == "replicated":
            return y
        parts = split_evenly(self.config.weight_shape(index)[0], self.tp.size)
        features = tuple(part.stop - part.start for part in parts)
        return gather_columns(y, self.tp, features, index == self.config.layers - 1)

    def _run_layers(self, layers: range, x: Any) -> Any:
        """Return the output of consecutive layers: x (b, in) -> (b, out). The model's last layer has no activation."""
        for index in layers:
            x = self._apply_layer(index, x)
            if index < self.config.layers - 1:
                x = get_activation(self.config)(x)
        return x


class MlpModel(TrainedModel[MlpConfig]):
    """A classifier of handwritten digits by fully connected layers, with its samples, parameters and loss."""

    rank_layers = MlpLayers

    def load_samples(self) -> tuple[Samples, Samples]:
        """Return the training and the held-out samples: images of digits."""
        return load_digits()

    def list_shards(self, mesh: Mesh, rank: int) -> list[ParameterShard]:
        """Return a rank's shards: for each layer of its pipeline stages, a weight (out, in) and a bias (out)."""
        shards = []
        for layer in list_rank_layers(self.config, mesh, rank):
            out_features, in_features = self.config.weight_shape(layer)
            split, tp = self.config.choose_split(layer), mesh.get_coordinates(rank)["tp"]
            by_output = split in ("column", "gathered")
            rows = split_evenly(out_features, mesh.tp)[tp] if by_output else slice(0, out_features)
            columns = split_evenly(in_features, mesh.tp)[tp] if split == "row" else slice(0, in_features)
            weight_shape = (out_features, in_features)
            is_copy = tp > 0 and split == "replicated", tp > 0 and not by_output
            shards.append(ParameterShard(f"layers.{layer}.weight", weight_shape, (rows, columns), is_copy[0]))
            shards.append(ParameterShard(f"layers.{layer}.bias", (out_features,), (rows,), is_copy[1]))
        return shards

    def sum_loss(self, y: Any, targets: Any) -> Any:
        """Return the sum over samples of the cross entropy of the outputs y and the labels; local."""
        return torch.nn.functional.cross_entropy(y, targets, reduction="sum")

    def sum_single_process_loss(self, full: Mapping[str, Any], x: Any, targets: Any, cp: int) -> Any:  # noqa: ARG002
        """Return the sum over samples of the loss of the unsplit model for inputs x (b, in) and targets; local.

        `full` has all parameters by name. `cp` is ignored, because a perceptron's samples are not sequences.
        """
        for layer in range(self.config.layers):
            x = torch.nn.functional.linear(x, full[f"layers.{layer}.weight"], full[f"layers.{layer}.bias"])
            if layer < self.config.layers - 1:
                x = get_activation(self.config)(x)
        return self.sum_loss(x, targets)

    def _draw_parameters(self, generator: Any, dtype: Any) -> dict[str, Any]:
        """Return initial parameters by name, uniform in [-1/sqrt(in), 1/sqrt(in)] as in torch.nn.Linear."""
        parameters = {}
        for shard in self.list_full_parameters():
            layer = int(shard.name.split(".")[1])
            bound = self.config.weight_shape(layer)[1] ** -0.5
            numbers = torch.rand(shard.full_shape, dtype=torch.float64, generator=generator)
            parameters[shard.name] = ((2 * numbers - 1) * bound).to(dtype)
        return parameters


class CourseModel(MlpModel):
    """A perceptron that learns a random map of vectors, with its samples, parameters and loss."""

    def load_samples(self) -> tuple[Samples, Samples]:
        """Return the training and the held-out samples: random vectors and their targets."""
        return make_course_samples(self.config.width)

    def sum_loss(self, y: Any, targets: Any) -> Any:
        """Return the sum over samples of the mean square error."""
        return (y - targets).square().mean(1).sum()
