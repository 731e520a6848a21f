"""The key below a picture: only the signs that its story uses, side by side and then in further lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hpccoll.plan.drawing.arrows import HEAD, RADIUS, badge, head
from hpccoll.plan.drawing.frames import Story
from hpccoll.plan.drawing.grid import Brush, Grid, numbered_piece, sized
from hpccoll.plan.drawing.palette import COLOURS, INK, QUIET
from hpccoll.plan.drawing.scene import Line, Point, Shape, Text, text_width
from hpccoll.plan.operation import Operation

SIZE, HIGH, APART, ABOVE = 10.0, 25.0, 24.0, 18.0
Sample = Callable[[Point], list[Shape]]  # given the left end of its middle line


@dataclass(frozen=True, slots=True)
class Entry:
    """A sign as it looks, its size, and what it means."""

    sample: Sample
    width: float
    height: float
    words: str


def draw_key(layout: Grid, at: Point, width: float) -> tuple[list[Shape], float]:
    """Return the key's shapes, its upper left corner at `at`, and its height when it may be `width` wide."""
    shapes: list[Shape] = []
    x, line = 0.0, 0
    for entry in _entries(layout):
        needs = entry.width + 7 + text_width(entry.words, SIZE)
        if x and x + needs > width:
            x, line = 0.0, line + 1
        middle = at[1] + (line + 0.5) * HIGH + ABOVE
        shapes += entry.sample((at[0] + x, middle))
        words = at[0] + x + entry.width + 7, middle + 0.36 * SIZE
        shapes.append(Text(words, entry.words, SIZE, QUIET, "start"))
        x += needs + APART
    return shapes, (line + 1) * HIGH + ABOVE


def _entries(layout: Grid) -> Iterator[Entry]:
    story = layout.story
    messages = [message for frame in story.frames for message in frame.messages]
    yield _cell(layout, _meaning(story), owners=range(story.ranks))
    if story.ranks > len(COLOURS):
        first = len(COLOURS)
        words = f"a cut corner: ranks from {first} on"
        yield Entry(lambda at: badge(first, (at[0] + RADIUS, at[1])), 2 * RADIUS, 2 * RADIUS, words)
    if any(message.reduces for message in messages):
        yield _arrow("reduced into what is there", plus=True)
    if any(not message.reduces for message in messages):
        barrier = story.operation is Operation.BARRIER
        yield _arrow("tells all it has heard" if barrier else "copied", plus=False)
    if messages:
        yield _cell(layout, "changed in this round", changed=True)
    ends = "has heard of every rank" if story.operation is Operation.BARRIER else "wanted here, and complete"
    yield _cell(layout, ends, done=True)


def _meaning(story: Story) -> str:
    if story.operation is Operation.BARRIER:
        return "the ranks that this one knows to have arrived"
    if story.sums:
        return "a chunk, and the ranks whose contributions are in it"
    special = {
        Operation.ALL_TO_ALL: "a block, from whom \u2192 for whom",
        Operation.SCATTER: "a block, and for whom it is",
        Operation.BROADCAST: "a chunk, and whose it is",
    }
    return special.get(story.operation, "a block, and whose it is")


def _cell(layout: Grid, words: str, owners: range = range(0), *, changed: bool = False, done: bool = False) -> Entry:
    story = layout.story
    if story.sums and owners:
        piece = numbered_piece(story.ranks)
        width, height = sized(piece, len(owners))
        sized_up = replace(layout, piece=piece, numbered=True)
    else:
        sized_up, (width, height) = layout, (min(layout.cell[0], 34.0), min(layout.cell[1], 17.0))

    def sample(at: Point) -> list[Shape]:
        brush = Brush(sized_up)
        box = at[0], at[1] - height / 2, width, height
        brush.cell(box, changed=changed, done=done)
        if owners and story.sums:
            brush.pieces(box, list(owners))
        elif owners:
            brush.tile(box, owners[0], len(owners) - 1)
        return list(brush.shapes())

    return Entry(sample, width, height, words)


def _arrow(words: str, *, plus: bool) -> Entry:
    def sample(at: Point) -> list[Shape]:
        end = at[0] + 26 - HEAD, at[1]
        return [Line(at, end, INK, 1.3), *head(at, end, plus=plus)]

    return Entry(sample, 26, 10, words)
