"""The pairs of nodes that a preflight measured, as matrices: who sends, to whom, how fast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpccoll.report.axis_scale import format_bytes_per_s, format_seconds
from hpccoll.report.heat_map import MOST_WRITTEN, HeatMap, HeatMapCell, render_heat_map
from hpccoll.report.load import Results, Run, listed
from hpccoll.report.page_section import ChartPanel, PageSection, PageTable
from hpccoll.units import format_size

SLOWEST = 12
_COLOURS = "Colours hold each value against what the best quarter of all directions reaches."
_COLUMNS = ("from", "to", "bandwidth", "latency", "remark")
_NODE_COLUMNS = ("node", "copies in memory", "10⁹ sines a second", "remark")


@dataclass(frozen=True, slots=True)
class LinkDirection:
    """One direction of a link; None where it could not be measured, then `broken` says why."""

    source: str
    destination: str
    bytes_per_s: float | None
    latency_s: float | None
    broken: str | None
    nbytes: int


def build_node_pair_sections(results: Results) -> list[PageSection]:
    """Return a section for each run that measured pairs of nodes."""
    runs = {run.number: run for run, _ in results.of_kind("preflight_pair")}
    return [_build_section(results, run) for run in runs.values()]


def _build_section(results: Results, run: Run) -> PageSection:
    mine = [_read_direction(record) for of, record in results.of_kind("preflight_pair") if of.number == run.number]
    summary = [record for of, record in results.of_kind("preflight_summary") if of.number == run.number]
    alone = [record for of, record in results.of_kind("preflight_node") if of.number == run.number]
    nodes = _list_nodes(mine, summary)
    ident = f"pairs{run.number}"
    broken = sum(each.broken is not None for each in mine)
    sizes = sorted({each.nbytes for each in mine})
    intro = f"{len(nodes)} nodes, {len(mine)} directions, messages of {', '.join(map(format_size, sizes))}"
    intro += f"; {broken} of them broken." if broken else "."
    panels = [
        _build_heat_map_panel(f"{ident}b", "Bandwidth from row to column", nodes, mine, by_latency=False),
        _build_heat_map_panel(f"{ident}l", "Latency from row to column", nodes, mine, by_latency=True),
    ]
    heading = f"The slowest of {len(mine)} directions"
    folded = len(nodes) <= MOST_WRITTEN  # the matrix has the values
    tables = [PageTable(heading, _COLUMNS, _build_slowest_rows(mine), frozenset({"bandwidth", "latency"}), folded)]
    if alone:
        rows = tuple(_build_node_row(record) for record in alone)
        tables.append(
            PageTable("Each node by itself", _NODE_COLUMNS, rows, frozenset(_NODE_COLUMNS[1:3]), is_folded=True)
        )
    return PageSection(
        ident, f"Pairs of nodes, {run.title}", intro, tuple(panels), tables=tuple(tables), notes=(_COLOURS,)
    )


def _read_direction(record: Mapping[str, Any]) -> LinkDirection:
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
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if sound else None


def _list_nodes(directions: Sequence[LinkDirection], summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the nodes in the job's order, where the summary has it, else as they appear."""
    told = [str(name) for record in summary for name in listed(record, "nodes")]
    return list(dict.fromkeys([*told, *(name for each in directions for name in (each.source, each.destination))]))


def _build_heat_map_panel(
    ident: str, heading: str, nodes: list[str], directions: list[LinkDirection], *, by_latency: bool
) -> ChartPanel:
    tell = format_seconds if by_latency else format_bytes_per_s
    at = {name: index for index, name in enumerate(nodes)}
    cells = [
        HeatMapCell(
            at[each.source],
            at[each.destination],
            each.latency_s if by_latency else each.bytes_per_s,
            f"{each.source} to {each.destination}",
            _format_direction(each),
            each.broken is not None,
        )
        for each in directions
    ]
    worst = max if by_latency else min
    values = [cell.value for cell in cells if cell.value is not None]
    about = f"{heading}: {len(nodes)} nodes; worst {tell(worst(values))}." if values else f"{heading}: none measured."
    heat = HeatMap(ident, heading, about, tuple(nodes), tuple(cells), tell, higher_is_better=not by_latency)
    return ChartPanel(heading, render_heat_map(heat), ident, has_scale_button=False)


def _format_direction(each: LinkDirection) -> str:
    if each.broken is not None:
        return f"broken: {each.broken}"
    parts = [format_bytes_per_s(each.bytes_per_s)] if each.bytes_per_s else []
    return ", ".join([*parts, *([format_seconds(each.latency_s)] if each.latency_s else [])])


def _build_slowest_rows(directions: Sequence[LinkDirection]) -> tuple[tuple[str, ...], ...]:
    ordered = sorted(directions, key=lambda each: each.bytes_per_s or 0.0)[:SLOWEST]
    return tuple(
        (
            each.source,
            each.destination,
            format_bytes_per_s(each.bytes_per_s) if each.bytes_per_s else "-",
            format_seconds(each.latency_s) if each.latency_s else "-",
            f"broken: {each.broken}" if each.broken is not None else "",
        )
        for each in ordered
    )


def _build_node_row(record: Mapping[str, Any]) -> tuple[str, ...]:
    copies, computes = _read_positive(record.get("copy_GBps")), _read_positive(record.get("compute_Gsin_per_s"))
    return (
        str(record.get("node")),
        format_bytes_per_s(copies * 1e9) if copies else "-",
        f"{computes:.3g}" if computes else "-",
        str(record.get("lost") or ""),
    )
