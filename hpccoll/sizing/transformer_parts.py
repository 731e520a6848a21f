"""The parts of a transformer on a rank: the embedding, the layers and the output layer.

In formulas, T is the number of tokens of a micro-batch on a rank, s of tokens of a sequence, e of bytes per element, h
of features, k of features of keys (and of values), f of features between the matrices of an MLP, a of heads, E of
experts and V of tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hpccoll.sizing.model_part import ModelPart, ParameterUnit, PartMoment, PartTraffic, make_stage_end
from hpccoll.sizing.training_setup import TrainingSetup
from hpccoll.sizing.transformer_shape import TransformerShape

MASK_BYTES = 1  # bytes per element of a dropout mask


def list_transformer_parts(model: TransformerShape, setup: TrainingSetup, stage: int) -> list[ModelPart]:
    """Return the parts of pipeline stage `stage`: embedding, layers and output layer, as far as the stage has them."""
    if setup.routing is not None:
        setup = replace(setup, routing=setup.routing.find_part(setup.stage_ranks[stage]))
    is_last = stage == setup.pipeline.stages - 1
    parts = [_make_embedding(model, setup)] if stage == 0 else []
    parts.append(_make_layers(model, setup))
    if is_last:
        parts.append(_make_head(model, setup))
    elif setup.program.keeps_outputs:
        parts.append(make_stage_end(parts[-1].output, kept=parts[-1].output))
    return parts


def _make_units(setup: TrainingSetup, dense: int, token: int, expert: int = 0) -> tuple[ParameterUnit, ...]:
    """Return the parameters of a part of the model as units; all parameters of a unit are on the same ranks.

    Without sequence parallelism, the parameters `token` belong to the unit of the parameters `dense`.

    Args:
        dense: the number of parameters outside of experts that a rank applies to all its tokens.
        token: the number of parameters that tp does not split; with sequence parallelism, a rank applies them to its
            share of the tokens only.
        expert: the number of parameters of experts.
    """
    if not setup.sequence_parallel:
        dense, token = dense + token, 0
    kinds: tuple[ParameterUnit, ...] = (
        ParameterUnit(dense), ParameterUnit(token, "token"), ParameterUnit(expert, "expert"),
    )  # fmt: skip
    return tuple(unit for unit in kinds if unit.elements)


def _make_embedding(model: TransformerShape, setup: TrainingSetup) -> ModelPart:
    """Return the embedding as a part of the model; with dropout, it keeps a mask of T h bytes (T tokens, h features).

    With tensor parallelism, an all_reduce sums the partial embeddings. If an output layer on another rank shares the
    weight of the embedding, the weight is a parameter unit of its own.
    """
    tp, width = setup.mesh.tp, model.width
    weight, positions = model.count_vocabulary_weights(tp), 0 if model.like_llama else model.context * width
    if _has_remote_tie(model, setup):
        units = ParameterUnit(weight, is_tied=True), *_make_units(setup, 0, positions)
    else:
        units = _make_units(setup, weight, positions)
    kept = setup.tokens * width * MASK_BYTES / setup.sequence_parallel_size if model.has_dropout else 0.0
    output, summed = _compute_output(model, setup), setup.tokens * width * setup.precision.element_bytes
    return ModelPart(
        units,
        kept,
        [PartMoment(kept, summed, weight + positions)],
        forward_flops=0.0,
        output=output,
        traffic=_list_reductions(model, setup, reductions=1, extra_gathers=0),
    )


def _make_head(model: TransformerShape, setup: TrainingSetup) -> ModelPart:
    """Return the last norm, the output layer and the loss as one part of the model.

    The part keeps the inputs of the last norm and of the output layer, T*h*e bytes each (T tokens, h features, e bytes
    of an element), and the logits in float32, 4 T*V bytes for a vocabulary of V. The backward pass has the gradients of
    the logits; with sequence parallelism, the output layer also needs its input and the gradient of its input for all
    tokens, T*h*e each. The loss sums one float32 per token over tp three times. Source: Korthikanti et al., arXiv
    2205.05198, section 4.3.

    An output layer that shares the weight of the embedding needs a copy of the weight on a rank without the embedding.
    On the rank with the embedding, the output layer's gradient of the weight is kept until that of the embedding is
    computed.
    """
    tp, full, has_remote_tie = setup.mesh.tp, setup.precision.full_bytes, _has_remote_tie(model, setup)
    weight = model.count_vocabulary_weights(tp)
    units = _make_units(setup, weight if model.like_llama else 0, model.norm_parameters)
    is_summed = not (model.like_llama or has_remote_tie) and setup.program.frees_gradients
    logits = setup.tokens * -(-model.vocabulary // tp) * full
    both = 2 * setup.tokens * model.width * setup.precision.element_bytes
    kept = both / setup.sequence_parallel_size + logits
    traffic = _list_reductions(model, setup, reductions=1, extra_gathers=1)
    if traffic:
        strategy = traffic[0].strategy
        traffic.append(PartTraffic(strategy, "all_reduce", 3, 3 * full * setup.tokens))
    return ModelPart(
        (ParameterUnit(weight, is_tied=True), *units) if has_remote_tie else units,
        kept,
        [PartMoment(kept, max(logits, both * setup.sequence_parallel))],
        forward_flops=2.0 * model.width * model.vocabulary * setup.tokens / tp,
        output=0.0,
        traffic=traffic,
        deferred=_compute_waiting(model, setup) + logits,
        held=weight * setup.precision.element_bytes * is_summed,
    )


def _has_remote_tie(model: TransformerShape, setup: TrainingSetup) -> bool:
    """Whether the embedding and the output layer share a weight but are on different ranks."""
    return not model.like_llama and setup.stage_ranks[0] != setup.stage_ranks[-1]


def _make_layers(model: TransformerShape, setup: TrainingSetup) -> ModelPart:
    """Return the layers of a pipeline stage as one part, with their bytes and FLOPs.

    If the schedule computes the gradients of weights later, the inputs and the gradients of outputs of all matrices are
    kept until then. For T tokens of h features, k features of keys, f features in the MLP and e bytes per element, the
    kept tensors have 4 T*h*e bytes, 2 T*(h + k)*e split over tp, and T*f*e per matrix of the MLP, also split over tp.
    """
    activations, tp = compute_layer_activations(model, setup), setup.mesh.tp
    counted = model.count_layer_parameters(tp, setup.mesh.ep)
    # Norms, biases of matrices that are split by input, and routers are applied before the tokens are gathered.
    has_experts = model.experts > 1
    biases = 0 if model.like_llama else (1 if has_experts else 2) * model.width
    token = 2 * model.norm_parameters + biases + has_experts * model.experts * model.width
    recomputed_flops = 0
    if setup.recompute != "none":
        count = model.count_attention_core_flops if setup.recompute == "selective" else model.count_layer_flops
        recomputed_flops = count(setup.sequence)
    alive, features = activations.kept + activations.recomputed, setup.tokens * setup.precision.element_bytes / tp
    deferred = 4 * _compute_waiting(model, setup) + features * (2 * model.width + 2 * model.kv_width)
    deferred = alive if has_experts else deferred + features * model.mlp_width * model.mlp_matrices
    return ModelPart(
        _make_units(setup, counted.dense - token, token, counted.expert),
        activations.kept,
        _list_layer_moments(model, setup, alive),
        forward_flops=model.count_layer_flops(setup.sequence) * setup.tokens / tp,
        output=_compute_output(model, setup),
        recomputed_flops=recomputed_flops * setup.tokens / tp,
        traffic=list(_list_layer_traffic(model, setup)),
        deferred=deferred,
        count=setup.layers_per_stage,
    )


def _list_layer_moments(model: TransformerShape, setup: TrainingSetup, alive: float) -> list[PartMoment]:
    """Return the two moments of a layer's backward pass that may be its memory peak: in its MLP and in attention.

    `alive` has the bytes of the layer's activations, kept or recomputed. In formulas, T is the number of tokens, h of
    features, k of features of keys, e of bytes per element, a of heads and s of positions.

    In the MLP, all activations are alive, and the gradient of a matrix is in flight; if the gradients of weights are
    computed later, the input of the last matrix is already kept for them. In attention, the inputs of the
    layer and of attention, queries, keys, values and outputs are alive; their gradients and that of the layer's output
    are in flight, and the gradients of all weights are complete but those of queries, keys and values.

    Ring attention also needs blocks of keys and values, 2 T*k*e bytes each. While a rank computes with its own block,
    it has three blocks: its own, the next one and a gradient. The rank also has 3 T*h*e bytes of scaled queries and an
    addend of their gradient. If ring attention computes all scores of a block at once, the scores and their gradient
    need a*T*s*e bytes each, for a heads and s positions of a rank. Later in the backward pass, gradients are sent and
    received as well: a rank has four blocks in a ring of 2 ranks, six in a ring of 3 and seven in a larger ring, but
    only 2 T*h*e bytes besides, and either the scores or their gradient.
    """
    mesh, e, h, k = setup.mesh, setup.precision.element_bytes, model.width, model.kv_width
    own, features = _compute_output(model, setup), setup.tokens * e / mesh.tp
    split, ring = features * 2 * (h + k), 0.0
    if mesh.cp > 1:
        scores = model.heads * setup.sequence / mesh.cp * setup.program.has_whole_scores
        first, later = 2 * 2 * k + 3 * h + 2 * scores, (min(2 * mesh.cp, 7) - 1) * 2 * k + 2 * h + scores
        ring = features * max(first, later)
    counted, weights = model.count_layer_parameters(mesh.tp, mesh.ep), h * (h + 2 * k) // mesh.tp
    before = (ParameterUnit(counted.dense - weights), ParameterUnit(counted.expert, "expert"))
    hidden = features * model.mlp_width
    waiting = hidden * model.mlp_matrices + 2 * _compute_waiting(model, setup)
    return [
        PartMoment(alive, _compute_layer_gradients(model, setup), h * model.mlp_width // mesh.tp, deferred=hidden),
        PartMoment(2 * own + split, own + split + ring, finished=before, deferred=waiting),
    ]


def _compute_output(model: TransformerShape, setup: TrainingSetup) -> float:
    """Return the bytes of the output of the embedding or of a layer: T tokens of h features, e bytes each.

    Sequence parallelism splits these T*h*e bytes over tp.
    """
    return setup.tokens * model.width * setup.precision.element_bytes / setup.sequence_parallel_size


def _compute_waiting(model: TransformerShape, setup: TrainingSetup) -> float:
    """Return the bytes of a matrix's input that is kept until the weights' gradients are computed.

    The input has T*h*e bytes for T tokens of h features and e bytes per element.
    """
    gathered = setup.sequence_parallel_size if setup.program.defers_gathered else 1
    return gathered * _compute_output(model, setup)


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """The bytes of a layer's activations for one micro-batch: kept ones, and those recomputed in the backward pass."""

    kept: float
    recomputed: float


