"""Text and SVG: the same bytes for the same plan, well-formed, nothing off the page, and no meaning in colour alone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hpccoll.algorithms import get_algorithm, list_algorithms
from hpccoll.plan import Operation, simulate_schedule
from hpccoll.plan.drawing.history import PlanHistory, record_history
from hpccoll.plan.drawing.pages import LONG_SIDE, SHORT_SIDE, lay_out_animation, lay_out_pages
from hpccoll.plan.drawing.palette import COLOURS, has_cut_corner, rank_colour, text_colour_on
from hpccoll.plan.drawing.scene import (
    Disc,
    FilledBoxes,
    FilledPolygons,
    LineSegment,
    OutlinedBox,
    Scene,
    TextLabel,
    estimate_text_width,
)
from hpccoll.plan.drawing.schedule_chart import lay_out_schedule
from hpccoll.plan.drawing.svg import render_svg
from hpccoll.plan.drawing.text_grid import format_text_grid
from hpccoll.plan.drawing.trace import format_trace_json
from hpccoll.plan.simulation import build_round_timeline
from hpccoll.schedules import make_schedule
from hpccoll.units import format_ranges

GOLDEN = Path(__file__).parent / "golden"
WRITERS = {
    ".txt": lambda plan: format_text_grid(record_history(plan)),
    ".svg": lambda plan: render_svg(lay_out_pages(record_history(plan))[0]),
    ".json": lambda plan: format_trace_json(build_round_timeline(plan)),
}
DRAWN = [
    ("all_reduce/ring", 3, ".txt"),
    ("all_reduce/ring", 3, ".svg"),
    ("all_reduce/ring", 3, ".json"),
    ("all_reduce/tree", 4, ".txt"),
    ("all_to_all/pairwise", 3, ".txt"),
    ("all_gather/bruck", 9, ".txt"),
    ("scatter/tree", 4, ".svg"),
    ("barrier/dissemination", 9, ".svg"),
]
EVERY = [
    pytest.param(each, n, id=f"{each.full_name}-{n}", marks=[pytest.mark.full] if n in (5, 16) else [])
    for each in list_algorithms()
    for n in (1, 3, 5, 8, 16)
]


def make_plan(name: str, ranks: int, chunks: int = 1):
    """Return the plan of an algorithm, given as `operation/name`."""
    operation, _, algorithm = name.partition("/")
    return get_algorithm(Operation.from_name(operation), algorithm).plan(ranks, 0, chunks)


def make_history(name: str, ranks: int, chunks: int = 1) -> PlanHistory:
    """Return the history of an algorithm's plan, given as `operation/name`."""
    return record_history(make_plan(name, ranks, chunks))


@pytest.mark.parametrize(("name", "ranks", "suffix"), DRAWN)
def test_drawings_are_those_of_the_golden_files(name, ranks, suffix):
    drawn = WRITERS[suffix](make_plan(name, ranks))
    golden = GOLDEN / f"{name.replace('/', '_')}_{ranks}{suffix}"
    if os.environ.get("HPCCOLL_WRITE_GOLDEN"):  # then look at what git shows as changed
        golden.write_text(drawn, encoding="utf-8")
    assert drawn == golden.read_text(encoding="utf-8")


def extent(shape) -> list[tuple[float, float]]:
    """Return the corners of the area that a shape covers."""
    match shape:
        case FilledBoxes(_, boxes):
            return [point for x, y, w, h in boxes for point in ((x, y), (x + w, y + h))]
        case FilledPolygons(_, polygons):
            return [point for polygon in polygons for point in polygon]
        case OutlinedBox((x, y, w, h)):
            return [(x, y), (x + w, y + h)]
        case LineSegment(start, end):
            return [start, end]
        case Disc((x, y), radius):
            return [(x - radius, y - radius), (x + radius, y + radius)]
        case TextLabel((x, y), words, size, _, anchor):
            wide = estimate_text_width(words, size)
            left = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
            return [(left, y - size), (left + wide, y)]
    raise AssertionError(shape)


def list_outside(scene: Scene) -> list[object]:
    """Return the shapes of a scene that extend beyond the page."""
    return [
        shape
        for shape in scene.shapes
        if any(not (-0.01 <= x <= scene.width + 0.01 and -0.01 <= y <= scene.height + 0.01) for x, y in extent(shape))
    ]


