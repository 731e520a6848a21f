"""Predicted times of pipeline schedules: the start and end of each pass on each rank, and the idle time of each rank.

Every pass of a kind takes the same time on every stage. A computation starts when its rank is free and its inputs have
arrived; messages take the time `transfer` and do not delay the computations of the sender.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hpccoll.errors import PlanError
from hpccoll.plan.schedule import (
    GIVES_INPUT_GRADIENT,
    GIVES_WEIGHT_GRADIENT,
    ActionKind,
    PipelineStep,
    Schedule,
    format_step,
)
from hpccoll.plan.simulation.timeline import Slice, Timeline


@dataclass(frozen=True, slots=True)
class PassTimes:
    """The times of one pipeline stage's passes for one micro-batch, in any unit of time.

    `transfer` is the time from the end of a pass to the arrival of its result on another rank, and `overlapped` the
    time of a forward and a backward pass that overlap (None: the sum of the times of both).
    """

    forward: float = 1
    backward_input: float = 1
    backward_weight: float = 1
    transfer: float = 0  # from the end of a pass to the arrival of its result on another rank
    overlapped: float | None = None  # a forward and a backward pass at the same time; None: the sum of both

    @property
    def backward(self) -> float:
        """The time of a backward pass that computes the gradients of inputs and weights."""
        return self.backward_input + self.backward_weight

    def get_step_time(self, step: PipelineStep) -> float:
        """Return the time of a step: of one pass, or of a forward and a backward pass that overlap."""
        if len(step) > 1 and self.overlapped is not None:
            return self.overlapped
        return sum(self.get_pass_time(action.kind) for action in step)

    def get_pass_time(self, kind: ActionKind) -> float:
        """Return the time of a forward or backward pass of the given kind."""
        if kind == ActionKind.FORWARD:
            return self.forward
        with_inputs = self.backward_input if kind in GIVES_INPUT_GRADIENT else 0
        return with_inputs + (self.backward_weight if kind in GIVES_WEIGHT_GRADIENT else 0)


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step of a schedule (one pass or overlapping passes) on `rank`, with the simulated times of start and end."""

    rank: int
    step: PipelineStep
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class ScheduleSimulation:
    """The predicted times of a pipeline schedule.

    `time` is the time from the start of the first pass to the end of the last one.
    """

    schedule: Schedule
    times: PassTimes
    steps: tuple[TimedStep, ...]
    time: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "time", max((step.end for step in self.steps), default=0))

    def get_idle_times(self) -> list[float]:
        """Return, for each rank, the part of the simulated time in which the rank computes nothing."""
        idle = [self.time] * self.schedule.ranks
        for step in self.steps:
            idle[step.rank] -= step.end - step.start
        return idle

    @property
    def bubble(self) -> float:
        """The fraction of the time in which ranks are idle, over all ranks; 0 to 1."""
        return sum(self.get_idle_times()) / (self.time * self.schedule.ranks) if self.time else 0.0

    def make_timeline(self) -> Timeline:
        """Return the steps of all ranks as a timeline, in which the unit of time counts as a microsecond."""
        slices = tuple(
            Slice(
                step.rank, format_step(step.step), step.start, step.end - step.start, {"does": format_step(step.step)}
            )
            for step in self.steps
        )
        return Timeline(self.schedule.name, self.schedule.ranks, "simulated", slices)


def simulate_schedule(schedule: Schedule, times: PassTimes | None = None) -> ScheduleSimulation:
    """Return the simulation of a pipeline schedule; by default every pass takes time 1, and messages take no time.

    The schedule must be one that `check_schedule` accepts.
    """
    times = times or PassTimes()
    programs = schedule.select_passes().programs
    ends: dict[tuple[bool, int, int], float] = {}  # (whether forward, stage, micro-batch)
    at, clocks = [0] * schedule.ranks, [0.0] * schedule.ranks
    steps: list[TimedStep] = []
    moving = True
    while moving:
        moving = False
        for rank, program in enumerate(programs):
            while at[rank] < len(program):
                step = program[at[rank]]
                arrivals = _find_arrivals(schedule, step, ends, times.transfer)
                if arrivals is None:
                    break
                start = max(clocks[rank], *arrivals) if arrivals else clocks[rank]
                clocks[rank] = start + times.get_step_time(step)
                steps.append(TimedStep(rank, step, start, clocks[rank]))
                for action in step:
                    if action.kind == ActionKind.FORWARD or action.kind in GIVES_INPUT_GRADIENT:
                        ends[action.kind == ActionKind.FORWARD, action.stage, action.microbatch] = clocks[rank]
                at[rank] += 1
                moving = True
    if any(index < len(program) for index, program in zip(at, programs, strict=True)):
        raise PlanError(f"{schedule.name} does not end, so it has no time; check it first")
    return ScheduleSimulation(schedule, times, tuple(steps))


def _find_arrivals(
    schedule: Schedule, step: PipelineStep, ends: dict[tuple[bool, int, int], float], transfer: float
) -> list[float] | None:
    """Return the times at which the inputs of a step from other stages arrive; None if one is not computed yet.

    `ends` has the end of each pass executed so far, by (whether forward, stage, micro-batch); `transfer` is the time
    from the end of a pass to the arrival of its result on another rank.
    """
    arrivals = []
    for action in step:
        source = schedule.find_source(action)
        if source is None:
            continue
        end = ends.get((source < action.stage, source, action.microbatch))
        if end is None:
            return None
        arrivals.append(end if schedule.share_rank(action.stage, source) else end + transfer)
    return arrivals
