"""Sequences of passes that several schedules share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hpccoll.plan import ActionKind, PipelineAction, PipelineStep

FORWARD, BACKWARD = ActionKind.FORWARD, ActionKind.BACKWARD
BACKWARD_INPUT, BACKWARD_WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def list_passes(kind: ActionKind, stage: int, microbatches: Iterable[int]) -> list[PipelineStep]:
    """Return one step for each of the micro-batches: a pass of `kind` (forward or backward) of stage `stage`."""
    return [(PipelineAction(kind, stage, microbatch),) for microbatch in microbatches]


def alternate(
    forwards: Sequence[PipelineStep], backwards: Sequence[PipelineStep], warmup: int
) -> Iterator[PipelineStep]:
    """Yield `warmup` forward passes, then one forward and one backward pass in turn, then the other backward passes."""
    yield from forwards[:warmup]
    for number, backward in enumerate(backwards):
        yield from forwards[warmup + number : warmup + number + 1]
        yield backward


class PassCounter:
    """Numbers the passes of each stage: the passes of one kind are for micro-batches 0, 1, 2, and so on.

    A full backward pass counts as a pass for inputs and as a pass for weights.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[ActionKind, int], int] = {}

    def take(self, kind: ActionKind, stage: int) -> PipelineAction:
        """Return a stage's pass of kind `kind` for the stage's next micro-batch, and count the pass."""
        counted = (BACKWARD_INPUT, BACKWARD_WEIGHT) if kind == BACKWARD else (kind,)
        microbatch = self._next.get((counted[0], stage), 0)
        for counted_kind in counted:
            self._next[counted_kind, stage] = self._next.get((counted_kind, stage), 0) + 1
        return PipelineAction(kind, stage, microbatch)