@pytest.mark.parametrize(("each", "n"), EVERY)
def test_every_algorithm_is_drawn_well_formed_and_on_the_page(each, n):
    history = record_history(each.plan(n, n - 1, 2))
    scenes = lay_out_pages(history)
    words = []
    for scene in scenes:
        assert not list_outside(scene)
        assert min(scene.width, scene.height) <= SHORT_SIDE
        assert max(scene.width, scene.height) <= LONG_SIDE
        root = ET.fromstring(render_svg(scene))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        words += [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    rounds = [word for word in words if re.fullmatch(r"start|round \d+", word)]
    assert rounds == ["start", *(f"round {t}" for t in range(1, len(history.frames)))]
    numbers = [match[1] for word in words if (match := re.search(r", page (\d+) of \d+$", word))]
    assert numbers == [str(number) for number in range(1, len(scenes) + 1)] or len(scenes) == 1
    told = format_text_grid(history)
    assert told.isascii()
    assert max(map(len, told.splitlines())) <= 120
    assert told.count("\nround ") == len(history.frames) - 1


@pytest.mark.parametrize("name", ["all_reduce/ring", "gather/tree", "barrier/tree"])
def test_an_animation_has_a_page_a_frame_all_of_one_size(name):
    history = make_history(name, 5)
    found = lay_out_animation(history)
    assert len(found) == len(history.frames)
    assert len({(page.width, page.height) for page in found}) == 1
    assert not any(list_outside(page) for page in found)


def test_the_chart_of_a_schedule_is_on_its_page_with_its_legend_below_the_ranks():
    scene = lay_out_schedule(simulate_schedule(make_schedule("1f1b", 4, 4)))
    assert not list_outside(scene)
    assert scene.height == 22 + 52 + 4 * (26 + 6) + 40 + 22 / 2  # edge, title, four ranks, legend, half an edge


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 8, 16])
def test_text_is_large_enough_to_read(ranks):
    for each in list_algorithms():
        scene = lay_out_pages(record_history(each.plan(ranks, 0, 2)))[0]
        sizes = [shape.size for shape in scene.shapes if isinstance(shape, TextLabel)]
        assert min(sizes) >= 6, each.full_name


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""

    def luminance(value: str) -> float:
        parts = [int(value[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_numbers_can_be_read_on_every_colour():
    assert all(contrast(fill, text_colour_on(fill)) >= 4.5 for fill in COLOURS)


def test_sixteen_ranks_look_different_from_each_other():
    assert len({(rank_colour(rank), has_cut_corner(rank)) for rank in range(16)}) == 16


def test_colour_alone_means_nothing():
    # A contribution's place in its cell is its rank's, and its number stands on it.
    history = make_history("all_reduce/tree", 8)
    scene = lay_out_pages(history)[0]
    grounds = [
        box
        for shape in scene.shapes
        if isinstance(shape, FilledBoxes) and shape.fill == "#ececec"
        for box in shape.boxes
    ]
    numbers = {
        (shape.at[0], round(shape.at[1] - 0.36 * shape.size, 3)): shape.words
        for shape in scene.shapes
        if isinstance(shape, TextLabel)
    }
    seen = 0
    for rank in range(8):
        for shape in scene.shapes:
            for x, y, w, h in shape.boxes if isinstance(shape, FilledBoxes) and shape.fill == rank_colour(rank) else ():
                cell = next(g for g in grounds if g[0] <= x < g[0] + g[2] and g[1] <= y < g[1] + g[3])
                assert x - cell[0] == pytest.approx(1 + rank * (w + 1))
                assert numbers[x + w / 2, round(y + h / 2, 3)] == str(rank)
                seen += 1
    assert seen == 8 + sum(int(frame.counts.sum()) for frame in history.frames)  # the key shows each once


def test_labels_are_short_where_many_messages_leave():
    words = {
        shape.words
        for shape in lay_out_pages(make_history("all_reduce/two_shot", 16))[0].shapes
        if isinstance(shape, TextLabel)
    }
    assert "15 msgs" in words
    assert {"c0", "c15"} <= words  # in the second round all messages of a rank carry the same chunk


def test_nodes_are_named_and_apart():
    plan = make_plan("all_reduce/ring", 5)
    plain, noded = lay_out_pages(record_history(plan))[0], lay_out_pages(record_history(plan, (3, 2)))[0]
    words = [shape.words for shape in noded.shapes if isinstance(shape, TextLabel)]
    assert words.count("node 0") == words.count("node 1") == 9
    assert noded.width > plain.width
    assert not list_outside(noded)


def test_ranges():
    assert format_ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert format_ranges([6, 7, 0, 1]) == "6-7,0-1"
    assert format_ranges([]) == ""
