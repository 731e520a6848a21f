"""What a page is made of: sections with panels, a legend and tables. The template writes them and knows no more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpccoll.report.curves import Implementation
from hpccoll.report.line_chart import LineChart, render_line_chart
from hpccoll.report.line_styles import LineStyle


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """A picture with its heading; `drawn` is an <svg> element, `swaps` whether it has another vertical scale."""

    title: str
    svg: str
    element_id: str
    has_scale_button: bool = True
    is_log: bool = True


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """An entry of a legend."""

    label: str
    style: LineStyle


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table: its heading, its columns, the columns that hold numbers, its rows; `folded` until it is asked for."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    number_columns: frozenset[str] = frozenset()
    is_folded: bool = False


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of the page.

    `folded` are panels that are secondary, under a heading of their own; `beside` is a table that stands among the
    panels, `short` what the list of contents calls the section.
    """

    element_id: str
    title: str
    intro: str
    panels: tuple[ChartPanel, ...] = ()
    legend: tuple[LegendEntry, ...] = ()
    tables: tuple[PageTable, ...] = ()
    folded_panels: tuple[ChartPanel, ...] = ()
    folded_title: str = ""
    notes: tuple[str, ...] = ()
    side_table: PageTable | None = None
    short_title: str = ""


def make_chart_panel(chart: LineChart) -> ChartPanel | None:
    """Return a chart as a panel; None where it has nothing to draw."""
    drawn = render_line_chart(chart)
    return ChartPanel(chart.title, drawn, chart.element_id, is_log=chart.is_log) if drawn else None


def make_legend(names: Iterable[Implementation], looks: dict[Implementation, LineStyle]) -> tuple[LegendEntry, ...]:
    """Return the legend of these lines: those with a colour first."""
    found = [LegendEntry(name.label, looks[name]) for name in sorted(set(names), key=lambda each: each.sort_key)]
    return tuple(sorted(found, key=lambda key: key.style.is_muted))
