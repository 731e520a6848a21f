"""What a page is made of: sections with panels, a legend and tables. The template writes them and knows no more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpccoll.report.chart import Chart, svg
from hpccoll.report.looks import Look
from hpccoll.report.series import Name


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture with its heading; `drawn` is an <svg> element, `swaps` whether it has another vertical scale."""

    title: str
    drawn: str
    ident: str
    swaps: bool = True
    log: bool = True


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend."""

    label: str
    look: Look


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its heading, its columns, the columns that hold numbers, its rows; `folded` until it is asked for."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[str] = frozenset()
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page.

    `folded` are panels that are secondary, under a heading of their own; `beside` is a table that stands among the
    panels, `short` what the list of contents calls the section.
    """

    ident: str
    title: str
    intro: str
    panels: tuple[Panel, ...] = ()
    legend: tuple[Key, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Panel, ...] = ()
    folded_title: str = ""
    notes: tuple[str, ...] = ()
    beside: Table | None = None
    short: str = ""


def panel_of(chart: Chart) -> Panel | None:
    """Return a chart as a panel; None where it has nothing to draw."""
    drawn = svg(chart)
    return Panel(chart.title, drawn, chart.ident, log=chart.log) if drawn else None


def legend_of(names: Iterable[Name], looks: dict[Name, Look]) -> tuple[Key, ...]:
    """Return the legend of these lines: those with a colour first."""
    found = [Key(name.label, looks[name]) for name in sorted(set(names), key=lambda each: each.order)]
    return tuple(sorted(found, key=lambda key: key.look.quiet))
