"""Reads the runs, measurements, barriers, preflight records and doctor's findings in result files, for a report.

The file of a resumed run has several `run` records. A record of a kind other than `run` belongs to the last `run`
record that precedes it in the same file. If the user names a directory, all `*.jsonl` files below the directory are
read. A file that hpccoll did not write is an error if the user named the file, but is skipped and listed if the user
named its directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpccoll.errors import UsageError
from hpccoll.measure.results.collective_record import read_collective_record
from hpccoll.measure.results.result_file import find_result_files, read_records
from hpccoll.records import BarrierRecord, BarrierSummaryRecord, CollectiveRecord, TrainAccountRecord, TrainStepRecord

OPTION = "FILE"
PREFLIGHT = ("preflight_pair", "preflight_node", "preflight_summary")


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of a command in a result file."""

    number: int  # the run's number among the runs of all files, from 1
    file: str  # path of the result file
    record: Mapping[str, Any]  # the run's record of kind `run`; empty if the file has none

    @property
    def versions(self) -> Mapping[str, Any]:
        """The version of each package; empty if the run's record has no versions."""
        versions = self.record.get("versions")
        return versions if isinstance(versions, Mapping) else {}

    @property
    def mpi(self) -> str:
        """The MPI library's version, or an empty string."""
        return str(self.versions.get("mpi") or "")

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host name of each rank; empty if the names are unknown."""
        return tuple(str(host) for host in get_list(self.record, "hosts"))

    @property
    def cores(self) -> tuple[int, ...]:
        """The number of cores that each rank could run on; empty if the numbers are unknown."""
        return tuple(cores for cores in get_list(self.record, "cores") if isinstance(cores, int))

    @property
    def command(self) -> str:
        """The command line of the run, or an empty string."""
        return str(self.record.get("command") or "")

    @property
    def is_measuring_command(self) -> bool:
        """Whether the run's command was `hpccoll bench` or `hpccoll preflight`, which should write measurements."""
        return self.command.split()[:2] in (["hpccoll", "bench"], ["hpccoll", "preflight"])

    @property
    def title(self) -> str:
        """The run's number and file name, such as `run 1 (bench.jsonl)`."""
        return f"run {self.number} ({Path(self.file).name})"


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """A record of kind `collective` and the run that measured it."""

    record: CollectiveRecord
    run: RecordedRun


