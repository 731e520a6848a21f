"""PNG and GIF: the scenes of the SVG as pixels, the same bytes every time."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

import pytest
from PIL import Image, ImageColor, ImageSequence

from hpccoll.algorithms import get_algorithm
from hpccoll.errors import UsageError
from hpccoll.plan import Operation
from hpccoll.plan.drawing.history import PlanHistory, record_history
from hpccoll.plan.drawing.pages import lay_out_animation, lay_out_pages
from hpccoll.plan.drawing.palette import COLOURS, EMPTY, INK
from hpccoll.plan.drawing.scene import FilledBoxes
from hpccoll.raster import render_gif, render_image, render_png


def make_history(name: str, ranks: int) -> PlanHistory:
    """Return the history of an algorithm's plan, given as `operation/name`."""
    operation, _, algorithm = name.partition("/")
    return record_history(get_algorithm(Operation.from_name(operation), algorithm).plan(ranks))


def test_a_png_shows_each_piece_in_its_colour_where_the_scene_has_it():
    scene = lay_out_pages(make_history("all_reduce/ring", 5))[0]
    picture = Image.open(io.BytesIO(render_png(scene)))
    assert picture.size == (round(scene.width * 2), round(scene.height * 2))
    pieces = [(s.fill, box) for s in scene.shapes if isinstance(s, FilledBoxes) and s.fill != EMPTY for box in s.boxes]
    assert len(pieces) > 100
    for fill, (x, y, _, h) in pieces:
        assert picture.getpixel((round(2 * x) + 3, round(2 * (y + h)) - 4)) == ImageColor.getrgb(fill)


def test_a_png_is_the_same_every_time():
    scene = lay_out_pages(make_history("all_reduce/tree", 5))[0]
    assert render_png(scene) == render_png(scene)


@pytest.mark.parametrize("name", ["all_reduce/ring", "broadcast/tree", "barrier/dissemination", "all_to_all/pairwise"])
def test_a_gif_has_a_frame_more_than_the_plan_has_rounds(name):
    history = make_history(name, 5)
    animation = render_gif(lay_out_animation(history))
    assert animation == render_gif(lay_out_animation(history))
    moving = Image.open(io.BytesIO(animation))
    assert moving.info["loop"] == 0
    frames = [(frame.convert("RGB").tobytes(), frame.info["duration"]) for frame in ImageSequence.Iterator(moving)]
    assert len(frames) == len(history.frames)
    assert all(one[0] != next_one[0] for one, next_one in pairwise(frames))
    assert frames[-1][1] > 2000  # the last frame stays


def test_a_gif_keeps_the_colours():
    history = make_history("all_reduce/ring", 8)
    moving = Image.open(io.BytesIO(render_gif(lay_out_animation(history))))
    moving.seek(3)
    colors = moving.convert("RGB").getcolors(1 << 20) or []
    found = {color for _, color in colors}
    assert {ImageColor.getrgb(fill) for fill in (*COLOURS, INK, "#ffffff", EMPTY)} <= found


def test_one_rank_is_a_still_picture():
    moving = Image.open(io.BytesIO(render_gif(lay_out_animation(make_history("all_reduce/ring", 1)))))
    assert len(list(ImageSequence.Iterator(moving))) == 1


def test_what_is_too_large_is_refused_with_a_remedy():
    scene = replace(lay_out_pages(make_history("all_reduce/ring", 3))[0], width=20_000, height=20_000)
    with pytest.raises(UsageError, match=r"too large for \.png.*fewer --ranks"):
        render_png(scene)
    with pytest.raises(UsageError, match=r"too large for \.gif"):
        render_gif([scene])


@pytest.mark.slow
def test_a_large_picture_is_drawn_smaller():
    scene = replace(lay_out_pages(make_history("all_reduce/ring", 3))[0], width=4_000, height=4_000)
    assert render_image(scene, 1.0).size == (4000, 4000)
    assert Image.open(io.BytesIO(render_png(scene))).width < 8000
