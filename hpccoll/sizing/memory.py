"""Memory of a rank at its peak: weights, gradients, optimizer state, activations, buffers of layers, in bytes.

The peak is in the first backward pass, when the rank holds activations of the most micro-batches.

The memory of libraries, of the CUDA context and of fragmentation is not counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from hpccoll.sizing.backward_moments import list_moments
from hpccoll.sizing.model_shape import ModelShape
from hpccoll.sizing.parts import list_rank_parts
from hpccoll.sizing.training_setup import Precision, TrainingSetup


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
        return float(sum(getattr(self, name) for name in self.__slots__))


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


def compute_buffer_bytes(setup: TrainingSetup, rank: int) -> float:
    """Return the bytes of layers in flight under ZeRO, and of the block that ring attention sends, 2 T k e.

    With ZeRO-3, the weights of two consecutive layers are gathered: of the one in use and of the next one. With ZeRO-2
    and 3, the gradients of one layer are whole until they are reduced. ZeRO does not shard the experts that a rank
    holds alone.
    """
    e, model, mesh = setup.precision.element_bytes, setup.model, setup.mesh
    sent = 0.0
    if isinstance(model, ModelShape) and mesh.cp > 1:
        sent = 2 * setup.tokens * model.kv_width * e / mesh.tp
    if setup.shard_level < 2:
        return sent
    sizes = [
        (sum(unit.elements for unit in part.units if setup.count_replicas(unit.kind) > 1), part.count)
        for part in list_rank_parts(setup, rank)
    ]
    reduced = max(size for size, _ in sizes)
    # ZeRO adds the shards of later micro-batches to those of the first one.
    reduced += -(-reduced // setup.replicas) * (setup.microbatches > 1)
    in_turn = [0, *(size for size, count in sizes for _ in range(min(count, 2)))]
    most = Counter[int]()
    for pair in pairwise(in_turn):
        most |= Counter(pair)
    gathered = sum(most.elements()) if setup.program.pools_weights else max(map(sum, pairwise(in_turn)))
    return sent + (reduced + gathered * (setup.shard_level == 3)) * e


def compute_rank_memory(setup: TrainingSetup, rank: int) -> MemoryBytes:
    """Return the bytes of a rank with the index `rank` along pp."""
    peak = max(list_moments(setup, rank), key=lambda each: each.total)
    weights = gradients = optimizer = 0.0
    for part in list_rank_parts(setup, rank):
        for unit in part.units:
            n, level = setup.count_replicas(unit.kind), setup.shard_level
            state = compute_state_bytes(unit.pad(n) if level else unit.elements, level, n, setup.precision)
            weights += part.count * state.weights
            gradients += part.count * state.gradients
            optimizer += part.count * state.optimizer
    return MemoryBytes(
        weights,
        peak.gradients if setup.lacks_gradients else gradients,
        optimizer,
        peak.activations + _compute_batch_bytes(setup),
        peak.recomputed,
        peak.in_flight,
        compute_buffer_bytes(setup, rank),
    )


def _compute_batch_bytes(setup: TrainingSetup) -> float:
    """Return the bytes of the samples of a rank in a step; those of text, which are integers, are not counted."""
    model, precision = setup.model, setup.precision
    if isinstance(model, ModelShape):
        return 0.0
    return setup.tokens * setup.microbatches * model.count_sample_bytes(precision.dtype, precision.element_bytes)


def compute_memory(setup: TrainingSetup) -> MemoryBytes:
    """Return the bytes of the rank that needs most."""
    return max((compute_rank_memory(setup, rank) for rank in setup.compared_ranks), key=lambda each: each.total)
