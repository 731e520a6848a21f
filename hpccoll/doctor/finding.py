"""`Finding`: the observation of a check with its severity, evidence and remedy."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from hpccoll.records import FindingRecord

_MAX_EVIDENCE_HOSTS = 4


class Severity(IntEnum):
    """The severity of a finding; a more severe member compares greater."""

    OK = 0  # no problem
    NOTE = 1  # worth knowing; nothing to fix
    WARNING = 2  # makes programs slow, or makes them fail in some cases
    PROBLEM = 3  # something does not work, or results may be wrong


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check: the observation with its severity, evidence and remedy, and the hosts concerned.

    `provides` names the capabilities of `hpccoll doctor --require` that the finding proves.
    """

    area: str  # the subject, such as `mpi` or `shared memory`
    severity: Severity  # how severe it is
    found: str  # the observation, in one sentence
    evidence: str  # the source of the observation: a value, a file, or a command and how it ended
    remedy: str = ""  # commands and settings that fix the problem; empty if there is none
    provides: tuple[str, ...] = ()  # capabilities of `--require` that this finding proves
    hosts: tuple[str, ...] = ()  # hosts with this finding; empty if it concerns this host or the whole job

    def make_record(self) -> FindingRecord:
        """Return this finding as a record of kind `finding`, which --json writes."""
        severity: Any = self.severity.name.lower()
        texts = (self.area, severity, self.found, self.evidence, self.remedy or None)
        return FindingRecord(*texts, self.provides, self.hosts)


Check = Callable[[], Sequence[Finding]]


def run_check(area: str, check: Check) -> list[Finding]:
    """Call `check` and return the list of its findings, or of one warning if it raises an exception.

    `area` is the subject of the warning, such as `clock`.
    """
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001 - one unreadable file must not end the other checks
        place = traceback.extract_tb(error.__traceback__)[-1]
        evidence = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        found = "hpccoll's own check failed, so this was not examined"
        return [Finding(area, Severity.WARNING, found, evidence, "report it to hpccoll, with this line")]


def merge_findings(findings: Sequence[tuple[str, Finding]]) -> list[Finding]:
    """Merge findings of several hosts that differ only in their evidence, and return the merged findings.

    `findings` are pairs of a host's name and a finding. A merged finding names its hosts.
    """
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
