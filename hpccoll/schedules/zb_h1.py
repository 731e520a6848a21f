"""ZB-H1: 1F1B whose backward passes for weights fill idle time, with no more activations than 1F1B's first stage.

Rank r runs the backward pass for weights of micro-batch i after the backward pass for inputs of micro-batch i + r.

Source: Qi, Wan, Huang and Lin, "Zero bubble pipeline parallelism", ICLR 2024 (arXiv 2401.10241).
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.plan import PassTimes, PipelineStep
from hpccoll.schedules.pass_sequences import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, alternate, list_passes
from hpccoll.schedules.registry import PipelineShape, pipeline_schedule


def compute_idle_time(shape: PipelineShape, times: PassTimes) -> float | None:
    """Return each rank's published idle time, (p-1) (F+I-W) for p ranks, or None if the publication states none.

    The publication states an idle time only if weight-backward passes take no longer than forward and input-backward
    passes, and if there are at least as many micro-batches as ranks. F, I and W are the times of forward,
    input-backward and weight-backward passes.
    """
    fits = shape.microbatches >= shape.ranks and times.backward_weight <= min(times.forward, times.backward_input)
    return (shape.ranks - 1) * (times.forward + times.backward_input - times.backward_weight) if fits else None


@pipeline_schedule(
    "zb_h1", activations=lambda shape, _: min(shape.ranks, shape.microbatches), idle_time=compute_idle_time
)
def schedule_zb_h1(shape: PipelineShape, rank: int) -> Iterator[PipelineStep]:
    """1F1B with backward passes for weights in idle time; on p ranks, a stage keeps at most p micro-batches."""
    microbatches = range(shape.microbatches)
    kinds = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
    forwards, inputs, weights = (list_passes(kind, rank, microbatches) for kind in kinds)
    for step in alternate(forwards, inputs, shape.ranks - 1 - rank):
        yield step
        microbatch = step[0].microbatch
        if step[0].kind == BACKWARD_INPUT and microbatch >= rank:
            yield weights[microbatch - rank]
    yield from weights[max(shape.microbatches - rank, 0) :]
