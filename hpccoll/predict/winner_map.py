"""The map of winners as a picture: which algorithm is fastest over ranks (across) and message size (up).

Between the simulated points, which are marked, logarithms of times are interpolated linearly; where two algorithms'
times meet runs the crossover line. Each region bears its algorithm's name, so that neither colour nor a legend is
needed to read it. Colours: Okabe and Ito, Color Universal Design, 2008, lightened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpccoll.predict.forecast_grid import TIE, ForecastGrid
from hpccoll.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats: TypeAlias = NDArray[np.float64]
_COLOURS = {
    "ring": "#8FC1E3",
    "double_tree": "#F5B48A",
    "recursive_doubling": "#8AD0B8",
    "tree": "#E8BDD6",
    "rabenseifner": "#F7DB95",
    "hierarchical": "#C9CDD6",
}
_OTHERS = ("#BFE3F7", "#D9CBA8", "#F3ED9E", "#B9A7D3", "#D7E8B0", "#EFC7B5", "#A9D6D9", "#D8D8D8")
_INK = "#222222"
SUFFIXES = (".png", ".svg", ".pdf")
_FINE = 360  # points along each axis
_SMALLEST, _LARGE = 0.0035, 0.03  # of the map: smaller regions bear no name, larger ones a bold one


def draw_winner_map(winners: ForecastGrid, marks: tuple[int, ...] = ()) -> Figure:
    """Return the figure.

    Args:
        winners: with at least two rank counts and two sizes.
        marks: rank counts at which to draw a dotted line (a rule of thumb to be held against the map).
    """
    # The figure has its own canvas: pyplot would choose a backend and remember figures for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 6.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    across, up = np.log2(np.array(winners.ranks, float)), np.log2(np.array(winners.sizes, float))
    fine_x, fine_y = np.linspace(across[0], across[-1], _FINE), np.linspace(up[0], up[-1], _FINE)
    times = _interpolated(winners, across, up, fine_x, fine_y)
    best = np.argmax(times <= times.min(axis=0) + np.log(1 + TIE), axis=0)
    _paint(axes, winners, fine_x, fine_y, best)
    _cross(axes, times, best, fine_x, fine_y)
    _name(axes, winners, fine_x, fine_y, best)
    grid_x, grid_y = np.meshgrid(across, up)
    axes.plot(grid_x.ravel(), grid_y.ravel(), ".", color=_INK, alpha=0.28, markersize=2.2, zorder=3)
    _frame(axes, winners, across, up, marks)
    return figure


def _interpolated(winners: ForecastGrid, across: Floats, up: Floats, fine_x: Floats, fine_y: Floats) -> Floats:
    """Return the logarithms of times on the fine grid, shape (A, y, x)."""
    from scipy.interpolate import RegularGridInterpolator

    y, x = np.meshgrid(fine_y, fine_x, indexing="ij")
    logs = np.log(np.maximum(winners.seconds, 1e-15))
    return np.array([RegularGridInterpolator((across, up), each)((x, y)) for each in logs])


def _colour(name: str, number: int) -> str:
    return _COLOURS.get(name, _OTHERS[number % len(_OTHERS)])


def _paint(axes: Axes, winners: ForecastGrid, x: Floats, y: Floats, best: NDArray[np.intp]) -> None:
    from matplotlib.colors import ListedColormap

    there = np.unique(best)
    unnamed = [a for a in there if winners.algorithms[a].name not in _COLOURS]
    colours = [_colour(winners.algorithms[a].name, unnamed.index(a) if a in unnamed else 0) for a in there]
    shown = np.searchsorted(there, best)
    limits: Any = {"vmin": -0.5, "vmax": len(there) - 0.5}
    axes.pcolormesh(x, y, shown, cmap=ListedColormap(colours), shading="nearest", rasterized=True, zorder=1, **limits)


def _cross(axes: Axes, times: Floats, best: NDArray[np.intp], x: Floats, y: Floats) -> None:
    """Draw the lines along which the fastest and its closest rival take equally long."""
    for a in np.unique(best):
        rivals = np.delete(times, a, axis=0)
        if len(rivals) and (best == a).sum() >= _SMALLEST / 10 * _FINE**2:
            lead = times[a] - rivals.min(axis=0)
            if lead.min() < 0 < lead.max():
                axes.contour(x, y, lead, levels=[0.0], colors=[_INK], linewidths=1.3, zorder=2)


def _name(axes: Axes, winners: ForecastGrid, x: Floats, y: Floats, best: NDArray[np.intp]) -> None:
    """Write each region's name where there is most room for it, upright where it is too narrow."""
    from matplotlib.patheffects import withStroke
    from scipy.ndimage import label

    for a in np.unique(best):
        regions, count = label(best == a)
        name = winners.algorithms[a].name.replace("_", " ")
        for number in range(1, count + 1):
            inside = np.pad(regions == number, 1)
            share = inside.sum() / _FINE**2
            if share < _SMALLEST:
                continue
            size = 11 if share > _LARGE else 8
            row, column, upright = _place(inside[1:-1, 1:-1], 0.42 * size * len(name))
            axes.text(
                x[column],
                y[row],
                name,
                ha="center",
                va="center",
                rotation=90 if upright else 0,
                fontsize=size,
                fontweight="bold" if share > _LARGE else "normal",
                color=_INK,
                zorder=5,
                path_effects=[withStroke(linewidth=3, foreground="white", alpha=0.6)],
            )


