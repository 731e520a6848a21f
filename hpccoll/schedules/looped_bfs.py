"""Looped BFS (breadth-first): a rank runs all micro-batches through one of its stages before it runs the next one.

A rank finishes a stage before it starts the next one, so FSDP gathers weights once per stage and direction.

Source: Lamy-Poirier, "Breadth-first pipeline parallelism", MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.plan import PassTimes, PipelineStep
from hpccoll.schedules.pass_sequences import BACKWARD, FORWARD, list_passes
from hpccoll.schedules.registry import PipelineShape, pipeline_schedule


def compute_idle_time(shape: PipelineShape, times: PassTimes) -> float | None:
    """Return the idle time of each rank, (p-1) (F+B)/v, with F and B of all v stages of a rank.

    The result is None for fewer micro-batches than p, the number of ranks. F and B are the times of forward and
    backward passes.
    """
    enough = shape.microbatches >= shape.ranks
    return (shape.ranks - 1) * (times.forward + times.backward) if enough else None


@pipeline_schedule(
    "looped_bfs",
    activations=lambda shape, _: shape.microbatches,
    idle_time=compute_idle_time,
    stages_per_rank=None,
)
def schedule_looped_bfs(shape: PipelineShape, rank: int) -> Iterator[PipelineStep]:
    """All micro-batches through a rank's first stage, then through its second one; a rank keeps all activations.

    Yields the steps of `rank` in order, without messages, for the numbers of ranks, stages and micro-batches in
    `shape`.
    """
    stages = range(rank, shape.stages, shape.ranks)
    for stage in stages:
        yield from list_passes(FORWARD, stage, range(shape.microbatches))
    for stage in reversed(stages):
        yield from list_passes(BACKWARD, stage, reversed(range(shape.microbatches)))
