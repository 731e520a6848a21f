"""What was found, how bad it is, the evidence, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

SCHEMA = "hpccoll/1"
_MOST_TOLD = 4  # hosts whose evidence is shown


class Severity(IntEnum):
    """How bad a finding is: in order, so that findings can be sorted by it."""

    OK = 0  # as it should be
    NOTE = 1  # worth knowing; nothing to mend
    WARNING = 2  # costs time, or will fail in some cases
    PROBLEM = 3  # something does not work, or results may be wrong


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        area: what it belongs to, such as `mpi` or `shared memory`.
        severity: how bad it is.
        found: what is the case, in a sentence.
        evidence: where that is from: a value, a file, a command and how it ended.
        remedy: commands and settings that mend it; empty where there is nothing to mend.
        provides: names of what `--require` may ask for and this finding shows to work.
        hosts: where it was found; empty for this host, or for the job as a whole.
    """

    area: str
    severity: Severity
    found: str
    evidence: str
    remedy: str = ""
    provides: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the record of kind `finding`, as it is written with --json."""
        return {
            "schema": SCHEMA,
            "kind": "finding",
            "area": self.area,
            "severity": self.severity.name.lower(),
            "found": self.found,
            "evidence": self.evidence,
            "remedy": self.remedy or None,
            "provides": list(self.provides),
            "hosts": list(self.hosts),
        }


Check = Callable[[], Sequence[Finding]]


def run_check(area: str, check: Check) -> list[Finding]:
    """Return what `check` finds; where it fails by itself, that is the finding, and the others go on."""
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001 - a doctor who dies of one patient's odd file examines nobody
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = f"{where.tb_frame.f_code.co_filename}:{where.tb_lineno}" if where is not None else "?"
        evidence = f"{type(error).__name__}: {error} ({place})"
        remedy = "please report it, with this line"
        return [
            Finding(area, Severity.WARNING, "this check failed by itself; nothing is known of it", evidence, remedy)
        ]


def merge_findings(findings: Sequence[tuple[str, Finding]]) -> list[Finding]:
    """Join findings of several hosts: what is the same on many is said once, with the hosts that it is true of.

    Args:
        findings: pairs of host and finding. Those that differ in their evidence only (figures) count as the same.
    """
    alike: dict[Finding, dict[str, str]] = {}
    for host, finding in findings:
        alike.setdefault(replace(finding, evidence=""), {})[host] = finding.evidence
    result = []
    for finding, told in alike.items():
        texts = [f"{host}: {evidence}" for host, evidence in told.items()]
        evidence = next(iter(told.values())) if len(set(told.values())) == 1 else "; ".join(texts[:_MOST_TOLD])
        result.append(replace(finding, evidence=evidence, hosts=tuple(told)))
    return result