def compute_layer_activations(model: TransformerShape, setup: TrainingSetup) -> LayerActivations:
    """Return a rank's bytes of activations of a layer for a micro-batch of T tokens, with e bytes per element.

    Outside the tensor-parallel layers, a layer keeps 4 T*h*e bytes (the inputs of two norms, of attention and of the
    MLP; h features) and with dropout two masks of T*h bytes; sequence parallelism splits these over tp. Inside the
    tensor-parallel layers, tp splits T*h*e bytes of queries, T*k*e bytes each of keys and of values (k features), T*h*e
    bytes of the output matrix's input, and T*f*e bytes per matrix of the MLP (f features). The core of attention keeps
    a*T*s*e bytes of softmax outputs (a heads, s keys), and with dropout a*T*s*(1 + e) bytes of masks and masked
    outputs. A gated MLP of Llama keeps gate, up and their product, and its activation is computed again from the gate;
    other gated MLPs keep the activation, too.

    GPT (k = h, f = 4h, e = 2) keeps T*h (10 + 24/tp + 5 a*s/(h*tp)) bytes, and T*h (34/tp + ...) bytes with sequence
    parallelism. Selective recomputation drops the core of attention, as FlashAttention does; full recomputation keeps
    only the layer's input, 2 T*h bytes.
    Source: Korthikanti et al., arXiv 2205.05198, section 4 and table 2.
    """
    e, tokens, tp = setup.precision.element_bytes, setup.tokens, setup.mesh.tp
    h, has_dropout = model.width, model.has_dropout
    outside = (4 * h * e + has_dropout * 2 * h * MASK_BYTES) / setup.sequence_parallel_size
    inside = e * (2 * h + 2 * model.kv_width) / tp + _compute_mlp_activations(model, setup) / tokens
    scores = model.heads * setup.sequence / tp
    core = 0.0 if model.tiled_attention else scores * (e + has_dropout * (e + MASK_BYTES))
    if setup.recompute == "full":
        kept = h * e / setup.sequence_parallel_size
        return LayerActivations(tokens * kept, tokens * (outside + inside + core - kept))
    if setup.recompute == "selective":
        return LayerActivations(tokens * (outside + inside), tokens * core)
    return LayerActivations(tokens * (outside + inside + core), 0.0)


