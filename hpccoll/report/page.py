"""Renders a report as one HTML page that needs no network and is readable without its script.

The template, style sheet and script are in templates/. All text from result files is escaped. SVG elements are
inserted unchanged, because their text is already escaped. The page's content security policy forbids all requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.report.bound_models import BoundModels, format_job_size
from hpccoll.report.curves import CurveGroup
from hpccoll.report.environment import list_environment_rows
from hpccoll.report.headline import choose_headline
from hpccoll.report.line_styles import choose_line_styles
from hpccoll.report.load import Results
from hpccoll.report.operation_sections import build_operation_sections
from hpccoll.report.page_section import PageSection, render_template
from hpccoll.report.scaling_curves import group_scaling_curves
from hpccoll.report.scaling_sections import build_scaling_sections
from hpccoll.units import format_count


def render_page(
    results: Results,
    groups: Sequence[CurveGroup],
    models: BoundModels,
    findings: Sequence[Finding],
    more_sections: Sequence[PageSection] = (),
) -> str:
    """Return the report as the HTML of one page: findings, `more_sections`, then scaling and operations (`groups`)."""
    styles = choose_line_styles(case for group in groups for case in group.cases)
    sections = [
        *more_sections,
        *build_scaling_sections(group_scaling_curves(groups), styles),
        *build_operation_sections(groups, styles, models),
    ]
    summary = _summarize_results(results)
    counts = [
        (level.name.lower(), sum(finding.severity is level for finding in findings)) for level in reversed(Severity)
    ]
    omitted = [f"{n} record{'s' * (n > 1)} of kind {kind} not shown" for kind, n in sorted(results.others.items())]
    return render_template(
        "hpccoll.report",
        "page.html.j2",
        headline=choose_headline(findings, groups) or summary,
        summary=summary,
        counts=[(severity, count) for severity, count in counts if count],
        findings=findings,
        sections=sections,
        models=[(format_job_size(job), model) for job, model in sorted(models.by_job.items())],
        missing=models.missing,
        runs=results.runs,
        environment=list_environment_rows(results.runs),
        notes=[*omitted, *(f"skipped: {reason}" for reason in results.foreign)],
    )


def _summarize_results(results: Results) -> str:
    """Return the line below the page's title: the numbers of measurements, barriers, node pairs, runs and files."""
    rows = len(results.rows)
    operations = sorted({row.record.op for row in results.rows})
    pairs, barriers = results.pair_count, len(results.barriers)
    parts = [
        f"{rows:,} measurement{'s' * (rows != 1)} of {', '.join(operations)}" if rows else "",
        format_count(len(results.train_steps), "training step") if results.train_steps else "",
        f"{barriers:,} row{'s' * (barriers != 1)} of barriers" if barriers else "",
        f"{pairs:,} pair{'s' * (pairs != 1)} of nodes" if pairs else "",
        f"{len(results.runs)} run{'s' * (len(results.runs) != 1)}",
        f"{len(results.files)} file{'s' * (len(results.files) != 1)}",
    ]
    return "; ".join(part for part in parts if part)
