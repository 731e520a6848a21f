"""Pages: all frames of a history on one page (time runs down, then to the next column), or one page per frame."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpccoll.plan.drawing.grid import GridLayout, lay_out_grid
from hpccoll.plan.drawing.history import Frame, PlanHistory
from hpccoll.plan.drawing.legend import draw_legend
from hpccoll.plan.drawing.palette import INK, PALE, PAPER, QUIET
from hpccoll.plan.drawing.panel import MARGIN, draw_panel, panel_height
from hpccoll.plan.drawing.scene import LineSegment, OutlinedBox, Scene, SceneShape, TextLabel, estimate_text_width

EDGE, TITLE, AFTER, BESIDE = 22.0, 52.0, 20.0, 40.0
ASPECT = 1.25  # preferred width over height of a page
LEAST_WIDTH = 560.0


def lay_out_page(history: PlanHistory) -> Scene:
    """Return a page with all frames of `history`, the title and the legend."""
    layout = lay_out_grid(history)
    columns = _split_into_columns(layout, history.frames)
    heights = [sum(panel_height(layout, frame) + AFTER for frame in column) for column in columns]
    width = MARGIN + layout.full_width
    shapes: list[SceneShape] = []
    for number, column in enumerate(columns):
        x, y = EDGE + number * (width + BESIDE), EDGE + TITLE
        if number:
            rule = x - BESIDE / 2
            shapes.append(LineSegment((rule, y), (rule, y + max(heights) - AFTER), PALE))
        for frame in column:
            shapes += draw_panel(layout, frame, (x, y))
            y += panel_height(layout, frame) + AFTER
    return _finish_page(layout, len(columns) * (width + BESIDE) - BESIDE, max(heights), shapes)


def lay_out_animation(history: PlanHistory) -> list[Scene]:
    """Return one page per frame, all of the same size, for an animation."""
    layout = lay_out_grid(history)
    room = max(panel_height(layout, frame) for frame in history.frames) + AFTER
    width = MARGIN + layout.full_width
    pages = []
    for frame in history.frames:
        # The grid stays at the same place from page to page; only the arrows above it change.
        top = EDGE + TITLE + room - AFTER - panel_height(layout, frame)
        pages.append(_finish_page(layout, width, room, draw_panel(layout, frame, (EDGE, top))))
    return pages


def _split_into_columns(layout: GridLayout, frames: Sequence[Frame]) -> list[Sequence[Frame]]:
    """Return the frames in columns of equal length, as many as bring the page closest to its preferred shape."""
    column_width = MARGIN + layout.full_width + BESIDE
    row_height = max(panel_height(layout, frame) for frame in frames) + AFTER

    def distance_from_aspect(count: int) -> float:
        return abs(math.log(count * column_width / (-(-len(frames) // count) * row_height + TITLE) / ASPECT))

    best = min(range(1, len(frames) + 1), key=distance_from_aspect)
    length = -(-len(frames) // best)
    return [frames[at : at + length] for at in range(0, len(frames), length)]


def _finish_page(layout: GridLayout, width: float, height: float, shapes: list[SceneShape]) -> Scene:
    """Return a page with `shapes`, a background, the title above them and the legend below."""
    history = layout.history
    width = max(width, LEAST_WIDTH, estimate_text_width(history.subtitle, 11))
    title: list[SceneShape] = [
        TextLabel((EDGE, EDGE + 14), history.name, 19, INK, "start", bold=True),
        TextLabel((EDGE, EDGE + 32), history.subtitle, 11, QUIET, "start"),
    ]
    legend, below = draw_legend(layout, (EDGE, EDGE + TITLE + height - AFTER), width)
    full = width + 2 * EDGE, EDGE + TITLE + height - AFTER + below + EDGE / 2
    background: list[SceneShape] = [OutlinedBox((0, 0, *full), PAPER)]
    return Scene(*full, history.name, f"{history.name}: {history.subtitle}", (*background, *title, *shapes, *legend))
