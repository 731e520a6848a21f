"""GPipe: all forward passes, then all backward passes.

Source: Huang et al., "GPipe: Efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.plan import PassTimes, PipelineStep
from hpccoll.schedules.pass_sequences import BACKWARD, FORWARD, list_passes
from hpccoll.schedules.registry import PipelineShape, pipeline_schedule


def compute_idle_time(shape: PipelineShape, times: PassTimes) -> float:
    """Return each rank's idle time: (p-1) (F+B) for p ranks, with the times F and B of a forward and a backward pass.

    The ranks start one after the other, both in the forward and in the backward direction.
    """
    return (shape.ranks - 1) * (times.forward + times.backward)


@pipeline_schedule("gpipe", activations=lambda shape, _: shape.microbatches, idle_time=compute_idle_time)
def schedule_gpipe(shape: PipelineShape, rank: int) -> Iterator[PipelineStep]:
    """All forward passes, then all backward passes; a stage keeps the activations of all micro-batches."""
    microbatches = range(shape.microbatches)
    yield from list_passes(FORWARD, rank, microbatches)
    yield from list_passes(BACKWARD, rank, microbatches)
