"""Records of `hpccoll estimate`: one per estimated mesh."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Struct

from hpccoll.records.record import Amount, Natural, Positive, Record, about


class EstimatedBytes(Struct, frozen=True):
    """Estimated bytes of the rank that needs most memory in a training step: weights, gradients, and so on."""

    weights: Annotated[Amount, about("Weights in the type of the computation.")]
    gradients: Annotated[Amount, about("Gradients of the weights on the rank.")]
    optimizer: Annotated[Amount, about("Optimizer state, and the float32 copy of weights in bfloat16.")]
    activations: Annotated[Amount, about("Kept from the forward to the backward pass.")]
    recomputed: Annotated[Amount, about("Activations that the backward pass of one layer recomputes.")]
    buffers: Annotated[Amount, about("Gathered weights and unreduced gradients of layers in flight.")]
    total: Annotated[Amount, about("Sum of the other fields.")]
    in_flight: Annotated[Amount, about("Gradients of activations that a backward pass needs at once.")] = 0
    copies: Annotated[Amount, about("Copies of the state in memory, with --survive.")] = 0


class EstimatedFlops(Struct, frozen=True):
    """Number of floating-point operations of a training step, summed over all ranks."""

    forward: Annotated[Amount, about("Operations of the forward pass.")]
    backward: Annotated[Amount, about("Operations of the backward pass, without recomputation.")]
    recomputed: Annotated[Amount, about("Operations of the forward pass that the backward pass repeats.")]


class TrafficEntry(Struct, frozen=True):
    """Calls, bytes and seconds per step of one collective that one strategy, such as dp, needs on the busiest rank."""

    strategy: Annotated[str, about("dp, zero1, zero2, zero3, tp, sp, pp, cp, ep or copies.")]
    collective: Annotated[str, about("Name of the operation.")]
    calls: Annotated[Natural, about("Calls of a rank.")]
    within: Annotated[Amount, about("Bytes sent inside the node.")]
    between: Annotated[Amount, about("Bytes sent to other nodes.")]
    seconds: Annotated[Amount, about("Time of these calls, hidden or not.")]


class EstimateRecord(Record, frozen=True):
    """The estimated memory, FLOPs, traffic and time of a training step on a mesh (`hpccoll estimate`)."""

    kind: ClassVar[str] = "estimate"

    model: Annotated[str, about("Name of the preset, or custom.")]
    parameters: Annotated[Positive, about("Number of trained values.")]
    active_parameters: Annotated[Positive, about("Parameters that a token uses; fewer only with experts.")]
    strategy: Annotated[str, about("Axes of the mesh with more than one rank, such as dp=2,tp=2.")]
    ranks: Positive
    nodes: Positive
    machine: str
    batch: Annotated[Positive, about("Samples per step, over all ranks.")]
    sequence: Annotated[Positive, about("Tokens per sample.")]
    microbatches: Annotated[Positive, about("Micro-batches per step of each pipeline.")]
    zero: Annotated[Natural, about("ZeRO stage; 0 without ZeRO.")]
    recompute: Annotated[str, about("Activations that the backward pass recomputes: none, selective or full.")]
    sequence_parallel: Annotated[bool, about("Whether tp also splits the activations outside its layers.")]
    schedule: str
    dtype: str
    optimizer: Annotated[str, about("adam or sgd.")]
    fits: Annotated[bool, about("Whether bytes.total is at most usable_bytes.")]
    usable_bytes: Annotated[Amount, about("Memory of a rank, without the part left for libraries.")]
    bytes: EstimatedBytes
    flops: EstimatedFlops
    communication_bytes: Annotated[dict[str, Amount], about("Bytes that the busiest rank sends, by collective.")]
    communication: Annotated[tuple[TrafficEntry, ...], about("One entry per strategy and collective.")]
    overlap: Annotated[
        dict[str, Amount],
        about("By strategy: time of communication divided by time of the computation beside it, at peak rates."),
    ]
    bubble: Annotated[Amount, about("Idle fraction of the pipeline.")]
    efficiency: Annotated[Amount, about("Assumed fraction of the peak rate at which ranks compute.")]
    compute_s: Annotated[Amount, about("Seconds of computation of the slowest rank.")]
    idle_s: Annotated[Amount, about("Seconds of idle time of the pipeline.")]
    exposed_s: Annotated[
        dict[str, Amount], about("Seconds of communication that is not hidden by computation, by strategy.")
    ]
    step_s: Annotated[Amount, about("Sum of compute_s, idle_s and exposed_s.")]
    tokens_per_s: Annotated[Amount, about("Over all ranks.")]
    mfu: Annotated[Amount, about("Model FLOPs utilisation: forward and backward over the peak of all ranks in step_s.")]
    limit: Annotated[str, about("What the step waits for most: compute, bubble or a strategy.")]
