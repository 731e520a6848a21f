"""One HTML file from results: everything in it, nothing fetched, readable without its script.

The template and its style sheet and script are in templates/. Whatever comes out of result files is escaped; only the
pictures, whose own text is escaped where they are made, go in as they are. The page's content security policy forbids
it any request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources

from jinja2 import Environment, StrictUndefined

from hpccoll import __version__
from hpccoll.doctor.finding import Finding, Severity
from hpccoll.report import environment, operation_sections, scaling_sections
from hpccoll.report.bound_models import BoundModels, JobModel
from hpccoll.report.curves import CurveGroup
from hpccoll.report.line_styles import assign_line_styles
from hpccoll.report.load import Results
from hpccoll.report.page_section import PageSection
from hpccoll.report.scaling_curves import group_scaling_curves

_ROOM = "hpccoll.report"


@dataclass(frozen=True, slots=True)
class Modelled:
    """A machine as the page tells it."""

    job: str
    model: JobModel

    @property
    def miss(self) -> str:
        """By how much it misses what was not fitted."""
        return "-" if self.model.error is None else f"{self.model.error:.1%}"


def render_page(
    results: Results,
    pictures: Sequence[CurveGroup],
    models: BoundModels,
    findings: Sequence[Finding],
    links: Sequence[PageSection] = (),
) -> str:
    """Return the page.

    Args:
        results: what the files hold.
        pictures: of their measurements.
        models: the machines that bounds are taken from.
        findings: in the order in which they are told.
        links: the sections on pairs of nodes.
    """
    look = assign_line_styles(pictures)
    sections = [
        *links,
        *scaling_sections.build_scaling_sections(group_scaling_curves(pictures), look),
        *operation_sections.build_operation_sections(pictures, look, models),
    ]
    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = jinja.from_string(_read_template("page.html.j2"))
    return template.render(
        style=_read_template("style.css"),
        script=_read_template("script.js"),
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        summary=_summarize_results(results),
        counts=_count_by_severity(findings),
        findings=findings,
        sections=sections,
        models=_modelled(models),
        missing=models.missing,
        runs=results.runs,
        facts=environment.collect_environment_facts(results.runs),
        notes=_list_omissions(results),
    )


def _read_template(name: str) -> str:
    return resources.files(_ROOM).joinpath("templates", name).read_text(encoding="utf-8")


def _summarize_results(results: Results) -> str:
    """Return what the page is about, in a line."""
    rows = len(results.rows)
    operations = sorted({row.record.row.op for row in results.rows})
    pairs = results.pairs
    parts = [
        f"{rows:,} measurement{'s' * (rows != 1)} of {', '.join(operations)}" if rows else "",
        f"{pairs:,} pair{'s' * (pairs != 1)} of nodes" if pairs else "",
        f"{len(results.runs)} run{'s' * (len(results.runs) != 1)}",
        f"{len(results.files)} file{'s' * (len(results.files) != 1)}",
    ]
    return "; ".join(part for part in parts if part)


def _count_by_severity(findings: Sequence[Finding]) -> list[tuple[str, int]]:
    """Return how many findings there are of each severity, the worst first."""
    found = [(each.name.lower(), sum(one.severity is each for one in findings)) for each in reversed(Severity)]
    return [(name, count) for name, count in found if count]


def _modelled(models: BoundModels) -> list[Modelled]:
    return [
        Modelled(f"{ranks} rank{'s' * (ranks > 1)} on {nodes} node{'s' * (nodes > 1)}", model)
        for (ranks, nodes), model in sorted(models.by_job.items())
    ]


def _list_omissions(results: Results) -> list[str]:
    """Return what was in the files and is not on the page."""
    others = [
        f"{count} record{'s' * (count > 1)} of kind {kind} not shown" for kind, count in sorted(results.others.items())
    ]
    return [*others, *(f"left out: {each}" for each in results.foreign)]
