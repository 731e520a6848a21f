"""Runs one check of `hpccoll doctor`, and merges the findings of several hosts."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from hpccoll.records import Finding, Severity

_MAX_EVIDENCE_HOSTS = 4


Check = Callable[[], Sequence[Finding]]


def run_check(area: str, check: Check) -> list[Finding]:
    """Return the findings of `check`; if it raises an exception, return a warning in `area` instead."""
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001 - one unreadable file must not end the other checks
        place = traceback.extract_tb(error.__traceback__)[-1]
        evidence = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        found = "hpccoll's own check failed, so this was not examined"
        return [Finding(area, Severity.WARNING, found, evidence, "report it to hpccoll, with this line")]


def merge_findings(findings: Sequence[tuple[str, Finding]]) -> list[Finding]:
    """Merge findings of several hosts that differ only in their evidence into one finding, which names the hosts."""
    evidence_by_host: dict[Finding, dict[str, str]] = {}
    for host, finding in findings:
        evidence_by_host.setdefault(replace(finding, evidence=""), {})[host] = finding.evidence
    merged = []
    for finding, by_host in evidence_by_host.items():
        texts = [f"{host}: {evidence}" for host, evidence in by_host.items()]
        same = len(set(by_host.values())) == 1
        evidence = next(iter(by_host.values())) if same else "; ".join(texts[:_MAX_EVIDENCE_HOSTS])
        merged.append(replace(finding, evidence=evidence, hosts=tuple(by_host)))
    return merged
