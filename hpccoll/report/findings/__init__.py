"""Finds problems in results, each with a severity, evidence and a remedy; start reading in collect.py.

Findings have the doctor's format (doctor/finding.py), so scripts read a single kind of record. Findings
compare medians by their confidence intervals, so a difference that may be due to chance is not reported.
"""

from hpccoll.report.findings.collect import collect_findings
from hpccoll.report.findings.runs import BenchRequest

__all__ = ["BenchRequest", "collect_findings"]
