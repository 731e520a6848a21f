"""Pipeline schedules as plans, one file per schedule; the first look-up in the catalogue imports all of them.

A schedule is a function that takes a `PipelineShape` (numbers of ranks, stages and micro-batches) and a rank, and
yields the passes of this rank in order. The registry adds sends and receives to these passes. Read the module `gpipe`
first, then `registry` and `catalogue`; `schedule_files` reads schedules of torch from CSV files.
`hpccoll.plan.schedule` defines actions and schedules, and `hpccoll.plan.check_schedule` proves a schedule.
"""

from hpccoll.schedules.catalogue import get_schedule, list_schedule_names, list_schedules, make_schedule
from hpccoll.schedules.registry import PipelineShape, ScheduleFamily

__all__ = [
    "PipelineShape", "ScheduleFamily", "get_schedule", "list_schedule_names", "list_schedules", "make_schedule",
]  # fmt: skip
