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
from hpccoll.report import environment, growth, operations
from hpccoll.report.distance import Model, Models
from hpccoll.report.load import Results
from hpccoll.report.looks import looks
from hpccoll.report.scaling import scalings
from hpccoll.report.section import Section
from hpccoll.report.series import Picture

_ROOM = "hpccoll.report"


@dataclass(frozen=True, slots=True)
class Modelled:
    """A machine as the page tells it."""

    job: str
    model: Model

    @property
    def miss(self) -> str:
        """By how much it misses what was not fitted."""
        return "-" if self.model.error is None else f"{self.model.error:.1%}"


def render(
    results: Results,
    pictures: Sequence[Picture],
    models: Models,
    findings: Sequence[Finding],
    links: Sequence[Section] = (),
) -> str:
    """Return the page.

    Args:
        results: what the files hold.
        pictures: of their measurements.
        models: the machines that bounds are taken from.
        findings: in the order in which they are told.
        links: the sections on pairs of nodes.
    """
    look = looks(pictures)
    sections = [
        *links,
        *growth.sections(scalings(pictures), look),
        *operations.sections(pictures, look, models),
    ]
    jinja = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = jinja.from_string(_text("page.html.j2"))
    return template.render(
        style=_text("style.css"),
        script=_text("script.js"),
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        summary=_summary(results),
        counts=_counts(findings),
        findings=findings,
        sections=sections,
        models=_modelled(models),
        missing=models.missing,
        runs=results.runs,
        facts=environment.facts(results.runs),
        notes=_notes(results),
    )


def _text(name: str) -> str:
    return resources.files(_ROOM).joinpath("templates", name).read_text(encoding="utf-8")


def _summary(results: Results) -> str:
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


def _counts(findings: Sequence[Finding]) -> list[tuple[str, int]]:
    """Return how many findings there are of each severity, the worst first."""
    found = [(each.name.lower(), sum(one.severity is each for one in findings)) for each in reversed(Severity)]
    return [(name, count) for name, count in found if count]


def _modelled(models: Models) -> list[Modelled]:
    return [
        Modelled(f"{ranks} rank{'s' * (ranks > 1)} on {nodes} node{'s' * (nodes > 1)}", model)
        for (ranks, nodes), model in sorted(models.of.items())
    ]


def _notes(results: Results) -> list[str]:
    """Return what was in the files and is not on the page."""
    others = [
        f"{count} record{'s' * (count > 1)} of kind {kind} not shown" for kind, count in sorted(results.others.items())
    ]
    return [*others, *(f"left out: {each}" for each in results.foreign)]
