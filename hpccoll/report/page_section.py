"""The content of a page as data: sections with panels, legends and tables, and the templates that render it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from hpccoll import __version__
from hpccoll.measure.results.measured_case import Implementation
from hpccoll.report.line_chart import LineChart, render_line_chart
from hpccoll.report.line_styles import LineStyle, LineStyles


@dataclass(frozen=True, slots=True)
class FigurePanel:
    """A figure of the report: an <svg> element with a heading.

    With `has_scale_button`, a button switches the vertical axis between logarithmic and linear; `is_log` is whether the
    axis is logarithmic when the page opens.
    """

    title: str
    svg: str
    element_id: str
    has_scale_button: bool = True
    is_log: bool = True


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of the report. `is_folded` hides the rows until the reader opens the table.

    Columns in `number_columns` are aligned right.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    number_columns: frozenset[str] = frozenset()
    is_folded: bool = False


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of the report: title, paragraph `intro`, figures with a legend, tables and notes.

    `side_table` is beside the figures. `folded_panels` are figures that are hidden until the reader opens them.
    """

    element_id: str  # the HTML id, unique on the page; the ids of the section's panels begin with this id
    title: str
    intro: str
    panels: tuple[FigurePanel, ...] = ()
    legend: tuple[tuple[str, LineStyle], ...] = ()  # label, style
    tables: tuple[PageTable, ...] = ()
    folded_panels: tuple[FigurePanel, ...] = ()  # figures, hidden until the reader opens `folded_title`
    folded_title: str = ""
    notes: tuple[str, ...] = ()
    side_table: PageTable | None = None
    short_title: str = ""  # for the table of contents; the title if empty


def render_template(package: str, name: str, **values: Any) -> str:
    """Return the HTML of the template `name` in the folder templates/ of a package, with `values` as its variables.

    A template may include the templates of this package, and also has the variables `version` (of hpccoll) and
    `created` (now). Text is escaped, except values that the template marks as safe.
    """
    loader = ChoiceLoader([PackageLoader(package), PackageLoader("hpccoll.report")])
    jinja = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    created = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return jinja.get_template(name).render(values, version=__version__, created=created)


def make_chart_panel(chart: LineChart) -> FigurePanel | None:
    """Return a figure panel with a line chart; None if the chart has nothing to draw."""
    svg = render_line_chart(chart)
    return FigurePanel(chart.title, svg, chart.element_id, is_log=chart.is_log) if svg else None


def make_legend(implementations: Iterable[Implementation], styles: LineStyles) -> tuple[tuple[str, LineStyle], ...]:
    """Return the label and style of each implementation for a section's legend, gray lines last."""
    ordered = sorted(set(implementations), key=lambda name: (styles[name].is_muted, name.sort_key))
    return tuple((implementation.label, styles[implementation]) for implementation in ordered)
