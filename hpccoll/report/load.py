"""Reads result files for a report: runs, their measurements, pairs of nodes, findings of the doctor.

A resumed file holds several runs, and a sweep is several files: each record belongs to the last `run` record before it
in its file. A directory stands for all `*.jsonl` files below it; foreign files there are skipped and listed, but a
foreign file that was named itself is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.measure.collective_record import read_collective_record
from hpccoll.measure.result_file import read_records
from hpccoll.records import CollectiveRecord

OPTION = "FILE"
SUFFIX = ".jsonl"
PREFLIGHT = ("preflight_pair", "preflight_node", "preflight_summary")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A `run` record and its file; `number` counts from 1 over all files. The record is empty if the file has none."""

    number: int
    file: str
    record: Mapping[str, Any]

    @property
    def versions(self) -> Mapping[str, Any]:
        """Versions by package; empty if the record has none."""
        found = self.record.get("versions")
        return found if isinstance(found, Mapping) else {}

    @property
    def mpi(self) -> str:
        """The MPI library's version, or an empty string."""
        return str(self.versions.get("mpi") or "")

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host name of each rank."""
        return tuple(str(host) for host in get_list(self.record, "hosts"))

    @property
    def cores(self) -> tuple[int, ...]:
        """Cores that each rank might run on."""
        return tuple(cores for cores in get_list(self.record, "cores") if isinstance(cores, int))

    @property
    def command(self) -> str:
        """The command line."""
        return str(self.record.get("command") or "")

    @property
    def is_measuring_command(self) -> bool:
        """Whether its command writes records that a report shows, so that their absence is a finding."""
        return self.command.split()[:2] in (["hpccoll", "bench"], ["hpccoll", "preflight"])

    @property
    def title(self) -> str:
        """Its number and file name, for sentences."""
        return f"run {self.number} ({Path(self.file).name})"


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """A measurement and its run."""

    record: CollectiveRecord
    run: RecordedRun


@dataclass(frozen=True, slots=True)
class Results:
    """The contents of result files, without runs that have no record to show.

    Args:
        files: the files that were read.
        runs: the runs, in order of reading.
        rows: the measurements.
        preflight: preflight records as decoded, with their runs.
        doctor_findings: finding records as decoded, with their runs.
        torn: files whose last line is incomplete.
        foreign: skipped files of directories, with the reason.
        others: number of records per kind that a report does not show.
    """

    files: tuple[str, ...]
    runs: tuple[RecordedRun, ...]
    rows: tuple[RunMeasurement, ...]
    preflight: tuple[tuple[RecordedRun, Mapping[str, Any]], ...] = ()
    doctor_findings: tuple[tuple[RecordedRun, Mapping[str, Any]], ...] = ()
    torn: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def pair_count(self) -> int:
        """The number of pairs of nodes in preflight records, both directions counted once."""
        ends = (
            (run.number, pair.get("source"), pair.get("destination"))
            for run, pair in self.preflight_records("preflight_pair")
        )
        return len({(number, frozenset((str(one), str(other)))) for number, one, other in ends})

    def preflight_records(self, kind: str) -> list[tuple[RecordedRun, Mapping[str, Any]]]:
        """Return the preflight records of a kind."""
        return [(run, record) for run, record in self.preflight if record["kind"] == kind]


def load_results(paths: Sequence[str | Path]) -> Results:
    """Return the contents of files and directories.

    Raises:
        UsageError: a file cannot be read or is invalid, or no file has a record to show.
    """
    builder = _ResultsBuilder()
    for path in paths:
        for file, named in _find_files(Path(path)):
            builder.add(file, named)
    results = builder.results()
    if not results.rows and not results.preflight and not results.doctor_findings:
        raise UsageError(_describe_nothing_to_show(results, len(builder.runs)))
    return results


def _find_files(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the files that a path stands for, and whether the path names the file itself."""
    if not path.is_dir():
        yield path, True
        return
    found = sorted(file for file in path.rglob(f"*{SUFFIX}") if file.is_file())
    if not found:
        raise UsageError(f"{OPTION} {path}: no *{SUFFIX} in this directory; name files that hpccoll wrote with --json")
    for file in found:
        yield file, False


class _ResultsBuilder:
    """Collects the contents of files one by one."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.runs: list[RecordedRun] = []
        self.rows: list[RunMeasurement] = []
        self.preflight: list[tuple[RecordedRun, Mapping[str, Any]]] = []
        self.doctor_findings: list[tuple[RecordedRun, Mapping[str, Any]]] = []
        self.torn: list[str] = []
        self.foreign: list[str] = []
        self.others: Counter[str] = Counter()

    def add(self, path: Path, named: bool) -> None:
        if str(path) in self.files:  # named twice, or below a named directory
            return
        try:
            contents = read_records(path, OPTION)
        except UsageError as error:
            if named:
                raise
            self.foreign.append(str(error).removeprefix(f"{OPTION} "))
            return
        self.files.append(str(path))
        if contents.torn:
            self.torn.append(str(path))
        run: RecordedRun | None = None
        for index, record in enumerate(contents.records):
            if record["kind"] == "run":
                run = self._run(path, record)
            else:
                run = run or self._run(path, {})
                self._record(run, record, contents.locate(index))

    def _run(self, path: Path, record: Mapping[str, Any]) -> RecordedRun:
        self.runs.append(RecordedRun(len(self.runs) + 1, str(path), record))
        return self.runs[-1]

    def _record(self, run: RecordedRun, record: Mapping[str, Any], where: str) -> None:
        kind = record["kind"]
        if kind == "collective":
            self.rows.append(RunMeasurement(read_collective_record(record, where), run))
        elif kind in PREFLIGHT:
            self.preflight.append((run, record))
        elif kind == "finding":
            self.doctor_findings.append((run, record))
        else:
            self.others[kind] += 1

    def results(self) -> Results:
        shown = {run.number for run, _ in (*self.preflight, *self.doctor_findings)} | {
            row.run.number for row in self.rows
        }
        return Results(
            tuple(self.files),
            tuple(run for run in self.runs if run.number in shown or run.is_measuring_command),
            tuple(self.rows),
            tuple(self.preflight),
            tuple(self.doctor_findings),
            tuple(self.torn),
            tuple(self.foreign),
            dict(self.others),
        )


def _describe_nothing_to_show(results: Results, count: int) -> str:
    found = [f"{count} of kind {kind}" for kind, count in sorted(results.others.items())]
    runs = [f"{count} of kind run"] if count else []
    held = f"only records {', '.join([*runs, *found])}" if runs or found else "no record"
    where = ", ".join(results.files) or "; ".join(results.foreign)
    return (
        f"{OPTION} {where}: nothing to show: {held}; a report shows the measurements of `hpccoll bench`, the pairs of "
        "`hpccoll preflight` and the findings of `hpccoll doctor`"
    )


def get_list(record: Mapping[str, Any], key: str) -> Sequence[Any]:
    """Return the list under a key of a record; empty if there is none."""
    found = record.get(key)
    return found if isinstance(found, list) else ()
