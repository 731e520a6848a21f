"""What the results say, in words: every finding with its evidence and what to do, the worst first.

The words are the doctor's (doctor/finding.py), so that scripts read one kind of record. What the doctor and the
preflight found themselves is passed on; the rest is judged here, from medians with their intervals, never from a
difference that chance could have made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.report.bound_models import BoundModels
from hpccoll.report.curves import CurveGroup
from hpccoll.report.findings import measurements, noise, relayed, runs
from hpccoll.report.findings.runs import BenchRequest
from hpccoll.report.load import Results, Run

ReadRequest: TypeAlias = Callable[[Run], BenchRequest | None]


def collect_findings(
    results: Results, pictures: Sequence[CurveGroup], models: BoundModels, wants: ReadRequest = lambda _: None
) -> list[Finding]:
    """Return the findings, problems first.

    Args:
        results: what the files hold.
        pictures: of their measurements.
        models: the machines that bounds are taken from.
        wants: what a run's command asked for; None where that is not known.
    """
    found = [
        *measurements.find_wrong_results(results.rows),
        *relayed.relay_preflight_faults(results),
        *runs.find_incomplete_runs(results, wants),
        *runs.find_binding_problems(results.runs),
        *runs.find_device_memory_problems(results.rows),
        *noise.find_noise(results.rows),
        *measurements.find_slow_implementations(pictures),
        *measurements.find_missed_bounds(pictures, models),
        *measurements.find_poor_scaling(pictures),
        *runs.relay_doctor_findings(results),
    ]
    return sorted(found, key=lambda finding: -finding.severity)


__all__ = ["BenchRequest", "Finding", "ReadRequest", "Severity", "collect_findings"]
