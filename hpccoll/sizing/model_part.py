"""A part of a model on a rank, such as a layer: its parameters, activations, traffic and FLOPs for a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

ReplicaKind = Literal["dense", "token", "expert"]


@dataclass(frozen=True, slots=True)
class ParameterUnit:
    """Parameters of a part of a model that the same ranks hold, and that ZeRO shards together.

    The replicas of `dense` parameters are the ranks of dp, cp and ep, and those of `expert` parameters the ranks of dp
    and cp. With sequence parallelism, the replicas of the parameters that tp does not split (`token`) include those of
    tp, because these ranks have different tokens.
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
        calls: the number of calls.
        nbytes: the bytes of all calls together: of the messages of all_reduce, all_gather and reduce_scatter, and for
            all_to_all and send, those that the rank sends.
    """

    strategy: str
    collective: str
    calls: int
    nbytes: float


class PartMoment(NamedTuple):
    """The memory in use at a moment of the backward pass of a `ModelPart`, at which it may be at its peak.

    Args:
        alive: bytes of the part's activations, kept or recomputed.
        in_flight: bytes of gradients of activations.
        unsummed: number of parameters whose gradients are computed, but not yet added to the sums over micro-batches.
        finished: other parameters of the part, whose gradients are complete.
        deferred: more bytes of the part, kept only if the schedule computes the gradients of weights later.
    """

    alive: float
    in_flight: float
    unsummed: int = 0
    finished: tuple[ParameterUnit, ...] = ()
    deferred: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Consecutive equal parts of a model on one rank, such as layers; bytes and FLOPs are those of one of them.

    A pipeline schedule may compute the gradients of weights later than those of inputs. Until then, `deferred` bytes
    are kept: the inputs of linear layers and the gradients of their outputs.
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
    """Return a model part for the end of a pipeline stage, which keeps its output until its backward pass has ended.

    The gradient of the output, which the next stage sends, is kept as long.

    Args:
        output: the bytes of the output.
        kept: the bytes of the output that no layer of the stage keeps.
    """
    return ModelPart((), kept, [PartMoment(kept, 0.0)], 0.0, output, held=2 * output)
