"""A small GPT over bytes on a mesh of any axes, and the same model in one process.

Each rank of tp has some heads of every attention, some features of every MLP, and some tokens of the vocabulary. Each
pipeline stage has consecutive blocks; the first stage also has the embedding, the last stage the head (the output
layer). The embedding and the head share one weight. If they are on different ranks, both ranks hold the weight, and
its gradient is the sum over both. With sequence parallelism, each rank of tp has some tokens of each micro-batch
between the attentions and the MLPs. The ranks of ep share the experts of each block of a mixture of experts. Each rank
of cp has some positions of each sample.

In shapes, b is the number of samples, t of positions (with context parallelism, of this rank's positions), n = b t, h
of features, V of tokens in the vocabulary, a of features per attention head, E of experts and k of choices per token.
sp is the number of ranks that share the tokens between attentions and MLPs: tp with sequence parallelism, otherwise 1.
A linear layer has `in` input features and `out` output features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from hpccoll.parallel.context_parallel import attend_around_ring, take_own_positions, take_positions
from hpccoll.parallel.expert_parallel import add_to_loss, apply_experts, route_tokens
from hpccoll.parallel.mesh import Mesh, split_evenly
from hpccoll.parallel.sequence_parallel import apply_gathered_linears, gather_tokens, sum_to_own_tokens, take_own_tokens
from hpccoll.parallel.tensor_parallel import copy_to_tensor_parallel, reduce_from_tensor_parallel
from hpccoll.parallel.vocabulary_parallel import embed_own_vocabulary, sum_cross_entropy
from hpccoll.parallel.weight_gradients import apply_linear
from hpccoll.train.options import BYTES, ExpertConfig, GptConfig
from hpccoll.train.rank_layers import RankLayers, StagePart, TrainedModel
from hpccoll.train.samples import Samples
from hpccoll.train.shards import ParameterShard, find_expert
from hpccoll.train.text import load_text

SPLIT_BY_OUTPUT = ("query", "key", "value", "up", "gate", "embedding")
SPLIT_BY_INPUT = ("out", "down")
INITIAL_DEVIATION = 0.02  # standard deviation of the initial weights, as in GPT-2


def list_own_experts(model: GptConfig, mesh: Mesh, rank: int) -> range:
    """Return the numbers of the experts that a rank holds, the same in each block.

    The range is empty without a mixture of experts.
    """
    count = model.experts.count if model.experts else 0
    own = split_evenly(count, mesh.ep)[mesh.get_coordinates(rank)["ep"]]
    return range(own.start, own.stop)


def list_stage_names(model: GptConfig, mesh: Mesh, stage: int, experts: range) -> list[str]:
    """Return the names of a pipeline stage's parameters in the order of use; of experts, only those in `experts`."""
    blocks = split_evenly(model.layers, mesh.stages)[stage]
    own = ["embedding.weight", "position.weight"] if stage == 0 else []
    every = list(model.list_shapes())
    for block in range(blocks.start, blocks.stop):
        names = [name for name in every if name.startswith(f"blocks.{block}.")]
        own += [name for name in names if find_expert(name) in (None, *experts)]
    return [*own, "norm.weight", "norm.bias", "embedding.weight"] if stage == mesh.stages - 1 else own


