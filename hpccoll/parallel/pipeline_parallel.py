"""Pipeline parallelism: each stage holds consecutive layers, and the batch passes through them in micro-batches.

A schedule is the ordered list of one stage's actions. The schedules gpipe and 1f1b compute the same gradients.

- gpipe runs all forward passes, then all backward passes; a stage holds the activations of every micro-batch.
- 1f1b runs a backward pass as early as possible; stage s of p holds the activations of at most p - s micro-batches.

With m micro-batches of equal cost, each of p stages idles for (p - 1)/(m + p - 1) of the time under either schedule.
Sends do not block, and messages of one direction are sent and received in micro-batch order, so no deadlock occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from hpccoll.parallel.axis_group import AxisGroup


class PassDirection(IntEnum):
    """The direction in which a micro-batch passes through the stages; the value is the tag of its messages."""

    FORWARD = 1
    BACKWARD = 2


class StageAction(NamedTuple):
    """One entry of a schedule: the forward or the backward pass of one micro-batch."""

    direction: PassDirection
    microbatch: int


def schedule_gpipe(stage: int, stages: int, microbatches: int) -> list[StageAction]:  # noqa: ARG001 - signature of SCHEDULES
    """Return the GPipe schedule of a stage: the forward passes of all micro-batches, then all backward passes."""
    return [StageAction(direction, microbatch) for direction in PassDirection for microbatch in range(microbatches)]


def schedule_1f1b(stage: int, stages: int, microbatches: int) -> list[StageAction]:
    """Return the 1F1B schedule of a stage: warm-up forward passes, then one forward and one backward in turn."""
    warmup = min(stages - stage - 1, microbatches)
    actions = [StageAction(PassDirection.FORWARD, microbatch) for microbatch in range(warmup)]
    for microbatch in range(microbatches):
        if warmup + microbatch < microbatches:
            actions.append(StageAction(PassDirection.FORWARD, warmup + microbatch))
        actions.append(StageAction(PassDirection.BACKWARD, microbatch))
    return actions


SCHEDULES: dict[str, Callable[[int, int, int], list[StageAction]]] = {"1f1b": schedule_1f1b, "gpipe": schedule_gpipe}


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """This rank's stage of the pipeline, with its layers, the loss and a group of one rank per stage."""

    forward: Callable[[Any], Any]  # the stage's layers: (b, input_features) -> (b, features)
    loss: Callable[[Any, int], Any]  # (output of a micro-batch, its index) -> scalar; called on the last stage only
    input_features: int  # features per sample of this stage's input
    pp: AxisGroup  # one rank per stage, in order
    like: Any  # a scalar tensor; received tensors have its dtype and device

    @property
    def is_first(self) -> bool:
        """Whether this is the first stage, whose input is the samples themselves."""
        return self.pp.index == 0

    @property
    def is_last(self) -> bool:
        """Whether this is the last stage, which computes the loss."""
        return self.pp.index == self.pp.size - 1

    def run_schedule(self, schedule: str, microbatches: Sequence[Any]) -> float:
        """Run all micro-batches forward and backward, adding to the parameters' gradients; collective over `pp`.

        Args:
            schedule: a name in SCHEDULES.
            microbatches: the samples of each micro-batch (b, features); stages after the first use only b.

        Returns:
            The sum of the losses on the last stage, 0 on other stages. All sends have completed on return.
        """
        activations: dict[int, tuple[Any, Any]] = {}
        total = torch.zeros_like(self.like)
        for direction, microbatch in SCHEDULES[schedule](self.pp.index, self.pp.size, len(microbatches)):
            if direction is PassDirection.FORWARD:
                x = self.receive_input(microbatches[microbatch])
                y = self.forward(x)
                if self.is_last:
                    y = self.loss(y, microbatch)
                    total += y.detach()
                self.send_output(y)
                activations[microbatch] = x, y
            else:
                self._run_backward(*activations.pop(microbatch))
        self.pp.finish_sends()
        return float(total)

    def receive_input(self, samples: Any) -> Any:
        """Return a micro-batch's input: `samples` on the first stage, else the previous stage's output; may block."""
        if self.is_first:
            return samples
        x = self.like.new_empty(len(samples), self.input_features)
        return self.pp.recv(x, self.pp.index - 1, PassDirection.FORWARD).requires_grad_()

    def send_output(self, y: Any) -> None:
        """Start sending this stage's output to the next stage, without blocking; the last stage sends nothing."""
        if not self.is_last:
            self.pp.start_send(y.detach(), self.pp.index + 1, PassDirection.FORWARD)

    def _run_backward(self, x: Any, y: Any) -> None:
        """Backpropagate one micro-batch from this stage's output `y` to its input `x`.

        Blocks for the gradient of `y` from the next stage (the last stage starts from its loss). Then starts sending
        the gradient of `x` to the previous stage without blocking (the first stage sends nothing).
        """
        if self.is_last:
            y.backward()
        else:
            y.backward(self.pp.recv(y.new_empty(y.shape), self.pp.index + 1, PassDirection.BACKWARD))
        if not self.is_first:
            self.pp.start_send(x.grad, self.pp.index - 1, PassDirection.BACKWARD)
