"""Parameters: of the model, of those that a token uses, and of one rank.

A layer of width h, with keys and values of width k, has h (2h + 2k) weights in attention (queries and output h h each,
keys and values h k each). Its MLP of feed-forward width f has 2 h f weights, or 3 h f if it is gated. A router to E
experts has h E. For GPT-2, k = h and f = 4 h give 12 h^2, of which Kaplan et al., arXiv 2001.08361, table 1, count
h (3 + 1) h in attention and 8 h^2 in the MLP. Biases and norms add 13 h to a layer of GPT-2, and norms 2 h to one of
Llama. The embedding has V h weights, GPT-2's positions have c h (c tokens of context), and Llama's output layer V h.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpccoll.sizing.model_shape import ModelShape
from hpccoll.sizing.training_setup import TrainingSetup


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Numbers of parameters: `dense` ones are the same on all ranks of ep, `expert` ones belong to experts."""

    dense: int = 0
    expert: int = 0

    @property
    def total(self) -> int:
        """All parameters."""
        return self.dense + self.expert

    def __add__(self, other: ParameterCount) -> ParameterCount:
        return ParameterCount(self.dense + other.dense, self.expert + other.expert)

    def __mul__(self, times: int) -> ParameterCount:
        return ParameterCount(self.dense * times, self.expert * times)


def count_norm(model: ModelShape) -> int:
    """Return the parameters of a norm: h scales, and h biases as well in LayerNorm."""
    return model.width * (1 if model.like_llama else 2)


def count_layer(model: ModelShape, tp: int = 1, ep: int = 1) -> ParameterCount:
    """Return a rank's parameters of a layer.

    tp splits all matrices, and the biases of those that are split by output; norms, router and the biases of the
    matrices that are split by input are on every rank of tp. ep splits the experts, which have no biases (Fedus et al.,
    Switch Transformers, arXiv 2101.03961).
    """
    h, k, f, has_biases = model.width, model.kv_width, model.mlp_width, not model.like_llama
    attention = h * (2 * h + 2 * k) // tp + has_biases * (model.qkv_biases * (h + 2 * k) // tp + h)
    mlp, mlp_biases = model.mlp_matrices * h * f // tp, has_biases * ((model.mlp_matrices - 1) * f // tp + h)
    around = 2 * count_norm(model)
    if model.experts == 1:
        return ParameterCount(attention + mlp + mlp_biases + around)
    return ParameterCount(attention + around + h * model.experts, mlp * (model.experts // ep))


def count_embedding(model: ModelShape, tp: int = 1) -> int:
    """Return a rank's parameters of the embedding: V h, split by rows (rounded up), and GPT-2's positions."""
    positions = 0 if model.like_llama else model.context * model.width
    return -(-model.vocabulary // tp) * model.width + positions


def count_head(model: ModelShape, tp: int = 1) -> int:
    """Return a rank's parameters of an output layer with a weight of its own: V h, split by rows (rounded up)."""
    return -(-model.vocabulary // tp) * model.width


def count_model(model: ModelShape) -> ParameterCount:
    """Return all parameters of the model."""
    outside = count_embedding(model) + count_norm(model) + (count_head(model) if model.like_llama else 0)
    return count_layer(model) * model.layers + ParameterCount(outside)


def count_active(model: ModelShape) -> int:
    """Return the parameters that a token uses: of the experts, `active_experts` per layer."""
    counted = count_model(model)
    return counted.dense + counted.expert * model.active_experts // model.experts


def count_token_parameters(setup: TrainingSetup) -> int:
    """Return the number of a rank's parameters that sequence parallelism applies to the rank's own tokens only.

    `count_rank` includes them. They are norms, the biases of row-parallel matrices, routers, and GPT-2's positions. The
    busiest rank of a pipeline is the first one with positions, and the last one without.
    """
    model, pp = setup.model, setup.mesh.pp
    layers = setup.layers_per_stage * setup.shape.stages_per_rank
    has_experts = model.experts > 1
    biases = 0 if model.like_llama else (1 if has_experts else 2) * model.width
    per_layer = 2 * count_norm(model) + biases + has_experts * model.experts * model.width
    positions = 0 if model.like_llama else model.context * model.width
    ends = positions + count_norm(model) if pp == 1 else max(positions, count_norm(model))
    return layers * per_layer + ends


def count_rank(setup: TrainingSetup, rank: int) -> ParameterCount:
    """Return the parameters of a rank with the index `rank` along pp.

    An output layer that shares the weight of the embedding needs a copy of the weight if its rank has no embedding.
    """
    model, tp, stages = setup.model, setup.mesh.tp, setup.shape.stages_per_rank
    placed = setup.family.place_stages(setup.shape)
    first, last = placed[0] == rank, placed[-1] == rank
    outside = count_embedding(model, tp) if first else 0
    if last:
        outside += count_norm(model) + (count_head(model, tp) if model.like_llama or not first else 0)
    return count_layer(model, tp, setup.mesh.ep) * (setup.layers_per_stage * stages) + ParameterCount(outside)
