"""The style of a line in the report's charts: a class of the style sheet and a marker as an SVG path.

`hpccoll.measure.display.series_styles` chooses colours and markers. Gray lines have a dot as their marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hpccoll.measure.display.series_styles import choose_series_styles
from hpccoll.measure.results.measured_case import Implementation, MeasuredCase

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
    "pentagon": "M0-4.8L4.6-1.5L2.8 3.9H-2.8L-4.6-1.5z",
}
_DOT = "M-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0z"


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
MUTED_STYLE = LineStyle("muted", _DOT)


def choose_line_styles(cases: Iterable[MeasuredCase]) -> dict[str, LineStyles]:
    """Return the line style of every implementation, by operation, so that colors are the same in all charts."""
    return {
        op: {
            name: MUTED_STYLE if style.is_muted else LineStyle(style.colour, _MARKER_PATHS[style.marker])
            for name, style in styles.items()
        }
        for op, styles in choose_series_styles(cases).items()
    }
