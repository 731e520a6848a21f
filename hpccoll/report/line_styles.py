"""The color and marker of each implementation, the same in all charts of the page.

Color and marker together identify a line, so charts stay readable for color-blind readers and in print. MPI, NCCL and
Gloo have the same color and marker on every page. For each operation, up to COLORS implementations get a color: those
that are fastest at the most message sizes; among equals, the smaller mean slowdown decides. The lines of all other
implementations are thin and gray ("muted").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hpccoll.report.curves import CurveGroup, Implementation

COLORS = 7  # classes .c1 to .c7 of the style sheet
_MARKERS = ("circle", "square", "up", "diamond", "down", "plus", "cross")
_ENGINE_STYLES = {"mpi": ("peer", "hexagon"), "nccl": ("peer2", "star"), "gloo": ("peer3", "thin")}
_FAR_BEHIND = 20.0  # assumed ratio to the fastest if an implementation's time cannot be compared
_MARKER_PATHS = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "M-3.5-3.5h7v7h-7z",
    "up": "M0-4.6L4.3 3.2H-4.3z",
    "down": "M0 4.6L4.3-3.2H-4.3z",
    "diamond": "M0-4.8L4.3 0L0 4.8L-4.3 0z",
    "plus": "M-1.5-4.3h3v2.8h2.8v3h-2.8v2.8h-3v-2.8h-2.8v-3h2.8z",
    "cross": "M-4-2L-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0z",
    "hexagon": "M0-4.8L4.2-2.4V2.4L0 4.8L-4.2 2.4V-2.4z",
    "star": "M0-5L1.4-1.6L5-1.4L2.2.9L3 4.4L0 2.4L-3 4.4L-2.2.9L-5-1.4L-1.4-1.6z",
    "thin": "M0-5L2.8 0L0 5L-2.8 0z",
    "dot": "M-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0z",
}


@dataclass(frozen=True, slots=True)
class LineStyle:
    """A line's CSS class in the page's style sheet, and its marker as an SVG path around (0, 0)."""

    css_class: str
    marker: str

    @property
    def is_muted(self) -> bool:
        """Whether the line is thin and gray."""
        return self.css_class == "muted"


LineStyles: TypeAlias = Mapping[Implementation, LineStyle]
BOUND_STYLE = LineStyle("bound", "")
MUTED_STYLE = LineStyle("muted", _MARKER_PATHS["dot"])


def assign_line_styles(groups: Iterable[CurveGroup]) -> dict[Implementation, LineStyle]:
    """Return the style of every implementation; two lines of one operation share a style only if both are muted."""
    by_operation: dict[str, list[CurveGroup]] = {}
    for group in groups:
        by_operation.setdefault(group.setting.op, []).append(group)
    colored_in: dict[Implementation, set[str]] = {}  # operations in which an implementation gets a color
    styles: dict[Implementation, LineStyle] = {}
    for op, members in by_operation.items():
        ranking = _rank_by_lag(members)
        first_library = min(implementation.library for implementation in ranking)
        ordered = sorted(ranking, key=lambda implementation: (*ranking[implementation], implementation.sort_key))
        for implementation in ordered:
            styles[implementation] = MUTED_STYLE
            if implementation.engine in _ENGINE_STYLES and implementation.library == first_library:
                css_class, marker = _ENGINE_STYLES[implementation.engine]
                styles[implementation] = LineStyle(css_class, _MARKER_PATHS[marker])
        for implementation in [name for name in ordered if styles[name] is MUTED_STYLE][:COLORS]:
            colored_in.setdefault(implementation, set()).add(op)
    return styles | _assign_colors(colored_in)


def _assign_colors(operations: Mapping[Implementation, set[str]]) -> dict[Implementation, LineStyle]:
    """Return colored styles that differ between implementations of one operation (greedy graph coloring)."""
    indices: dict[Implementation, int] = {}
    for implementation in sorted(operations, key=lambda name: (-len(operations[name]), name.sort_key)):
        taken = {index for other, index in indices.items() if operations[other] & operations[implementation]}
        indices[implementation] = next(index for index in range(len(operations) + 1) if index not in taken)
    return {
        implementation: LineStyle(
            f"c{index % COLORS + 1}", _MARKER_PATHS[_MARKERS[(index + index // COLORS) % len(_MARKERS)]]
        )
        for implementation, index in indices.items()
    }


def _rank_by_lag(groups: Sequence[CurveGroup]) -> Mapping[Implementation, tuple[int, float]]:
    """Return sort keys: minus the number of sizes at which an implementation is fastest, and its mean log slowdown."""
    wins: dict[Implementation, int] = {}
    lags: dict[Implementation, list[float]] = {}
    for group in groups:
        for nbytes in group.sizes:
            fastest = group.find_fastest(nbytes)
            if fastest is None or fastest[1].time_us.p50 <= 0:
                continue
            wins[fastest[0]] = wins.get(fastest[0], 0) + 1
            for curve in group.curves:
                record = curve.get_record(nbytes)
                if record is not None and record.time_us.p50 > 0:
                    lag = math.log(record.time_us.p50 / fastest[1].time_us.p50)
                    lags.setdefault(curve.implementation, []).append(lag)
    every = {curve.implementation for group in groups for curve in group.curves}
    return {
        name: (-wins.get(name, 0), sum(own) / len(own) if (own := lags.get(name)) else math.log(_FAR_BEHIND))
        for name in every
    }
