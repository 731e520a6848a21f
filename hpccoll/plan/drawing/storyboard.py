"""Pages: all frames of a history on one (time runs down, then to the next column), or one frame after the other."""

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
ASPECT = 1.25  # width over height that a page should have
LEAST_WIDTH = 560.0


def lay_out_page(history: PlanHistory) -> Scene:
    """Return all frames of `history` on one page."""
    layout = lay_out_grid(history)
    columns = _columns(layout, history.frames)
    heights = [sum(panel_height(layout, frame) + AFTER for frame in column) for column in columns]
    across = MARGIN + layout.across
    shapes: list[SceneShape] = []
    for number, column in enumerate(columns):
        x, y = EDGE + number * (across + BESIDE), EDGE + TITLE
        if number:
            rule = x - BESIDE / 2
            shapes.append(LineSegment((rule, y), (rule, y + max(heights) - AFTER), PALE))
        for frame in column:
            shapes += draw_panel(layout, frame, (x, y))
            y += panel_height(layout, frame) + AFTER
    return _page(layout, len(columns) * (across + BESIDE) - BESIDE, max(heights), shapes)


def lay_out_animation(history: PlanHistory) -> list[Scene]:
    """Return one page a frame, all of the same size: an animation."""
    layout = lay_out_grid(history)
    room = max(panel_height(layout, frame) for frame in history.frames) + AFTER
    across = MARGIN + layout.across
    found = []
    for frame in history.frames:
        # What is held stays where it is from page to page; only what is above it changes.
        top = EDGE + TITLE + room - AFTER - panel_height(layout, frame)
        found.append(_page(layout, across, room, draw_panel(layout, frame, (EDGE, top))))
    return found


def _columns(layout: GridLayout, frames: Sequence[Frame]) -> list[Sequence[Frame]]:
    """Cut the frames into columns of equal numbers, as many as give the page its best shape."""
    across = MARGIN + layout.across + BESIDE
    down = max(panel_height(layout, frame) for frame in frames) + AFTER

    def misshape(count: int) -> float:
        return abs(math.log(count * across / (-(-len(frames) // count) * down + TITLE) / ASPECT))

    best = min(range(1, len(frames) + 1), key=misshape)
    long = -(-len(frames) // best)
    return [frames[at : at + long] for at in range(0, len(frames), long)]


def _page(layout: GridLayout, width: float, height: float, shapes: list[SceneShape]) -> Scene:
    history = layout.history
    width = max(width, LEAST_WIDTH, estimate_text_width(history.subtitle, 11))
    title: list[SceneShape] = [
        TextLabel((EDGE, EDGE + 14), history.name, 19, INK, "start", bold=True),
        TextLabel((EDGE, EDGE + 32), history.subtitle, 11, QUIET, "start"),
    ]
    key, below = draw_legend(layout, (EDGE, EDGE + TITLE + height - AFTER), width)
    full = width + 2 * EDGE, EDGE + TITLE + height - AFTER + below + EDGE / 2
    ground: list[SceneShape] = [OutlinedBox((0, 0, *full), PAPER)]
    return Scene(*full, history.name, f"{history.name}: {history.subtitle}", (*ground, *title, *shapes, *key))
