"""Draws the winner map: a picture of the fastest algorithm by rank count (x axis) and message size (y axis).

Logarithms of times are interpolated linearly between the simulated points, which are drawn as dots. On the line between
two regions, their two algorithms take equally long. Each region is labelled with its algorithm's name, so that the map
needs neither colours nor a legend. The colours are lightened from Okabe and Ito, Color Universal Design, 2008.
"""

from __future__ import annotations

from itertools import cycle
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
_OTHER_COLOURS = ("#BFE3F7", "#D9CBA8", "#F3ED9E", "#B9A7D3", "#D7E8B0", "#EFC7B5", "#A9D6D9", "#D8D8D8")
_INK = "#222222"
SUFFIXES = (".png", ".svg", ".pdf")
_RESOLUTION = 360  # interpolated points along each axis
_MIN_LABELLED, _MIN_BOLD = 0.0035, 0.03  # fractions of the map's area from which a region has a label, a bold label


def draw_winner_map(grid: ForecastGrid, marks: tuple[int, ...] = ()) -> Figure:
    """Return the winner map of `grid` (at least two rank counts and two sizes) as a matplotlib figure; write no file.

    `marks` are rank counts at which to draw a dashed line, to compare a rule of thumb with the map.
    """
    # Avoid matplotlib's pyplot, which would choose a backend and keep every figure until the process exits.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 6.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    across, up = np.log2(np.array(grid.ranks, float)), np.log2(np.array(grid.sizes, float))
    fine_x, fine_y = np.linspace(across[0], across[-1], _RESOLUTION), np.linspace(up[0], up[-1], _RESOLUTION)
    times = _interpolate(grid, across, up, fine_x, fine_y)
    best = np.argmax(times <= times.min(axis=0) + np.log(1 + TIE), axis=0)
    _fill_regions(axes, grid, fine_x, fine_y, best)
    _draw_crossovers(axes, times, best, fine_x, fine_y)
    _label_regions(axes, grid, fine_x, fine_y, best)
    grid_x, grid_y = np.meshgrid(across, up)
    axes.plot(grid_x.ravel(), grid_y.ravel(), ".", color=_INK, alpha=0.28, markersize=2.2, zorder=3)
    _draw_axes(axes, grid, across, up, marks)
    return figure


def _interpolate(grid: ForecastGrid, across: Floats, up: Floats, fine_x: Floats, fine_y: Floats) -> Floats:
    """Return the simulated times' logarithms at the points of the map, shape (algorithms, `fine_y`, `fine_x`)."""
    from scipy.interpolate import RegularGridInterpolator

    y, x = np.meshgrid(fine_y, fine_x, indexing="ij")
    logs = np.log(np.maximum(grid.seconds, 1e-15))
    return np.array([RegularGridInterpolator((across, up), each)((x, y)) for each in logs])


def _fill_regions(axes: Axes, grid: ForecastGrid, x: Floats, y: Floats, best: NDArray[np.intp]) -> None:
    """Draw each interpolated point in the colour of its fastest algorithm; `best` has the index of this algorithm."""
    from matplotlib.colors import ListedColormap

    present, others = np.unique(best), cycle(_OTHER_COLOURS)
    colours = [_COLOURS.get(grid.algorithms[a].name) or next(others) for a in present]
    shown = np.searchsorted(present, best)
    limits: Any = {"vmin": -0.5, "vmax": len(present) - 0.5}
    axes.pcolormesh(x, y, shown, cmap=ListedColormap(colours), shading="nearest", rasterized=True, zorder=1, **limits)


def _draw_crossovers(axes: Axes, times: Floats, best: NDArray[np.intp], x: Floats, y: Floats) -> None:
    """Draw the lines on which the fastest and the second fastest algorithm take equally long."""
    for a in np.unique(best):
        rivals = np.delete(times, a, axis=0)
        if len(rivals) and (best == a).sum() >= _MIN_LABELLED / 10 * _RESOLUTION**2:
            lead = times[a] - rivals.min(axis=0)
            if lead.min() < 0 < lead.max():
                axes.contour(x, y, lead, levels=[0.0], colors=[_INK], linewidths=1.3, zorder=2)


