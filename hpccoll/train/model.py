"""The model on a mesh: which piece of which parameter a rank has, and its layers.

Layers 0, 2, 4, ... are cut by output and the next ones by input, so that between the two of a pair nothing is sent; a
last one that is left without a partner is whole on every rank. Stages take the layers in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hpccoll.parallel.channel import Channel
from hpccoll.parallel.mesh import Mesh, shares
from hpccoll.parallel.tensor import ColumnLinear, Layer, RowLinear, WholeLinear
from hpccoll.train.settings import Mlp

COLUMN, ROW, WHOLE = "column", "row", "whole"


@dataclass(frozen=True, slots=True)
class Piece:
    """A rank's part of one parameter.

    Args:
        name: of the parameter.
        shape: of the whole parameter.
        index: the part, one slice a dim.
        shared: whether all tensor-parallel ranks have this very part.
    """

    name: str
    shape: tuple[int, ...]
    index: tuple[slice, ...]
    shared: bool

    @property
    def part(self) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple(each.stop - each.start for each in self.index)

    @property
    def count(self) -> int:
        """Numbers in the part."""
        count = 1
        for each in self.part:
            count *= each
        return count


def way_of(model: Mlp, layer: int) -> str:
    """Return how a layer is cut over tensor-parallel ranks."""
    if layer % 2:
        return ROW
    return COLUMN if layer + 1 < model.layers else WHOLE


def stage_layers(model: Mlp, mesh: Mesh, rank: int) -> range:
    """Return the layers of a rank's stage."""
    share = shares(model.layers, mesh.pp)[mesh.place(rank)["pp"]]
    return range(share.start, share.stop)


def pieces(model: Mlp, mesh: Mesh, rank: int) -> list[Piece]:
    """Return the pieces of a rank in order: a weight (out, in) and a bias (out) a layer."""
    found = []
    for layer in stage_layers(model, mesh, rank):
        out, into = model.size(layer)
        way, tp = way_of(model, layer), mesh.place(rank)["tp"]
        rows = shares(out, mesh.tp)[tp] if way == COLUMN else slice(0, out)
        columns = shares(into, mesh.tp)[tp] if way == ROW else slice(0, into)
        found.append(Piece(f"layers.{layer}.weight", (out, into), (rows, columns), way == WHOLE))
        found.append(Piece(f"layers.{layer}.bias", (out,), (rows,), way != COLUMN))
    return found


def whole(model: Mlp) -> list[Piece]:
    """Return the whole parameters, as one process has them."""
    return pieces(model, Mesh(), 0)


def initial(model: Mlp, seed: int, dtype: Any) -> dict[str, Any]:
    """Return the whole parameters that a seed gives, uniform within 1/sqrt(in) as torch.nn.Linear's.

    Every rank draws all of them and keeps its pieces: so the model is the same on every mesh, no two layers or pieces
    begin alike, and the scale is that of the whole layer. They are drawn in float64, the same for all dtypes.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = {}
    for piece in whole(model):
        layer = int(piece.name.split(".")[1])
        bound = model.size(layer)[1] ** -0.5
        numbers = torch.rand(piece.shape, dtype=torch.float64, generator=generator)
        drawn[piece.name] = ((2 * numbers - 1) * bound).to(dtype)
    return drawn


def activation(model: Mlp) -> Any:
    """Return the function between layers."""
    return torch.tanh if model.activation == "tanh" else torch.nn.functional.gelu


class Layers:
    """A rank's layers, in order, with its pieces of the parameters as leaves of the graph.

    Args:
        full: the whole parameters by name.
        device: where the pieces go.
    """

    def __init__(
        self, model: Mlp, mesh: Mesh, rank: int, tp: Channel, full: Mapping[str, Any], device: Any = "cpu"
    ) -> None:
        self.model, self.numbers = model, stage_layers(model, mesh, rank)
        self.pieces = pieces(model, mesh, rank)
        self.parameters = [
            full[piece.name][piece.index].clone(memory_format=torch.contiguous_format).to(device).requires_grad_()
            for piece in self.pieces
        ]
        pairs = zip(self.numbers, self.parameters[::2], self.parameters[1::2], strict=True)
        self._layers = [self._layer(number, weight, bias, tp) for number, weight, bias in pairs]
        self._between = activation(model)

    def _layer(self, number: int, weight: Any, bias: Any, tp: Channel) -> Layer:
        way = way_of(self.model, number)
        if way == WHOLE:
            return WholeLinear(weight, bias)
        return ColumnLinear(weight, bias, tp) if way == COLUMN else RowLinear(weight, bias, tp)

    @property
    def entering(self) -> int:
        """Features a sample that enter the first layer on this rank."""
        return int(self.parameters[0].shape[1])

    def __call__(self, x: Any) -> Any:
        """Return what leaves the stage: x (b, entering) -> (b, features); activations but after the model's last."""
        for number, layer in zip(self.numbers, self._layers, strict=True):
            x = layer(x)
            if number < self.model.layers - 1:
                x = self._between(x)
        return x


def reference(model: Mlp, full: Mapping[str, Any], x: Any) -> Any:
    """Return the whole model's output in one process, by torch alone: x (b, 64) -> (b, 10)."""
    for layer in range(model.layers):
        x = torch.nn.functional.linear(x, full[f"layers.{layer}.weight"], full[f"layers.{layer}.bias"])
        if layer < model.layers - 1:
            x = activation(model)(x)
    return x