class GptLayers(RankLayers[GptConfig]):
    """The embedding, the blocks and the output layer of a rank's pipeline stages.

    The option `recompute` applies to each block. If the model has experts, passes are also collective over the
    expert-parallel ranks.
    """

    @property
    def tied_weight(self) -> Any:
        """The weight that the embedding and the output layer share; for ranks of the first and the last stage only."""
        return self._by_name["embedding.weight"]

    @property
    def _experts(self) -> range:
        """The numbers of the experts that this rank has in each block."""
        return list_own_experts(self.config, self.mesh, self.rank)

    @property
    def _first_token(self) -> int:
        """The first token (byte) of this rank's part of the vocabulary."""
        return int(split_evenly(BYTES, self.mesh.tp)[self.tp.index].start)

    def sum_loss(self, y: Any, targets: Any) -> Any:
        """Return the sum over samples of the mean cross entropy of this rank's logits y (b, t, V/tp).

        Collective over tp.
        """
        targets = take_own_positions(targets, 1, self.groups.cp).flatten()
        return sum_cross_entropy(y.flatten(0, 1), targets, self._first_token, self.tp) / self.config.context

    def _list_parts(self, stage: int) -> list[StagePart]:
        """Return the parts of a stage: one per block, and one each for the embedding and the output layer."""
        names = list_stage_names(self.config, self.mesh, stage, self._experts)
        mine = split_evenly(self.config.layers, self.mesh.stages)
        parts = [StagePart(("embedding.weight", "position.weight"), self._embed, can_recompute=False)] * (stage == 0)
        for block in range(mine[stage].start, mine[stage].stop):
            at = f"blocks.{block}"
            parts.append(StagePart([x for x in names if x.startswith(f"{at}.")], partial(self._run_block, at)))
        if stage == self.mesh.stages - 1:
            head = "norm.weight", "norm.bias", "embedding.weight"
            parts.append(StagePart(head, self._compute_logits, can_recompute=False))
        return parts

    def _get_input_shape(self, stage: int) -> tuple[int, ...]:  # noqa: ARG002 - the same for all stages
        """Return the shape, per sample, of a stage's input on this rank: (positions, features)."""
        ranks = self.mesh.cp * (self.mesh.tp if self.sequence_parallel else 1)
        return self.config.context // ranks, self.config.width

    def _embed(self, tokens: Any) -> Any:
        """Return the sums of the embeddings of tokens and of positions: (b, t) -> (b, t/sp, h); collective over tp."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)  # all, (b, t cp)
        tokens, positions = (take_own_positions(x, 1, self.groups.cp) for x in (tokens, positions))  # (b, t)
        addend = embed_own_vocabulary(tokens, self.tied_weight, self._first_token)  # (b, t, h)
        if self.sequence_parallel:
            positions = take_own_tokens(positions, self.tp)  # (b, t/sp)
        return self._reduce(addend) + functional.embedding(positions, self._by_name["position.weight"])

    def _compute_logits(self, x: Any) -> Any:
        """Return this rank's logits, from the output of the last block: (b, t/sp, h) -> (b, t, V/tp)."""
        return self._split_by_output(self._normalize("norm", x), "embedding")[0]

    def _run_block(self, block: str, x: Any) -> Any:
        """Return the output of the block with the name `block`: (b, t/sp, h) -> (b, t/sp, h). Collective over tp."""
        x = x + self._split_by_input(f"{block}.out", self._attend(block, self._normalize(f"{block}.norm1", x)))
        h = self._normalize(f"{block}.norm2", x)
        if self.config.experts is not None:
            return x + self._mix_experts(block, self.config.experts, h)
        hidden = self._activate(self._split_by_output(h, *self._list_first_layers(block)))  # (b, t, hidden/tp)
        return x + self._split_by_input(f"{block}.down", hidden)

    def _list_first_layers(self, mlp: str) -> list[str]:
        """Return the names of the layers of an MLP (or expert) that take the MLP's input: one, or two if gated."""
        return [f"{mlp}.up", f"{mlp}.gate"] if self.config.is_gated else [f"{mlp}.up"]

    def _activate(self, features: Sequence[Any]) -> Any:
        """Return the activation of an MLP from the outputs of its first layers: GELU(up), or SiLU(gate) * up."""
        up, *gate = features
        return functional.silu(gate[0]) * up if gate else functional.gelu(up)

    def _mix_experts(self, block: str, config: ExpertConfig, x: Any) -> Any:
        """Return the weighted sums of the experts' outputs: (b, t/sp, h) -> (b, t/sp, h); collective over ep and tp.

        All tensor-parallel ranks route the same tokens. In evaluation (without gradients), no token is dropped.
        """

        def apply(name: str, own: Any) -> Any:
            """Return the output of the linear layer `name`, without its bias, for the tokens `own` of an expert."""
            return apply_linear(own, self._by_name[f"{name}.weight"], deferred=self.deferred)

        def apply_expert(expert: int, own: Any) -> Any:  # (tokens, h) -> (tokens, h), an addend of the sum over tp
            """Return an expert's output for its tokens, (tokens, h) -> (tokens, h): an addend of the sum over tp."""
            mlp = f"{block}.experts.{expert}"
            return apply(f"{mlp}.down", self._activate([apply(name, own) for name in self._list_first_layers(mlp)]))

        logits = apply(f"{block}.router", x)  # (b, t/sp, E)
        if self.sequence_parallel:
            logits = gather_tokens(logits, self.tp, has_addends=False)  # (b, t, E)
            tokens = gather_tokens(x, self.tp, has_addends=True)  # (b, t, h)
        else:
            tokens = copy_to_tensor_parallel(x, self.tp)  # (b, t, h)
        tokens, logits = tokens.flatten(0, 1), logits.flatten(0, 1)  # (n, h), (n, E)
        capacity = config.compute_capacity(len(tokens)) if torch.is_grad_enabled() else len(tokens)
        routing = route_tokens(logits, config.top_k, capacity)
        self.routed.append(routing.counts)
        weights = copy_to_tensor_parallel(routing.weights, self.tp)  # (m)
        experts = [partial(apply_expert, expert) for expert in self._experts]
        mixed = apply_experts(tokens, replace(routing, weights=weights), experts, self.groups.ep)  # (n, h)
        y = self._reduce(mixed.view(len(x), -1, mixed.shape[1]))  # (b, t/sp, h)
        share = len(x) / (self.batch * self.mesh.cp)  # the group's share of the tokens of a step
        return add_to_loss(y, routing.balance_loss * config.aux_loss_coeff * share)

    def _attend(self, block: str, x: Any) -> Any:
        """Return the causal attention of this rank's heads in a block: (b, t/sp, h) -> (b, t, h/tp)."""
        heads = self.config.heads // self.mesh.tp
        queries, keys, values = (
            features.unflatten(2, (heads, -1)).transpose(1, 2)  # (b, heads/tp, t, a)
            for features in self._split_by_output(x, *(f"{block}.{name}" for name in ("query", "key", "value")))
        )
        if self.mesh.cp > 1:
            attended = attend_around_ring(queries, keys, values, self.groups.cp)
        else:
            attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return attended.transpose(1, 2).flatten(2)

    def _split_by_output(self, x: Any, *names: str) -> Sequence[Any]:
        """Return, for each layer in `names`, this rank's output features for x: (b, t/sp, h) -> (b, t, out/tp)."""
        layers = [(self._by_name[f"{name}.weight"], self._by_name.get(f"{name}.bias")) for name in names]
        if self.sequence_parallel:
            return apply_gathered_linears(x, layers, self.tp, self.deferred)
        x = copy_to_tensor_parallel(x, self.tp)  # one copy for all layers sums the gradient of `x` over tp once
        return [apply_linear(x, weight, bias, self.deferred) for weight, bias in layers]

    def _split_by_input(self, name: str, x: Any) -> Any:
        """Return the output of a layer split over tp by input: (b, t, in/tp) -> (b, t/sp, h). Collective over tp."""
        # Add the bias after the sum, because a bias added on each rank before the sum would count tp times.
        addend = apply_linear(x, self._by_name[f"{name}.weight"], deferred=self.deferred)  # (b, t, h)
        return self._reduce(addend) + self._by_name[f"{name}.bias"]

    def _reduce(self, addend: Any) -> Any:
        """Return the sum over tp of all ranks' addends: (b, t, h) -> (b, t/sp, h). Collective over tp."""
        reduce = sum_to_own_tokens if self.sequence_parallel else reduce_from_tensor_parallel
        return reduce(addend, self.tp)

    def _normalize(self, name: str, x: Any) -> Any:
        """Return the output of the layer norm `name` for x: (b, t/sp, h) -> (b, t/sp, h)."""
        return functional.layer_norm(x, x.shape[-1:], self._by_name[f"{name}.weight"], self._by_name[f"{name}.bias"])


