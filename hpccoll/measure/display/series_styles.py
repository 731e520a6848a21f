"""The colour and marker of each implementation in the plot of `hpccoll bench` and in the charts of the report.

MPI, NCCL, Gloo and torch-hpccoll always have the same colour and marker. Of all other implementations, `auto` and those
that are the fastest at some message size have a colour. At most MAX_COLOURED of these other implementations have a
colour: first `auto`, then those that are the fastest at the largest number of sizes. All implementations without a
colour are grey. Within one operation no two implementations share a colour, except the grey ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hpccoll.measure.results.measured_case import Implementation, MeasuredCase, list_implementations

COLOURS = {  # for a white background; the report's style sheet also has lighter colours, for dark screens
    "c1": "#0a66c2",
    "c2": "#d4550a",
    "c3": "#0b7f56",
    "c4": "#8b46c8",
    "c5": "#b8860b",
    "c6": "#c02673",
    "c7": "#0d8ca0",
    "mpi": "#15181d",
    "nccl": "#6a4b2a",
    "gloo": "#34406e",
    "torch-hpccoll": "#5f7a1f",
    "muted": "#aab2bd",
}
MAX_COLOURED = 7
_LIBRARY_MARKERS = {"mpi": "hexagon", "nccl": "star", "gloo": "thin", "torch-hpccoll": "pentagon"}
LIBRARIES = tuple(_LIBRARY_MARKERS)
_MARKERS = ("circle", "square", "up", "diamond", "down", "plus", "cross", "left", "right", "pentagon")
# Indices of the colours and markers that the most frequent algorithms have in most charts.
_PREFERRED = {"auto": 0, "ring": 1, "double_tree": 2, "recursive_doubling": 3, "tree": 4, "rabenseifner": 5, "swing": 6}


@dataclass(frozen=True, slots=True)
class SeriesStyle:
    """The style of an implementation's line: a key of COLOURS, and the name of a marker."""

    colour: str
    marker: str

    @property
    def is_muted(self) -> bool:
        """Whether the line is thin and grey."""
        return self.colour == "muted"

    @property
    def is_library(self) -> bool:
        """Whether the line belongs to another library, such as MPI, or to hpccoll called through torch.distributed."""
        return self.colour in LIBRARIES


SeriesStyles: TypeAlias = Mapping[str, Mapping[Implementation, SeriesStyle]]  # by operation, then by implementation


def choose_series_styles(cases: Iterable[MeasuredCase]) -> SeriesStyles:
    """Return line styles by operation and implementation; colours are equal in all operations if possible."""
    by_operation: dict[str, list[MeasuredCase]] = {}
    for case in cases:
        by_operation.setdefault(case.setting.op, []).append(case)
    indices: dict[Implementation, int] = {}  # the latest colour of each implementation, to reuse it
    return {op: _choose_for_operation(members, indices) for op, members in by_operation.items()}


def _choose_for_operation(
    cases: Sequence[MeasuredCase], indices: dict[Implementation, int]
) -> dict[Implementation, SeriesStyle]:
    """Return the line styles for one operation; implementations that are the fastest at any size get colours.

    `indices` maps implementations to the indices of their colours in earlier operations, and is updated.
    """
    names = list_implementations(cases)
    first_library = min(name.library for name in names)
    styles = {
        name: SeriesStyle(name.engine, _LIBRARY_MARKERS[name.engine])
        for name in names
        if name.engine in _LIBRARY_MARKERS and name.library == first_library
    }
    wins = Counter(case.fastest for case in cases)
    others = [name for name in names if name not in styles]
    coloured = [name for name in others if wins[name] or name.algorithm == "auto"]
    coloured.sort(key=lambda name: (name.algorithm != "auto", -wins[name], name.sort_key))
    for name, index in _assign_indices(coloured[:MAX_COLOURED], indices).items():
        styles[name] = SeriesStyle(f"c{index + 1}", _MARKERS[index])
        indices[name] = index
    muted = [name for name in others if name not in styles]
    return styles | {name: SeriesStyle("muted", _MARKERS[i % len(_MARKERS)]) for i, name in enumerate(muted)}


def _assign_indices(
    names: Sequence[Implementation], earlier: Mapping[Implementation, int]
) -> dict[Implementation, int]:
    """Return a different colour index for each implementation.

    An implementation gets its index in `earlier` (its colour in an earlier operation), else its preferred index, else
    any free index.
    """
    assigned: dict[Implementation, int] = {}
    free = list(range(MAX_COLOURED))
    for name in names:
        wish = earlier.get(name, _PREFERRED.get(name.algorithm or ""))
        if wish in free:
            assigned[name] = wish
            free.remove(wish)
    return assigned | {name: free.pop() for name in names if name not in assigned}
