"""The registry of pipeline schedules, which the decorator `@pipeline_schedule` fills.

The schedules of this package import this module, and `catalogue` imports the schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from hpccoll.errors import UsageError
from hpccoll.plan import PassTimes, PipelineStep, Schedule
from hpccoll.units import format_count


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """The sizes of a pipeline: number of ranks, stages on each rank, and micro-batches per training step."""

    ranks: int
    stages_per_rank: int
    microbatches: int

    @property
    def stages(self) -> int:
        """The number of stages of the pipeline."""
        return self.ranks * self.stages_per_rank


MakeSteps: TypeAlias = Callable[[PipelineShape, int], Iterator[PipelineStep]]


@dataclass(frozen=True, slots=True)
class ScheduleFamily:
    """A kind of pipeline schedule, such as 1F1B, for any numbers of stages and micro-batches that it allows.

    `steps(shape, rank)` yields the passes of a rank. `activations(shape, stage)` states the largest number of
    micro-batches whose activations a stage keeps. `idle_time(shape, times)` is the published idle time of each rank, or
    None if the publication states none for `shape` and `times`. `find_misfit(shape)` returns in words the number of
    micro-batches that the schedule requires, or None if `shape` meets this requirement. With None as the argument
    `stages_per_rank` of a method, each rank has the schedule's default number of stages.
    """

    name: str
    steps: MakeSteps
    activations: Callable[[PipelineShape, int], int]
    idle_time: Callable[[PipelineShape, PassTimes], float | None]
    find_misfit: Callable[[PipelineShape], str | None]
    stages_per_rank: int | None  # None: any number from 2, with 2 as the default
    has_v_placement: bool

    @property
    def summary(self) -> str:
        """A summary of the schedule: the first line of the docstring of its function."""
        return (self.steps.__doc__ or "").split("\n", 1)[0]

    @property
    def default_stages_per_rank(self) -> int:
        """The number of stages per rank if the caller gives none."""
        return 2 if self.stages_per_rank is None else self.stages_per_rank

    def explain_misfit(self, stages: int, microbatches: int, stages_per_rank: int | None = None) -> str | None:
        """Return why the schedule excludes these numbers of stages and micro-batches, or None if it allows them."""
        default = self.default_stages_per_rank
        per_rank = default if stages_per_rank is None else stages_per_rank
        if self.stages_per_rank not in (None, per_rank) or per_rank < default:
            least = "at least " if self.stages_per_rank is None else ""
            return f"{self.name} has {least}{format_count(default, 'stage')} per rank, not {per_rank}"
        if stages < 1 or microbatches < 1:
            return (
                f"{self.name} cannot have {stages} stages and {microbatches} micro-batches; need at least one of each"
            )
        if stages % per_rank:
            return (
                f"{self.name} cannot put {format_count(stages, 'stage')} on ranks with {per_rank} each; "
                f"need a multiple of {per_rank}"
            )
        shape = PipelineShape(stages // per_rank, per_rank, microbatches)
        misfit = self.find_misfit(shape)
        return misfit and f"{self.name} with {format_count(shape.ranks, 'rank')} needs {misfit}, not {microbatches}"

    def shape(self, stages: int, microbatches: int, stages_per_rank: int | None = None) -> PipelineShape:
        """Return the `PipelineShape` of a pipeline of `stages` stages.

        Raises UsageError if the schedule excludes these numbers of stages and micro-batches.
        """
        if misfit := self.explain_misfit(stages, microbatches, stages_per_rank):
            raise UsageError(misfit)
        per_rank = self.default_stages_per_rank if stages_per_rank is None else stages_per_rank
        return PipelineShape(stages // per_rank, per_rank, microbatches)

    def place_stages(self, shape: PipelineShape) -> tuple[int, ...]:
        """Return the rank of each stage: in loops over the ranks, or down and up again in the shape of a V."""
        n = shape.ranks
        if self.has_v_placement:
            return (*range(n), *reversed(range(n)))
        return tuple(stage % n for stage in range(shape.stages))

    def allows(self, stages: int, microbatches: int, stages_per_rank: int | None = None) -> bool:
        """Whether the schedule allows these numbers of stages and micro-batches."""
        return self.explain_misfit(stages, microbatches, stages_per_rank) is None

    def plan(self, stages: int, microbatches: int, stages_per_rank: int | None = None) -> Schedule:
        """Return the schedule of all ranks, with sends and receives.

        Raises UsageError if the schedule excludes these numbers of stages and micro-batches.
        """
        shape = self.shape(stages, microbatches, stages_per_rank)
        programs = tuple(tuple(self.steps(shape, rank)) for rank in range(shape.ranks))
        stated = tuple(self.activations(shape, stage) for stage in range(stages))
        stage_ranks = self.place_stages(shape)
        return Schedule(self.name, microbatches, stage_ranks, programs, stated).add_reductions().add_messages()


REGISTERED: dict[str, ScheduleFamily] = {}


def _fits_always(_: PipelineShape) -> None:
    """Return None, as the `find_misfit` of a schedule that allows all numbers of stages and micro-batches."""


def pipeline_schedule(
    name: str,
    *,
    activations: Callable[[PipelineShape, int], int],
    idle_time: Callable[[PipelineShape, PassTimes], float | None],
    find_misfit: Callable[[PipelineShape], str | None] = _fits_always,
    stages_per_rank: int | None = 1,
    has_v_placement: bool = False,
) -> Callable[[MakeSteps], MakeSteps]:
    """Return a decorator that registers a function, which yields a rank's passes, as the schedule `name`.

    Args:
        activations: returns the largest number of micro-batches whose activations a stage keeps.
        idle_time: returns the published idle time of each rank, or None if the publication states none.
        find_misfit: returns in words the number of micro-batches that the schedule requires, or None if a shape has it.
        stages_per_rank: the number of stages of each rank; None if any number >= 2 is allowed.
        has_v_placement: whether stages go down the ranks and up again, in the shape of a V.
    """

    def register(steps: MakeSteps) -> MakeSteps:
        """Register the function `steps`, which yields the passes of a rank, as the schedule `name`; return `steps`."""
        REGISTERED[name] = ScheduleFamily(
            name, steps, activations, idle_time, find_misfit, stages_per_rank, has_v_placement
        )
        return steps

    return register
