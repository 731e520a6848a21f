"""DualPipeV: two stages per rank in the shape of a V, with forward and backward passes computed at the same time.

Rank r of p has the stages r and 2p - 1 - r. In the main part of the schedule, a rank computes a forward pass of one of
its two stages and a backward pass of the other stage at the same time, so that the computation of one pass hides the
communication of the other pass.

Source: DeepSeek-AI, "DeepSeek-V3 technical report" (arXiv 2412.19437), and github.com/deepseek-ai/DualPipe, with the
"cut-in-half" procedure of Sea AI Lab.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from hpccoll.plan import PassTimes, PipelineAction, PipelineStep
from hpccoll.schedules.pass_sequences import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, PassCounter
from hpccoll.schedules.registry import PipelineShape, pipeline_schedule


def compute_idle_time(shape: PipelineShape, times: PassTimes) -> float | None:
    """Return each rank's published idle time, (p-1) (F&B + B - 3W) for p ranks and pass times B, W and F&B.

    The result is None unless forward, input-backward and weight-backward passes take equal times, and overlapped passes
    take the sum of their times, as the publication assumes. B and W are the times of backward and weight-backward
    passes, and F&B is the time of an overlapped forward and backward pass.
    """
    both = times.forward + times.backward if times.overlapped is None else times.overlapped
    equal = times.forward == times.backward_input == times.backward_weight and both == 3 * times.forward
    return (shape.ranks - 1) * (both + times.backward - 3 * times.backward_weight) if equal else None


def find_misfit(shape: PipelineShape) -> str | None:
    """Return the required number of micro-batches in words, or None if `shape` meets the requirement."""
    enough = shape.microbatches >= shape.stages
    return None if enough else f"at least as many micro-batches as stages, {shape.stages}"


@pipeline_schedule(
    "dualpipev",
    activations=lambda shape, stage: shape.stages - stage,
    idle_time=compute_idle_time,
    find_misfit=find_misfit,
    stages_per_rank=2,
    has_v_placement=True,
)
def schedule_dualpipev(shape: PipelineShape, rank: int) -> Iterator[PipelineStep]:
    """Two stages per rank in a V; forward passes of one stage overlap with backward passes of the other one."""
    return _DualPipeProgram(shape, rank).list_steps()


class _DualPipeProgram:
    """Makes one rank's program of DualPipeV: `first` and `second` are its stages on the way down and up the V."""

    def __init__(self, shape: PipelineShape, rank: int) -> None:
        self.shape, self.rank = shape, rank
        self.below = shape.ranks - 1 - rank  # ranks after this one on the way down the V
        self.first, self.second = rank, shape.stages - 1 - rank
        self.counter = PassCounter()
        self.postponed: deque[PipelineAction] = deque()  # backward passes for weights

    def list_steps(self) -> Iterator[PipelineStep]:
        """Yield the steps of the rank, in the eight parts of DualPipe's published schedule."""
        for _ in range(2 * self.below):
            yield self.run_forward(self.first)
        for _ in range(self.rank + 1):
            yield self.run_forward(self.first)
            yield self.run_forward(self.second)
        for _ in range(self.below):
            yield self.run_backward(self.second, postpones=True)
            yield from self.run_postponed()
            yield self.run_forward(self.second)
        for number in range(self.shape.microbatches - self.shape.stages + self.rank + 1):
            if number == 0 and self.below == 0:  # the last rank starts without overlap, which shortens idle time
                yield self.run_forward(self.first)
                yield self.run_backward(self.second)
            else:
                yield self.run_forward(self.first) + self.run_backward(self.second)
            yield self.run_forward(self.second) + self.run_backward(self.first)
        for _ in range(self.below):
            yield self.run_backward(self.second)
            yield self.run_forward(self.second) + self.run_backward(self.first)
        yield from self.list_last_steps()

    def list_last_steps(self) -> Iterator[PipelineStep]:
        """Yield the steps after the last forward pass; the later steps postpone backward passes for weights."""
        backwards = [stage for _ in range(self.rank + 1) for stage in (self.second, self.first)]
        for number, stage in enumerate(backwards):
            yield self.run_backward(stage, postpones=number > self.rank)
        for _ in range(self.below):
            yield from self.run_postponed()
            yield self.run_backward(self.first, postpones=True)
        while self.postponed:
            yield from self.run_postponed()

    def run_forward(self, stage: int) -> PipelineStep:
        """Return the step with the forward pass of `stage` for its next micro-batch."""
        return (self.counter.take(FORWARD, stage),)

    def run_backward(self, stage: int, *, postpones: bool = False) -> PipelineStep:
        """Return the step with the next backward pass of `stage`.

        If `postpones` is true, the step has the pass for inputs only, and the pass for weights is kept for later.
        """
        if not postpones:
            return (self.counter.take(BACKWARD, stage),)
        self.postponed.append(self.counter.take(BACKWARD_WEIGHT, stage))
        return (self.counter.take(BACKWARD_INPUT, stage),)

    def run_postponed(self) -> Iterator[PipelineStep]:
        """Yield the oldest postponed backward pass for weights, if there is one."""
        if self.postponed:
            yield (self.postponed.popleft(),)
