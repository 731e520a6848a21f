"""Looped BFS (breadth-first): a rank runs all micro-batches through one of its stages before it runs the next one.

So FSDP gathers the weights of a stage only once for all forward passes and once for all backward passes.

Source: Lamy-Poirier, "Breadth-first pipeline parallelism", MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.plan import PassTimes, PipelineStep
from hpccoll.schedules.pass_sequences import BACKWARD, FORWARD, list_passes
from hpccoll.schedules.registry import PipelineShape, pipeline_schedule


def compute_idle_time(shape: PipelineShape, times: PassTimes) -> float | None:
    """Return each rank's idle time: (p-1) (F+B) for p ranks, with the times F and B of one stage's passes.

    F is the time of a forward pass, and B that of a backward pass. The result is None for fewer micro-batches than
    ranks.
    """
    enough = shape.microbatches >= shape.ranks
    return (shape.ranks - 1) * (times.forward + times.backward) if enough else None


@pipeline_schedule(
    "looped_bfs", activations=lambda shape, _: shape.microbatches, idle_time=compute_idle_time, stages_per_rank=None
)
def schedule_looped_bfs(shape: PipelineShape, rank: int) -> Iterator[PipelineStep]:
    """All micro-batches through a rank's first stage, then through its second one; a rank keeps all activations."""
    stages = range(rank, shape.stages, shape.ranks)
    for stage in stages:
        yield from list_passes(FORWARD, stage, range(shape.microbatches))
    for stage in reversed(stages):
        yield from list_passes(BACKWARD, stage, reversed(range(shape.microbatches)))
