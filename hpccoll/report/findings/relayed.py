"""Findings that the preflight, the barrier suite and the doctor recorded, repeated in the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.report.load import RecordedRun, Results, get_list

_AREAS = {"slow_node": "node", "lost_node": "node"}
_PROBLEMS = ("lost_node", "broken_link")


def relay_preflight_faults(results: Results) -> Iterator[Finding]:
    """Yield a finding per slow or broken node or link that a recorded `hpccoll preflight` found.

    A preflight without faults gives one finding of severity OK, and a preflight that was cut short gives a warning.
    """
    summaries = results.list_preflight_records("preflight_summary")
    for run, summary in summaries:
        yield from _relay_summary(run, summary)
    finished = {run.number for run, _ in summaries}
    unfinished = {run.number: run for run, _ in results.preflight if run.number not in finished}
    for run in unfinished.values():
        found = f"the preflight of {run.title} was cut short before it looked for slow links and nodes"
        evidence = f"{run.file}: pairs were measured, but there is no record of kind preflight_summary"
        yield Finding("run", Severity.WARNING, found, evidence, "run hpccoll preflight again on the same nodes")


def _relay_summary(run: RecordedRun, summary: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding per fault in one preflight's last record, or one of severity OK if there is no fault."""
    nodes = [str(node) for node in get_list(summary, "nodes")]
    threshold = summary.get("threshold")
    evidence = (
        f"{len(nodes)} nodes, all pairs measured; slow means below {threshold} of the others' median ({run.title})"
    )
    faults = [fault for fault in get_list(summary, "faults") if isinstance(fault, Mapping)]
    for fault in faults:
        kind = str(fault.get("kind"))
        exclude = fault.get("exclude")
        remedy = str(fault.get("remedy") or "") + (f"; meanwhile: sbatch --exclude={exclude}" if exclude else "")
        yield Finding(
            _AREAS.get(kind, "link"),
            Severity.PROBLEM if kind in _PROBLEMS else Severity.WARNING,
            str(fault.get("found")),
            evidence,
            remedy,
            hosts=tuple(str(node) for node in get_list(fault, "nodes")),
        )
    if not faults:
        yield Finding("link", Severity.OK, "no link and no node is slow or broken", evidence)


def relay_stragglers(results: Results) -> Iterator[Finding]:
    """Yield findings on recorded runs of `hpccoll barrier`: late ranks, and barriers that let ranks leave too early.

    Each run gives a warning that names its late rank, or a finding of severity OK. A barrier that a rank left before
    the last rank had entered gives a finding of severity `problem` per arrival pattern.
    """
    for run, summary in results.barrier_summaries:
        evidence = f"{summary.reason} ({run.title})"
        if summary.straggler is None:
            yield Finding("barrier", Severity.OK, "no rank is late to barriers", evidence)
        else:
            node = summary.lateness[summary.straggler].node
            found = f"rank {summary.straggler} on {node} is late to barriers"
            remedy = f"look for other programs, throttling and interrupts on the core of this rank on {node}"
            yield Finding("barrier", Severity.WARNING, found, evidence, remedy, hosts=(node,))
    for run, row in results.barriers:
        if row.unsafe:
            found = f"{row.name} let a rank leave before the last rank had entered, in {row.unsafe} rounds"
            evidence = f"arrival pattern {row.pattern}, clock within {row.clock_error_us:.2g} us ({run.title})"
            yield Finding("barrier", Severity.PROBLEM, found, evidence, "do not use this barrier; report it")


def relay_doctor_findings(results: Results) -> Iterator[Finding]:
    """Yield the warnings and problems that `hpccoll doctor` recorded."""
    for run, record in results.doctor_findings:
        severity = str(record.get("severity", "")).upper()
        if severity in (Severity.WARNING.name, Severity.PROBLEM.name):
            yield Finding(
                f"doctor, {record.get('area', '')}",
                Severity[severity],
                str(record.get("found", "")),
                f"{record.get('evidence', '')} ({run.title})",
                str(record.get("remedy") or ""),
                hosts=tuple(map(str, get_list(record, "hosts"))),
            )
