"""Findings on runs: cut short, on too few cores, device memory by a detour; and what the doctor said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.measure.bandwidth import count_for_bytes, find_timed_operation, message_bytes
from hpccoll.measure.table import PLACES
from hpccoll.report.load import MeasuredRow, Results, Run, listed
from hpccoll.units import format_size

_AGAIN = "run it again with --resume FILE: what is finished is kept and not measured again"
_BIND = "mpirun --bind-to core (Open MPI), mpirun -bind-to core (MPICH), or srun --cpu-bind=cores"
_MOST_TOLD = 4


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What a command of `hpccoll bench` asked for: sizes in bytes before they are rounded to whole elements."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    places: tuple[bool, ...]
    itemsize: int

    def expected_rows(self, ranks: int) -> set[tuple[str, bool, int]]:
        """Return operation, place and size of every row that the run should have."""
        found = set()
        for name in self.operations:
            op = find_timed_operation(name)
            for size in self.sizes:
                nbytes = message_bytes(op, count_for_bytes(op, size, self.itemsize, ranks), self.itemsize, ranks)
                found |= {(name, place, nbytes) for place in self.places}
        return found


def find_incomplete_runs(results: Results, wants: Callable[[Run], BenchRequest | None]) -> Iterator[Finding]:
    """Yield a finding for each file that does not hold what its run was to measure."""
    for file in results.torn:
        evidence = f"{file}: its last line is no whole record, and is left out"
        yield Finding("run", Severity.WARNING, "a run was cut short while it wrote", evidence, _AGAIN)
    measured: dict[str, list[MeasuredRow]] = {}
    for row in results.rows:
        measured.setdefault(row.run.file, []).append(row)
    beside = {run.file for run, _ in (*results.preflight, *results.told)}
    last = {run.file: run for run in results.runs}  # of a file that was resumed the last run counts
    for file, run in last.items():
        mine = measured.get(file, [])
        wanted = wants(run)
        if not mine and file not in beside and run.measures:
            evidence = f"{file}: a run record and no measurement; command: {run.command}"
            yield Finding("run", Severity.WARNING, f"{run.title} ended before it measured anything", evidence, _AGAIN)
        elif mine and wanted is not None:
            yield from _find_missing_sizes(run, wanted, mine)


def _find_missing_sizes(run: Run, wanted: BenchRequest, rows: Sequence[MeasuredRow]) -> Iterator[Finding]:
    ranks = rows[-1].record.row.ranks
    have = {(row.op, row.in_place, row.nbytes) for timed in rows if (row := timed.record.row).ranks == ranks}
    missing = sorted(wanted.expected_rows(ranks) - have)
    if not missing:
        return
    by_kind: dict[tuple[str, bool], list[int]] = {}
    for op, place, nbytes in missing:
        by_kind.setdefault((op, place), []).append(nbytes)
    told = [
        f"{op} {PLACES[place]} {', '.join(format_size(nbytes) for nbytes in sizes[:_MOST_TOLD])}"
        + (f" and {len(sizes) - _MOST_TOLD} more sizes" if len(sizes) > _MOST_TOLD else "")
        for (op, place), sizes in by_kind.items()
    ]
    evidence = f"{run.file}: missing: {'; '.join(told)}; command: {run.command}"
    yield Finding(
        "run", Severity.WARNING, f"{run.title} was cut short: {len(missing)} sizes are missing", evidence, _AGAIN
    )


def find_binding_problems(runs: Iterable[Run]) -> Iterator[Finding]:
    """Yield what is wrong with where ranks may run."""
    alike: dict[tuple[Severity, str, str, str], list[Run]] = {}
    for run in runs:
        for severity, found, evidence, remedy in _check_binding(run):
            alike.setdefault((severity, found, evidence, remedy), []).append(run)
    for (severity, found, evidence, remedy), several in alike.items():
        where = ", ".join(run.title for run in several)
        yield Finding("binding", severity, found, f"{where}: {evidence}", remedy)


def _check_binding(run: Run) -> Iterator[tuple[Severity, str, str, str]]:
    ranks = Counter(run.hosts)
    cores = run.cores
    if not cores or len(cores) != len(run.hosts):
        return
    busiest, most = ranks.most_common(1)[0]
    there = sorted({count for host, count in zip(run.hosts, cores, strict=True) if host == busiest})
    told = f"{most} ranks on {busiest}, each may run on {' or '.join(map(str, there))} core{'s' * (there[-1] > 1)}"
    if run.record.get("oversubscribed") and most > 1:
        if there == [1]:
            found = "ranks are bound to the same core and take turns on it: times are those of waiting for each other"
            yield Severity.PROBLEM, found, told, f"{_BIND}; or ask for as many cores as ranks"
        else:
            found = "more ranks than cores: waiting ranks take the time of working ones, times are not the network's"
            remedy = "start at most a rank a core, or ask for more cores (--cpus-per-task, fewer --ntasks-per-node)"
            yield Severity.WARNING, found, told, remedy
    if len(set(cores)) > 1:
        counts = ", ".join(f"{count} on {ranks}" for count, ranks in sorted(Counter(cores).items()))
        found = "ranks may run on different numbers of cores: the tightest bound one holds up all others"
        yield Severity.WARNING, found, f"cores a rank, and ranks that have so many: {counts}", _BIND


def find_device_memory_problems(rows: Iterable[MeasuredRow]) -> Iterator[Finding]:
    """Yield where device memory reached MPI by a detour, or devices were there and not used."""
    kept = list(rows)
    pinned = [row for row in kept if row.record.staging == "pinned"]
    if pinned:
        libraries = ", ".join(sorted({row.run.mpi or "this MPI library" for row in pinned}))
        found = f"{libraries} was not shown to take device memory: it went through pinned host memory"
        evidence = f"{len(pinned)} measurements have staging pinned, such as {_name_row(pinned[0])}"
        remedy = (
            "load an MPI that is built for CUDA (Open MPI with UCX and CUDA, MPICH with CH4 and CUDA); "
            "`hpccoll doctor --require cuda-aware` under the same launcher says which operations work"
        )
        yield Finding("cuda", Severity.WARNING, found, evidence, remedy)
    idle = {row.run.number: row.run for row in kept if listed(row.run.record, "devices")}
    used = {row.run.number for row in kept if row.record.row.buffer == "cuda"}
    for number, run in idle.items():
        if number not in used:
            found = f"{run.title} had GPUs and measured host memory only"
            evidence = f"devices: {', '.join(map(str, listed(run.record, 'devices')[:_MOST_TOLD]))}"
            yield Finding("cuda", Severity.NOTE, found, evidence, "add --buffer cuda to measure device memory as well")


def relay_doctor_findings(results: Results) -> Iterator[Finding]:
    """Yield the doctor's warnings and problems as they are."""
    for run, record in results.told:
        severity = str(record.get("severity", "")).upper()
        if severity in (Severity.WARNING.name, Severity.PROBLEM.name):
            yield _relay_finding(run, record, Severity[severity])


def _relay_finding(run: Run, record: Mapping[str, Any], severity: Severity) -> Finding:
    return Finding(
        f"doctor, {record.get('area', '')}",
        severity,
        str(record.get("found", "")),
        f"{record.get('evidence', '')} ({run.title})",
        str(record.get("remedy") or ""),
        hosts=tuple(map(str, listed(record, "hosts"))),
    )


def _name_row(timed: MeasuredRow) -> str:
    row = timed.record.row
    return f"{row.op} {row.algorithm or row.engine} {format_size(row.nbytes)}"
