"""Finds problems in results, each with a severity, evidence and a remedy; start reading in collect.py.

The report's findings have the format of the doctor's (doctor/finding.py), so scripts read a single kind of record.
Medians are compared by their confidence intervals, so a difference that may be due to chance is not reported.
"""

from hpccoll.report.findings.collect import collect_findings
from hpccoll.report.findings.runs import BenchRequest

__all__ = ["BenchRequest", "collect_findings"]
