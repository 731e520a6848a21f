"""Embedding and cross entropy over a vocabulary that is split over the ranks of the tp axis.

Rank r of the axis holds the rows of consecutive tokens of the embedding, or the logits of these tokens. The logits are
never gathered: the ranks exchange one maximum, one sum and one logit per position.

Shapes: n positions, V tokens in the vocabulary, h features.
"""

from __future__ import annotations

from typing import Any

import torch

from hpccoll.parallel.axis_group import AxisGroup


def embed_own_vocabulary(tokens: Any, weight: Any, first: int) -> Any:
    """Return this rank's addend of the embeddings of tokens, shape (..., h): zero for tokens of other ranks; local.

    Args:
        tokens: tokens of the whole vocabulary, the same on all tensor-parallel ranks.
        weight: this rank's rows of the embedding, shape (tokens of the vocabulary / ranks, h).
        first: the token of the first row.
    """
    is_own, rows = _find_rows(tokens, first, len(weight))
    return torch.nn.functional.embedding(rows, weight) * is_own[..., None]


def sum_cross_entropy(logits: Any, targets: Any, first: int, tp: AxisGroup) -> Any:
    """Return the sum over positions of the cross entropy, on all ranks of `tp`; the forward pass is collective.

    Args:
        logits: this rank's logits, shape (positions, tokens of the vocabulary / ranks).
        targets: the correct token of each position, the same on all ranks of `tp`.
        first: the token of the first logit.
    """
    return _SumCrossEntropy.apply(logits, targets, first, tp)


def _find_rows(tokens: Any, first: int, count: int) -> tuple[Any, Any]:
    """Return a mask of the tokens in `first` to `first` + `count` - 1, and their row numbers (0 for other tokens)."""
    is_own = (tokens >= first) & (tokens < first + count)
    return is_own, torch.where(is_own, tokens - first, 0)


class _SumCrossEntropy(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """The autograd function of `sum_cross_entropy`: a forward pass collective over `tp`, and a local backward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Any, targets: Any, first: int, tp: AxisGroup) -> Any:
        """Return the sum over positions of log(sum of exp(logits)) - logit of the target; collective over `tp`."""
        shifted = logits - tp.all_reduce(logits.amax(1), "max")[:, None]
        is_own, rows = _find_rows(targets, first, logits.shape[1])
        target_logits = tp.all_reduce(shifted.gather(1, rows[:, None]).squeeze(1) * is_own)
        exponentials = shifted.exp_()  # in place, like the division below, because logits can be the largest tensor
        total = tp.all_reduce(exponentials.sum(1))
        ctx.save_for_backward(exponentials.div_(total[:, None]), is_own, rows)
        return (total.log() - target_logits).sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None, None, None]:
        """Return the gradient of this rank's logits: softmax minus 1 at the target, times `grad`; local."""
        softmax, is_own, rows = ctx.saved_tensors
        gradient = softmax.scatter_add(1, rows[:, None], -is_own[:, None].to(softmax)).mul_(grad)
        return gradient, None, None, None
