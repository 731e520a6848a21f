"""Pipeline parallelism: each rank executes its program of a pipeline schedule, which is a plan.

A schedule (hpccoll.plan.Schedule) lists the passes, sends and receives of every rank. `check_schedule` proves a
schedule before it runs, so the executor does not check the order of actions. Sends and receives do not block; a pass
blocks until its input has arrived. Messages of one direction between two ranks are sent and received in the order of
the schedule. If a schedule has backward passes for weights only, the layers of a stage leave the gradients of their
weights to these passes (weight_gradients.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch

from hpccoll.parallel.activity_log import ActivityKind
from hpccoll.parallel.axis_group import AxisGroup
from hpccoll.parallel.weight_gradients import WeightProduct, add_weight_gradients
from hpccoll.plan import ActionKind, PipelineAction, Schedule
from hpccoll.plan.schedule import GIVES_INPUT_GRADIENT

if TYPE_CHECKING:
    from hpccoll.runtime.work import Work


class PassDirection(IntEnum):
    """The direction in which a micro-batch passes through the stages; the value is the tag of its messages."""

    FORWARD = 1
    BACKWARD = 2


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """The layers of one pipeline stage on this rank: their forward function, the shape of their input, and parameters.

    `deferred` collects the weights' gradients that are computed in a later pass; None computes them at once.
    """

    forward: Callable[[Any], Any]  # (b, ...) -> (b, ...)
    input_shape: tuple[int, ...]  # the shape of the stage's input, per sample
    parameters: Sequence[Any]
    deferred: list[WeightProduct] | None = None  # the argument `deferred` of `apply_linear` in its layers


@dataclass(frozen=True, slots=True)
class PipelineRank:
    """One rank's part of a pipeline: the schedule, the rank's stages, the loss, and the group of all the ranks."""

    schedule: Schedule
    stages: Mapping[int, PipelineStage]  # this rank's stages by number
    loss: Callable[[Any, int], Any]  # (output of a micro-batch, its index) -> scalar; called on the last stage only
    pp: AxisGroup
    like: Any  # a scalar tensor; received tensors have its dtype and device

    def run_step(self, microbatches: Sequence[Any]) -> float:
        """Run all micro-batches forward and backward, adding to the parameters' gradients; collective over `pp`.

        `microbatches` has the samples of each micro-batch (b, features); later stages use only the number b of samples.
        Returns the sum of the losses on the rank of the last stage, 0 on other ranks. All sends have completed on
        return.
        """
        executor = _ProgramExecutor(self, microbatches)
        for step in self.schedule.programs[self.pp.index]:
            for action in step:
                with self.pp.timer.log.measure(ActivityKind.PASS, str(action)):
                    executor.execute(action)
        self.pp.finish_sends()
        return float(executor.total)

    def run_forward(self, samples: Any) -> Any:
        """Run samples (b, features) through all stages without a backward pass; collective over `pp`.

        Returns the output of the last stage on its rank, and None on other ranks. All sends have completed on return.
        """
        executor = _ProgramExecutor(self, [samples])
        for stage in sorted(self.stages):
            executor.receive(PipelineAction(ActionKind.RECV_F, stage, 0))
            executor.run_forward(stage, 0, computes_loss=False)
            executor.send(PipelineAction(ActionKind.SEND_F, stage, 0))
        self.pp.finish_sends()
        last = self.schedule.stages - 1
        return executor.activations[last, 0][1] if last in self.stages else None


class _ProgramExecutor:
    """Executes this rank's actions of one training step; the keys of its tables are (stage, micro-batch)."""

    def __init__(self, rank: PipelineRank, microbatches: Sequence[Any]) -> None:
        self.rank, self.schedule, self.microbatches = rank, rank.schedule, microbatches
        self.inputs: dict[tuple[int, int], Any] = {}  # inputs of stages from the stage before, if it is on this rank
        self.receives: dict[tuple[PassDirection, int, int], Work[Any]] = {}
        self.activations: dict[tuple[int, int], tuple[Any, Any]] = {}  # input and output of a stage
        self.output_gradients: dict[tuple[int, int], Any] = {}
        self.input_gradients: dict[tuple[int, int], Any] = {}
        self.weight_products: dict[tuple[int, int], list[WeightProduct]] = {}
        self.total = torch.zeros_like(rank.like)

    def execute(self, action: PipelineAction) -> None:
        """Execute one action of the schedule: a pass, or the start of a send or receive.

        Actions of other kinds do nothing: the trainer sums the gradients after all programs (REDUCE_GRAD), each rank
        always has the weights of its stages (UNSHARD and RESHARD), and sends keep their data alive (waits for sends).
        """
        kind, stage, microbatch = action
        if kind == ActionKind.FORWARD:
            self.run_forward(stage, microbatch, computes_loss=True)
        elif kind in GIVES_INPUT_GRADIENT:
            self.run_backward(stage, microbatch, defers_weights=kind == ActionKind.BACKWARD_INPUT)
        elif kind == ActionKind.BACKWARD_WEIGHT:
            add_weight_gradients(self.weight_products.pop((stage, microbatch)))
        elif kind in (ActionKind.SEND_F, ActionKind.SEND_B):
            self.send(action)
        elif kind in (ActionKind.RECV_F, ActionKind.RECV_B):
            self.receive(action)

    def run_forward(self, stage: int, microbatch: int, *, computes_loss: bool) -> None:
        """Run a stage forward on its input for a micro-batch, after waiting for an input that another rank sends.

        On the last stage, the output is the loss if `computes_loss`.
        """
        key = stage, microbatch
        x = self.microbatches[microbatch]
        if stage > 0:
            received = self.receives.pop((PassDirection.FORWARD, *key), None)
            x = self.inputs.pop(key) if received is None else self.rank.pp.wait(received)
            x.requires_grad_(torch.is_grad_enabled())
        y = self.rank.stages[stage].forward(x)
        if stage == self.schedule.stages - 1 and computes_loss:
            y = self.rank.loss(y, microbatch)
            self.total += y.detach()
        if self.schedule.share_rank(stage, stage + 1):
            self.inputs[stage + 1, microbatch] = y.detach()
        self.activations[key] = x, y

    def run_backward(self, stage: int, microbatch: int, *, defers_weights: bool) -> None:
        """Backpropagate from a stage's output to its input and weights, for a micro-batch.

        `defers_weights` leaves the gradients of weights for a later action.
        """
        key = stage, microbatch
        x, y = self.activations.pop(key)
        received = self.receives.pop((PassDirection.BACKWARD, *key), None)
        gradient = self.output_gradients.pop(key, None) if received is None else self.rank.pp.wait(received)
        y.backward(gradient)
        deferred = self.rank.stages[stage].deferred or []
        if defers_weights:
            self.weight_products[key] = deferred[:]
        else:
            add_weight_gradients(deferred)
        deferred.clear()
        if self.schedule.share_rank(stage, stage - 1):
            # The gradient of this stage's input is the gradient of the output of the stage before.
            self.output_gradients[stage - 1, microbatch] = x.grad
        elif stage > 0:
            self.input_gradients[key] = x.grad

    def send(self, action: PipelineAction) -> None:
        """Start sending a stage's output to the next stage, or its input's gradient to the stage before.

        Does nothing if the receiving stage is on this rank, or for the output of the last stage.
        """
        kind, stage, microbatch = action
        forward = kind == ActionKind.SEND_F
        dest = stage + 1 if forward else stage - 1
        if dest == self.schedule.stages or self.schedule.share_rank(stage, dest):
            return
        key = stage, microbatch
        x = self.activations[key][1].detach() if forward else self.input_gradients.pop(key)
        direction = PassDirection.FORWARD if forward else PassDirection.BACKWARD
        self.rank.pp.start_send(x, self.schedule.stage_ranks[dest], direction)

    def receive(self, action: PipelineAction) -> None:
        """Start receiving a stage's input, or the gradient of its output, without blocking.

        Does nothing if the sending stage is on this rank, or for the input of the first stage.
        """
        kind, stage, microbatch = action
        forward = kind == ActionKind.RECV_F
        source = stage - 1 if forward else stage + 1
        if source < 0 or self.schedule.share_rank(stage, source):
            return
        if forward:
            shape = self.rank.stages[stage].input_shape
            x = self.rank.like.new_empty(len(self.microbatches[microbatch]), *shape)
        else:
            x = torch.empty_like(self.activations[stage, microbatch][1])
        direction = PassDirection.FORWARD if forward else PassDirection.BACKWARD
        work = self.rank.pp.start_recv(x, self.schedule.stage_ranks[source], direction)
        self.receives[direction, stage, microbatch] = work
