"""Linear layers whose backward pass leaves the gradients of the weights to a later pass.

In a zero-bubble pipeline schedule, a backward pass for inputs (I) is followed later by a backward pass for weights (W)
of the same micro-batch. A linear layer's gradient of the input and its gradient of the weight are one matrix product
each, so the passes I and W together compute as much as one full backward pass. After the pass I, a layer keeps only the
factors of its weight's gradient: its input and its output's gradient. The gradients of biases, norms and embeddings
take little time, and the pass I computes them.

Source: Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR 2024 (arXiv 2401.10241).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class WeightProduct(NamedTuple):
    """The input and the output gradient of a layer in one backward pass, whose product is the weight's gradient."""

    weight: Any  # (out, in)
    x: Any  # input of the layer (..., in)
    grad: Any  # gradient of the layer's output (..., out)

    def compute(self) -> Any:
        """Return the gradient of the weight, the matrix product of the two factors."""
        return self.grad.flatten(0, -2).T @ self.x.flatten(0, -2)


def add_weight_gradients(products: Sequence[WeightProduct]) -> None:
    """Compute the weights' gradients and add them to `grad` by a backward pass, so that hooks on `grad` are called."""
    for product in products:
        _ComputeLater.apply(product.weight, (product,)).backward()


class _ComputeLater(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """An autograd function whose backward pass computes a weight's gradient, which autograd stores without copying."""

    @staticmethod
    def forward(ctx: Any, weight: Any, product: tuple[WeightProduct]) -> Any:
        """Return the scalar 0, whose backward pass computes the weight's gradient.

        `product` is a tuple, because torch differentiates arguments that are tensors.
        """
        (ctx.product,) = product
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Any) -> tuple[Any, None]:
        """Return the weight's gradient, computed now from its factors."""
        return ctx.product.compute(), None


def apply_linear(x: Any, weight: Any, bias: Any = None, deferred: list[WeightProduct] | None = None) -> Any:
    """Return x W^T + b for x (..., in), weight W (out, in) and bias b (out) or None.

    If `deferred` is a list, the backward pass appends the factors of the weight's gradient to the list instead of
    computing the gradient, except in the first layer of a model, whose input needs no gradient.
    """
    if deferred is None or not x.requires_grad:
        return torch.nn.functional.linear(x, weight, bias)
    return _DeferringLinear.apply(x, bias, (weight,), deferred)


class _DeferringLinear(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """A linear layer as an autograd function that does not compute the weight's gradient, but keeps its factors."""

    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any, weights: tuple[Any], deferred: list[WeightProduct]) -> Any:
        """Return x W^T + b; the backward pass appends the factors of the gradient of W to `deferred`.

        `weights` is a tuple of W, because torch differentiates arguments that are tensors.
        """
        ctx.save_for_backward(x)
        (ctx.weight,) = weights
        ctx.deferred, ctx.has_bias = deferred, bias is not None
        return torch.nn.functional.linear(x, ctx.weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, Any, None, None]:
        """Return the gradients of the input and of the bias; append the factors of the weight's gradient to a list."""
        (x,) = ctx.saved_tensors
        ctx.deferred.append(WeightProduct(ctx.weight, x, grad))
        return grad @ ctx.weight, grad.flatten(0, -2).sum(0) if ctx.has_bias else None, None, None
