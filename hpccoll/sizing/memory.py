"""Memory of a rank at its peak: weights, gradients, optimizer state, activations, buffers of layers, in bytes.

The peak is in the first backward pass, when the rank holds activations of the most micro-batches.

The memory of libraries, of the CUDA context and of fragmentation is not counted.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from itertools import chain

from hpccoll.plan import ActionKind
from hpccoll.plan.schedule import GIVES_WEIGHT_GRADIENT
from hpccoll.sizing.parameters import count_embedding, count_layer, count_rank
from hpccoll.sizing.training_setup import Precision, TrainingSetup

MASK_BYTES = 1  # an element of a dropout mask


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of the model's state on a rank."""

    weights: float
    gradients: float
    optimizer: float


@dataclass(frozen=True, slots=True)
class MemoryBytes:
    """Bytes of a rank's memory, by content.

    `activations` are kept from the forward to the backward pass. `recomputed` are the activations that the backward
    pass of one layer recomputes, and `in_flight` the gradients of activations that exist at once in a backward pass.
    `buffers` hold the gathered weights and unreduced gradients of layers in flight.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    recomputed: float
    in_flight: float
    buffers: float

    @property
    def total(self) -> float:
        """All bytes."""
        return float(sum(astuple(self)))


def compute_state_bytes(parameters: float, zero: int, replicas: int, precision: Precision) -> StateBytes:
    """Return the bytes of the state of `parameters` parameters of a rank that `replicas` ranks have.

    ZeRO-1 shards the optimizer state over the replicas, ZeRO-2 the gradients as well, and ZeRO-3 the weights as well.
    For P parameters in bfloat16 with Adam on D replicas: 16 P bytes without ZeRO, then 4 P + 12 P/D, 2 P + 14 P/D and
    16 P/D. Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, figure 1 and table 1.
    """
    element = parameters * precision.element_bytes
    weights, gradients = (element / (replicas if zero >= stage else 1) for stage in (3, 2))
    optimizer = parameters * precision.optimizer_bytes / (replicas if zero >= 1 else 1)
    return StateBytes(weights, gradients, optimizer)


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """Bytes of a layer's activations for one micro-batch: kept, and recomputed in the layer's backward pass."""

    kept: float
    recomputed: float


def compute_layer_activations(setup: TrainingSetup) -> LayerActivations:
    """Return a rank's activations of a layer for a micro-batch of T tokens, in elements of e bytes.

    Outside the tensor-parallel layers, a layer keeps 4 T h e bytes (the inputs of two norms, of attention and of the
    MLP) and with dropout two masks of T h bytes; sequence parallelism splits these over tp. Inside, tp splits T h e for
    queries, T k e each for keys and values, T h e for the input of the output matrix, and per MLP matrix T f e. The
    core of attention keeps a T s e for a heads of softmax outputs over s keys, and with dropout a T s (1 + e) for masks
    and their outputs. A gated MLP of Llama keeps gate, up and their product, and its activation is computed again from
    the gate; other gated MLPs keep the activation, too.

    For GPT (k = h, f = 4h, e = 2): T h (10 + 24/tp + 5 a s/(h tp)), and T h (34/tp + ...) with sequence parallelism.
    Selective recomputation drops the core, as FlashAttention does; full recomputation keeps only the input, 2 T h.
    Source: Korthikanti et al., arXiv 2205.05198, section 4 and table 2.
    """
    model, e, tokens, tp = setup.model, setup.precision.element_bytes, setup.tokens, setup.mesh.tp
    h, has_dropout = model.width, model.has_dropout
    outside = (4 * h * e + has_dropout * 2 * h * MASK_BYTES) / setup.norm_split
    inside = e * (2 * h + 2 * model.kv_width) / tp + _compute_mlp_activations(setup) / tokens
    scores = model.heads * setup.sequence / tp
    core = 0.0 if model.tiled_attention else scores * (e + has_dropout * (e + MASK_BYTES))
    if setup.recompute == "full":
        kept = h * e / setup.norm_split
        return LayerActivations(tokens * kept, tokens * (outside + inside + core - kept))
    if setup.recompute == "selective":
        return LayerActivations(tokens * (outside + inside), tokens * core)
    return LayerActivations(tokens * (outside + inside + core), 0.0)


def _compute_mlp_activations(setup: TrainingSetup) -> float:
    """Return the bytes inside the MLP of a layer for a micro-batch of T tokens: per matrix T f e, split over tp.

    A mixture of experts keeps the features of each row that its experts receive, the row itself, and the outputs that
    return for the rank's tokens, h e per row.
    """
    model, e = setup.model, setup.precision.element_bytes
    features = (model.mlp_matrices + model.gated) * model.mlp_width * e / setup.mesh.tp
    if model.experts == 1:
        return setup.tokens * features
    sent, received = setup.count_expert_rows()
    return received * features + (sent + received) * model.width * e


def compute_activation_bytes(setup: TrainingSetup, rank: int) -> float:
    """Return the activations that a rank of the pipeline keeps, for the micro-batches that its schedule keeps alive.

    With 1F1B, stage 0 of p keeps p micro-batches of L/p layers, as many as a rank without a pipeline keeps for one
    micro-batch. The first stage keeps the dropout mask of the embedding, T h bytes per micro-batch. The last stage
    keeps the inputs of the last norm and of the output layer, T h e each, and the logits in float32, 4 T V.
    Source: Korthikanti et al., arXiv 2205.05198, section 4.3 and equation 5; `schedules` has the live micro-batches.
    """
    shape, family = setup.shape, setup.family
    per_stage = {
        stage: _compute_stage_activations(setup, stage)
        for stage, own in enumerate(family.place_stages(shape))
        if own == rank
    }
    if len(per_stage) == 1:
        ((stage, nbytes),) = per_stage.items()
        return family.activations(shape, stage) * nbytes
    now = peak = 0.0
    for action in chain.from_iterable(family.steps(shape, rank)):
        if action.kind == ActionKind.FORWARD:
            now += per_stage[action.stage]
            peak = max(peak, now)
        elif action.kind in GIVES_WEIGHT_GRADIENT:
            now -= per_stage[action.stage]
    return peak


def _compute_stage_activations(setup: TrainingSetup, stage: int) -> float:
    """Return the bytes that a pipeline stage keeps for a micro-batch: of its layers, and of embedding and output."""
    model, total = setup.model, setup.layers_per_stage * compute_layer_activations(setup).kept
    output = setup.tokens * model.width * setup.precision.element_bytes / setup.norm_split
    if stage == 0 and model.has_dropout:
        total += setup.tokens * model.width * MASK_BYTES / setup.norm_split
    if stage == setup.shape.stages - 1:
        return total + 2 * output + _compute_logit_bytes(setup)
    return total + output * setup.program.keeps_outputs


def _compute_logit_bytes(setup: TrainingSetup) -> float:
    """Return the bytes of a rank's logits of a micro-batch."""
    return setup.tokens * -(-setup.model.vocabulary // setup.mesh.tp) * setup.precision.full_bytes


def _compute_layer_gradients(setup: TrainingSetup) -> float:
    """Return the bytes of the gradients of activations that the backward pass of a layer needs at once.

    These are the gradients of the MLP's output, T h e, and of its hidden features, T f e (twice if it is gated). With
    sequence parallelism, a rank has the first for its own tokens, and gathers it for all tokens, T h e more.

    A mixture of experts first has three gradients of h e bytes per row of its tokens: of the weighted output, of the
    output, and of the weight before its sum over features. Later, it has the gradients of the rows that it received and
    of the hidden features of one expert, when the returned outputs have been freed.
    """
    model = setup.model
    if model.experts > 1:
        sent, received = setup.count_expert_rows()
        of_expert = received * model.mlp_width * (model.mlp_matrices - 1) * setup.mesh.ep / model.experts
        rows = max(3 * sent * model.width, (received - sent) * model.width + of_expert / setup.mesh.tp)
        return (setup.tokens * model.width + rows) * setup.precision.element_bytes
    features = model.width / setup.norm_split + model.mlp_width * (model.mlp_matrices - 1) / setup.mesh.tp
    features += model.width * setup.sequence_parallel
    return setup.tokens * features * setup.precision.element_bytes


@dataclass(frozen=True, slots=True)
class PassBytes:
    """Bytes of activations at a moment of a backward pass: kept, recomputed, and their gradients in flight."""

    activations: float
    recomputed: float
    in_flight: float

    @property
    def total(self) -> float:
        """All bytes."""
        return self.activations + self.recomputed + self.in_flight


def compute_pass_bytes(setup: TrainingSetup, rank: int) -> PassBytes:
    """Return the bytes of activations of a rank at the peak of its first backward pass.

    On the last stage, the peak is in the output layer or in the last layer, where logits and inputs of the output layer
    have been freed. The output layer has the gradients of the logits; with sequence parallelism, it also needs its
    input and the gradient of its input for all tokens, T h e each.
    """
    activations = compute_activation_bytes(setup, rank)
    recomputed, in_flight = compute_layer_activations(setup).recomputed, _compute_layer_gradients(setup)
    if setup.family.place_stages(setup.shape)[-1] != rank:
        return PassBytes(activations, recomputed, in_flight)
    logits = _compute_logit_bytes(setup)
    both = 2 * setup.tokens * setup.model.width * setup.precision.element_bytes
    in_output = PassBytes(activations, 0.0, max(logits, both * setup.sequence_parallel))
    in_layer = PassBytes(activations - logits - both / setup.norm_split, recomputed, in_flight)
    return max(in_output, in_layer, key=lambda each: each.total)


def compute_buffer_bytes(setup: TrainingSetup) -> float:
    """Return the bytes of layers in flight under ZeRO, and of the block that ring attention sends, 2 T k e.

    With ZeRO-3, the weights of two layers are gathered: of the one in use and of the next one. With ZeRO-2 and 3, the
    gradients of one layer are whole until they are reduced. The embedding counts as a layer if it is larger than a
    layer without experts. ZeRO does not shard the experts that a rank holds alone.
    """
    e, tp = setup.precision.element_bytes, setup.mesh.tp
    sent = 2 * setup.tokens * setup.model.kv_width * e / tp if setup.mesh.cp > 1 else 0.0
    if setup.zero < 2 or setup.replicas == 1:
        return sent
    layer = count_layer(setup.model, setup.mesh.tp, setup.mesh.ep)
    experts = layer.expert if setup.expert_replicas > 1 else 0
    largest = max(layer.dense, count_embedding(setup.model, setup.mesh.tp)) + experts
    return sent + (largest + (2 * largest if setup.zero == 3 else 0)) * setup.precision.element_bytes


def _compute_early_gradients(setup: TrainingSetup, rank: int, gradients: float, peak: PassBytes) -> float:
    """Return the bytes by which `gradients` raise the peak: all of them, unless each step begins without gradients.

    If a step begins without gradients, none exist yet when activations are at their peak, before the first backward
    pass ends. When that pass reaches its last layer, all gradients exist, but the activations of the other layers are
    freed. The result is the excess of this second moment over `peak`, or zero.
    """
    live = setup.family.activations(setup.shape, rank)
    if not setup.program.frees_gradients or setup.replicas > 1 or setup.microbatches > live:
        return gradients
    layer = compute_layer_activations(setup)
    others = compute_activation_bytes(setup, rank) * (1 - 1 / live)
    last_layer = others + layer.kept + layer.recomputed + _compute_layer_gradients(setup)
    return max(gradients + last_layer - peak.total, 0.0)


def compute_rank_memory(setup: TrainingSetup, rank: int) -> MemoryBytes:
    """Return the bytes of a rank with the index `rank` along pp."""
    peak, parameters = compute_pass_bytes(setup, rank), count_rank(setup, rank)
    dense = compute_state_bytes(parameters.dense, setup.zero, setup.replicas, setup.precision)
    expert = compute_state_bytes(parameters.expert, setup.zero, setup.expert_replicas, setup.precision)
    return MemoryBytes(
        dense.weights + expert.weights,
        _compute_early_gradients(setup, rank, dense.gradients + expert.gradients, peak),
        dense.optimizer + expert.optimizer,
        peak.activations,
        peak.recomputed,
        peak.in_flight,
        compute_buffer_bytes(setup),
    )


def compute_memory(setup: TrainingSetup) -> MemoryBytes:
    """Return the bytes of the rank that needs most: the first or the last of the pipeline.

    The ranks between them have fewer parameters, and no more live micro-batches than the first one.
    """
    return max((compute_rank_memory(setup, rank) for rank in {0, setup.mesh.pp - 1}), key=lambda each: each.total)
