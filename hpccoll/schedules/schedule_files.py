"""Pipeline schedules by name or from CSV files of torch.distributed.pipelining, proven before they are used."""

from __future__ import annotations

from typing import Final

from hpccoll.errors import DeadlockError, PlanError, UsageError
from hpccoll.plan import ActionKind, Schedule, ScheduleProof, check_schedule
from hpccoll.plan.interchange.torch_schedules import CsvFormat, parse_schedule_csv
from hpccoll.private_files import read_limited

MOST_BYTES: Final = 2**22  # of a schedule file


def is_schedule_file(name: str) -> bool:
    """Whether `name` ends in `.csv`, and so names a file rather than a built-in schedule."""
    return name.lower().endswith(".csv")


def prove_schedule_file(path: str, csv_format: CsvFormat | None = None) -> tuple[Schedule, ScheduleProof]:
    """Return the pipeline schedule of a CSV file, and its proof.

    If the file has no messages, the function adds messages and sums of gradients to the schedule. `csv_format` is None
    to detect the format.

    Raises:
        UsageError: the file cannot be read or a cell is not an action; the message names line and column.
        PlanError: the schedule is wrong; the message names the file, the rank, the action and the reason.
    """
    try:
        text = read_limited(path, MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}; name a CSV file of a pipeline schedule") from error
    schedule = parse_schedule_csv(text, path, csv_format)
    try:
        proof = check_schedule(schedule)
        if schedule.has_messages:
            return schedule, proof
        if ActionKind.REDUCE_GRAD not in schedule.kinds:
            schedule = schedule.add_reductions()
        schedule = schedule.add_messages()
        return schedule, check_schedule(schedule)
    except DeadlockError as error:
        raise DeadlockError(f"{path}: {error}", error.stuck) from error
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
