"""Colours that colour-blind readers can tell apart, and the marks that say the same without any colour.

Eight colours serve sixteen ranks: those from 8 on have a corner cut off. Besides, a rank's piece always stands at the
same place of a cell, and bears its number where there is room. Source of the colours: Okabe and Ito, "Color universal
design", 2008.
"""

from __future__ import annotations

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#f0e442", "#cc79a7", "#000000")
INK, QUIET, PALE, EMPTY, PAPER, GLOW = "#1a1a1a", "#6b6b6b", "#c9c9c9", "#ececec", "#ffffff", "#9a9a9a"
MOST_RANKS = 2 * len(COLOURS)


def rank_colour(rank: int) -> str:
    """Return the colour of a rank."""
    return COLOURS[rank % len(COLOURS)]


def has_cut_corner(rank: int) -> bool:
    """Whether a rank's pieces have a corner cut off."""
    return rank // len(COLOURS) % 2 == 1


def text_colour_on(fill: str) -> str:
    """Return black or white, whichever can be read on `fill` (relative luminance of WCAG 2)."""
    channels = [int(fill[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return COLOURS[-1] if luminance > 0.179 else PAPER


def rank_line_colour(rank: int) -> str:
    """Return the colour of a rank for thin lines on paper: a little darker, so that the light ones can be seen."""
    fill = rank_colour(rank)
    return "#" + "".join(f"{int(fill[at : at + 2], 16) * 4 // 5:02x}" for at in (1, 3, 5))
