"""Pipeline schedules as CSV files in the formats of torch.distributed.pipelining.

Line r has the actions of rank r, one per cell, such as `2F0` or `(2F1;5B0)OVERLAP_F_B`; empty cells are idle times and
have no effect. The format `compute_only` has only passes, to which torch adds all other actions; the format
`compute_comms` has all actions. In `compute_comms`, torch from 2.15 on requires a wait for each send and for each sum
of gradients, but torch up to 2.14 cannot read waits. The format that is called `compute_comms_waits` here is torch's
`compute_comms` with waits. Source: torch/distributed/pipelining/schedules.py of PyTorch 2.13 and 2.15, `_load_csv` and
`_dump_csv`.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

from hpccoll.errors import PlanError, UsageError
from hpccoll.plan.schedule import (
    MESSAGES,
    OF_STAGE,
    OVERLAP,
    PASSES,
    ActionKind,
    PipelineAction,
    PipelineStep,
    Schedule,
    format_step,
    list_actions,
)

CsvFormat: TypeAlias = Literal["compute_only", "compute_comms", "compute_comms_waits"]
CSV_FORMATS: tuple[str, ...] = get_args(CsvFormat)
_ACTION = re.compile(rf"(\d{{1,6}})({'|'.join(sorted(ActionKind, key=len, reverse=True))})(\d{{0,6}})", re.ASCII)
_OVERLAPPED = re.compile(rf"\(([^()]*)\){OVERLAP}")


def format_schedule_csv(schedule: Schedule, csv_format: CsvFormat = "compute_comms") -> str:
    """Return a pipeline schedule as CSV in a format of torch.distributed.pipelining.

    The schedule must have no waits. The format states whether the file lists messages, or passes only.
    """
    if csv_format == "compute_only":
        schedule = schedule.select_passes()
    elif csv_format == "compute_comms_waits":
        schedule = schedule.add_waits()
    rows = [[format_step(step) for step in program] for program in schedule.programs]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def parse_schedule_csv(text: str, name: str, csv_format: CsvFormat | None = None) -> Schedule:
    """Return the schedule of a CSV file, without proving it; error messages call the file `name`.

    The schedule has the stages and micro-batches that occur in the file. Each stage is placed on the rank that has most
    of the passes of this stage. `csv_format` is the format of the file; None detects it by whether the file has sends
    or receives. Waits are read in both formats with messages.

    Raises:
        UsageError: a line or cell cannot be read, or is not allowed in the format.
        PlanError: the stages or micro-batches are not numbered from 0 without gaps.
    """
    programs = []
    try:
        for line, row in _read_lines(text):
            programs.append(tuple(_parse_row(row, f"{name}, line {line}", csv_format)))
    except csv.Error as error:
        where = f"{name}, line {len(programs) + 1}"
        raise UsageError(f"{where}: {error}; write one line of comma-separated cells per rank") from error
    if not any(programs):
        raise UsageError(f"{name} has no actions; write a line per rank, such as 0F0,0B0")
    actions = [action for program in programs for _, action in list_actions(program)]
    stage_ranks = _place_stages(programs, len(actions), name)
    microbatches = _count_microbatches(actions, len(actions), name)
    has_messages = csv_format not in (None, "compute_only") or any(action.kind in MESSAGES for action in actions)
    return Schedule(name, microbatches, stage_ranks, tuple(programs), None, has_messages)


def _read_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each line of a CSV file, without empty lines at the end."""
    reader = csv.reader(text.rstrip().splitlines(keepends=True), strict=True)
    for row in reader:
        yield reader.line_num, row


def _parse_row(row: list[str], where: str, csv_format: CsvFormat | None) -> Iterator[PipelineStep]:
    """Yield the steps in the cells of a line; error messages call the line `where`.

    `csv_format` is the format of the file, or None for any.
    """
    for column, cell in enumerate(row, 1):
        words = cell.strip()
        if not words:
            continue
        overlapped = _OVERLAPPED.fullmatch(words)
        parts = overlapped[1].split(";") if overlapped else [words]
        step = tuple(_parse_action(part.strip(), f"{where}, column {column}: {words[:60]!r}") for part in parts)
        if csv_format == "compute_only" and any(action.kind not in PASSES for action in step):
            raise UsageError(
                f"{where}, column {column}: {words} is no pass, and the format compute_only has passes alone; remove "
                "the cell, or read the file as compute_comms"
            )
        yield step


def _parse_action(words: str, where: str) -> PipelineAction:
    """Return the action that a cell names, such as `2F0`; error messages call the cell `where`."""
    match = _ACTION.fullmatch(words)
    if match is None:
        raise UsageError(
            f"{where} is no action; write stage, kind and micro-batch, such as 2F0, 2B0, 2SEND_F0 or 2UNSHARD, or "
            f"(2F1;5B0){OVERLAP}"
        )
    kind = ActionKind(match[2])
    if bool(match[3]) != (kind not in OF_STAGE):
        raise UsageError(
            f"{where}: {kind} is for {'a stage and has no' if match[3] else 'one'} micro-batch; "
            f"write {match[1]}{kind}{'' if match[3] else '0'}"
        )
    return PipelineAction(kind, int(match[1]), int(match[3] or -1))


def _place_stages(programs: list[tuple[PipelineStep, ...]], count: int, name: str) -> tuple[int, ...]:
    """Return the rank of each stage: the rank with most of the stage's passes, or with most of its other actions.

    `count` is the number of all actions; a pass counts as `count` other actions, so that passes decide.

    Raises PlanError if the stages are not numbered from 0 without gaps.
    """
    votes: dict[int, Counter[int]] = {}
    for rank, program in enumerate(programs):
        for _, action in list_actions(program):
            votes.setdefault(action.stage, Counter())[rank] += count if action.kind in PASSES else 1
    ranks = {stage: max(votes[stage], key=votes[stage].__getitem__) for stage in votes}
    stages = max(ranks) + 1
    missing = next((stage for stage in range(min(stages, count + 1)) if stage not in ranks), None)
    if missing is not None:
        raise PlanError(f"{name}: no rank has an action of stage {missing}, but rank {ranks[stages - 1]} has one of "
                        f"stage {stages - 1}; number the stages from 0 without gaps")  # fmt: skip
    return tuple(ranks[stage] for stage in range(stages))


def _count_microbatches(actions: list[PipelineAction], count: int, name: str) -> int:
    """Return the number of micro-batches; raise PlanError unless they are numbered from 0 without gaps.

    `actions` are all actions of the schedule, `count` their number, and `name` is the name of the file.
    """
    named = {action.microbatch for action in actions if action.microbatch >= 0}
    microbatches = max(named, default=-1) + 1
    missing = next((number for number in range(min(microbatches, count + 1)) if number not in named), None)
    if missing is not None:
        raise PlanError(f"{name}: micro-batch {missing} does not occur, but micro-batch {microbatches - 1} does; "
                        "number the micro-batches from 0 without gaps")  # fmt: skip
    return microbatches
