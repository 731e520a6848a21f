"""Tensor parallelism: a linear layer split over the ranks of the tp axis, by output (column) or by input (row).

A column-parallel layer takes the whole input and computes a slice of the output on each rank. A row-parallel layer
takes a slice of the input on each rank and returns the whole output on all ranks. An element-wise activation between a
column-parallel and a row-parallel layer needs no messages. Rank r computes y_r = act(copy(x) W_r^T + b_r), of shape
(b, hidden/tp), from the input x (b, in). A row-parallel layer with weight V and bias c
returns reduce(y_r V_r^T) + c, of shape (b, out).

In the forward pass, `copy` is the identity and `reduce` an all_reduce; in the backward pass, `reduce` is the identity
and `copy` an all_reduce (Megatron-LM's f and g). So a column-parallel and a row-parallel layer together need one
all_reduce of (b, features) in each pass. Weights have the shape (out, in), as in torch.nn.Linear.

Alternatively, all layers are split by output, and each layer gathers its outputs. The backward pass of this all_gather
is a reduce_scatter if each rank computes an addend of the gradient. After the last layer, all ranks compute the same
gradient, and the backward pass takes a slice of it.
"""

from __future__ import annotations

from typing import Any

import torch

from hpccoll.parallel.axis_group import AxisGroup
from hpccoll.parallel.weight_gradients import WeightProduct, apply_linear


class _CopyToTensorParallel(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """An autograd function that returns its input and, in the backward pass, sums the ranks' gradients over `tp`."""

    @staticmethod
    def forward(ctx: Any, x: Any, tp: AxisGroup) -> Any:
        """Return a view of `x`, because the forward pass is the identity; local."""
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None]:
        """Return the gradient summed over the tp axis; collective; does not modify `grad`."""
        return ctx.tp.all_reduce(grad.clone(memory_format=torch.contiguous_format)), None


class _ReduceFromTensorParallel(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """An autograd function that sums `x` over `tp` and, in the backward pass, returns the gradient unchanged."""

    @staticmethod
    def forward(_: Any, x: Any, tp: AxisGroup) -> Any:
        """Return `x` summed over the tp axis; collective; does not modify `x`."""
        return tp.all_reduce(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(_: Any, grad: Any) -> tuple[Any, None]:
        """Return `grad` itself, because every rank needs the whole gradient of the sum; local."""
        return grad, None


class _GatherFromTensorParallel(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """An autograd function that gathers the last dim of `x` over the tensor-parallel ranks `tp`."""

    @staticmethod
    def forward(ctx: Any, x: Any, tp: AxisGroup, features: tuple[int, ...], is_last: bool) -> Any:
        """Return the x (b, features) of all tensor-parallel ranks, joined as (b, sum of features).

        Collective over `tp`. `features` has the number of features of each rank. `is_last` states that all ranks
        compute the same loss from the output.
        """
        ctx.tp, ctx.features, ctx.is_last = tp, features, is_last
        return tp.all_gather(x.T.contiguous(), features).T.contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None, None, None]:
        """Return this rank's features of the gradient, summed over tp (collective) unless all ranks have it whole."""
        if ctx.is_last:
            own = grad.split(ctx.features, 1)[ctx.tp.index]
        else:
            own = ctx.tp.reduce_scatter(grad.T.contiguous(), ctx.features).T
        return own.contiguous(), None, None, None


def copy_to_tensor_parallel(x: Any, tp: AxisGroup) -> Any:
    """Return `x`, the input of a layer split by output, so that its gradient is summed over `tp`.

    The forward pass is local; the backward pass is collective over `tp`, unless `x` needs no gradient.
    """
    # The model's input needs no gradient, so the first layer skips the all_reduce of the backward pass.
    return _CopyToTensorParallel.apply(x, tp) if x.requires_grad else x


def reduce_from_tensor_parallel(x: Any, tp: AxisGroup) -> Any:
    """Return the sum of `x`, the output of a layer split by input, over `tp`; its gradient is not summed.

    The forward pass is collective over `tp`; the backward pass is local.
    """
    return _ReduceFromTensorParallel.apply(x, tp)


def apply_column_parallel(
    x: Any, weight: Any, bias: Any, tp: AxisGroup, deferred: list[WeightProduct] | None = None
) -> Any:
    """Apply a linear layer split by output: weight (out/tp, in), bias (out/tp); x (b, in) -> (b, out/tp).

    The forward pass is local; the backward pass is collective over `tp`, unless `x` needs no gradient. If `deferred` is
    a list, the backward pass appends the factors of the weight's gradient to it instead of computing the gradient, as
    in `apply_linear`.
    """
    return apply_linear(copy_to_tensor_parallel(x, tp), weight, bias, deferred)


def apply_row_parallel(
    x: Any, weight: Any, bias: Any, tp: AxisGroup, deferred: list[WeightProduct] | None = None
) -> Any:
    """Apply a linear layer split by input: weight (out, in/tp), whole bias (out); x (b, in/tp) -> (b, out).

    The forward pass is collective over `tp`; the backward pass is local. `deferred` is as in `apply_column_parallel`.
    """
    # Add the bias after the all_reduce, because a bias added on each rank before the sum would count tp times.
    return reduce_from_tensor_parallel(apply_linear(x, weight, deferred=deferred), tp) + bias


def gather_columns(y: Any, tp: AxisGroup, features: tuple[int, ...], is_last: bool) -> Any:
    """Return the whole output of a layer split by output: y (b, out features of this rank) -> (b, out).

    `features` has the number of output features of each rank of `tp`. Each rank has the layer's whole input, but
    computes only an addend of the input's gradient in the backward pass, and the backward pass of the layer before sums
    the addends by a reduce_scatter. So either all layers of a model gather their outputs, or none. The last layer
    (`is_last`) needs no sum, because all ranks compute the same loss from its output. The forward pass is collective
    over `tp`, and so is the backward pass of every layer but the last.
    """
    return _GatherFromTensorParallel.apply(y, tp, features, is_last)