def _place(inside: NDArray[np.bool_], width: float) -> tuple[int, int, bool]:
    """Return where in a region a name as wide as `width` points fits best, and whether it must stand upright."""
    row, (first, last) = _roomiest(inside)
    if last - first > width:
        return row, (first + last) // 2, False
    column, (first, last) = _roomiest(inside.T)
    return (first + last) // 2, column, True


def _roomiest(inside: NDArray[np.bool_]) -> tuple[int, tuple[int, int]]:
    """Return the row with most room for a name, and the first and last point of the run to write it in."""
    from scipy.ndimage import distance_transform_edt

    # A name is some ten times as wide as high, so room along it counts less.
    room = distance_transform_edt(np.pad(inside, 1), sampling=(1.0, 0.12))[1:-1, 1:-1]
    row, column = (int(at) for at in np.unravel_index(int(np.argmax(room)), room.shape))
    return row, _run(inside[row], column)


def _run(inside: NDArray[np.bool_], at: int) -> tuple[int, int]:
    """Return the first and the last of the points around `at` that are inside without a gap."""
    outside = np.nonzero(~inside)[0]
    first = int(outside[outside < at].max(initial=-1)) + 1
    last = int(outside[outside > at].min(initial=len(inside))) - 1
    return first, last


def _frame(axes: Axes, winners: ForecastGrid, across: Floats, up: Floats, marks: tuple[int, ...]) -> None:
    q = winners.machine.ranks_per_node
    inside = winners.ranks[0] < q < winners.ranks[-1]
    operations = sorted({each.operation.value for each in winners.algorithms})
    head = f"Fastest {', '.join(operations)} on {winners.machine.name} (simulated)"
    axes.set_title(head, loc="left", fontsize=13, fontweight="bold", color=_INK, pad=20 if marks or inside else 8)
    axes.set_xlabel("ranks", color=_INK)
    axes.set_ylabel("message size S", color=_INK)
    step = max(-(-len(across) // 13), 1)
    axes.set_xticks(across[::step], [f"{n:,}" for n in winners.ranks[::step]])
    step = max(-(-len(up) // 12), 1)
    axes.set_yticks(up[::step], [format_size(size) for size in winners.sizes[::step]])
    axes.set_xlim(across[0], across[-1])
    axes.set_ylim(up[0], up[-1])
    if inside:
        _mark(axes, q, "one node", (0, (1, 2)))
    for n in marks:
        _mark(axes, n, f"{n:,}", (0, (5, 3)))
    axes.tick_params(colors=_INK, labelsize=9)


def _mark(axes: Axes, ranks: int, text: str, dashes: tuple[int, tuple[int, int]]) -> None:
    """Draw an upright line at a rank count, named above the map."""
    at = float(np.log2(ranks))
    axes.axvline(at, color=_INK, linewidth=1.2, linestyle=dashes, zorder=3)
    place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, (at, 1.0), xytext=(0, 3), ha="center", va="bottom", fontsize=9, color=_INK, **place)
