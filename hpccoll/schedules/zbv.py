"""ZB-V: two stages per rank in the shape of a V, and no idle time within a rank if all passes take equal times.

Rank r of p has the stages r ("down") and 2p - 1 - r ("up"), so the rank of the first stage also computes the loss, and
backward passes start early. The publication requires at least 2p - 1 micro-batches on p ranks. For m < 2p - 1
micro-batches on p ranks, the passes of micro-batches m to 2p - 2 are left out of a schedule for 2p - 1 micro-batches.

Source: Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR 2024 (arXiv 2401.10241), section 6.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.plan import ActionKind, PassTimes, PipelineStep
from hpccoll.schedules.pass_sequences import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, PassCounter
from hpccoll.schedules.registry import PipelineShape, pipeline_schedule


def compute_idle_time(shape: PipelineShape, times: PassTimes) -> float | None:
    """Return each rank's published idle time: (p-1) F for p ranks, with the time F of a forward pass.

    The result is None unless forward, input-backward and weight-backward passes take equal times, and p ranks have at
    least 2p - 1 micro-batches.
    """
    equal = times.forward == times.backward_input == times.backward_weight
    return (shape.ranks - 1) * times.forward if equal and shape.microbatches >= 2 * shape.ranks - 1 else None


@pipeline_schedule(
    "zbv",
    activations=lambda shape, stage: min(shape.stages - stage, shape.microbatches),
    idle_time=compute_idle_time,
    stages_per_rank=2,
    has_v_placement=True,
)
def schedule_zbv(shape: PipelineShape, rank: int) -> Iterator[PipelineStep]:
    """Two stages per rank in a V; with F = I = W no idle time within a rank, and the activations of 1F1B.

    F, I and W are the times of forward, input-backward and weight-backward passes.
    """
    counter = PassCounter()
    for kind, stage in list_kinds_and_stages(shape, rank):
        action = counter.take(kind, stage)
        if action.microbatch < shape.microbatches:
            yield (action,)


def list_kinds_and_stages(shape: PipelineShape, rank: int) -> Iterator[tuple[ActionKind, int]]:
    """Yield (kind, stage) of each pass of a rank in order; fewer than 2p - 1 micro-batches count as 2p - 1."""
    p, microbatches = shape.ranks, max(shape.microbatches, 2 * shape.ranks - 1)
    down, up = rank, shape.stages - 1 - rank
    backward_down, backward_up = ([(BACKWARD_INPUT, stage), (BACKWARD_WEIGHT, stage)] for stage in (down, up))
    yield from [(FORWARD, down)] * (2 * (p - rank) - 1)
    yield from [(FORWARD, up), (FORWARD, down)] * rank
    yield from [(FORWARD, up), *backward_up] * (p - rank)
    for number in range(microbatches - p):
        if number < microbatches - (2 * p - 1 - rank):
            yield FORWARD, down
        yield from [*backward_down, (FORWARD, up), *backward_up]
    yield from [(BACKWARD_INPUT, down), (BACKWARD_INPUT, up)] * rank
    yield from backward_down * (p - rank)
    yield from [(BACKWARD_WEIGHT, up)] * rank
    yield from [(BACKWARD_WEIGHT, down)] * rank
