"""Pages: all frames of a story on one (time runs down, then to the next column), or one frame after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpccoll.plan.drawing.frames import Frame, Story
from hpccoll.plan.drawing.grid import Grid, grid
from hpccoll.plan.drawing.key import draw_key
from hpccoll.plan.drawing.palette import INK, PALE, PAPER, QUIET
from hpccoll.plan.drawing.panel import MARGIN, draw_panel, panel_height
from hpccoll.plan.drawing.scene import Line, Panel, Scene, Shape, Text, text_width

EDGE, TITLE, AFTER, BESIDE = 22.0, 52.0, 20.0, 40.0
ASPECT = 1.25  # width over height that a page should have
LEAST_WIDTH = 560.0


def storyboard(story: Story) -> Scene:
    """Return all frames of `story` on one page."""
    layout = grid(story)
    columns = _columns(layout, story.frames)
    heights = [sum(panel_height(layout, frame) + AFTER for frame in column) for column in columns]
    across = MARGIN + layout.across
    shapes: list[Shape] = []
    for number, column in enumerate(columns):
        x, y = EDGE + number * (across + BESIDE), EDGE + TITLE
        if number:
            rule = x - BESIDE / 2
            shapes.append(Line((rule, y), (rule, y + max(heights) - AFTER), PALE))
        for frame in column:
            shapes += draw_panel(layout, frame, (x, y))
            y += panel_height(layout, frame) + AFTER
    return _page(layout, len(columns) * (across + BESIDE) - BESIDE, max(heights), shapes)


def pages(story: Story) -> list[Scene]:
    """Return one page a frame, all of the same size: an animation."""
    layout = grid(story)
    room = max(panel_height(layout, frame) for frame in story.frames) + AFTER
    across = MARGIN + layout.across
    found = []
    for frame in story.frames:
        # What is held stays where it is from page to page; only what is above it changes.
        top = EDGE + TITLE + room - AFTER - panel_height(layout, frame)
        found.append(_page(layout, across, room, draw_panel(layout, frame, (EDGE, top))))
    return found


def _columns(layout: Grid, frames: Sequence[Frame]) -> list[Sequence[Frame]]:
    """Cut the frames into columns of equal numbers, as many as give the page its best shape."""
    across = MARGIN + layout.across + BESIDE
    down = max(panel_height(layout, frame) for frame in frames) + AFTER

    def misshape(count: int) -> float:
        return abs(math.log(count * across / (-(-len(frames) // count) * down + TITLE) / ASPECT))

    best = min(range(1, len(frames) + 1), key=misshape)
    long = -(-len(frames) // best)
    return [frames[at : at + long] for at in range(0, len(frames), long)]


def _page(layout: Grid, width: float, height: float, shapes: list[Shape]) -> Scene:
    story = layout.story
    width = max(width, LEAST_WIDTH, text_width(story.about, 11))
    title: list[Shape] = [
        Text((EDGE, EDGE + 14), story.name, 19, INK, "start", bold=True),
        Text((EDGE, EDGE + 32), story.about, 11, QUIET, "start"),
    ]
    key, below = draw_key(layout, (EDGE, EDGE + TITLE + height - AFTER), width)
    full = width + 2 * EDGE, EDGE + TITLE + height - AFTER + below + EDGE / 2
    ground: list[Shape] = [Panel((0, 0, *full), PAPER)]
    return Scene(*full, story.name, f"{story.name}: {story.about}", (*ground, *title, *shapes, *key))