class GptModel(TrainedModel[GptConfig]):
    """A language model (GPT) over the bytes of a text, with its samples, parameters and loss."""

    rank_layers = GptLayers

    def load_samples(self) -> tuple[Samples, Samples]:
        """Return the training and the held-out samples: windows of a text."""
        return load_text(self.config.context, self.config.data)

    def list_shards(self, mesh: Mesh, rank: int) -> list[ParameterShard]:
        """Return a rank's parameter shards by stage, in the order of the model; a weight of two stages occurs once."""
        shapes = self.config.list_shapes()
        experts = list_own_experts(self.config, mesh, rank)
        own = [name for stage in mesh.list_stages(rank) for name in list_stage_names(self.config, mesh, stage, experts)]
        return [self._make_shard(name, shapes[name], mesh, rank) for name in dict.fromkeys(own)]

    def list_tied_ranks(self, mesh: Mesh, rank: int) -> list[int]:
        """Return `rank` and the rank at the other end of the pipeline that holds the same part of the embedding.

        Both the first and the last stage compute gradients of the embedding. The list is empty if one rank has both the
        first and the last stage, or if `rank` has neither of these stages.
        """
        along_pp = mesh.get_group_ranks(rank, "pp")
        tied = [along_pp[mesh.get_stage_index(stage)] for stage in (0, mesh.stages - 1)]
        return sorted(tied) if rank in tied and tied[0] != tied[1] else []

    def sum_loss(self, y: Any, targets: Any) -> Any:
        """Return the cross entropy of the logits y, averaged over each sample's positions and summed over samples.

        Local.
        """
        return functional.cross_entropy(y.flatten(0, 1), targets.flatten(), reduction="sum") / self.config.context

    def sum_single_process_loss(self, full: Mapping[str, Any], x: Any, targets: Any, cp: int) -> Any:
        """Return the sum over samples of the loss of the unsplit model, with its load-balancing losses; local.

        `full` has all parameters by name. `cp` is the number of context-parallel ranks; the tokens of each rank are
        routed as one group.
        """
        logits, balance_loss = run_gpt_in_one_process(self.config, full, x, cp)
        return self.sum_loss(logits, targets) + balance_loss * len(x)

    def _make_shard(self, name: str, shape: tuple[int, ...], mesh: Mesh, rank: int) -> ParameterShard:
        """Return the shard of the parameter `name`, whose full shape is `shape`, that a rank of the mesh holds."""
        layer = name.split(".")[-2]
        dim = 0 if layer in SPLIT_BY_OUTPUT else 1 if layer in SPLIT_BY_INPUT and len(shape) > 1 else None
        slices = [slice(0, size) for size in shape]
        at = mesh.get_coordinates(rank)
        if dim is not None:
            slices[dim] = split_evenly(shape[dim], mesh.tp)[at["tp"]]
        is_tied_copy = layer == "embedding" and rank in self.list_tied_ranks(mesh, rank)[1:]
        is_replica = (dim is None and at["tp"] > 0) or (find_expert(name) is None and at["ep"] > 0)
        return ParameterShard(name, shape, tuple(slices), is_tied_copy or is_replica)

    def _draw_parameters(self, generator: Any, dtype: Any) -> dict[str, Any]:
        """Return initial parameters by name: normal weights as in GPT-2, zero biases, and layer norm weights of 1.

        The weights of the last layer of each attention and MLP are divided by the square root of the number of such
        layers.
        """
        parameters = {}
        for name, shape in self.config.list_shapes().items():
            layer = name.split(".")[-2]
            if len(shape) == 1:
                full = torch.ones(shape) if "norm" in layer and name.endswith("weight") else torch.zeros(shape)
            else:
                scale = (2 * self.config.layers) ** -0.5 if layer in SPLIT_BY_INPUT else 1.0
                full = torch.randn(shape, dtype=torch.float64, generator=generator) * INITIAL_DEVIATION * scale
            parameters[name] = full.to(dtype)
        return parameters


