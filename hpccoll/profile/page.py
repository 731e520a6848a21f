"""Renders the analysis of a recorded job as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

import numpy as np

from hpccoll.profile.dependencies import CallGraph
from hpccoll.profile.explanation import Explanation
from hpccoll.profile.findings import list_findings
from hpccoll.profile.iteration import find_typical_iteration
from hpccoll.profile.what_if import Prediction
from hpccoll.report.page_section import FigurePanel, PageSection, PageTable, render_template
from hpccoll.units import format_size

_WIDTH, _ROW, _LEFT = 1100, 26, 70  # pixels of the timeline
_MOST_SHAPES, _MOST_RANKS = 6000, 64
_COLORS: Final = {"computing": "#9bb8a5", "waiting": "#c8362a", "transfer": "#2a5db0"}


def render_profile_page(explanation: Explanation, predictions: Sequence[Prediction] = ()) -> str:
    """Return the analysis of a recorded job, and predictions of changes, as an HTML page."""
    sections = [
        _build_efficiencies(explanation), _build_timeline(explanation), _build_sites(explanation),
        _build_matrix(explanation), _build_sizes(explanation), *_build_predictions(predictions),
    ]  # fmt: skip
    profile = explanation.profile
    return render_template(
        "hpccoll.profile",
        "profile.html.j2",
        program=" ".join(profile.argv),
        ranks=profile.size,
        efficiency=f"{explanation.efficiencies.parallel:.2f}",
        findings=[finding.found for finding in list_findings(explanation)],
        sections=sections,
        notes=profile.problems,
    )


def _build_efficiencies(explanation: Explanation) -> PageSection:
    """Return the section of efficiencies, with the times of each rank."""
    eff = explanation.efficiencies
    rows = [
        ("parallel efficiency", f"{eff.parallel:.3f}", "load balance x serialisation x transfer"),
        ("load balance", f"{eff.load_balance:.3f}", "mean / maximum of the useful times"),
        ("serialisation", f"{eff.serialisation:.3f}", "maximum useful time / run time on an ideal network"),
        ("transfer", f"{eff.transfer:.3f}", "run time on an ideal network / run time"),
    ]
    by_rank = zip(eff.useful_s, eff.wait_s, eff.transfer_s, strict=True)
    ranks = tuple((str(rank), *(f"{value:.4g}" for value in values)) for rank, values in enumerate(by_rank))
    columns = ("rank", "useful s", "waiting s", "transfer s")
    tables = (
        PageTable("Efficiencies", ("efficiency", "value", "definition"), tuple(rows), frozenset({"value"})),
        PageTable("Times of each rank", columns, ranks, frozenset(columns), is_folded=len(ranks) > 16),
    )
    intro = f"The metrics of POP, for a run of {eff.run_s:.4g} s. Values above 0.8 are good."
    return PageSection("efficiencies", "Efficiencies", intro, tables=tables)


def _build_timeline(explanation: Explanation) -> PageSection:
    """Return the section with the timeline of one typical iteration, or of the whole run if it repeats nothing."""
    iteration = find_typical_iteration(explanation.graph)
    length = iteration.end_s - iteration.begin_s
    what = (
        f"The iteration of median length, of {iteration.count}"
        if iteration.count
        else "The whole run, which repeats nothing"
    )
    legend = ", ".join(f"{name} {color}" for name, color in _NAMED_COLORS.items())
    intro = f"{what}: {length:.4g} s from left to right. Colors: {legend}."
    svg = render_timeline(explanation, iteration.begin_s, iteration.end_s)
    return PageSection("timeline", "Timeline", intro, (FigurePanel("Ranks", svg, "timeline-ranks", False),))


_NAMED_COLORS: Final = {"computing": "green", "waiting for late ranks": "red", "transfer": "blue"}


def render_timeline(explanation: Explanation, begin_s: float, end_s: float) -> str:
    """Return a timeline as an <svg> element: a bar per rank, with computing, waiting and transfers in colors.

    The timeline is from `begin_s` to `end_s`, in seconds of the job's common clock.
    """
    graph = explanation.graph
    ranks = min(explanation.profile.size, _MOST_RANKS)
    scale = (_WIDTH - _LEFT) / max(end_s - begin_s, 1e-12)
    inside = (graph.end_s > begin_s) & (graph.begin_s < end_s) & (graph.rank < ranks) & (graph.site >= 0)
    height = ranks * _ROW + 8
    parts = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img"><title>Timeline of the ranks</title>']
    for rank in range(ranks):
        parts.append(f'<text x="0" y="{rank * _ROW + 17}">rank {rank}</text>')
        parts.append(_render_bar(_LEFT, _WIDTH - _LEFT, rank, "computing", "computing"))
    for call in np.flatnonzero(inside)[:_MOST_SHAPES].tolist():
        site = explanation.profile.sites[graph.site[call]]
        what = f"{graph.operations[graph.op[call]]} at {site}"
        entered = graph.begin_s[call] + graph.wait_s[call]
        pieces = ((graph.begin_s[call], entered, "waiting"), (entered, graph.end_s[call], "transfer"))
        for first, last, kind in pieces:
            left, right = max(first, begin_s), min(last, end_s)
            if right > left:
                text = f"{kind} {1e6 * (last - first):.1f} us: {what}"
                width = max((right - left) * scale, 0.4)
                parts.append(_render_bar(_LEFT + (left - begin_s) * scale, width, int(graph.rank[call]), kind, text))
    return "\n".join([*parts, "</svg>"])


def _render_bar(x: float, width: float, rank: int, kind: str, text: str) -> str:
    """Return a bar of the timeline as a <rect> element.

    Args:
        x: the left end of the bar in pixels.
        width: the width of the bar in pixels.
        rank: the rank in whose row the bar is.
        kind: a key of _COLORS.
        text: the text of the tooltip.
    """
    place = f'x="{x:.2f}" y="{rank * _ROW + 3}" width="{width:.2f}" height="{_ROW - 6}"'
    return f'<rect {place} fill="{_COLORS[kind]}"><title>{escape(text)}</title></rect>'


def _build_sites(explanation: Explanation) -> PageSection:
    """Return the section with all lines of the program that communicate, and the time of their calls."""
    run_s = explanation.efficiencies.run_s
    rows = []
    for cost in explanation.sites:
        site = cost.site
        shares = (f"{cost.wait_s / run_s:.2%}", f"{cost.transfer_s / run_s:.2%}")
        size = format_size(cost.nbytes) if cost.nbytes >= 0 else "?"
        rows.append((f"{site.file}:{site.line}", site.function, cost.op, f"{cost.calls:,}", size, *shares))
    columns = ("call site", "function", "operation", "calls", "median size", "waiting", "transfer")
    table = PageTable("Call sites", columns, tuple(rows), frozenset(columns[3:]))
    intro = "Shares of the run time, as means over the ranks; the costliest call site is first."
    return PageSection("sites", "Call sites by lost time", intro, tables=(table,))


def compute_traffic(graph: CallGraph) -> np.ndarray:
    """Return a matrix of the bytes of messages from each rank (rows) to each rank (columns), without collectives."""
    traffic = np.zeros((graph.profile.size, graph.profile.size))
    sends = graph.dest >= 0
    np.add.at(traffic, (graph.rank[sends], graph.dest[sends]), np.maximum(graph.nbytes[sends], 0))
    return traffic


def _build_matrix(explanation: Explanation) -> PageSection:
    """Return the section with the bytes that each rank sends to every other rank."""
    traffic = compute_traffic(explanation.graph)
    size = min(len(traffic), _MOST_RANKS)
    columns = ("from \\ to", *map(str, range(size)))
    rows = tuple(
        (str(source), *(format_size(int(value)) if value else "" for value in traffic[source, :size].tolist()))
        for source in range(size)
    )
    table = PageTable("Bytes sent", columns, rows, frozenset(columns[1:]))
    intro = "Messages between two ranks; collectives are not in this matrix."
    return PageSection("matrix", "Communication matrix", intro, tables=(table,))


def _build_sizes(explanation: Explanation) -> PageSection:
    """Return the section with the numbers of calls by message size."""
    graph = explanation.graph
    known = (graph.site >= 0) & (graph.nbytes > 0)
    powers = np.ceil(np.log2(np.maximum(graph.nbytes[known], 1))).astype(int)
    counts = np.bincount(powers) if known.any() else np.zeros(0, int)
    most = max(counts.max(initial=0), 1)
    rows = tuple(
        (f"up to {format_size(2**power)}", f"{count:,}", "█" * max(round(40 * count / most), 1))
        for power, count in enumerate(counts.tolist())
        if count
    )
    table = PageTable("Calls by size", ("size", "calls", "share"), rows, frozenset({"calls"}))
    return PageSection("sizes", "Message sizes", "The bytes of the buffer or object of a rank.", tables=(table,))


def _build_predictions(predictions: Sequence[Prediction]) -> list[PageSection]:
    """Return a list with the section of predictions; an empty list if there are no predictions."""
    if not predictions:
        return []
    columns = ("change", "predicted", "saving", "error of the replay", "assumption")
    rows = tuple(
        (prediction.description, *prediction.format_values(), f"{prediction.error:.1%}", prediction.assumption)
        for prediction in predictions
    )
    table = PageTable("Predictions", columns, rows, frozenset(columns[1:4]))
    intro = "The recorded run, replayed with one change. The error is that of replaying the run without a change."
    return [PageSection("what-if", "What if", intro, tables=(table,))]
