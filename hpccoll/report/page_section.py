"""The content of a page as data: sections with panels, legends and tables, which the template renders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpccoll.report.curves import Implementation
from hpccoll.report.line_chart import LineChart, render_line_chart
from hpccoll.report.line_styles import LineStyle


@dataclass(frozen=True, slots=True)
class FigurePanel:
    """A figure with its heading: `svg` is an <svg> element; `has_scale_button` switches its vertical axis."""

    title: str
    svg: str
    element_id: str
    has_scale_button: bool = True
    is_log: bool = True


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A label and the style of its line."""

    label: str
    style: LineStyle


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table: `number_columns` are aligned to the right; `is_folded` hides the rows until the reader opens them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    number_columns: frozenset[str] = frozenset()
    is_folded: bool = False


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of the page.

    Args:
        element_id: id of the section and prefix of its panels' ids.
        title: heading.
        intro: paragraph below the heading.
        panels: figures that are always visible.
        legend: legend of the figures.
        tables: tables below the figures.
        folded_panels: figures hidden under `folded_title` until the reader opens them.
        folded_title: heading of the folded panels.
        notes: remarks below the figures.
        side_table: a table placed beside the figures.
        short_title: title in the table of contents; empty means `title`.
    """

    element_id: str
    title: str
    intro: str
    panels: tuple[FigurePanel, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    tables: tuple[PageTable, ...] = ()
    folded_panels: tuple[FigurePanel, ...] = ()
    folded_title: str = ""
    notes: tuple[str, ...] = ()
    side_table: PageTable | None = None
    short_title: str = ""


def make_chart_panel(chart: LineChart) -> FigurePanel | None:
    """Return a line chart as a panel; None if it has nothing to draw."""
    svg = render_line_chart(chart)
    return FigurePanel(chart.title, svg, chart.element_id, is_log=chart.is_log) if svg else None


def make_legend(
    implementations: Iterable[Implementation], styles: Mapping[Implementation, LineStyle]
) -> tuple[LegendEntry, ...]:
    """Return the legend of these implementations, muted lines last."""
    ordered = sorted(set(implementations), key=lambda name: (styles[name].is_muted, name.sort_key))
    return tuple(LegendEntry(implementation.label, styles[implementation]) for implementation in ordered)
