"""Chooses the title of a report: the finding that matters most to its reader."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.measure.verdict.main_finding import describe_main_finding
from hpccoll.report.curves import CurveGroup

_FAULT_AREAS = ("link", "node")  # areas of the preflight's findings


def choose_headline(findings: Sequence[Finding], groups: Sequence[CurveGroup]) -> str:
    """Return the title of a report: its most important result in one sentence, or an empty string without results.

    `findings` begin with the most severe one. A first finding of severity `problem` is the title. Otherwise the title
    names a slow link or node and the fastest implementation or, if neither is known, repeats the first finding.
    """
    if findings and findings[0].severity is Severity.PROBLEM:
        return findings[0].found
    faults = [finding.found.split(": ")[0] for finding in findings if finding.area in _FAULT_AREAS]
    compared = describe_main_finding(case for group in groups for case in group.cases)
    if compared:
        return "; ".join([*faults[:1], compared])
    return next(iter([*faults, *(finding.found for finding in findings)]), "")
