"""Reads the runs of one side of a comparison from result files of `hpccoll bench`.

A run is one execution of a benchmark. A result file usually contains one run, even if `--resume` has appended new rows.
An appended row whose case is already in the run begins another run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.measure.core_share import is_shared
from hpccoll.measure.other_process_load import BUSY
from hpccoll.measure.results.collective_record import read_collective_record
from hpccoll.measure.results.result_file import find_result_files, read_records
from hpccoll.measure.verdict.trust import are_unreliable
from hpccoll.records import BenchSummaryRecord, CaseKey, CollectiveRecord, RunRecord


@dataclass(slots=True)
class MeasuredRun:
    """One run of `hpccoll bench`: its measurements, its machine and software, and the load by other programs."""

    name: str  # the file, for messages
    environment: Mapping[str, Any]  # the record of kind `run`; empty if the file has none
    rows: dict[CaseKey, CollectiveRecord] = field(default_factory=dict)
    busy_cores: float | None = None  # cores that other programs kept busy; None if unknown

    @property
    def is_unreliable(self) -> bool:
        """Whether the verdict of `hpccoll bench` on this run is `times: unreliable`."""
        return are_unreliable(list(self.rows.values()))

    @property
    def start_time(self) -> str:
        """The time at which the run began, as an ISO 8601 string; empty if unknown."""
        return str(self.environment.get("start_time") or "")

    @property
    def contention(self) -> str:
        """Why the ranks had no cores of their own, such as `ranks share cores`; empty if they had, or it is unknown."""
        if self.environment.get("oversubscribed") or is_shared(self.environment.get("core_share")):
            return "ranks share cores"
        if self.busy_cores is not None and self.busy_cores > BUSY:
            return f"other programs kept {self.busy_cores:.1f} cores busy"
        return ""


@dataclass(slots=True)
class ComparedSide:
    """The runs of one side of a comparison (A, the baseline, or B), and sentences on damaged files."""

    name: str  # A or B
    runs: list[MeasuredRun]
    torn: list[str] = field(default_factory=list)  # sentences on files whose last line is incomplete

    @property
    def keys(self) -> list[CaseKey]:
        """The cases (operation, size, engine, algorithm) that at least one run measured, in the order measured."""
        return list(dict.fromkeys(key for run in self.runs for key in run.rows))

    @property
    def wrong(self) -> list[CaseKey]:
        """The cases that have wrong results in at least one run."""
        return [key for key in self.keys if any(key in run.rows and run.rows[key].wrong for run in self.runs)]


def order_by_turns(a: ComparedSide, b: ComparedSide) -> bool:
    """Sort the runs of both sides by start time, and return whether A and B were measured in turns.

    A and B were measured in turns if, for each k, run k of A and run k of B began before run k + 1 of either side.
    """
    for side in (a, b):
        side.runs.sort(key=lambda run: run.start_time)
    starts = [[run.start_time for run in side.runs] for side in (a, b)]
    if len(starts[0]) != len(starts[1]) or len(starts[0]) < 2 or "" in (*starts[0], *starts[1]):
        return False
    rounds = list(zip(*starts, strict=True))
    return all(max(one) < min(following) for one, following in pairwise(rounds))


def read_side(name: str, paths: Iterable[str | Path]) -> ComparedSide:
    """Return one side of a comparison: the runs in result files; a directory stands for all its `.jsonl` files.

    Args:
        name: `A` or `B`, for error messages.
        paths: files and directories.

    Raises:
        UsageError: a file cannot be read, is invalid, or all files together have no row of `hpccoll bench`.
    """
    side, files = ComparedSide(name, []), [file for path in paths for file in find_result_files(Path(path))]
    for file in files:
        _read_file(side, file)
    side.runs = [run for run in side.runs if run.rows]
    if not side.runs:
        raise UsageError(
            f"{name} {', '.join(map(str, files[:4]))}: no measurement in it; name a file that "
            "`mpirun -n RANKS hpccoll bench --json FILE` wrote"
        )
    return side


def _read_file(side: ComparedSide, file: Path) -> None:
    """Append the runs in one result file to `side`; a row that repeats a case begins another run."""
    contents = read_records(file, side.name)
    if contents.torn:
        side.torn.append(contents.torn)
    run = MeasuredRun(str(file), {})
    side.runs.append(run)
    for index, line in enumerate(contents.records):
        if line["kind"] == RunRecord.kind:
            run.environment = run.environment or line
        elif line["kind"] == BenchSummaryRecord.kind:
            run.busy_cores = line.get("busy_cores")
        elif line["kind"] == CollectiveRecord.kind:
            record = read_collective_record(line, contents.locate(index))
            if record.key in run.rows:
                run = MeasuredRun(f"{file}, line {contents.lines[index]}", run.environment)
                side.runs.append(run)
            run.rows[record.key] = record
