"""Collects the findings on result files from all other modules of hpccoll.report.findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpccoll.doctor.finding import Finding
from hpccoll.report.bound_models import BoundModels
from hpccoll.report.curves import CurveGroup
from hpccoll.report.findings.measurements import (
    find_missed_bounds,
    find_poor_scaling,
    find_slow_implementations,
    find_wrong_results,
)
from hpccoll.report.findings.noise import find_noise
from hpccoll.report.findings.relayed import relay_doctor_findings, relay_preflight_faults, relay_stragglers
from hpccoll.report.findings.runs import (
    BenchRequest,
    find_binding_problems,
    find_device_memory_problems,
    find_incomplete_runs,
)
from hpccoll.report.load import RecordedRun, Results


def collect_findings(
    results: Results,
    groups: Sequence[CurveGroup],
    models: BoundModels,
    read_request: Callable[[RecordedRun], BenchRequest | None] = lambda _: None,
) -> list[Finding]:
    """Return all conclusions from result files, such as wrong results or slow nodes, most severe first.

    Args:
        results: the contents of the result files.
        groups: the measurements in `results`, grouped by operation and job size.
        models: lower bounds on the times.
        read_request: returns the cases that the command of a run requested, or None if they are unknown.
    """
    findings = [
        *find_wrong_results(results.rows),
        *relay_preflight_faults(results),
        *relay_stragglers(results),
        *find_incomplete_runs(results, read_request),
        *find_binding_problems(results.runs),
        *find_device_memory_problems(results.rows),
        *find_noise(results.rows),
        *find_slow_implementations(groups),
        *find_missed_bounds(groups, models),
        *find_poor_scaling(groups),
        *relay_doctor_findings(results),
    ]
    return sorted(findings, key=lambda finding: -finding.severity)
