"""Expert parallelism: a mixture of experts in place of an MLP; the ranks of the ep axis share the experts.

A router computes the probability of each expert for each token. Each token goes to its k most probable experts, whose
outputs are summed with weights that follow from the probabilities. With E experts on p ranks of ep, each rank has its
own tokens and E/p experts. An all_to_all sends tokens to the ranks of their experts (dispatch), another one returns the
outputs (combine), and the backward pass sends gradients the opposite ways. The choices of the router determine the
sizes of the all_to_alls' blocks.

Tokens are routed in groups: a group is all tokens of one micro-batch on one rank; with context parallelism, these are
the rank's own positions, and with sequence parallelism, the tokens of all ranks of tp. Each expert takes at most
`capacity` tokens of a group. First choices come before second choices, and earlier tokens before later ones; choices
beyond the capacity are dropped. The routing of a group of tokens does not depend on the
number of ranks that share the experts.

`route_tokens` chooses the experts locally; only `apply_experts` communicates.

Sources: Lepikhin et al., "GShard", ICLR 2021 (arXiv 2006.16668), for top-2 routing, capacity and the all_to_alls;
Fedus, Zoph and Shazeer, "Switch Transformers", JMLR 2022 (arXiv 2101.03961), for top-1 routing and the load-balancing
loss.

Shapes: n tokens of a group, h features, E experts, k choices of each token, m choices that are kept (at most k n), p
ranks of ep, r rows that a rank receives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hpccoll.parallel.axis_group import AxisGroup


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing of a group of tokens: the kept choices in the order of their experts, and the load-balancing loss.

    A choice is a token and one of its experts; choices beyond an expert's capacity are dropped.
    """

    tokens: Any  # (m) the token of each choice
    weights: Any  # (m) the factor of the expert's output
    counts: Any  # (E) the number of kept choices of each expert
    balance_loss: Any  # scalar: 1 if probabilities and choices are uniform, at most E/k


def route_tokens(logits: Any, top_k: int, capacity: int) -> Routing:
    """Return the routing of a group's tokens by the router's logits, shape (tokens, experts); local.

    The weights of a token's choices are the probabilities of its experts, divided by their sum if `top_k` exceeds 1.
    The load-balancing loss is E times the sum over experts of f_e P_e: f_e is the expert's fraction of the choices,
    before choices are dropped, and P_e its mean probability (Switch Transformers, equations 4 to 6, with any k).

    Args:
        logits: the router's output for each token and expert.
        top_k: the number of experts of each token.
        capacity: the largest number of tokens of the group that an expert takes.
    """
    n, experts = logits.shape
    probabilities = logits.softmax(1)  # (n, E)
    weights, chosen = probabilities.topk(top_k, 1)  # (n, k) each
    if top_k > 1:
        weights = weights / weights.sum(1, keepdim=True)  # (n, k)
    chosen = chosen.T.flatten()  # (k n): the first choices of all tokens, then the second choices
    counts = chosen.bincount(minlength=experts)  # (E)
    balance_loss = experts * (probabilities.mean(0) @ counts.to(probabilities)) / len(chosen)  # scalar
    order = chosen.argsort(stable=True)  # (k n): the choices in the order of their experts
    starts = counts.cumsum(0) - counts  # (E)
    places = torch.arange(len(chosen), device=order.device) - starts[chosen[order]]  # (k n): places at the experts
    kept = order[places < capacity]  # (m)
    return Routing(kept % n, weights.T.flatten()[kept], counts.clamp(max=capacity), balance_loss)


def apply_experts(x: Any, routing: Routing, experts: Sequence[Callable[[Any], Any]], ep: AxisGroup) -> Any:
    """Return the weighted sums of the outputs of each token's experts: x (n, h) -> (n, h); collective over `ep`.

    `x` has the n tokens of this rank, and `routing` routes them over the experts of all ranks. The output of a token
    whose choices are all dropped is zero. The backward pass is collective as well. `experts` are this rank's experts,
    each a function (tokens, h) -> (tokens, h); with E experts on p ranks, rank r has the experts r E/p to
    (r+1) E/p - 1.

    Cost: for each kept choice of another rank's expert, each pass sends a row of h elements to the expert and a row
    back. The forward pass also sends the numbers of rows, E/p integers of 8 bytes, to each other rank.
    """
    counts = routing.counts.view(ep.size, len(experts))  # (p, E/p): rows for each expert of each rank
    received = ep.all_to_all(counts, [1] * ep.size, [1] * ep.size)  # (p, E/p): rows of each rank for each own expert
    row_counts = counts.sum(1).tolist(), received.sum(1).tolist()  # (p) each: rows for each rank, and from each rank
    expert_of_row = torch.arange(len(experts), device=x.device).repeat(ep.size).repeat_interleave(received.flatten())
    order = expert_of_row.argsort(stable=True)  # (r): the received rows in the order of expert, then rank
    # Intermediate results have no names, so that their memory is free once they are used.
    inputs = _AllToAll.apply(x.index_select(0, routing.tokens), ep, *row_counts).index_select(0, order)  # (r, h)
    own = zip(experts, inputs.split(received.sum(0).tolist()), strict=True)
    outputs = torch.cat([expert(rows) for expert, rows in own])  # (r, h)
    returned = _AllToAll.apply(outputs.index_select(0, order.argsort()), ep, *reversed(row_counts))  # (m, h)
    del outputs
    # The sum is by scatter_add, because the backward pass of index_add keeps the addends.
    places = routing.tokens[:, None].expand_as(returned)  # (m, h)
    return torch.zeros_like(x).scatter_add(0, places, returned * routing.weights[:, None])  # (n, h)


def add_to_loss(x: Any, loss: Any) -> Any:
    """Return `x` unchanged, as an autograd function whose backward pass also backpropagates the scalar `loss`.

    The backward pass computes the gradients of the sum of the model's loss and `loss`. The auxiliary loss of a layer
    need not be sent to the last pipeline stage, which computes the model's loss. `MoEAuxLossAutoScaler` of Megatron-LM
    does the same.
    """
    return _AddToLoss.apply(x, loss)


class _AllToAll(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """An all_to_all of rows over the ranks of `ep` as an autograd function; its backward pass returns the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Any, ep: AxisGroup, counts: Sequence[int], out_counts: Sequence[int]) -> Any:
        """Send rows to the ranks and return those for this rank: (sum(counts), h) -> (sum(out_counts), h); collective.

        `counts` has the number of rows that go to each rank, and `out_counts` the number that come from each rank.
        """
        ctx.ep, ctx.counts = ep, (out_counts, counts)
        return ep.all_to_all(x, counts, out_counts)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, None, None, None]:
        """Return the gradients of the rows that this rank sent: (sum(out_counts), h) -> (sum(counts), h).

        Collective.
        """
        return ctx.ep.all_to_all(grad.contiguous(), *ctx.counts), None, None, None


class _AddToLoss(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """The autograd function of `add_to_loss`: returns `x`, and gives the scalar `loss` the gradient 1."""

    @staticmethod
    def forward(ctx: Any, x: Any, loss: Any) -> Any:
        """Return a view of `x`, so that autograd records this function."""
        ctx.one = torch.ones_like(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, Any]:
        """Return the gradients of `x` (unchanged) and of `loss` (1)."""
        return grad, ctx.one