def _compute_mlp_activations(model: TransformerShape, setup: TrainingSetup) -> float:
    """Return the bytes inside the MLP of a layer for a micro-batch of T tokens: per matrix T*f*e, split over tp.

    A mixture of experts keeps the features of each row that its experts receive, the row itself, and the outputs that
    return for the rank's tokens; rows and outputs have h features of e bytes.
    """
    e = setup.precision.element_bytes
    features = (model.mlp_matrices + model.gated) * model.mlp_width * e / setup.mesh.tp
    if model.experts == 1:
        return setup.tokens * features
    sent, received = _count_expert_rows(model, setup)
    return received * features + (sent + received) * model.width * e


def _count_expert_rows(model: TransformerShape, setup: TrainingSetup) -> tuple[float, float]:
    """Return the rows per micro-batch that a rank sends to the experts of a layer, and that its experts receive.

    Without a counted routing, both numbers of rows are the number of tokens times the number of active experts. With a
    counted routing, both are the rows of the busiest rank: in its busiest pass with full recomputation, otherwise in
    the mean over passes.
    """
    if setup.routing is None:
        return (setup.tokens * model.active_experts,) * 2
    return setup.routing.find_busiest(in_one_pass=setup.recompute == "full")


def _compute_layer_gradients(model: TransformerShape, setup: TrainingSetup) -> float:
    """Return the most bytes of gradients of activations that the backward pass of a layer needs at the same time.

    A rank has T tokens, and the MLP has h features and f hidden features of e bytes. The gradient of the MLP's output
    has T*h*e bytes, and that of its hidden features T*f*e / tp bytes (twice that if the MLP is gated). With sequence
    parallelism, a rank has T*h*e / tp bytes for its own tokens, and gathers T*h*e bytes more, for all tokens.

    A mixture of experts first has three gradients of h*e bytes per row of its tokens: of the weighted output, of the
    output, and of the weight before its sum over features. Later in its backward pass, a rank has the gradients of the
    rows that it received and of the hidden features of one expert, when the returned outputs have been freed.
    """
    if model.experts > 1:
        sent, received = _count_expert_rows(model, setup)
        of_expert = received * model.mlp_width * (model.mlp_matrices - 1) * setup.mesh.ep / model.experts
        rows = max(3 * sent * model.width, (received - sent) * model.width + of_expert / setup.mesh.tp)
        return (setup.tokens * model.width + rows) * setup.precision.element_bytes
    features = model.width / setup.sequence_parallel_size + model.mlp_width * (model.mlp_matrices - 1) / setup.mesh.tp
    features += model.width * setup.sequence_parallel
    return setup.tokens * features * setup.precision.element_bytes


