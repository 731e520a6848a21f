"""Reads the runs of one side of a comparison from result files of `hpccoll bench`.

A run is one execution of a benchmark. A file usually contains one run. A file to which `--resume` has appended contains
one run, too, if the appended rows are new; rows that are already in the run begin another run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hpccoll.errors import UsageError
from hpccoll.measure.results.collective_record import read_collective_record
from hpccoll.measure.results.result_file import find_result_files, read_records
from hpccoll.records import CaseKey, CollectiveRecord, RunRecord
from hpccoll.units import format_size


class RowKey(NamedTuple):
    """The fields that identify a row across runs: its benchmark case and the number of nodes."""

    case: CaseKey
    nodes: int

    @property
    def name(self) -> str:
        """The row's name, such as `all_reduce 64 KiB hpccoll/ring`."""
        case = self.case
        engine = f"{case.engine}/{case.algorithm}" if case.algorithm else case.engine
        place = "" if case.in_place else " out of place"
        return f"{case.op} {format_size(case.nbytes)}{place} {engine}"


@dataclass(slots=True)
class MeasuredRun:
    """A run of a benchmark: its name for messages, its record of kind `run` (empty if missing), and its rows."""

    name: str
    environment: Mapping[str, Any]
    rows: dict[RowKey, CollectiveRecord] = field(default_factory=dict)


@dataclass(slots=True)
class ComparedSide:
    """The runs of one side, A or B, and sentences about files whose last line is incomplete."""

    name: str
    runs: list[MeasuredRun]
    torn: list[str] = field(default_factory=list)

    @property
    def keys(self) -> list[RowKey]:
        """The rows that at least one run has, in the order measured."""
        return list(dict.fromkeys(key for run in self.runs for key in run.rows))

    @property
    def wrong(self) -> list[RowKey]:
        """The rows that have a wrong result in at least one run."""
        return [key for key in self.keys if any(key in run.rows and run.rows[key].wrong for run in self.runs)]


def make_row_key(record: CollectiveRecord) -> RowKey:
    """Return the fields that identify the row of a record across runs."""
    return RowKey(record.key, record.nodes)


def read_side(name: str, paths: Iterable[str | Path]) -> ComparedSide:
    """Return the runs in result files; a directory stands for all its `.jsonl` files.

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
    """Append the runs in one file to `side`."""
    contents = read_records(file, side.name)
    if contents.torn:
        side.torn.append(contents.torn)
    run = MeasuredRun(str(file), {})
    side.runs.append(run)
    for index, line in enumerate(contents.records):
        if line["kind"] == RunRecord.kind:
            run.environment = run.environment or line
        elif line["kind"] == CollectiveRecord.kind:
            record = read_collective_record(line, contents.locate(index))
            if make_row_key(record) in run.rows:
                run = MeasuredRun(f"{file}, line {contents.lines[index]}", run.environment)
                side.runs.append(run)
            run.rows[make_row_key(record)] = record
