"""Sequence parallelism: between tensor-parallel layers, each rank of tp holds 1/tp of the tokens of a micro-batch.

Norms, sums with the residual stream, and biases after row-parallel layers treat each token independently. With tensor
parallelism alone, all ranks of tp compute norms, sums and biases for all tokens and keep all activations. With sequence
parallelism, each rank computes norms, sums and biases for its own tokens. The reduce_scatter after a row-parallel layer
and the all_gather before the next column-parallel layer together send as many bytes as the all_reduce that they
replace.

    x_r                       # (b, t/tp, h): own tokens, before and after norms and sums
    y_r = act(all_gather(x) W_r^T + c_r)    # (b, t, hidden/tp): all tokens, own features
    z_r = reduce_scatter(y_r V_r^T) + d     # (b, t/tp, h)

Column-parallel layers keep only this rank's tokens, and gather all tokens again in the backward pass. The tokens are
split in the order of the samples, so that the tokens of a rank are contiguous in memory. Each rank applies norms, the
biases d and position embeddings to its own tokens only, so the gradients of these parameters must be summed over tp.

Shapes: b samples, t positions, h features; tp divides t.
Source: Korthikanti et al., "Reducing activation recomputation in large transformer models", arXiv 2205.05198.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpccoll.parallel.axis_group import AxisGroup
from hpccoll.parallel.weight_gradients import WeightProduct


def take_own_tokens(x: Any, tp: AxisGroup) -> Any:
    """Return this tensor-parallel rank's tokens of an array of all tokens: (b, t, ...) -> (b, t/tp, ...); local.

    b samples have t positions each; tp is the number of ranks.
    """
    return x.flatten(0, 1).chunk(tp.size)[tp.index].view(len(x), -1, *x.shape[2:])


def sum_to_own_tokens(x: Any, tp: AxisGroup) -> Any:
    """Return this rank's tokens of the sum of all tensor-parallel ranks' `x`: (b, t, h) -> (b, t/tp, h).

    Both passes are collective over `tp`. b counts samples, t positions and h features.
    """
    return _SumToOwnTokens.apply(x, tp)


def gather_tokens(x: Any, tp: AxisGroup, *, has_addends: bool) -> Any:
    """Return the tokens of all tensor-parallel ranks: (b, t/tp, h) -> (b, t, h); collective over `tp`.

    `has_addends` states whether each rank computes an addend of the result's gradient, which the backward pass sums by
    a reduce_scatter. If false, all ranks must compute the same gradient, and the backward pass is local.
    """
    return _GatherTokens.apply(x, tp, has_addends)


def apply_gathered_linears(
    x: Any, layers: Sequence[tuple[Any, Any]], tp: AxisGroup, deferred: list[WeightProduct] | None
) -> tuple[Any, ...]:
    """Return the outputs of column-parallel layers with the same input: (b, t/tp, h) -> (b, t, out/tp) per layer.

    Both passes are collective over `tp`.

    Args:
        layers: for each layer, the weight (out/tp, h), and the bias (out/tp) or None.
        deferred: None, or the list to which the backward pass appends the computation of the weights' gradients.
    """
    weights, biases = zip(*layers, strict=True)
    differentiated = weights if deferred is None else [None] * len(weights)
    outputs: tuple[Any, ...] = _GatheredLinears.apply(x, tp, layers, deferred, *differentiated, *biases)
    return outputs


def _all_gather(x: Any, tp: AxisGroup) -> Any:
    """Return the tokens of all tensor-parallel ranks: (b, t/tp, h) -> (b, t, h); collective over `tp`, no autograd."""
    rows = x.flatten(0, 1).contiguous()  # (b t/tp, h)
    return tp.all_gather(rows, (len(rows),) * tp.size).view(len(x), -1, x.shape[2])


def _reduce_scatter(x: Any, tp: AxisGroup) -> Any:
    """Return this rank's tokens of the sum of all ranks' `x`: (b, t, h) -> (b, t/tp, h); collective, no autograd."""
    rows = x.flatten(0, 1).contiguous()  # (b t, h)
    return tp.reduce_scatter(rows, (len(rows) // tp.size,) * tp.size).view(len(x), -1, x.shape[2])


class _SumToOwnTokens(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """An autograd function whose forward pass is a reduce_scatter of tokens, and whose backward pass gathers tokens."""

    @staticmethod
    def forward(ctx: Any, x: Any, tp: AxisGroup) -> Any:
        """Return this rank's tokens of the sum of all ranks' `x`: (b, t, h) -> (b, t/tp, h); collective over `tp`."""
        ctx.tp = tp
        return _reduce_scatter(x, tp)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None]:
        """Return the gradient of `x`, the same on all ranks: (b, t/tp, h) -> (b, t, h); collective over tp."""
        return _all_gather(grad, ctx.tp), None


class _GatherTokens(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """The all_gather of tokens over the tensor-parallel ranks as an autograd function.

    If `has_addends`, each rank computes only an addend of the gradient, and the backward pass is a reduce_scatter.
    Without `has_addends`, all ranks have the whole gradient, and the backward pass takes the part of this rank's
    tokens.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, tp: AxisGroup, has_addends: bool) -> Any:
        """Return the tokens of all tensor-parallel ranks: (b, t/tp, h) -> (b, t, h); collective over `tp`."""
        ctx.take = _reduce_scatter if has_addends else take_own_tokens
        ctx.tp = tp
        return _all_gather(x, tp)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None, None]:
        """Return the gradient of this rank's tokens: (b, t, h) -> (b, t/tp, h); collective if `has_addends`."""
        return ctx.take(grad, ctx.tp), None, None


class _GatheredLinears(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """Linear layers with the same input as one autograd function, which keeps only this rank's tokens between passes.

    Each pass gathers the tokens of all tensor-parallel ranks, and frees them afterwards.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        tp: AxisGroup,
        layers: Sequence[tuple[Any, Any]],
        deferred: list[WeightProduct] | None,
        *_differentiated: Any,
    ) -> tuple[Any, ...]:
        """Return x W^T + c of all tokens for each layer (W, c): (b, t/tp, h) -> (b, t, out/tp); collective over `tp`.

        `deferred` is None, or the list to which the backward pass appends the computation of the weights' gradients.
        The remaining arguments are the weights and biases for which autograd needs gradients.
        """
        ctx.save_for_backward(x)
        ctx.tp, ctx.layers, ctx.deferred = tp, layers, deferred
        whole = _all_gather(x, tp)  # (b, t, h)
        return tuple(torch.nn.functional.linear(whole, weight, bias) for weight, bias in layers)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Return the gradients of this rank's tokens, of the weights (unless deferred) and of the biases.

        Collective over tp.
        """
        (x,) = ctx.saved_tensors
        whole = _all_gather(x, ctx.tp)  # (b, t, h)
        layers = list(zip(ctx.layers, grads, strict=True))
        products = [WeightProduct(weight, whole, grad) for (weight, _), grad in layers]
        addend = products[0].grad @ products[0].weight  # (b, t, h)
        for product in products[1:]:
            addend += product.grad @ product.weight
        biases = [None if bias is None else grad.flatten(0, 1).sum(0) for (_, bias), grad in layers]
        if ctx.deferred is None:
            weights = [product.compute() for product in products]
        else:
            ctx.deferred.extend(products)
            weights = [None] * len(products)
        return _reduce_scatter(addend, ctx.tp), None, None, None, *weights, *biases