def _list_reductions(
    model: TransformerShape, setup: TrainingSetup, reductions: int, extra_gathers: int
) -> list[PartTraffic]:
    """Return the traffic of a part of the model over the ranks of tp for a micro-batch; empty if tp is 1.

    Each call moves the activations of all T tokens: T*h*e bytes, for h features of e bytes. Sequence parallelism
    replaces each all_reduce by an all_gather and a reduce_scatter, and gathers the inputs of some matrices once more in
    the backward pass (Korthikanti et al., arXiv 2205.05198, section 4.2.2). `reductions` is the number of all_reduce
    calls without sequence parallelism, `extra_gathers` that of additional all_gather calls with it.
    """
    nbytes = setup.tokens * model.width * setup.precision.element_bytes
    if setup.mesh.tp == 1:
        return []
    if not setup.sequence_parallel:
        return [PartTraffic("tp", "all_reduce", reductions, reductions * nbytes)]
    gathers = reductions + extra_gathers
    return [
        PartTraffic("sp", "all_gather", gathers, gathers * nbytes),
        PartTraffic("sp", "reduce_scatter", reductions, reductions * nbytes),
    ]


def _list_layer_traffic(model: TransformerShape, setup: TrainingSetup) -> Iterator[PartTraffic]:
    """Yield the collectives of a layer for a micro-batch, with their bytes.

    Tensor parallelism makes two all_reduce calls in the forward pass (after attention and after the MLP), two in the
    backward pass, and two more if the forward pass is recomputed (Shoeybi et al., Megatron-LM, arXiv 1909.08053,
    section 3), or one more if recomputation omits the second all_reduce, whose result the backward pass does not need.
    A mixture of experts adds one all_reduce in the backward pass, with one gradient (that of the routing weight) per
    token and active expert that processes it. With sequence parallelism, a mixture also gathers the router's outputs
    (T*E*e bytes for T tokens, E experts and e bytes per element), but no inputs in the backward pass.

    Ring attention sends the keys and values of a rank (2 T*k*e bytes for T tokens, k features and e bytes per element)
    around the ring of n ranks in n - 1 sends in the forward pass, again in the backward pass, and again if the forward
    pass is recomputed. The gradients of keys and values take n - 1 more sends in the backward pass. Source: Liu,
    Zaharia and Abbeel, Ring attention, arXiv 2310.01889.
    """
    mesh, e, is_full = setup.mesh, setup.precision.element_bytes, setup.recompute == "full"
    recomputed = is_full * (1 + setup.program.repeats_last_reduction)
    # Recomputation that omits the last reduce_scatter of a layer keeps both all_gathers.
    has_experts = model.experts > 1
    yield from _list_reductions(model, setup, 4 + recomputed, 2 + (recomputed == 1) - has_experts)
    if mesh.tp > 1 and has_experts:
        choices = float(setup.tokens * model.active_experts)
        if setup.routing is not None:
            choices = setup.routing.kept / setup.routing.passes
        yield PartTraffic("sp" if setup.sequence_parallel else "tp", "all_reduce", 1, choices * e)
        if setup.sequence_parallel:
            yield PartTraffic("sp", "all_gather", 1 + is_full, (1 + is_full) * setup.tokens * model.experts * e)
    if mesh.cp > 1:
        sends = (3 + is_full) * (mesh.cp - 1)
        yield PartTraffic("cp", "send", sends, sends * 2 * setup.tokens * model.kv_width * e / mesh.tp)
    if mesh.ep > 1:
        yield _make_exchange(model, setup)


