"""Page layout of a plan's history: frames in columns to be read downwards, or one page per frame for an animation.

Pages are small enough that their text is legible on A4 paper, portrait or landscape. The frames of a long history are
laid out on several pages.

A frame is drawn as a panel, which shows, from top to bottom, ranks as discs, messages as arrows, and the grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpccoll.plan.drawing.arrows import RADIUS, arrows_height, draw_arrows, draw_rank
from hpccoll.plan.drawing.grid import MOST_LINES, GridLayout, draw_grid, get_column_name, lay_out_grid
from hpccoll.plan.drawing.history import Frame, PlanHistory
from hpccoll.plan.drawing.legend import draw_legend
from hpccoll.plan.drawing.palette import INK, PALE, PAPER, QUIET
from hpccoll.plan.drawing.scene import XY, LineSegment, OutlinedBox, Scene, SceneShape, TextLabel, estimate_text_width
from hpccoll.plan.operation import Operation

EDGE, TITLE, AFTER, BESIDE = 22.0, 52.0, 20.0, 40.0
ASPECT = 1.25  # preferred ratio of width to height of a page
LEAST_WIDTH = 560.0
LONG_SIDE, SHORT_SIDE = 2100.0, 1485.0  # largest page; on A4, text of 10.5 pixels has 4 points
LEGEND_ROOM = 72.0
MARGIN = 104.0  # margin left of the grid, for the names of the round and the chunks
DISCS_HEIGHT = 2 * RADIUS + 10  # distance from a panel's top to its grid in a round without messages


def lay_out_pages(history: PlanHistory) -> list[Scene]:
    """Return pages (scenes) with all frames of `history` in columns, each page with a title and a legend."""
    layout = lay_out_grid(history)
    frames, per_page = history.frames, _count_frames_per_page(layout, history.frames)
    count = -(-len(frames) // per_page)
    length = -(-len(frames) // count)
    pages = [frames[at : at + length] for at in range(0, len(frames), length)]
    return [_lay_out_page(layout, page, f"{i} of {len(pages)}") for i, page in enumerate(pages, 1)]


def _lay_out_page(layout: GridLayout, frames: Sequence[Frame], number: str) -> Scene:
    """Return a page (a scene) with the given frames in columns; `number` is text such as `1 of 3`."""
    columns = _split_into_columns(layout, frames)
    heights = [sum(panel_height(layout, frame) + AFTER for frame in column) for column in columns]
    width = MARGIN + layout.full_width
    shapes: list[SceneShape] = []
    for i, column in enumerate(columns):
        x, y = EDGE + i * (width + BESIDE), EDGE + TITLE
        if i:
            rule = x - BESIDE / 2
            shapes.append(LineSegment((rule, y), (rule, y + max(heights) - AFTER), PALE))
        for frame in column:
            shapes += draw_panel(layout, frame, (x, y))
            y += panel_height(layout, frame) + AFTER
    which = "" if number == "1 of 1" else f", page {number}"
    return _finish_page(layout, len(columns) * (width + BESIDE) - BESIDE, max(heights), shapes, which)


def lay_out_animation(history: PlanHistory) -> list[Scene]:
    """Return one page (a scene) per frame, all of the same size, for an animation."""
    layout = lay_out_grid(history)
    room = max(panel_height(layout, frame) for frame in history.frames) + AFTER
    width = MARGIN + layout.full_width
    pages = []
    for frame in history.frames:
        # The grid has the same position on all pages of an animation; only the arrows above the grid change.
        top = EDGE + TITLE + room - AFTER - panel_height(layout, frame)
        pages.append(_finish_page(layout, width, room, draw_panel(layout, frame, (EDGE, top))))
    return pages


def _measure_panels(layout: GridLayout, frames: Sequence[Frame]) -> XY:
    """Return the largest width and height in pixels of the panels that show `frames`, with the gaps between panels."""
    return MARGIN + layout.full_width + BESIDE, max(panel_height(layout, frame) for frame in frames) + AFTER


def _list_page_sizes(layout: GridLayout) -> list[XY]:
    """Return (width, height) in pixels of the room for panels on a landscape and on a portrait page.

    Both pages are enlarged if a panel is wider than the landscape page.
    """
    edges, above = 2 * EDGE - BESIDE, TITLE + EDGE + LEGEND_ROOM
    grow = max(1.0, (MARGIN + layout.full_width + BESIDE + edges) / LONG_SIDE)
    sides = LONG_SIDE * grow, SHORT_SIDE * grow
    return [(width - edges, height - above) for width, height in (sides, sides[::-1])]


def _count_frames_per_page(layout: GridLayout, frames: Sequence[Frame]) -> int:
    """Return the largest number of `frames` that fit on one page."""
    width, height = _measure_panels(layout, frames)
    return max(
        max(int(page_width // width), 0) * max(int(page_height // height), 1)
        for page_width, page_height in _list_page_sizes(layout)
    )


def _split_into_columns(layout: GridLayout, frames: Sequence[Frame]) -> list[Sequence[Frame]]:
    """Return the frames of a page in equally long columns.

    If the frames fit on a page in several numbers of columns, the function takes the number of columns with which the
    width / height of the page is closest to ASPECT.
    """
    width, height = _measure_panels(layout, frames)
    sizes = _list_page_sizes(layout)

    def rate(count: int) -> tuple[bool, float]:
        """Return a sort key for a number of columns; the best number has the least key.

        The key compares first whether the frames fit on a page, then how far the page's width / height is from ASPECT.
        """
        across, down = count * width, -(-len(frames) // count) * height
        fits = any(across <= most_across and down <= most_down for most_across, most_down in sizes)
        return not fits, abs(math.log(across / (down + TITLE) / ASPECT))

    best = min(range(1, len(frames) + 1), key=rate)
    length = -(-len(frames) // best)
    return [frames[at : at + length] for at in range(0, len(frames), length)]


def _finish_page(layout: GridLayout, width: float, height: float, shapes: list[SceneShape], which: str = "") -> Scene:
    """Return a page (a scene) with a background, the title, `shapes` and the legend.

    `width` and `height` are the size in pixels of the area with the panels, whose shapes are `shapes`. The subtitle
    ends with `which`, such as `, page 1 of 3`.
    """
    name, subtitle = layout.history.plan.name, layout.history.subtitle + which
    width = max(width, LEAST_WIDTH, estimate_text_width(subtitle, 11))
    title: list[SceneShape] = [
        TextLabel((EDGE, EDGE + 14), name, 19, INK, "start", bold=True),
        TextLabel((EDGE, EDGE + 32), subtitle, 11, QUIET, "start"),
    ]
    legend, below = draw_legend(layout, (EDGE, EDGE + TITLE + height - AFTER), width)
    full = width + 2 * EDGE, EDGE + TITLE + height - AFTER + below + EDGE / 2
    background: list[SceneShape] = [OutlinedBox((0, 0, *full), PAPER)]
    return Scene(*full, name, f"{name}: {subtitle}", (*background, *title, *shapes, *legend))


def panel_height(layout: GridLayout, frame: Frame) -> float:
    """Return the height in pixels of the panel that shows `frame`."""
    above = arrows_height(layout.history, frame.messages) if frame.messages else DISCS_HEIGHT
    return _node_names_height(layout) + above + _column_names_height(layout) + layout.height


def _node_names_height(layout: GridLayout) -> float:
    """Return the height in pixels of the line of node names; 0 if the drawing shows no nodes."""
    return 18.0 if layout.history.nodes else 0.0


def _column_names_height(layout: GridLayout) -> float:
    """Return the height in pixels of the names of a rank's columns; 0 if each rank has a single column."""
    return 12.0 if layout.columns > 1 else 0.0


