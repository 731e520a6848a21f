"""All pipeline schedules by name; the first look-up imports them."""

from __future__ import annotations

from functools import cache

from hpccoll.errors import UnknownNameError
from hpccoll.plan import Schedule
from hpccoll.schedules.registry import REGISTERED, ScheduleFamily


@cache
def _register_built_in() -> None:
    """Import the files of all built-in pipeline schedules, whose decorators register the schedules."""
    from hpccoll.schedules import (  # noqa: F401 - importing a module registers its schedule
        dualpipev,
        gpipe,
        interleaved_1f1b,
        looped_bfs,
        one_forward_one_backward,
        zb_h1,
        zbv,
    )


def list_schedules() -> list[ScheduleFamily]:
    """Return the `ScheduleFamily` of every pipeline schedule, sorted by name."""
    _register_built_in()
    return [REGISTERED[name] for name in sorted(REGISTERED)]


def list_schedule_names() -> list[str]:
    """Return the sorted names of all pipeline schedules."""
    return [schedule.name for schedule in list_schedules()]


def get_schedule(name: str) -> ScheduleFamily:
    """Return the `ScheduleFamily` named `name`; raise UnknownNameError, with the valid names, if there is none."""
    _register_built_in()
    if name not in REGISTERED:
        raise UnknownNameError("pipeline schedule", name, sorted(REGISTERED))
    return REGISTERED[name]


def make_schedule(name: str, stages: int, microbatches: int, stages_per_rank: int | None = None) -> Schedule:
    """Return the pipeline schedule `name`, with sends and receives, for numbers of stages and micro-batches.

    With None as `stages_per_rank`, each rank has the schedule's default number of stages. Raises UsageError for an
    unknown name, or if the schedule excludes these numbers of stages and micro-batches.
    """
    return get_schedule(name).plan(stages, microbatches, stages_per_rank)