def run_gpt_in_one_process(model: GptConfig, full: Mapping[str, Any], tokens: Any, cp: int) -> tuple[Any, Any]:
    """Return the unsplit model's logits (b, t, V), and the sum of its load-balancing losses times `aux_loss_coeff`.

    Local. The result is the reference for `--check`. A mixture of experts routes the tokens in `cp` groups, as on a
    mesh, where each of `cp` context-parallel ranks routes the tokens of its own positions.
    """

    def apply(name: str, x: Any) -> Any:
        """Return the output of the linear layer or layer norm `name` for the input x."""
        weight, bias = full[f"{name}.weight"], full.get(f"{name}.bias")
        is_norm = "norm" in name
        return functional.layer_norm(x, x.shape[-1:], weight, bias) if is_norm else functional.linear(x, weight, bias)

    def apply_mlp(name: str, x: Any) -> Any:
        """Return the output of the MLP `name` for the input x."""
        up = apply(f"{name}.up", x)
        hidden = functional.silu(apply(f"{name}.gate", x)) * up if model.is_gated else functional.gelu(up)
        return apply(f"{name}.down", hidden)

    balance_loss = torch.zeros(())
    x = full["embedding.weight"][tokens] + full["position.weight"][: tokens.shape[1]]
    for block in range(model.layers):
        at = f"blocks.{block}"
        h = apply(f"{at}.norm1", x)
        queries, keys, values = (
            apply(f"{at}.{name}", h).unflatten(2, (model.heads, -1)).transpose(1, 2) for name in SPLIT_BY_OUTPUT[:3]
        )
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + apply(f"{at}.out", attended.transpose(1, 2).flatten(2))
        h = apply(f"{at}.norm2", x)
        if model.experts is None:
            x = x + apply_mlp(at, h)
            continue
        factors, block_loss = _weigh_experts(model.experts, apply(f"{at}.router", h), cp)  # (b, t, E), scalar
        balance_loss = balance_loss + model.experts.aux_loss_coeff * block_loss
        for expert, factor in enumerate(factors.unbind(2)):  # (b, t)
            x = x + factor[..., None] * apply_mlp(f"{at}.experts.{expert}", h)
    return apply("norm", x) @ full["embedding.weight"].T, balance_loss


