"""A part of a model on a rank, such as a layer: its parameters, activations, traffic and FLOPs for a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

ReplicaKind = Literal["dense", "token", "expert"]


@dataclass(frozen=True, slots=True)
class ParameterUnit:
    """Parameters of a part of a model; the same ranks hold all of them, and ZeRO shards them together.

    The replicas of `dense` parameters are the ranks of dp, cp and ep, and those of `expert` parameters the ranks of dp
    and cp. With sequence parallelism, the replicas of the parameters that tp does not split (`token`) include the ranks
    of tp, because ranks of tp have different tokens.
    """

    elements: int
    kind: ReplicaKind = "dense"
    is_tied: bool = False  # whether the first and the last pipeline stage, on different ranks, share the parameters

    def pad(self, ranks: int) -> int:
        """Return the number of the unit's elements, rounded up to a multiple of `ranks` as ZeRO pads it."""
        return -(-self.elements // ranks) * ranks


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Numbers of parameters: `expert` ones belong to experts, `dense` ones are equal on all expert-parallel ranks."""

    dense: int
    expert: int = 0

    @property
    def total(self) -> int:
        """The number of all parameters, dense and expert ones."""
        return self.dense + self.expert


class PartTraffic(NamedTuple):
    """The calls of one collective by a part of a model on a rank for one micro-batch.

    Args:
        strategy: the parallel strategy whose ranks communicate, such as `tp`.
        collective: the operation, such as `all_reduce`.
        nbytes: the total of all calls: for all_reduce, all_gather and reduce_scatter, the message size S as nccl-tests
            defines it; for all_to_all and send, the bytes that the rank sends.
        calls: the number of calls.
    """

    strategy: str
    collective: str
    calls: int
    nbytes: float


class PartMoment(NamedTuple):
    """The memory in use at a moment of a `ModelPart`'s backward pass at which memory may be at its peak.

    Args:
        alive: bytes of the part's activations, kept or recomputed.
        in_flight: bytes of gradients of activations.
        unsummed: number of parameters whose gradients are computed, but not yet added to the sums over micro-batches.
        finished: other parameters of the part, whose gradients are complete.
        deferred: further bytes of the part, which are kept if the schedule computes the gradients of weights later.
    """

    alive: float
    in_flight: float
    unsummed: int = 0
    finished: tuple[ParameterUnit, ...] = ()
    deferred: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Consecutive equal parts of a model on one rank, such as layers; bytes and FLOPs are those of one part.

    A pipeline schedule may compute the gradients of weights later than the gradients of inputs. Between these two
    computations, `deferred` bytes are kept: the inputs of linear layers and the gradients of their outputs.
    """

    units: tuple[ParameterUnit, ...]
    kept: float  # bytes of activations from the forward to the backward pass
    moments: Sequence[PartMoment]  # in the order of the backward pass
    forward_flops: float
    output: float  # bytes that a pipeline stage that ends with the part sends to the next stage
    recomputed_flops: float = 0.0
    traffic: Sequence[PartTraffic] = ()
    deferred: float = 0.0
    held: float = 0.0  # bytes during the backward passes of all parts before this one in the stage
    count: int = 1  # number of equal parts

    @property
    def elements(self) -> int:
        """The number of parameters of one of the equal parts."""
        return sum(unit.elements for unit in self.units)


def make_stage_end(output: float, *, kept: float) -> ModelPart:
    """Return a model part for the output of a pipeline stage, kept until the stage's backward pass has ended.

    The gradient of the output, which the next stage sends, is also kept until the backward pass has ended. `output` is
    the number of bytes of the output. A layer of the stage may already keep them; `kept` of these bytes are not kept by
    a layer, so the end of the stage keeps them.
    """
    return ModelPart((), kept, [PartMoment(kept, 0.0)], 0.0, output, held=2 * output)
