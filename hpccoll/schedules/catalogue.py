"""All pipeline schedules by name; the first look-up imports them."""

from __future__ import annotations

from functools import cache

from hpccoll.errors import UnknownNameError
from hpccoll.plan import Schedule
from hpccoll.schedules.registry import REGISTERED, ScheduleFamily


@cache
def _register_built_in() -> None:
    """Import the files of the package, which registers their schedules."""
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
    """Return all schedules, sorted by name."""
    _register_built_in()
    return [REGISTERED[name] for name in sorted(REGISTERED)]


def list_schedule_names() -> list[str]:
    """Return the sorted names of the schedules."""
    return [schedule.name for schedule in list_schedules()]


def get_schedule(name: str) -> ScheduleFamily:
    """Return a schedule; for an unknown name raise UnknownNameError, which lists the valid names."""
    _register_built_in()
    if name not in REGISTERED:
        raise UnknownNameError("pipeline schedule", name, sorted(REGISTERED))
    return REGISTERED[name]


def make_schedule(name: str, stages: int, microbatches: int, stages_per_rank: int | None = None) -> Schedule:
    """Return the schedule `name` for the given counts; raise UsageError for an unknown name or excluded counts."""
    return get_schedule(name).plan(stages, microbatches, stages_per_rank)
