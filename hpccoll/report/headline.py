"""Chooses the title of a report: the finding that matters most to its reader."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.measure.verdict.main_finding import describe_main_finding
from hpccoll.report.curves import CurveGroup

_FAULT_AREAS = ("link", "node")  # areas of the preflight's findings


def choose_headline(findings: Sequence[Finding], groups: Sequence[CurveGroup]) -> str:
    """Return the report's main finding in one sentence; `findings` begin with the most severe one.

    A problem comes first, then a slow link or node of the preflight together with the comparison of the measured
    implementations, then any other finding.
    """
    if findings and findings[0].severity is Severity.PROBLEM:
        return findings[0].found
    faults = [finding.found.split(": ")[0] for finding in findings if finding.area in _FAULT_AREAS]
    compared = describe_main_finding(case for group in groups for case in group.cases)
    if compared:
        return "; ".join([*faults[:1], compared])
    return next(iter([*faults, *(finding.found for finding in findings)]), "")
