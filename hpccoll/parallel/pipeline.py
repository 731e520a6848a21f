"""Pipeline parallelism: each stage has some of the layers, and the batch passes in micro-batches.

A schedule is the list of what one stage does, in its order. Both of these compute the same gradients:

    gpipe   all forward, then all backward; a stage holds the activations of every micro-batch
    1f1b    one forward, one backward as soon as there is one; it holds those of at most (stages - stage)

With m micro-batches of equal cost a stage of p idles (p - 1)/(m + p - 1) of the time in either. Sends do not block, and
messages of a direction are sent and received in the order of the micro-batches: so no two stages wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import torch

from hpccoll.parallel.channel import Channel


class Turn(StrEnum):
    """What a stage does with a micro-batch."""

    FORWARD = "forward"
    BACKWARD = "backward"


TAGS = {Turn.FORWARD: 1, Turn.BACKWARD: 2}


class Action(NamedTuple):
    """One entry of a schedule."""

    turn: Turn
    micro: int


def gpipe(stage: int, stages: int, micros: int) -> list[Action]:  # noqa: ARG001 - all schedules are called alike
    """Return what a stage does: every micro-batch forward, then every one backward."""
    return [Action(turn, micro) for turn in Turn for micro in range(micros)]


def one_f_one_b(stage: int, stages: int, micros: int) -> list[Action]:
    """Return what a stage does: fill the stages behind it, then a forward for each backward, then the backward left."""
    ahead = min(stages - stage - 1, micros)
    actions = [Action(Turn.FORWARD, micro) for micro in range(ahead)]
    for micro in range(micros):
        if ahead + micro < micros:
            actions.append(Action(Turn.FORWARD, ahead + micro))
        actions.append(Action(Turn.BACKWARD, micro))
    return actions


SCHEDULES: dict[str, Callable[[int, int, int], list[Action]]] = {"1f1b": one_f_one_b, "gpipe": gpipe}


@dataclass(frozen=True, slots=True)
class Stage:
    """One rank's stage.

    Args:
        forward: this stage's layers, from what enters to what leaves.
        loss: what the last stage makes of its output for a micro-batch, given the micro-batch's number: a scalar.
        entering: features a sample that this rank receives from the stage before.
        pp: the stages, in order.
        like: a number as a tensor, with the dtype and device of activations.
    """

    forward: Callable[[Any], Any]
    loss: Callable[[Any, int], Any]
    entering: int
    pp: Channel
    like: Any

    @property
    def is_first(self) -> bool:
        """Whether it takes the data."""
        return self.pp.index == 0

    @property
    def is_last(self) -> bool:
        """Whether it gives the loss."""
        return self.pp.index == self.pp.size - 1

    def run(self, schedule: str, micros: Sequence[Any]) -> float:
        """Pass all micro-batches through, accumulating gradients; collective over the stages.

        Args:
            schedule: a name of SCHEDULES.
            micros: the data of each micro-batch (b, features); other stages than the first only look at how many.

        Returns:
            The sum of the losses on the last stage, 0 on others.
        """
        held: dict[int, tuple[Any, Any]] = {}
        total = torch.zeros_like(self.like)
        for turn, micro in SCHEDULES[schedule](self.pp.index, self.pp.size, len(micros)):
            if turn is Turn.FORWARD:
                x = self.enter(micros[micro])
                y = self.forward(x)
                if self.is_last:
                    y = self.loss(y, micro)
                    total += y.detach()
                self.pass_on(y)
                held[micro] = x, y
            else:
                self._backward(*held.pop(micro))
        self.pp.finish_sends()
        return float(total)

    def enter(self, data: Any) -> Any:
        """Return what a micro-batch enters this stage as: the data, or what the stage before sent."""
        if self.is_first:
            return data
        x = self.like.new_empty(len(data), self.entering)
        return self.pp.recv(x, self.pp.index - 1, TAGS[Turn.FORWARD]).requires_grad_()

    def pass_on(self, y: Any) -> None:
        """Send what leaves this stage to the next one, where there is one."""
        if not self.is_last:
            self.pp.start_send(y.detach(), self.pp.index + 1, TAGS[Turn.FORWARD])

    def _backward(self, x: Any, y: Any) -> None:
        if self.is_last:
            y.backward()
        else:
            y.backward(self.pp.recv(y.new_empty(y.shape), self.pp.index + 1, TAGS[Turn.BACKWARD]))
        if not self.is_first:
            self.pp.start_send(x.grad, self.pp.index - 1, TAGS[Turn.BACKWARD])
