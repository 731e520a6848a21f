"""Findings of the preflight, passed on with its own words: slow and broken links, slow and lost nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.report.load import Results, Run, listed

_AREAS = {"slow_node": "node", "lost_node": "node"}
_BROKEN = ("lost_node", "broken_link")


def relay_preflight_faults(results: Results) -> Iterator[Finding]:
    """Yield a finding for each fault, and whether a preflight found none or did not come to its end."""
    ended = {run.number for run, _ in results.of_kind("preflight_summary")}
    for run, summary in results.of_kind("preflight_summary"):
        yield from _relay_summary(run, summary)
    open_ended = {run.number: run for run, _ in results.preflight if run.number not in ended}
    for run in open_ended.values():
        found = f"the preflight of {run.title} was cut short: it names neither slow links nor slow nodes"
        evidence = f"{run.file}: pairs were measured, but there is no record of kind preflight_summary"
        yield Finding("run", Severity.WARNING, found, evidence, "run hpccoll preflight again on the same nodes")


def _relay_summary(run: Run, summary: Mapping[str, Any]) -> Iterator[Finding]:
    nodes = [str(node) for node in listed(summary, "nodes")]
    threshold = summary.get("threshold")
    looked = (
        f"{len(nodes)} nodes, each pair measured; slow is below {threshold} of the median of the others ({run.title})"
    )
    faults = [fault for fault in listed(summary, "faults") if isinstance(fault, Mapping)]
    for fault in faults:
        kind = str(fault.get("kind"))
        leave = fault.get("exclude")
        remedy = str(fault.get("remedy") or "") + (f"; meanwhile: sbatch --exclude={leave}" if leave else "")
        yield Finding(
            _AREAS.get(kind, "link"),
            Severity.PROBLEM if kind in _BROKEN else Severity.WARNING,
            str(fault.get("found")),
            looked,
            remedy,
            hosts=tuple(str(node) for node in listed(fault, "nodes")),
        )
    if not faults:
        yield Finding("link", Severity.OK, "no link and no node is slow or broken", looked)
