"""Interleaved 1F1B: each rank has several shorter stages, so that the last rank starts earlier than in 1F1B.

The micro-batches pass in rounds: in each round, a rank runs the micro-batches of the round through its first stage,
then through its second one, and so on. Megatron-LM requires rounds of p micro-batches on p ranks. Other numbers m of
micro-batches are allowed if they can be cut into max(1, m // p) equal rounds, as in torch.distributed.pipelining.

Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.plan import PassTimes, PipelineStep
from hpccoll.schedules.pass_sequences import BACKWARD, FORWARD, alternate, list_passes
from hpccoll.schedules.registry import PipelineShape, pipeline_schedule


def count_rounds(shape: PipelineShape) -> int:
    """Return the number of rounds: groups of micro-batches that pass through all stages of a rank in turn."""
    return max(1, shape.microbatches // shape.ranks)


def count_warmup(shape: PipelineShape, rank: int) -> int:
    """Return the number of forward passes that a rank runs before it alternates forward and backward passes."""
    per_round = shape.microbatches // count_rounds(shape)
    passes = (shape.stages_per_rank - 1) * per_round + 2 * (shape.ranks - 1 - rank)
    return min(passes, shape.microbatches * shape.stages_per_rank)


def count_live(shape: PipelineShape, stage: int) -> int:
    """Return the largest number of micro-batches whose activations stage `stage` keeps at a time.

    With k micro-batches per round, a stage of rank r of p ranks that precedes s other stages of this rank keeps the
    activations of at most s k + min(k, 2 (p-1-r) + 1) micro-batches.
    """
    per_round = shape.microbatches // count_rounds(shape)
    place, rank = divmod(stage, shape.ranks)
    rounds = (shape.stages_per_rank - 1 - place) * per_round
    return min(rounds + min(per_round, 2 * (shape.ranks - 1 - rank) + 1), shape.microbatches)


def compute_idle_time(shape: PipelineShape, times: PassTimes) -> float | None:
    """Return each rank's idle time: (p-1) (F+B) for p ranks, with the times F and B of one stage's passes.

    F is the time of a forward pass, and B that of a backward pass. The result is None unless the number of
    micro-batches is a multiple of the number of ranks.
    """
    whole_rounds = shape.microbatches % shape.ranks == 0
    return (shape.ranks - 1) * (times.forward + times.backward) if whole_rounds else None


def find_misfit(shape: PipelineShape) -> str | None:
    """Return the required number of micro-batches in words, or None if `shape` meets the requirement."""
    rounds = count_rounds(shape)
    return f"a multiple of {rounds} micro-batches" if shape.microbatches % rounds else None


@pipeline_schedule(
    "interleaved_1f1b",
    activations=count_live,
    idle_time=compute_idle_time,
    find_misfit=find_misfit,
    stages_per_rank=None,
)
def schedule_interleaved_1f1b(shape: PipelineShape, rank: int) -> Iterator[PipelineStep]:
    """1F1B over several stages per rank; the idle time is that of 1F1B, divided by the stages per rank."""
    per_round = shape.microbatches // count_rounds(shape)
    stages = range(rank, shape.stages, shape.ranks)
    forwards: list[PipelineStep] = []
    backwards: list[PipelineStep] = []
    for first in range(0, shape.microbatches, per_round):
        microbatches = range(first, first + per_round)
        for stage, opposite in zip(stages, reversed(stages), strict=True):
            forwards += list_passes(FORWARD, stage, microbatches)
            backwards += list_passes(BACKWARD, opposite, microbatches)
    yield from alternate(forwards, backwards, count_warmup(shape, rank))
