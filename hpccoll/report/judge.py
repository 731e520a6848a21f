"""What the results say, in words: every finding with its evidence and what to do, the worst first.

The words are the doctor's (doctor/finding.py), so that scripts read one kind of record. What the doctor and the
preflight found themselves is passed on; the rest is judged here, from medians with their intervals, never from a
difference that chance could have made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.report import judge_links, judge_noise, judge_rows, judge_runs
from hpccoll.report.distance import Models
from hpccoll.report.judge_runs import Wanted
from hpccoll.report.load import Results, Run
from hpccoll.report.series import Picture

Wants: TypeAlias = Callable[[Run], Wanted | None]


def judge(
    results: Results, pictures: Sequence[Picture], models: Models, wants: Wants = lambda _: None
) -> list[Finding]:
    """Return the findings, problems first.

    Args:
        results: what the files hold.
        pictures: of their measurements.
        models: the machines that bounds are taken from.
        wants: what a run's command asked for; None where that is not known.
    """
    found = [
        *judge_rows.wrong(results.rows),
        *judge_links.all_of(results),
        *judge_runs.cut_short(results, wants),
        *judge_runs.binding(results.runs),
        *judge_runs.device_memory(results.rows),
        *judge_noise.all_of(results.rows),
        *judge_rows.choices(pictures),
        *judge_rows.far_from_bound(pictures, models),
        *judge_rows.growth(pictures),
        *judge_runs.told(results),
    ]
    return sorted(found, key=lambda finding: -finding.severity)


__all__ = ["Finding", "Severity", "Wanted", "Wants", "judge"]