def _weigh_experts(config: ExpertConfig, logits: Any, cp: int) -> tuple[Any, Any]:
    """Return the weight of each expert's output for each token (b, t, E), and the load-balancing loss, a scalar.

    `logits` (b, t, E) are the outputs of the router. The tokens of each of `cp` context-parallel ranks are a group that
    is routed separately; the loss is the mean over these groups.
    """
    factors, losses = torch.zeros_like(logits), []
    for index in range(cp):
        own = take_positions(torch.arange(logits.shape[1]), 0, cp, index)
        of_group, loss = _weigh_experts_of_group(config, logits[:, own].flatten(0, 1))
        factors[:, own] = of_group.unflatten(0, (len(logits), -1))
        losses.append(loss)
    return factors, torch.stack(losses).mean()


def _weigh_experts_of_group(config: ExpertConfig, logits: Any) -> tuple[Any, Any]:
    """Return the weight of each expert's output for each of n tokens (n, E), mostly 0, and the load-balancing loss.

    `logits` (n, E) are the outputs of the router. A cumulative sum counts the earlier tokens that chose the same
    expert, as in GShard; `route_tokens` sorts the choices instead.
    """
    probabilities = logits.softmax(1)  # (n, E)
    weights, chosen = probabilities.topk(config.top_k, 1)  # (n, k) each
    if config.top_k > 1:
        weights = weights / weights.sum(1, keepdim=True)
    choices = functional.one_hot(chosen.T, config.count)  # (k, n, E): 1 at the chosen expert
    places = choices.flatten(0, 1).cumsum(0).view_as(choices)  # (k, n, E): the token's place at the expert, from 1
    is_kept = choices * (places <= config.compute_capacity(len(logits)))  # (k, n, E)
    balance_loss = config.count * (probabilities.mean(0) * choices.to(logits).mean((0, 1))).sum()
    return (is_kept * weights.T[..., None]).sum(0), balance_loss