@dataclass(slots=True)
class Results:
    """The records of all result files that a report shows, by kind."""

    files: list[str] = field(default_factory=list)  # paths of the files that were read
    runs: list[RecordedRun] = field(default_factory=list)  # the runs in the files
    # Measurements of `hpccoll bench` and `hpccoll tune`, each with its run
    rows: list[RunMeasurement] = field(default_factory=list)
    # Measurements of `hpccoll barrier`, each with its run
    barriers: list[tuple[RecordedRun, BarrierRecord]] = field(default_factory=list)
    # Last records of `hpccoll barrier`, each with its run
    barrier_summaries: list[tuple[RecordedRun, BarrierSummaryRecord]] = field(default_factory=list)
    # Records of `hpccoll preflight` as dictionaries, each with its run
    preflight: list[tuple[RecordedRun, Mapping[str, Any]]] = field(default_factory=list)
    # Records of kind `finding` as dictionaries, each with its run
    doctor_findings: list[tuple[RecordedRun, Mapping[str, Any]]] = field(default_factory=list)
    # Records of steps of `hpccoll train`, each with its run
    train_steps: list[tuple[RecordedRun, TrainStepRecord]] = field(default_factory=list)
    # Records of `hpccoll train --account`, each with its run
    accounts: list[tuple[RecordedRun, TrainAccountRecord]] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)  # paths of files whose last line is incomplete
    # For each file that was skipped because hpccoll did not write it, the path and the reason
    foreign: list[str] = field(default_factory=list)
    # The number of records of each kind that a report does not show
    others: Counter[str] = field(default_factory=Counter)

    @property
    def pair_count(self) -> int:
        """The number of measured pairs of nodes, regardless of direction; the same pair in two runs counts twice."""
        pairs = self.list_preflight_records("preflight_pair")
        ends = [(run.number, str(pair.get("source")), str(pair.get("destination"))) for run, pair in pairs]
        return len({(number, frozenset((source, dest))) for number, source, dest in ends})

    def list_preflight_records(self, kind: str) -> list[tuple[RecordedRun, Mapping[str, Any]]]:
        """Return the preflight records of one kind, each with its run."""
        return [(run, record) for run, record in self.preflight if record["kind"] == kind]

    def add_file(self, path: Path, named: bool) -> None:
        """Read a result file and append its records.

        A file that hpccoll did not write is added to `foreign`, or raises UsageError if the user named it (`named`).
        """
        if str(path) in self.files:  # the user named the file twice, or also its directory
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
                run = self._add_run(path, record)
            else:
                run = run or self._add_run(path, {})
                self._add_record(run, record, contents.locate(index))

    def _add_run(self, path: Path, record: Mapping[str, Any]) -> RecordedRun:
        """Append a run with its record of kind `run`, which may be empty, and return the run."""
        self.runs.append(RecordedRun(len(self.runs) + 1, str(path), record))
        return self.runs[-1]

    def _add_record(self, run: RecordedRun, record: Mapping[str, Any], location: str) -> None:
        """Append a record to the list of its kind; records of the preflight and the doctor are not validated.

        `location` is the record's file and line, for error messages.
        """
        kind = record["kind"]
        if kind == "collective":
            self.rows.append(RunMeasurement(read_collective_record(record, location), run))
        elif kind == BarrierRecord.kind:
            self.barriers.append((run, BarrierRecord.from_dict(record, location)))
        elif kind == BarrierSummaryRecord.kind:
            self.barrier_summaries.append((run, BarrierSummaryRecord.from_dict(record, location)))
        elif kind in PREFLIGHT:
            self.preflight.append((run, record))
        elif kind == TrainStepRecord.kind:
            self.train_steps.append((run, TrainStepRecord.from_dict(record, location)))
        elif kind == TrainAccountRecord.kind:
            self.accounts.append((run, TrainAccountRecord.from_dict(record, location)))
        elif kind == "finding":
            self.doctor_findings.append((run, record))
        else:
            self.others[kind] += 1


def load_results(paths: Sequence[str | Path]) -> Results:
    """Return the records of the result files in `paths` and of all `*.jsonl` files below the directories in `paths`.

    Runs without a record to show are left out, unless their command should have written measurements. Raises UsageError
    if a file cannot be read or is invalid, or no file has a record to show.
    """
    results = Results()
    for path in paths:
        for file in find_result_files(Path(path)):
            results.add_file(file, named=not Path(path).is_dir())
    shown = {run.number for run, _ in (*results.preflight, *results.doctor_findings)}
    shown |= {run.number for run, _ in (*results.train_steps, *results.accounts)}
    shown |= {row.run.number for row in results.rows} | {run.number for run, _ in results.barriers}
    if not shown:
        raise UsageError(_describe_nothing_to_show(results))
    # Runs of bench and preflight without measurements are kept, so that the report warns of the missing measurements.
    results.runs = [run for run in results.runs if run.number in shown or run.is_measuring_command]
    return results


def _describe_nothing_to_show(results: Results) -> str:
    """Return an error message that lists the records found in the files and the records that a report can show."""
    counts = [*([("run", len(results.runs))] if results.runs else []), *sorted(results.others.items())]
    contents = ", ".join(f"{count} of kind {kind}" for kind, count in counts)
    files = ", ".join(results.files) or "; ".join(results.foreign)
    return (
        f"{OPTION} {files}: nothing to show: {f'only records {contents}' if contents else 'no record'}; a report shows "
        "the measurements of `hpccoll bench` and `hpccoll barrier`, the steps of `hpccoll train`, the pairs of "
        "`hpccoll preflight` and the findings of `hpccoll doctor`"
    )


def get_list(record: Mapping[str, Any], key: str) -> Sequence[Any]:
    """Return the list in a record's field `key`; an empty sequence if the field is missing or not a list."""
    value = record.get(key)
    return value if isinstance(value, list) else ()
