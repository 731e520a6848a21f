"""Memory of a rank at its peak: weights, gradients, optimizer state, activations, buffers of layers, in bytes.

The peak is in the first backward pass, when the rank holds activations of the most micro-batches. The memory of
libraries, of the CUDA context and of fragmentation is not counted. The argument `rank` of a function is a rank's index
along pp.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import or_

from hpccoll.sizing.backward_moments import list_moments
from hpccoll.sizing.rank_parts import list_rank_parts
from hpccoll.sizing.training_setup import Precision, TrainingSetup


@dataclass(frozen=True, slots=True)
class StateBytes:
    """The bytes of a model's weights, gradients and optimizer state on a rank."""

    weights: float
    gradients: float
    optimizer: float


@dataclass(frozen=True, slots=True)
class MemoryBytes:
    """Bytes of a rank's memory, by purpose.

    `activations` are kept from the forward to the backward pass. `recomputed` are the activations that the backward
    pass of one layer recomputes, and `in_flight` the gradients of activations that exist at once in a backward pass.
    `buffers` hold the gathered weights and unreduced gradients of layers in flight. `copies` are copies of the state
    from which the other ranks continue after the death of a rank.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    recomputed: float
    in_flight: float
    buffers: float
    copies: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all kinds of bytes of the rank's memory."""
        return float(sum(getattr(self, name) for name in self.__slots__))


def compute_state_bytes(parameters: float, zero: int, replicas: int, precision: Precision) -> StateBytes:
    """Return a rank's bytes of weights, gradients and optimizer state, for parameters that `replicas` ranks have.

    ZeRO-1 shards the optimizer state over the replicas, ZeRO-2 the gradients as well, and ZeRO-3 the weights as well.
    P parameters in bfloat16 with Adam on D replicas take 16 P bytes without ZeRO, 4 P + 12 P/D with ZeRO-1, 2 P + 14
    P/D with ZeRO-2 and 16 P/D with ZeRO-3. Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, figure 1 and table 1.
    """
    element = parameters * precision.element_bytes
    weights, gradients = (element / (replicas if zero >= stage else 1) for stage in (3, 2))
    optimizer = parameters * precision.optimizer_bytes / (replicas if zero >= 1 else 1)
    return StateBytes(weights, gradients, optimizer)


def compute_buffer_bytes(setup: TrainingSetup, rank: int) -> float:
    """Return the bytes of buffers with the weights and gradients of layers that ZeRO gathers or reduces at a time.

    With ZeRO-3, the weights of two consecutive layers are gathered: of the layer in use and of the next layer. With
    ZeRO-2 and 3, the gradients of one layer are whole until they are reduced. ZeRO does not shard the experts that a
    rank holds alone.
    """
    if setup.shard_level < 2:
        return 0.0
    largest = Counter[int]()  # elements of the largest unit, by the number of its replicas
    in_turn = [Counter[int]()]  # numbers of units by elements, for each part
    for part in list_rank_parts(setup, rank):
        units = Counter[int]()  # elements by the number of replicas
        for unit in part.units:
            units[setup.count_replicas(unit.kind)] += unit.elements
        del units[1]
        padded = {n: -(-elements // n) * n for n, elements in units.items()}
        largest |= Counter(padded)
        in_turn += [Counter(padded.values())] * min(part.count, 2)
    # The gradient shard of a later micro-batch is in a buffer until ZeRO adds it to that of the first micro-batch.
    reduced = sum(elements + elements // n * (setup.microbatches > 1) for n, elements in largest.items())
    pairs = [first + second for first, second in pairwise(in_turn)]
    if setup.program.pools_weights:
        pairs = [reduce(or_, pairs)]
    gathered = max(sum(pair.elements()) for pair in pairs)
    return float(reduced + gathered * (setup.shard_level == 3)) * setup.precision.element_bytes


def compute_copied_bytes(setup: TrainingSetup, rank: int) -> float:
    """Return the bytes of a copy of a rank's state: weights, of which ZeRO copies a shard, and optimizer state."""
    copied = 0.0
    for part in list_rank_parts(setup, rank):
        for unit in part.units:
            n, level = setup.count_replicas(unit.kind), setup.shard_level
            # A copy has the weights in the form in which the optimizer updates them: sharded from ZeRO level 1 on.
            state = compute_state_bytes(unit.pad(n) if level else unit.elements, 3 if level else 0, n, setup.precision)
            copied += part.count * (state.weights + state.optimizer)
    return copied


def _compute_neighbour_bytes(setup: TrainingSetup, rank: int) -> float:
    """Return the bytes of another rank's state that a rank with index `rank` along pp keeps, at most.

    Without replicas, the other rank is the next rank of the mesh, which is on the next stage if a stage has one rank.
    """
    if not setup.sends_copies:
        return 0.0
    others = {rank} if setup.replicas > 1 or setup.mesh.ranks > setup.mesh.pp else set()
    if setup.replicas == 1:
        others.add((rank + 1) % setup.mesh.pp)
    return max(compute_copied_bytes(setup, other) for other in others)


def compute_rank_memory(setup: TrainingSetup, rank: int) -> MemoryBytes:
    """Return the peak memory of a rank with the index `rank` along pp as `MemoryBytes`.

    With copies of the state, the peak may be at the end of the step, when the copies after the last two steps exist.
    """
    peak = max(list_moments(setup, rank), key=lambda moment: moment.total)
    weights = gradients = new_gradients = optimizer = 0.0
    for part in list_rank_parts(setup, rank):
        for unit in part.units:
            n, level = setup.count_replicas(unit.kind), setup.shard_level
            state = compute_state_bytes(unit.pad(n) if level else unit.elements, level, n, setup.precision)
            weights += part.count * state.weights
            gradients += part.count * state.gradients * (not setup.lacks_gradients(unit.kind))
            new_gradients += part.count * state.gradients * setup.lacks_gradients(unit.kind)
            optimizer += part.count * state.optimizer
    batch, buffers = _compute_batch_bytes(setup), compute_buffer_bytes(setup, rank)
    copies = (compute_copied_bytes(setup, rank) + _compute_neighbour_bytes(setup, rank)) if setup.survive else 0.0
    backward = MemoryBytes(
        *(weights, gradients + peak.gradients, optimizer, peak.activations + batch),
        *(peak.recomputed, peak.in_flight, buffers, copies),
    )
    end = MemoryBytes(weights, gradients + new_gradients, optimizer, 0.0, 0.0, 0.0, buffers, 2 * copies)
    return max(backward, end, key=lambda memory: memory.total) if setup.survive else backward


def _compute_batch_bytes(setup: TrainingSetup) -> float:
    """Return the bytes of the samples that a rank trains on in a step."""
    sample = setup.model.count_sample_bytes(setup.precision.dtype, setup.precision.element_bytes)
    return setup.tokens * setup.microbatches * sample


def compute_memory(setup: TrainingSetup) -> MemoryBytes:
    """Return the peak memory of the rank that needs most as `MemoryBytes`."""
    return max((compute_rank_memory(setup, rank) for rank in setup.compared_ranks), key=lambda memory: memory.total)
