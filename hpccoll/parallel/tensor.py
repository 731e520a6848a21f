"""Tensor parallelism: a linear layer cut over the ranks of the axis, by output (column) or by input (row).

A column-parallel layer needs its whole input and gives each rank its share of the output; a row-parallel one takes that
share and gives all ranks the whole again. What is between the two, element by element, needs no communication:

    x (b, in)  --enter-->  x W_r^T + b_r  (b, hidden/tp)  --act-->  y_r V_r^T (b, out)  --leave-->  sum over r, + c

`enter` copies forward and adds up backward; `leave` adds up forward and copies backward: one all_reduce of
(b, features) in each direction for the pair. Weights are (out, in) as in torch.nn.Linear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from hpccoll.parallel.channel import Channel


class Layer(Protocol):
    """A linear layer, however it is cut."""

    def __call__(self, x: Any) -> Any:
        """Return the layer's output, this rank's share of it or the whole."""

    @property
    def weight(self) -> Any:
        """This rank's part of the weight."""

    @property
    def bias(self) -> Any:
        """This rank's part of the bias."""


class _Enter(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """Every rank goes on with the same x to its own part of a layer: the gradients of all parts belong to x."""

    @staticmethod
    def forward(ctx: Any, x: Any, tp: Channel) -> Any:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None]:
        return ctx.tp.all_reduce(grad.clone(memory_format=torch.contiguous_format)), None


class _Leave(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """Each rank has a part of a sum, and all go on with the sum: its gradient is that of every part."""

    @staticmethod
    def forward(_: Any, x: Any, tp: Channel) -> Any:
        return tp.all_reduce(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(_: Any, grad: Any) -> tuple[Any, None]:
        return grad, None


@dataclass(frozen=True, slots=True)
class ColumnLinear:
    """Cut by output: weight (out/tp, in), bias (out/tp); x (b, in) whole -> (b, out/tp)."""

    weight: Any
    bias: Any
    tp: Channel

    def __call__(self, x: Any) -> Any:
        # The first layer's x are data, and nobody asks for their gradient.
        entered = _Enter.apply(x, self.tp) if x.requires_grad else x
        return torch.nn.functional.linear(entered, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class RowLinear:
    """Cut by input: weight (out, in/tp), bias (out) whole; x (b, in/tp) -> (b, out) whole."""

    weight: Any
    bias: Any
    tp: Channel

    def __call__(self, x: Any) -> Any:
        # The bias once, after the sum: added before it would count tp times.
        return _Leave.apply(torch.nn.functional.linear(x, self.weight), self.tp) + self.bias


@dataclass(frozen=True, slots=True)
class WholeLinear:
    """Not cut: every rank along the axis computes the same; weight (out, in), bias (out)."""

    weight: Any
    bias: Any

    def __call__(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight, self.bias)
