"""Compute a rank's bytes of activations and gradients at moments of its backward passes that may be the memory peak."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from hpccoll.plan import ActionKind, PipelineAction
from hpccoll.plan.schedule import PASSES
from hpccoll.sizing.rank_parts import list_stage_parts
from hpccoll.sizing.training_setup import TrainingSetup

COUNTED = PASSES | {ActionKind.RECV_F, ActionKind.RECV_B}  # actions that change the memory


class MomentBytes(NamedTuple):
    """A rank's bytes of activations and gradients at one moment of a backward pass, in an estimate of memory.

    Args:
        activations: kept activations, and the inputs and gradients that wait for a separate backward pass of weights.
        recomputed: recomputed activations.
        in_flight: gradients of activations, and gradients of parameters not yet added to the sums over micro-batches.
        gradients: complete gradients of parameters; 0 if their memory already exists when a step begins.
    """

    activations: float
    recomputed: float
    in_flight: float
    gradients: float

    @property
    def total(self) -> float:
        """The sum of all kinds of bytes at this moment."""
        return sum(self)


class _StageBytes:
    """The bytes of a pipeline stage for one micro-batch.

    `splits` is whether a separate backward pass computes the gradients of weights (BACKWARD_WEIGHT).

    Attributes:
        kept: activations that are kept from the forward to the backward pass.
        moments: the bytes at the moments of the backward pass that may be the memory peak.
        gradients: complete gradients of the parameters, if a step begins without gradients.
        deferred: inputs and gradients that wait for the separate backward pass of weights.
        largest_gradient: the largest gradients of parameters that are not yet added to the sums over micro-batches.
        input, output: the bytes of the messages from the previous stage and to the next one.
    """

    def __init__(self, setup: TrainingSetup, stage: int, *, splits: bool) -> None:
        parts, shards = list_stage_parts(setup, stage), setup.shard_level > 0
        e = setup.precision.element_bytes if setup.program.frees_gradients else 0
        self.kept = sum(part.kept * part.count for part in parts)
        self.moments: list[MomentBytes] = []
        self.gradients = self.deferred = self.largest_gradient = 0.0
        self.at_once = 0.0  # gradients of parts whose gradients are never computed in a separate pass
        self.input, self.output = list_stage_parts(setup, stage - 1)[-1].output if stage else 0.0, parts[-1].output
        placed = setup.family.place_stages(setup.pipeline)
        if stage and setup.program.keeps_outputs and placed[stage - 1] == placed[stage]:
            self.kept -= self.input  # the stage before keeps this input as its output
        before, held = self.kept, 0.0
        for part in reversed(parts):
            before -= part.kept * part.count
            lacking = e * sum(unit.elements for unit in part.units if setup.lacks_gradients(unit.kind))
            # Among equal parts, the backward pass of the last or of the first part has the peak of memory.
            for number in sorted({0, part.count - 1}, reverse=True):
                passed = part.count - 1 - number
                for moment in part.moments:
                    kept = before + number * part.kept + min(moment.alive, part.kept) + held
                    recomputed = max(moment.alive - part.kept, 0.0)
                    gradient = moment.unsummed * e
                    complete = e * sum(unit.elements for unit in moment.finished if setup.holds_gradients(unit.kind))
                    # In ZeRO-2 and 3, gradients of a part stay unsummed until all gradients of the part are complete.
                    unsummed = gradient + complete * shards
                    self.largest_gradient = max(self.largest_gradient, unsummed)
                    if splits:
                        kept += self.deferred + passed * part.deferred + moment.deferred
                        kept += 0.0 if part.deferred else gradient
                        self.moments.append(MomentBytes(kept, recomputed, moment.in_flight, 0.0))
                    else:
                        finished = self.gradients + passed * lacking + complete * (not shards)
                        self.moments.append(MomentBytes(kept, recomputed, moment.in_flight + unsummed, finished))
            held += part.held
            self.gradients += lacking * part.count
            self.at_once += 0.0 if part.deferred else lacking * part.count
            self.deferred += part.deferred * part.count


def list_moments(setup: TrainingSetup, rank: int) -> Iterator[MomentBytes]:
    """Yield the bytes of the rank with index `rank` along pp at the moments of backward passes that may be the peak.

    With 1F1B and L layers on p stages, stage 0 keeps the activations of p micro-batches in L/p layers, which take as
    many bytes as the activations of one micro-batch in all L layers (Korthikanti et al., arXiv 2205.05198, section 4.3
    and equation 5).
    """
    family, shape = setup.family, setup.pipeline
    stages = [stage for stage, at in enumerate(setup.stage_ranks) if at == rank]
    if setup.program.frees_gradients:  # pipelines of `hpccoll train` are small enough to follow each message
        steps = iter(family.plan(shape.stages, shape.microbatches).programs[rank])
    elif len(stages) > 1:
        steps = family.steps(shape, rank)
    else:
        own = _StageBytes(setup, stages[0], splits=False)
        others = (family.activations(shape, stages[0]) - 1) * own.kept
        yield from (moment._replace(activations=others + moment.activations) for moment in own.moments)
        return
    actions = [action for action in chain.from_iterable(steps) if action.kind in COUNTED]
    splits = any(action.kind == ActionKind.BACKWARD_WEIGHT for action in actions)
    memory = _StepMemory({stage: _StageBytes(setup, stage, splits=splits) for stage in stages}, splits=splits)
    for action in actions:
        yield from memory.run(action)


class _StepMemory:
    """Tracks the bytes of a rank through the actions of a training step.

    `stages` has the bytes of each pipeline stage of the rank, and `splits` is whether separate backward passes compute
    the gradients of weights (BACKWARD_WEIGHT).
    """

    def __init__(self, stages: Mapping[int, _StageBytes], *, splits: bool) -> None:
        self.stages, self.splits = stages, splits
        self.now = 0.0  # activations of all micro-batches
        self.gradients = dict.fromkeys(stages, 0.0)  # of parameters, by stage
        self.received: dict[tuple[ActionKind, int, int], float] = {}  # bytes of messages whose pass has not begun

    def run(self, action: PipelineAction) -> Iterator[MomentBytes]:
        """Update the bytes for one action of the schedule; yield the action's moments that may be the memory peak."""
        kind, stage, microbatch = action
        own = self.stages[stage]
        if kind in (ActionKind.RECV_F, ActionKind.RECV_B):
            nbytes = own.input if kind == ActionKind.RECV_F else own.output
            self.received[kind, stage, microbatch] = nbytes
            self.now += nbytes
        elif kind == ActionKind.FORWARD:
            self.now += own.kept - self.received.pop((ActionKind.RECV_F, stage, microbatch), 0.0)
        elif kind != ActionKind.BACKWARD_WEIGHT:
            self.now -= own.kept + self.received.pop((ActionKind.RECV_B, stage, microbatch), 0.0)
            yield from self._run_backward(stage, own)
        if kind == ActionKind.BACKWARD_WEIGHT or (kind == ActionKind.BACKWARD and self.splits):
            yield self._compute_weight_gradients(stage, own)

    def _run_backward(self, stage: int, own: _StageBytes) -> Iterator[MomentBytes]:
        """Yield the moments of a stage's backward pass that may be the peak; then count the bytes after this pass."""
        before, is_first = sum(self.gradients.values()), not self.gradients[stage]
        for moment in own.moments:
            yield moment._replace(
                activations=self.now + moment.activations, gradients=before + moment.gradients * is_first
            )
        if self.splits:
            self.now += own.deferred
        self.gradients[stage] = max(self.gradients[stage], own.at_once if self.splits else own.gradients)

    def _compute_weight_gradients(self, stage: int, own: _StageBytes) -> MomentBytes:
        """Count the gradients of a stage's weights, and return the moment before the deferred inputs are freed."""
        self.gradients[stage] = own.gradients
        moment = MomentBytes(self.now, 0.0, own.largest_gradient, sum(self.gradients.values()))
        self.now -= own.deferred
        return moment
