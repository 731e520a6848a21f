"""Page sections on the links between nodes that a preflight measured: heat maps and tables of bandwidth and latency."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpccoll.report.heat_map import MAX_LABELED_NODES, HeatMap, HeatMapCell, render_heat_map
from hpccoll.report.load import RecordedRun, Results, get_list
from hpccoll.report.number_format import format_bytes_per_s, format_seconds
from hpccoll.report.page_section import FigurePanel, PageSection, PageTable
from hpccoll.units import format_size

SLOWEST = 12
_COLOR_NOTE = "Colors compare each value with the best quartile of all directions."
_COLUMNS = ("from", "to", "bandwidth", "latency", "remark")
_NODE_COLUMNS = ("node", "copies in memory", "10⁹ sines per second", "remark")


@dataclass(frozen=True, slots=True)
class LinkDirection:
    """Bandwidth and latency from node `source` to node `destination`, as `hpccoll preflight` measured them.

    If the link could not be measured, `broken` is the reason, and bandwidth and latency are None. `nbytes` is the size
    of the message by which the bandwidth was measured.
    """

    source: str
    destination: str
    bytes_per_s: float | None
    latency_s: float | None
    broken: str | None
    nbytes: int


def build_node_pair_sections(results: Results) -> list[PageSection]:
    """Return a page section for each run of `hpccoll preflight` that measured pairs of nodes."""
    runs = {run.number: run for run, _ in results.list_preflight_records("preflight_pair")}
    return [_build_section(results, run) for run in runs.values()]


def _build_section(results: Results, run: RecordedRun) -> PageSection:
    """Return the page section of one preflight: heat maps of links, and tables of slow links and of nodes."""

    def list_records(kind: str) -> list[Mapping[str, Any]]:
        """Return the preflight records of one kind that this run wrote."""
        return [record for owner, record in results.list_preflight_records(kind) if owner.number == run.number]

    directions = [_read_direction(record) for record in list_records("preflight_pair")]
    node_records = list_records("preflight_node")
    listed = [str(name) for record in list_records("preflight_summary") for name in get_list(record, "nodes")]
    nodes = list(dict.fromkeys([*listed, *(end for link in directions for end in (link.source, link.destination))]))
    element_id = f"pairs{run.number}"
    broken = sum(direction.broken is not None for direction in directions)
    sizes = sorted({direction.nbytes for direction in directions})
    intro = f"{len(nodes)} nodes, {len(directions)} directions, messages of {', '.join(map(format_size, sizes))}"
    intro += f"; {broken} of them broken." if broken else "."
    panels = (
        _build_heat_map_panel(f"{element_id}b", "Bandwidth from row to column", nodes, directions, by_latency=False),
        _build_heat_map_panel(f"{element_id}l", "Latency from row to column", nodes, directions, by_latency=True),
    )
    heading = f"The slowest of {len(directions)} directions"
    is_folded = len(nodes) <= MAX_LABELED_NODES  # the heat map of few nodes shows the values
    numbers = frozenset({"bandwidth", "latency"})
    tables = [PageTable(heading, _COLUMNS, _build_slowest_rows(directions), numbers, is_folded)]
    if node_records:
        rows = tuple(_build_node_row(record) for record in node_records)
        tables.append(PageTable("Each node alone", _NODE_COLUMNS, rows, frozenset(_NODE_COLUMNS[1:3]), is_folded=True))
    return PageSection(
        element_id, f"Pairs of nodes, {run.title}", intro, panels, tables=tuple(tables), notes=(_COLOR_NOTE,)
    )


def _read_direction(record: Mapping[str, Any]) -> LinkDirection:
    """Return the link direction that a preflight_pair record describes; invalid rates and latencies become None.

    Without a valid bandwidth, the direction counts as broken (`not measured`). An invalid message size becomes 0.
    """
    rate, latency = _read_positive(record.get("bandwidth_GBps")), _read_positive(record.get("latency_us"))
    broken = record.get("broken")
    if broken is None and rate is None:
        broken = "not measured"
    return LinkDirection(
        str(record.get("source")),
        str(record.get("destination")),
        None if rate is None or broken else rate * 1e9,
        None if latency is None or broken else latency * 1e-6,
        None if broken is None else str(broken),
        int(_read_positive(record.get("nbytes")) or 0),
    )


def _read_positive(value: Any) -> float | None:
    """Return a positive finite number as a float, anything else as None."""
    is_valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if is_valid else None


def _build_heat_map_panel(
    element_id: str, heading: str, nodes: list[str], directions: list[LinkDirection], *, by_latency: bool
) -> FigurePanel:
    """Return a figure with the heat map of the links' bandwidths or, with `by_latency`, of their latencies.

    `heading` is the figure's title, `nodes` are the names of rows and columns, and `element_id` is unique on the page.
    """
    format_value = format_seconds if by_latency else format_bytes_per_s
    indices = {name: index for index, name in enumerate(nodes)}
    cells = [
        HeatMapCell(
            indices[direction.source],
            indices[direction.destination],
            direction.latency_s if by_latency else direction.bytes_per_s,
            f"{direction.source} to {direction.destination}",
            _format_direction(direction),
            direction.broken is not None,
        )
        for direction in directions
    ]
    worst = max if by_latency else min
    values = [cell.value for cell in cells if cell.value is not None]
    summary = f"{len(nodes)} nodes; worst {format_value(worst(values))}" if values else "none measured"
    heat = HeatMap(
        *(element_id, heading, f"{heading}: {summary}.", tuple(nodes), tuple(cells), format_value),
        higher_is_better=not by_latency,
    )
    return FigurePanel(heading, render_heat_map(heat), element_id, has_scale_button=False)


def _format_direction(direction: LinkDirection) -> str:
    """Return a link direction's bandwidth and latency as a string, or the reason why the link is broken."""
    if direction.broken is not None:
        return f"broken: {direction.broken}"
    parts = [format_bytes_per_s(direction.bytes_per_s)] if direction.bytes_per_s else []
    return ", ".join([*parts, *([format_seconds(direction.latency_s)] if direction.latency_s else [])])


def _build_slowest_rows(directions: Sequence[LinkDirection]) -> tuple[tuple[str, ...], ...]:
    """Return table rows of at most SLOWEST link directions: broken ones first, then those with the least bandwidth."""
    ordered = sorted(directions, key=lambda direction: direction.bytes_per_s or 0.0)[:SLOWEST]
    return tuple(
        (
            direction.source,
            direction.destination,
            format_bytes_per_s(direction.bytes_per_s) if direction.bytes_per_s else "-",
            format_seconds(direction.latency_s) if direction.latency_s else "-",
            f"broken: {direction.broken}" if direction.broken is not None else "",
        )
        for direction in ordered
    )


def _build_node_row(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the table row of a preflight_node record, with a cell per column of _NODE_COLUMNS."""
    copies, sines = _read_positive(record.get("copy_GBps")), _read_positive(record.get("compute_Gsin_per_s"))
    return (
        str(record.get("node")),
        format_bytes_per_s(copies * 1e9) if copies else "-",
        f"{sines:.3g}" if sines else "-",
        str(record.get("lost") or ""),
    )
