"""Colours that colour-blind readers can tell apart, and marks that carry the same information without colour.

Eight colours suffice for sixteen ranks, because the boxes of ranks 8 to 15 have a cut corner. In each cell of a
drawing, the box of a rank has a fixed position and shows the rank's number if there is room. Source: Okabe and Ito,
"Color universal design", 2008.
"""

from __future__ import annotations

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#f0e442", "#cc79a7", "#000000")
INK, QUIET, PALE, EMPTY, PAPER, GLOW = "#1a1a1a", "#6b6b6b", "#c9c9c9", "#ececec", "#ffffff", "#9a9a9a"


def rank_colour(rank: int) -> str:
    """Return a rank's fill colour as #rrggbb; ranks r and r + 8 have the same colour."""
    return COLOURS[rank % len(COLOURS)]


def has_cut_corner(rank: int) -> bool:
    """Whether the boxes and the disc of a rank have a cut corner (ranks 8 to 15, 24 to 31, and so on)."""
    return rank // len(COLOURS) % 2 == 1


def text_colour_on(fill: str) -> str:
    """Return black or white, whichever is more legible on the colour `fill`, by the relative luminance of WCAG 2."""
    channels = [int(fill[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return COLOURS[-1] if luminance > 0.179 else PAPER


def rank_line_colour(rank: int) -> str:
    """Return the colour of a rank's thin lines: the rank's fill colour, darkened by a fifth to be visible on white."""
    fill = rank_colour(rank)
    return "#" + "".join(f"{int(fill[at : at + 2], 16) * 4 // 5:02x}" for at in (1, 3, 5))