def draw_panel(layout: GridLayout, frame: Frame, at: XY) -> list[SceneShape]:
    """Return the shapes of the panel that shows `frame`, with names, messages and grid.

    `at` is the upper left corner of the panel.
    """
    x, y = at
    left, top = x + MARGIN, y + panel_height(layout, frame) - layout.height
    shapes = _draw_nodes(layout, (left, y)) if layout.history.nodes else []
    y += _node_names_height(layout)
    shapes += _draw_names(layout, frame, (x, y), top)
    if frame.messages:
        shapes += draw_arrows(layout, frame, (left, y), top - _column_names_height(layout))
    senders = {message.source for message in frame.messages}
    for rank in range(layout.history.plan.ranks):
        idle = bool(senders) and rank not in senders
        shapes += draw_rank(rank, (left + layout.middle(rank), y + RADIUS + 1), idle=idle)
    return shapes + draw_grid(layout, frame, (left, top))


def _draw_names(layout: GridLayout, frame: Frame, at: XY, top: float) -> list[SceneShape]:
    """Return a panel's labels: round, phase, and the names of the grid's lines and columns.

    `at` is the panel's upper left corner, and `top` the y of the grid's top edge.
    """
    x, y = at
    name = f"round {frame.number}" if frame.number else "start"
    shapes: list[SceneShape] = [TextLabel((x, y + RADIUS + 5), name, 12.5, INK, "start", bold=True)]
    for line, words in enumerate(frame.phase.replace(" and ", "\n+ ").split("\n")):
        shapes.append(TextLabel((x, y + RADIUS + 20 + 13 * line), words, 10.5, QUIET, "start"))
    history = layout.history
    if history.chunks > 1:
        size = min(9.5, layout.cell[1] - 1)
        for line in range(layout.lines):
            baseline = top + layout.corner(0, line)[1] + layout.cell[1] / 2 + 0.36 * size
            words = f"chunk {line}" if layout.columns == 1 else str(line)
            shapes.append(TextLabel((x + MARGIN - 4, baseline), words, size, QUIET, "end"))
    if layout.columns > 1:
        for rank in range(history.plan.ranks):
            for column, words in enumerate(_column_names(layout)):
                corner = x + MARGIN + layout.corner(rank, column * layout.lines)[0]
                shapes.append(TextLabel((corner + layout.cell[0] / 2, top - 4), words, 8.5, QUIET))
    return shapes


def _draw_nodes(layout: GridLayout, at: XY) -> list[SceneShape]:
    """Return labels for the nodes, each above a line that spans the node's ranks; `at` is the upper left corner."""
    shapes: list[SceneShape] = []
    first = 0
    for node, size in enumerate(layout.history.nodes):
        half = layout.pitch / 2 - 4
        start, end = at[0] + layout.middle(first) - half, at[0] + layout.middle(first + size - 1) + half
        shapes.append(LineSegment((start, at[1] + 13), (end, at[1] + 13), QUIET, 1.25))
        shapes.append(TextLabel(((start + end) / 2, at[1] + 9), f"node {node}", 9.5, QUIET))
        first += size
    return shapes


def _column_names(layout: GridLayout) -> list[str]:
    """Return the labels of a rank's columns of cells: in, out and work (all-to-all), or first chunks such as +16."""
    if layout.history.plan.operation is Operation.ALL_TO_ALL:
        return [get_column_name(column * layout.lines, layout.lines) for column in range(layout.columns)]
    return [f"+{column * MOST_LINES}" if column else "" for column in range(layout.columns)]