def _label_regions(axes: Axes, grid: ForecastGrid, x: Floats, y: Floats, best: NDArray[np.intp]) -> None:
    """Draw each region's label at the region's widest place, vertically if it does not fit horizontally."""
    from matplotlib.patheffects import withStroke
    from scipy.ndimage import label

    for a in np.unique(best):
        regions, count = label(best == a)
        name = grid.algorithms[a].name.replace("_", " ")
        for number in range(1, count + 1):
            inside = np.pad(regions == number, 1)
            share = inside.sum() / _RESOLUTION**2
            if share < _MIN_LABELLED:
                continue
            size = 11 if share > _MIN_BOLD else 8
            row, column, upright = _find_label_place(inside[1:-1, 1:-1], 0.42 * size * len(name))
            axes.text(
                x[column],
                y[row],
                name,
                ha="center",
                va="center",
                rotation=90 if upright else 0,
                fontsize=size,
                fontweight="bold" if share > _MIN_BOLD else "normal",
                color=_INK,
                zorder=5,
                path_effects=[withStroke(linewidth=3, foreground="white", alpha=0.6)],
            )


def _find_label_place(inside: NDArray[np.bool_], width: float) -> tuple[int, int, bool]:
    """Return a label's centre (row, column), and whether the label of `width` points must be vertical to fit."""
    row, (first, last) = _find_roomiest_row(inside)
    if last - first > width:
        return row, (first + last) // 2, False
    column, (first, last) = _find_roomiest_row(inside.T)
    return (first + last) // 2, column, True


def _find_roomiest_row(inside: NDArray[np.bool_]) -> tuple[int, tuple[int, int]]:
    """Return the row of a region with most room for a label, and the region's first and last column in this row."""
    from scipy.ndimage import distance_transform_edt

    # A label is about ten times as wide as high, so it needs about ten times as much room horizontally as vertically.
    room = distance_transform_edt(np.pad(inside, 1), sampling=(1.0, 0.12))[1:-1, 1:-1]
    row, column = (int(index) for index in np.unravel_index(int(np.argmax(room)), room.shape))
    outside = np.nonzero(~inside[row])[0]
    first = int(outside[outside < column].max(initial=-1)) + 1
    last = int(outside[outside > column].min(initial=inside.shape[1])) - 1
    return row, (first, last)


def _draw_axes(axes: Axes, grid: ForecastGrid, across: Floats, up: Floats, marks: tuple[int, ...]) -> None:
    """Set title, axis labels, ticks and limits, and draw lines at the rank counts in `marks`."""
    q = grid.machine.ranks_per_node
    inside = grid.ranks[0] < q < grid.ranks[-1]
    operations = sorted({each.operation.value for each in grid.algorithms})
    head = f"Fastest {', '.join(operations)} on {grid.machine.name} (simulated)"
    axes.set_title(head, loc="left", fontsize=13, fontweight="bold", color=_INK, pad=20 if marks or inside else 8)
    axes.set_xlabel("ranks", color=_INK)
    axes.set_ylabel("message size S", color=_INK)
    step = max(-(-len(across) // 13), 1)
    axes.set_xticks(across[::step], [f"{n:,}" for n in grid.ranks[::step]])
    step = max(-(-len(up) // 12), 1)
    axes.set_yticks(up[::step], [format_size(size) for size in grid.sizes[::step]])
    axes.set_xlim(across[0], across[-1])
    axes.set_ylim(up[0], up[-1])
    if inside:
        _draw_mark(axes, q, "one node", (0, (1, 2)))
    for n in marks:
        _draw_mark(axes, n, f"{n:,}", (0, (5, 3)))
    axes.tick_params(colors=_INK, labelsize=9)


def _draw_mark(axes: Axes, ranks: int, text: str, dashes: tuple[int, tuple[int, int]]) -> None:
    """Draw a vertical line at a rank count, with a label above the map."""
    at = float(np.log2(ranks))
    axes.axvline(at, color=_INK, linewidth=1.2, linestyle=dashes, zorder=3)
    place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, (at, 1.0), xytext=(0, 3), ha="center", va="bottom", fontsize=9, color=_INK, **place)
