"""1F1B: one forward and one backward pass in turn, which bounds the activations by the number of stages.

Source: Narayanan et al., "PipeDream: Generalized pipeline parallelism for DNN training", SOSP 2019; the variant that
ends each training step with all gradients (PipeDream-Flush) is from "Memory-efficient pipeline-parallel DNN training",
ICML 2021.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.plan import PipelineStep
from hpccoll.schedules.gpipe import compute_idle_time
from hpccoll.schedules.pass_sequences import BACKWARD, FORWARD, alternate, list_passes
from hpccoll.schedules.registry import PipelineShape, pipeline_schedule


def count_live(shape: PipelineShape, stage: int) -> int:
    """Return the largest number of micro-batches whose activations stage `stage` keeps at a time.

    A stage keeps the activations of the forward passes that it runs before its first backward pass.
    """
    return min(shape.ranks - stage, shape.microbatches)


@pipeline_schedule("1f1b", activations=count_live, idle_time=compute_idle_time)
def schedule_1f1b(shape: PipelineShape, rank: int) -> Iterator[PipelineStep]:
    """One forward and one backward pass in turn; stage s of p keeps the activations of at most p - s micro-batches."""
    microbatches = range(shape.microbatches)
    forwards, backwards = (list_passes(kind, rank, microbatches) for kind in (FORWARD, BACKWARD))
    yield from alternate(forwards, backwards, shape.ranks - 1 - rank)
