"""A training step to estimate: the model, the mesh of ranks, the batch, and the use of ZeRO and recomputation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias, get_args

from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import EXPERT_REPLICAS, REPLICAS, TOKEN_REPLICAS, Mesh
from hpccoll.schedules import PipelineShape, ScheduleFamily, get_schedule
from hpccoll.sizing.expert_routing import ExpertRouting
from hpccoll.sizing.model_part import ReplicaKind
from hpccoll.sizing.perceptron_shape import PerceptronShape
from hpccoll.sizing.transformer_shape import TransformerShape

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
ModelShape: TypeAlias = TransformerShape | PerceptronShape
REPLICA_AXES: dict[ReplicaKind, tuple[str, ...]] = {
    "dense": REPLICAS,
    "token": TOKEN_REPLICAS,
    "expert": EXPERT_REPLICAS,
}
ZERO_STAGES = (0, 1, 2, 3)
DTYPES = {"bfloat16": 2, "float32": 4, "float64": 8}  # bytes per element
OPTIMIZERS = {"adam": 2, "sgd": 0}  # values of optimizer state per parameter


@dataclass(frozen=True, slots=True)
class Precision:
    """The dtype and the optimizer, which determine the bytes per parameter and per element of activations."""

    dtype: str = "bfloat16"
    optimizer: str = "adam"

    @property
    def element_bytes(self) -> int:
        """The bytes of a weight, a gradient, or an element of an activation."""
        return DTYPES[self.dtype]

    @property
    def optimizer_bytes(self) -> int:
        """The optimizer's bytes per parameter; its values are in float64 if the weights are, otherwise in float32.

        Adam keeps two moments. Weights in bfloat16 have a copy in float32. Adam with bfloat16 takes 4 + 4 + 4 = 12
        bytes, the K = 12 of Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1.
        """
        return self.full_bytes * (OPTIMIZERS[self.optimizer] + (self.element_bytes < 4))

    @property
    def full_bytes(self) -> int:
        """The bytes of an element that is computed in at least float32, such as a logit."""
        return max(self.element_bytes, 4)


@dataclass(frozen=True, slots=True)
class TrainingProgram:
    """Properties of the training program on which memory and traffic depend; the defaults are those of Megatron-LM."""

    frees_gradients: bool = False  # each step begins without gradients, unless they are kept in buckets for all_reduces
    keeps_outputs: bool = False  # the output of a pipeline stage is kept until its backward pass
    pools_weights: bool = False  # memory of freed gathered weights is kept for other weights of the same size
    defers_gathered: bool = False  # inputs wait for the gradients of weights with the tokens of all ranks of tp
    has_whole_scores: bool = False  # ring attention computes all scores of a block of keys at once
    repeats_last_reduction: bool = True  # recomputation repeats the all_reduce at the end of a layer


@dataclass(frozen=True)
class TrainingSetup:
    """A training step to estimate: `batch` samples of `sequence` tokens over all ranks of a mesh.

    Each pipeline runs its samples in `microbatches` micro-batches.
    """

    model: ModelShape
    mesh: Mesh
    batch: int
    sequence: int
    microbatches: int
    zero: int = 0
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    precision: Precision = Precision()
    program: TrainingProgram = TrainingProgram()
    routing: ExpertRouting | None = None  # None: tokens choose experts evenly, and no choice is dropped
    survive: bool = False  # each step copies the state, from which the other ranks continue after the death of a rank

    @cached_property
    def _hash(self) -> int:
        """The hash of the fields that differ most between setups, computed once."""
        return hash((self.model, self.mesh, self.microbatches, self.recompute))

    def __hash__(self) -> int:
        """Return the hash, which is computed once, because caches look setups up often."""
        return self._hash

    @cached_property
    def unsharded(self) -> TrainingSetup:
        """This setup, but without ZeRO."""
        return replace(self, zero=0) if self.zero else self

    @cached_property
    def tokens(self) -> int:
        """The number T of tokens of a micro-batch on a rank, before sequence parallelism splits some layers further."""
        return self.batch // (self.mesh.samplers * self.microbatches) * (self.sequence // self.mesh.cp)

    @property
    def sequence_parallel_size(self) -> int:
        """The number of ranks that split the activations outside of tensor-parallel layers: tp, or 1 without sp."""
        return self.mesh.tp if self.sequence_parallel else 1

    @cached_property
    def family(self) -> ScheduleFamily:
        """The pipeline schedule that `schedule` names, for any numbers of stages and micro-batches."""
        return get_schedule(self.schedule)

    @cached_property
    def pipeline(self) -> PipelineShape:
        """The numbers of ranks, stages and micro-batches of the pipeline."""
        return PipelineShape(self.mesh.pp, self.family.default_stages_per_rank, self.microbatches)

    @cached_property
    def stage_ranks(self) -> tuple[int, ...]:
        """The index along pp of the rank of each pipeline stage."""
        return self.family.place_stages(self.pipeline)

    @property
    def layers_per_stage(self) -> int:
        """The number of layers of a pipeline stage."""
        return self.model.layers // self.pipeline.stages

    @property
    def sends_copies(self) -> bool:
        """Whether each rank copies its state to a neighbour: with `survive`, if no other rank holds the same state."""
        kinds: tuple[ReplicaKind, ...] = ("dense", "expert") if self.model.experts > 1 else ("dense",)
        is_unique = self.shard_level > 0 or any(self.count_replicas(kind) == 1 for kind in kinds)
        return self.survive and self.mesh.ranks > 1 and is_unique

    @property
    def replicas(self) -> int:
        """The number of ranks with the same dense parameters (those that do not belong to experts)."""
        return self.count_replicas("dense")

    @cached_property
    def shard_level(self) -> int:
        """The level of ZeRO; 0 on a mesh without replicas, where ZeRO has nothing to split."""
        return self.zero if self.replicas > 1 else 0

    def count_replicas(self, kind: ReplicaKind) -> int:
        """Return the number of ranks that hold the same parameters of a kind (dense, expert or token)."""
        return self._replica_counts[kind]

    @cached_property
    def _replica_counts(self) -> dict[ReplicaKind, int]:
        """The number of ranks that hold the same parameters, by kind of parameter (dense, expert or token)."""
        return {kind: self.mesh.count(*axes) for kind, axes in REPLICA_AXES.items()}

    def lacks_gradients(self, kind: ReplicaKind) -> bool:
        """Whether each step begins without the gradients of a kind of parameters (dense, expert or token)."""
        return self.program.frees_gradients and not self.shard_level and self.count_replicas(kind) == 1

    def holds_gradients(self, kind: ReplicaKind) -> bool:
        """Whether complete gradients of a kind of parameters take memory of their own, outside of buffers.

        With ZeRO-2 or 3 and several replicas, this memory is free again once all gradients of a layer are complete; if
        `lacks_gradients` is true, the memory is kept until the end of the step.
        """
        return self.lacks_gradients(kind) or (self.shard_level >= 2 and self.count_replicas(kind) > 1)

    @cached_property
    def compared_ranks(self) -> set[int]:
        """The indices along pp of the ranks that may need most memory or send most: the first, the second and the last.

        Of the ranks between the first and the last one, none has larger stages than the second, or keeps more
        micro-batches. With a counted routing of experts, the result has the indices of all ranks.
        """
        if self.routing is not None:
            return set(range(self.mesh.pp))
        return {0, min(1, self.mesh.pp - 1), self.mesh.pp - 1}

    def require_fits(self) -> None:
        """Raise UsageError unless the mesh divides the model, the batch and the sequence."""
        if misfit := self.find_misfit():
            raise UsageError(f"{self.mesh}: {misfit}")

    def find_misfit(self) -> str | None:
        """Return a message that names an axis of the mesh that does not divide a quantity, such as the heads.

        If the schedule does not allow the number of micro-batches, the message states the numbers of micro-batches that
        the schedule allows. The result is None if everything fits.
        """
        mesh, sp, per_sampler = self.mesh, self.sequence_parallel_size, self.mesh.samplers * self.microbatches
        divided = (
            *self.model.list_splits(mesh, self.pipeline.stages),
            (2 * mesh.cp if mesh.cp > 1 else 1, "--sequence", self.sequence, "2 cp"),
            (sp, "--sequence over cp", self.sequence // mesh.cp, "tp with --sequence-parallel"),
            (per_sampler, "--batch", self.batch, "dp times ep times --microbatches"),
        )
        for parts, option, total, axis in divided:
            if total % parts:
                return f"{axis} = {parts} does not divide {option} {total}; choose a divisor of {total}"
        needed = self.family.find_misfit(self.pipeline)
        return f"--schedule {self.schedule} needs {needed}, not {self.microbatches}" if needed else None