def _make_exchange(model: TransformerShape, setup: TrainingSetup) -> PartTraffic:
    """Return the all_to_all traffic of a layer of experts for a micro-batch.

    Tokens go to the ranks of their experts and back, and so do their gradients.

    For T tokens of h features and e bytes per element, each of the 4 all_to_all calls per layer (6 if the forward pass
    is recomputed) moves T*h*e bytes for each active expert, of which (n-1)/n go to the other n - 1 ranks if tokens
    choose experts evenly (Lepikhin et al., GShard, arXiv 2006.16668). With a counted routing, the bytes are those of
    the counted rows: half of the calls send rows to experts, half send outputs back. Each rank of tp sends whole
    tokens. Before the tokens, another all_to_all of each forward pass sends the number of tokens for each expert, 8
    bytes each.
    """
    n, passes = setup.mesh.ep, 2 if setup.recompute == "full" else 1
    exchanges = 2 * (1 + passes)
    rows = (n - 1) * exchanges * setup.tokens * model.active_experts / n
    if setup.routing is not None:
        rows = exchanges * setup.routing.exchanged / (2 * setup.routing.passes)
    row_bytes = model.width * setup.precision.element_bytes
    sent = rows * row_bytes + (n - 1) * passes * 8 * model.experts / n
    return PartTraffic("ep", "all_to_all", exchanges + passes, sent)
