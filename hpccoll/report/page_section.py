"""The content of a page as data: sections with panels, legends and tables, which templates/page.html.j2 renders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpccoll.measure.results.measured_case import Implementation
from hpccoll.report.line_chart import LineChart, render_line_chart
from hpccoll.report.line_styles import LineStyle, LineStyles


@dataclass(frozen=True, slots=True)
class FigurePanel:
    """A figure of the report: an <svg> element with a heading.

    With `has_scale_button`, a button switches the vertical axis between logarithmic and linear; `is_log` is its first
    state.
    """

    title: str
    svg: str
    element_id: str
    has_scale_button: bool = True
    is_log: bool = True


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of the report. `is_folded` hides its rows until the reader opens the table.

    Columns in `number_columns` are aligned right.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    number_columns: frozenset[str] = frozenset()
    is_folded: bool = False


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of the report: a paragraph `intro`, figures with a legend, `side_table` beside them, other tables."""

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


def make_chart_panel(chart: LineChart) -> FigurePanel | None:
    """Return a figure panel with a line chart; None if the chart has nothing to draw."""
    svg = render_line_chart(chart)
    return FigurePanel(chart.title, svg, chart.element_id, is_log=chart.is_log) if svg else None


def make_legend(implementations: Iterable[Implementation], styles: LineStyles) -> tuple[tuple[str, LineStyle], ...]:
    """Return the label and style of each implementation for a section's legend, muted lines last."""
    ordered = sorted(set(implementations), key=lambda name: (styles[name].is_muted, name.sort_key))
    return tuple((implementation.label, styles[implementation]) for implementation in ordered)
