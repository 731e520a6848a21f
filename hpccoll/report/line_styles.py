"""How each engine and algorithm is drawn: one look on the whole page, so that a line is recognised in every picture.

Colour and marker together name a line, so that neither colour-blind readers nor printers lose it. There are colours
for as many lines of an operation as eyes can tell apart: the peers have theirs, then come those that are best
somewhere, then those that come closest to the best. The others are drawn thin and grey, and named by the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpccoll.report.curves import CurveGroup, Implementation

COLOURS = 7  # of the style sheet: .c1 to .c7
_MARKERS = ("circle", "square", "up", "diamond", "down", "plus", "cross")
_PEERS = {"mpi": ("peer", "hexagon"), "nccl": ("peer2", "star"), "gloo": ("peer3", "thin")}
_QUIET = 20.0  # a line this many times slower than the best on average is no rival of it
_SHAPES = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "M-3.5-3.5h7v7h-7z",
    "up": "M0-4.6L4.3 3.2H-4.3z",
    "down": "M0 4.6L4.3-3.2H-4.3z",
    "diamond": "M0-4.8L4.3 0L0 4.8L-4.3 0z",
    "plus": "M-1.5-4.3h3v2.8h2.8v3h-2.8v2.8h-3v-2.8h-2.8v-3h2.8z",
    "cross": "M-4-2L-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0z",
    "hexagon": "M0-4.8L4.2-2.4V2.4L0 4.8L-4.2 2.4V-2.4z",
    "star": "M0-5L1.4-1.6L5-1.4L2.2.9L3 4.4L0 2.4L-3 4.4L-2.2.9L-5-1.4L-1.4-1.6z",
    "thin": "M0-5L2.8 0L0 5L-2.8 0z",
    "dot": "M-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0z",
}


@dataclass(frozen=True, slots=True)
class LineStyle:
    """A class of the style sheet and the path of a marker around (0, 0)."""

    css_class: str
    marker: str

    @property
    def is_muted(self) -> bool:
        """Whether it is one of the others."""
        return self.css_class == "quiet"


BOUND_STYLE = LineStyle("bound", "")
MUTED_STYLE = LineStyle("quiet", _SHAPES["dot"])


def assign_line_styles(pictures: Iterable[CurveGroup]) -> dict[Implementation, LineStyle]:
    """Return the look of every line of these pictures.

    In the pictures of one operation no two lines look alike, but for the quiet ones.
    """
    by_operation: dict[str, list[CurveGroup]] = {}
    for picture in pictures:
        by_operation.setdefault(picture.setting.op, []).append(picture)
    chosen: dict[Implementation, set[str]] = {}  # in which operations a line is among the coloured ones
    found: dict[Implementation, LineStyle] = {}
    for op, mine in by_operation.items():
        behind = _rank_by_lag(mine)
        libraries = sorted({name.library for name in behind})
        rivals = sorted(behind, key=lambda each: (*behind[each], each.sort_key))
        for name in rivals:
            found[name] = MUTED_STYLE
            if name.engine in _PEERS and name.library == libraries[0]:
                css, marker = _PEERS[name.engine]
                found[name] = LineStyle(css, _SHAPES[marker])
        own = [name for name in rivals if found[name] is MUTED_STYLE][:COLOURS]
        for name in own:
            chosen.setdefault(name, set()).add(op)
    return found | _assign_colors(chosen)


def _assign_colors(chosen: Mapping[Implementation, set[str]]) -> dict[Implementation, LineStyle]:
    """Return colours and markers: other ones for lines that meet in an operation, else the first that is free."""
    taken: dict[Implementation, int] = {}
    for name in sorted(chosen, key=lambda each: (-len(chosen[each]), each.sort_key)):
        near = {at for other, at in taken.items() if chosen[other] & chosen[name]}
        taken[name] = next(at for at in range(len(chosen) + 1) if at not in near)
    return {
        name: LineStyle(f"c{at % COLOURS + 1}", _SHAPES[_MARKERS[(at + at // COLOURS) % len(_MARKERS)]])
        for name, at in taken.items()
    }


def _rank_by_lag(pictures: Sequence[CurveGroup]) -> Mapping[Implementation, tuple[int, float]]:
    """Return for each line minus how often it is best, and by how much it is behind the best on average."""
    wins: dict[Implementation, int] = {}
    logs: dict[Implementation, list[float]] = {}
    for picture in pictures:
        for nbytes in picture.sizes:
            best = picture.find_fastest(nbytes)
            if best is None or best[1].time_us.p50 <= 0:
                continue
            wins[best[0]] = wins.get(best[0], 0) + 1
            for curve in picture.curves:
                record = curve.record_at(nbytes)
                if record is not None and record.time_us.p50 > 0:
                    logs.setdefault(curve.implementation, []).append(math.log(record.time_us.p50 / best[1].time_us.p50))
    every = {curve.implementation for picture in pictures for curve in picture.curves}
    far = math.log(_QUIET)
    return {name: (-wins.get(name, 0), sum(gaps) / len(gaps) if (gaps := logs.get(name)) else far) for name in every}
