"""Draws scenes (lists of shapes) with Pillow, as PNG or, for several scenes, as an animated GIF.

Images are drawn larger and then scaled down, which smooths edges. The font is matplotlib's DejaVu Sans, so a
picture looks the same on every machine.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import matplotlib as mpl
from PIL import Image, ImageDraw, ImageFont

from hpccoll.errors import UsageError
from hpccoll.plan.drawing import palette
from hpccoll.plan.drawing.scene import (
    XY,
    Box,
    Disc,
    FilledBoxes,
    FilledPolygons,
    LineSegment,
    OutlinedBox,
    Scene,
    SceneShape,
    TextLabel,
)

SMOOTH = 2  # drawn pixels per pixel of the result in each direction; 1 for large pictures
PNG_SCALE = 2.0
MOST_PIXELS = 80_000_000  # most pixels drawn at once (240 MB)
SHADES = SMOOTH**2  # shades of a smoothed edge, from a colour to its background
FRAME_MS, LAST_MS = 1100, 3000
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


def render_png(scene: Scene) -> bytes:
    """Return the contents of a PNG file of `scene`, with PNG_SCALE pixels per unit of length of the scene.

    The scale is reduced if the picture would have more than MOST_PIXELS. Raises UsageError if the picture is too large
    even at one pixel per unit of length.
    """
    fits = (MOST_PIXELS / (scene.width * scene.height)) ** 0.5
    if fits < 1:
        raise UsageError(
            f"{scene.title}: a picture of {scene.width:.0f} x {scene.height:.0f} pixels is too large for .png; "
            "write .svg, .gif (a round at a time) or .txt, or take fewer --ranks or --chunks"
        )
    stream = io.BytesIO()
    render_image(scene, min(PNG_SCALE, max(fits / SMOOTH, 1.0))).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def render_gif(scenes: Sequence[Scene]) -> bytes:
    """Return the contents of an animated GIF file of `scenes`, which all have one size.

    Raises UsageError if a frame is too large.
    """
    first = scenes[0]
    if first.width * first.height * SMOOTH**2 > MOST_PIXELS:
        raise UsageError(f"{first.title}: its rounds are too large for .gif; take fewer --ranks or --chunks")
    images = [render_image(scene, 1.0) for scene in scenes]
    colours = _make_palette()
    frames = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in images]
    times = [FRAME_MS] * (len(frames) - 1) + [LAST_MS]
    stream = io.BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=False)
    return stream.getvalue()


def render_image(scene: Scene, scale: float) -> Image.Image:
    """Return `scene` drawn as a Pillow image, with `scale` pixels per unit of length of the scene."""
    size = round(scene.width * scale), round(scene.height * scale)
    smooth = SMOOTH if size[0] * size[1] * SMOOTH**2 <= MOST_PIXELS else 1
    canvas = Image.new("RGB", (size[0] * smooth, size[1] * smooth), "white")
    pen = _Pen(ImageDraw.Draw(canvas), scale * smooth)
    for shape in scene.shapes:
        pen.draw(shape)
    return canvas.resize(size, Image.Resampling.BOX)


def _make_palette() -> Image.Image:
    """Return an image with the palette of all GIF frames: all colours, and blends of them for smoothed edges."""
    ranks = [palette.rank_colour(rank) for rank in range(len(palette.COLOURS))]
    lines = [palette.rank_line_colour(rank) for rank in range(len(palette.COLOURS))]
    # Pillow confuses colours that differ by less than 4. Therefore, colours that are no blends come first in the
    # palette, and no other colour is close to EMPTY.
    ink, quiet, glow, paper = palette.INK, palette.QUIET, palette.GLOW, palette.PAPER
    plain = [_blend(fill, fill, 0) for fill in (paper, palette.EMPTY, ink, quiet, palette.PALE, glow, *ranks, *lines)]
    to_paper = [(fill, paper) for fill in (ink, quiet, glow, *ranks, *lines)]
    texts = [(palette.text_colour_on(fill), fill) for fill in ranks] + [(ink, palette.EMPTY), (ink, glow)]
    steps = [step / SHADES for step in range(1, SHADES)]
    blended = dict.fromkeys([*plain, *(_blend(a, b, step) for a, b in to_paper + texts for step in steps)])
    image = Image.new("P", (1, 1))
    image.putpalette([channel for rgb in blended for channel in rgb])
    return image


def _blend(over: str, under: str, share: float) -> tuple[int, ...]:
    """Return a blend of two colours, such as `#ff0000`, as (red, green, blue); `under` has the weight `share`."""
    return tuple(
        round(int(over[at : at + 2], 16) * (1 - share) + int(under[at : at + 2], 16) * share) for at in (1, 3, 5)
    )


@cache
def _load_font(size: float, *, bold: bool) -> ImageFont.FreeTypeFont:
    """Return the font DejaVu Sans at `size` pixels; only the first call reads the font's file."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / name, size)


class _Pen:
    """Draws the shapes of a scene on an image with `scale` pixels per unit of length of the scene."""

    def __init__(self, canvas: ImageDraw.ImageDraw, scale: float) -> None:
        self._canvas, self._scale = canvas, scale

    def draw(self, shape: SceneShape) -> None:
        """Draw `shape` over the shapes that are already drawn."""
        match shape:
            case FilledBoxes(fill, boxes):
                for box in boxes:
                    self._canvas.rectangle(self._corners(box), fill)
            case FilledPolygons(fill, polygons):
                for points in polygons:
                    self._canvas.polygon([self._scale_point(point) for point in points], fill)
            case OutlinedBox(box, fill, stroke, width, radius):
                # Pillow draws outlines inside the box; growing the box by half the width on each side matches SVG.
                (x, y, w, h), by = box, width / 2 if stroke else 0
                grown, rim = (x - by, y - by, w + 2 * by, h + 2 * by), self._scale_width(width) if stroke else 0
                self._canvas.rounded_rectangle(self._corners(grown), radius * self._scale, fill, stroke, rim)
            case LineSegment(start, end, stroke, width):
                self._canvas.line([self._scale_point(start), self._scale_point(end)], stroke, self._scale_width(width))
            case Disc((x, y), radius, fill, stroke, width):
                wide = radius + (width / 2 if stroke else 0)
                box = self._corners((x - wide, y - wide, 2 * wide, 2 * wide))
                self._canvas.ellipse(box, fill, stroke, self._scale_width(width) if stroke else 0)
            case TextLabel(at, words, size, fill, anchor, bold):
                font = _load_font(size * self._scale, bold=bold)
                self._canvas.text(self._scale_point(at), words, fill, font, _ANCHORS[anchor])

    def _scale_point(self, point: XY) -> XY:
        """Return a point (x, y) of the scene in pixels of the image."""
        return point[0] * self._scale, point[1] * self._scale

    def _scale_width(self, width: float) -> int:
        """Return the width of a line of the scene in whole pixels, at least one."""
        return max(round(width * self._scale), 1)

    def _corners(self, box: Box) -> Box:
        """Return (left, top, right, bottom) in pixels of `box`, which is (x, y, width, height) in the scene's units."""
        x, y, w, h = (value * self._scale for value in box)
        left, top = round(x), round(y)
        return left, top, max(round(x + w) - 1, left), max(round(y + h) - 1, top)
