"""Findings on runs: incomplete results, more ranks than cores, GPU memory copied through the host, unused GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.measure.bandwidth import compute_count, compute_message_bytes, find_timed_operation
from hpccoll.measure.display.table import PLACES
from hpccoll.measure.workload import list_places
from hpccoll.report.findings.noise import describe_row
from hpccoll.report.load import RecordedRun, Results, RunMeasurement, get_list
from hpccoll.units import format_count, format_list, format_size

_RESUME = "run it again with --resume FILE, which keeps finished rows and measures only the missing ones"
_BIND = "mpirun --bind-to core (Open MPI), mpirun -bind-to core (MPICH), or srun --cpu-bind=cores"
_MAX_LISTED = 4


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """The operations, sizes and places (in place or not) that an `hpccoll bench` command was told to measure."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]  # message sizes in bytes, before rounding to whole elements
    places: tuple[bool, ...]  # True: results overwrite the inputs; False: results have a buffer of their own
    itemsize: int  # bytes of an element

    def list_expected_rows(self, ranks: int) -> set[tuple[str, bool, int]]:
        """Return (operation, whether in place, message bytes) of each measurement of a complete run."""
        expected = set()
        for name in self.operations:
            op = find_timed_operation(name)
            for size in self.sizes:
                nbytes = compute_message_bytes(op, compute_count(op, size, self.itemsize, ranks), self.itemsize, ranks)
                expected |= {(name, place, nbytes) for place in list_places(op, self.places)}
        return expected


def find_incomplete_runs(
    results: Results, read_request: Callable[[RecordedRun], BenchRequest | None]
) -> Iterator[Finding]:
    """Yield a warning per file with a damaged line, or without some of the measurements that its command requested.

    `read_request` returns the cases that the command of a run requested, or None if they are unknown.
    """
    for file in results.torn:
        evidence = f"{file}: damaged or incomplete lines were skipped"
        yield Finding("run", Severity.WARNING, "a run was cut short while writing a record", evidence, _RESUME)
    rows_by_file: dict[str, list[RunMeasurement]] = {}
    for row in results.rows:
        rows_by_file.setdefault(row.run.file, []).append(row)
    files_with_other_records = {run.file for run, _ in (*results.preflight, *results.doctor_findings)}
    last_runs = {run.file: run for run in results.runs}  # a resumed file's last run requests all cases
    for file, run in last_runs.items():
        rows = rows_by_file.get(file, [])
        request = read_request(run)
        if not rows and file not in files_with_other_records and run.is_measuring_command:
            evidence = f"{file}: a run record without measurements; command: {run.command}"
            yield Finding("run", Severity.WARNING, f"{run.title} ended before it measured anything", evidence, _RESUME)
        elif rows and request is not None:
            yield from _find_missing_sizes(run, request, rows)


def _find_missing_sizes(run: RecordedRun, request: BenchRequest, rows: Sequence[RunMeasurement]) -> Iterator[Finding]:
    """Yield a warning that lists the message sizes in `request` without a measurement in `rows`, if there are any."""
    ranks = rows[-1].record.ranks
    records = [row.record for row in rows if row.record.ranks == ranks]
    present = {(record.op, record.in_place, record.nbytes) for record in records}
    missing = sorted(request.list_expected_rows(ranks) - present)
    if not missing:
        return
    sizes_by_case: dict[tuple[str, bool], list[int]] = {}
    for op, in_place, nbytes in missing:
        sizes_by_case.setdefault((op, in_place), []).append(nbytes)
    cases = [
        f"{op} {PLACES[in_place]} {format_list([format_size(nbytes) for nbytes in sizes], _MAX_LISTED)}"
        for (op, in_place), sizes in sizes_by_case.items()
    ]
    found = f"{run.title} was cut short: {len(missing)} sizes are missing"
    evidence = f"{run.file}: missing: {'; '.join(cases)}; command: {run.command}"
    yield Finding("run", Severity.WARNING, found, evidence, _RESUME)


def find_binding_problems(runs: Iterable[RecordedRun]) -> Iterator[Finding]:
    """Yield a finding per problem with ranks' cores (shared, or unequal in number), which names all affected runs."""
    runs_by_problem: dict[tuple[Severity, str, str, str], list[RecordedRun]] = {}
    for run in runs:
        for problem in _check_binding(run):
            runs_by_problem.setdefault(problem, []).append(run)
    for (severity, found, evidence, remedy), affected in runs_by_problem.items():
        titles = ", ".join(run.title for run in affected)
        yield Finding("binding", severity, found, f"{titles}: {evidence}", remedy)


def _check_binding(run: RecordedRun) -> Iterator[tuple[Severity, str, str, str]]:
    """Yield severity, problem, evidence and remedy if ranks of the run share cores or have unequal numbers of cores."""
    cores = run.cores
    if not cores or len(cores) != len(run.hosts):
        return
    busiest, ranks = Counter(run.hosts).most_common(1)[0]
    choices = sorted({count for host, count in zip(run.hosts, cores, strict=True) if host == busiest})
    cores_text = f"{' or '.join(map(str, choices))} core{'s' * (choices[-1] > 1)}"
    evidence = f"{format_count(ranks, 'rank')} on {busiest}, each may run on {cores_text}"
    if run.record.get("oversubscribed") and ranks > 1:
        if choices == [1]:
            found = "several ranks are bound to the same core, so measured times include waiting for the core"
            yield Severity.PROBLEM, found, evidence, f"{_BIND}; or request one core per rank"
        else:
            found = "more ranks than cores: waiting ranks take CPU time from working ones, so times are too long"
            remedy = "start at most one rank per core, or request more cores (--cpus-per-task, fewer --ntasks-per-node)"
            yield Severity.WARNING, found, evidence, remedy
    if len(set(cores)) > 1:
        counts = [f"{count} ({ranks} rank{'s' * (ranks > 1)})" for count, ranks in sorted(Counter(cores).items())]
        found = "ranks may run on different numbers of cores; those with the fewest slow down all others"
        yield Severity.WARNING, found, f"cores per rank: {', '.join(counts)}", _BIND


def find_device_memory_problems(rows: Iterable[RunMeasurement]) -> Iterator[Finding]:
    """Yield findings on device memory that was staged through host memory, and on runs that did not use their GPUs."""
    kept = list(rows)
    pinned = [row for row in kept if row.record.staging == "pinned"]
    if pinned:
        libraries = ", ".join(sorted({row.run.mpi or "this MPI library" for row in pinned}))
        found = f"{libraries} was not shown to be CUDA-aware: device memory was copied through pinned host memory"
        evidence = f"{len(pinned)} measurements have staging pinned, such as {describe_row(pinned[0])}"
        remedy = (
            "load an MPI that is built for CUDA (Open MPI with UCX and CUDA, MPICH with CH4 and CUDA); check it with "
            "`hpccoll doctor --require cuda-aware` under the same launcher"
        )
        yield Finding("cuda", Severity.WARNING, found, evidence, remedy)
    runs_with_devices = {row.run.number: row.run for row in kept if get_list(row.run.record, "devices")}
    used = {row.run.number for row in kept if row.record.buffer == "cuda"}
    for number, run in runs_with_devices.items():
        if number not in used:
            found = f"{run.title} had GPUs but measured only host memory"
            evidence = f"devices: {', '.join(map(str, get_list(run.record, 'devices')[:_MAX_LISTED]))}"
            yield Finding("cuda", Severity.NOTE, found, evidence, "add --buffer cuda to measure device memory as well")
