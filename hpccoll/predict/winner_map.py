"""Draws the winner map: a picture of the fastest algorithm by rank count (x axis) and message size (y axis).

Logarithms of times are interpolated linearly between the simulated points, which are drawn as dots. On the line between
two regions of the map, the algorithms of both regions take equally long. Where algorithms take equally long in a whole
region, the algorithm that comes first in the grid wins. A region with enough room is labelled with its algorithm's
name; a legend below the map names the colours of all other regions. The colours are lightened from Okabe and Ito, Color
Universal Design, 2008.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import Floats
from hpccoll.predict.forecast_grid import TIE, ForecastGrid
from hpccoll.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {
    "ring": "#8FC1E3",
    "double_tree": "#F5B48A",
    "recursive_doubling": "#8AD0B8",
    "tree": "#E8BDD6",
    "rabenseifner": "#F7DB95",
    "hierarchical": "#C9CDD6",
    "hierarchical_ring": "#B9A7D3",
    "two_shot": "#D9CBA8",
    "hierarchical_doubling": "#F3ED9E",
    "swing": "#BFE3F7",
}
_OTHER_COLOURS = ("#D7E8B0", "#EFC7B5", "#A9D6D9", "#D8D8D8", "#C7B39B", "#E3A9A9", "#9FC49F")
_INK = "#222222"
_RESOLUTION = 360  # interpolated points along each axis
_CANNOT_RUN = 1e3  # added to the largest logarithm of a time where an algorithm cannot run
_THINNEST = 4  # points; an algorithm whose regions are all thinner is left out, and the next fastest takes its place
_TIED = 1e-6  # difference of logarithms up to which two times are equal
_LABEL_FONTS = ((11, "bold"), (8, "normal"))  # sizes and weights of labels, the first that fits is used
_SLACK = 1.15  # a label fits where a box of this multiple of its width and height fits


def draw_winner_map(grid: ForecastGrid, marks: tuple[int, ...] = ()) -> Figure:
    """Return a matplotlib figure that colors each rank count and message size by the fastest algorithm. Writes no file.

    `grid` has at least two rank counts and two sizes. `marks` has rank counts at which to draw a dashed line, to
    compare a rule of thumb with the map.
    """
    # Avoid matplotlib's pyplot, which would choose a backend and keep every figure until the process exits.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 6.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    across, up = np.log2(np.array(grid.ranks, float)), np.log2(np.array(grid.sizes, float))
    fine_x, fine_y = np.linspace(across[0], across[-1], _RESOLUTION), np.linspace(up[0], up[-1], _RESOLUTION)
    times = _leave_out_thin_regions(_interpolate(grid, across, up, fine_x, fine_y))
    best = times.argmin(axis=0)
    colours = _choose_colours(grid, best)
    _fill_regions(axes, colours, fine_x, fine_y, best)
    _draw_crossovers(axes, times, best, fine_x, fine_y)
    grid_x, grid_y = np.meshgrid(across, up)
    axes.plot(grid_x.ravel(), grid_y.ravel(), ".", color=_INK, alpha=0.28, markersize=2.2, zorder=3)
    _draw_axes(axes, grid, across, up, marks)
    figure.draw_without_rendering()  # fixes the size of the axes, which decides whether a label fits into a region
    unlabelled = _label_regions(axes, grid, fine_x, fine_y, best)
    _draw_legend(figure, {_format_name(grid, a): colours[a] for a in unlabelled})
    return figure


def _interpolate(grid: ForecastGrid, across: Floats, up: Floats, fine_x: Floats, fine_y: Floats) -> Floats:
    """Return the logarithms of the predicted times at all points of the map, interpolated, shape (algorithms, Y, X).

    The logarithm of a time is raised by TIE for each preceding algorithm in the grid, so that the first of several
    equally fast algorithms wins. Where an algorithm cannot run, its time is finite but longer than all others, because
    infinite times cannot be interpolated.

    Args:
        across: log2 of the grid's rank counts.
        up: log2 of the grid's message sizes.
        fine_x: log2 of the rank counts of the map's X columns.
        fine_y: log2 of the message sizes of the map's Y rows.
    """
    from scipy.interpolate import RegularGridInterpolator

    y, x = np.meshgrid(fine_y, fine_x, indexing="ij")
    logs = np.log(np.maximum(grid.seconds, 1e-15)) + TIE * np.arange(len(grid.algorithms))[:, None, None]
    logs = np.where(np.isinf(logs), logs[np.isfinite(logs)].max() + _CANNOT_RUN, logs)
    return np.array([RegularGridInterpolator((across, up), values)((x, y)) for values in logs])


def _leave_out_thin_regions(times: Floats) -> Floats:
    """Return `times` with infinity for algorithms that are fastest only in regions too thin to see.

    A region is too thin if no square of `_THINNEST` points per side fits into it. `times` has shape (algorithms, Y, X).
    """
    best = times.argmin(axis=0)
    shown = [a for a in np.unique(best) if _has_square(best == a)]
    left_out = np.ones(len(times), np.bool_)
    left_out[shown] = False
    return np.where(left_out[:, None, None], np.inf, times)


def _has_square(inside: NDArray[np.bool_]) -> bool:
    """Whether a square of `_THINNEST` points per side fits into a region; `inside` marks its points, shape (Y, X)."""
    from scipy.ndimage import minimum_filter

    return bool(minimum_filter(inside, _THINNEST, mode="constant").any())


def _choose_colours(grid: ForecastGrid, best: NDArray[np.intp]) -> dict[int, str]:
    """Return a colour for each algorithm that is fastest somewhere, by the algorithm's index in `grid`.

    `best` has the index of the fastest algorithm at each point of the map, shape (Y, X).
    """
    others = cycle(_OTHER_COLOURS)
    return {int(a): _COLOURS.get(grid.algorithms[a].name) or next(others) for a in np.unique(best)}


def _fill_regions(axes: Axes, colours: dict[int, str], x: Floats, y: Floats, best: NDArray[np.intp]) -> None:
    """Draw each point of the map in the colour of its fastest algorithm.

    Args:
        colours: the colour of each algorithm, by index.
        x: log2 of the rank counts of the map's columns.
        y: log2 of the message sizes of the map's rows.
        best: index of the fastest algorithm at each point, shape (Y, X).
    """
    from matplotlib.colors import ListedColormap

    shown = np.searchsorted(list(colours), best)
    limits: Any = {"vmin": -0.5, "vmax": len(colours) - 0.5}
    palette = ListedColormap(list(colours.values()))
    axes.pcolormesh(x, y, shown, cmap=palette, shading="nearest", rasterized=True, zorder=1, **limits)


def _draw_crossovers(axes: Axes, times: Floats, best: NDArray[np.intp], x: Floats, y: Floats) -> None:
    """Draw the lines on which the fastest and the second fastest algorithm take equally long.

    An algorithm does not count as second fastest where it ties with the fastest, so that the lines are smooth. `times`
    are the logarithms of times, shape (algorithms, Y, X); the other arguments are those of `_fill_regions`.
    """
    from scipy.ndimage import binary_dilation, binary_erosion

    for a in np.unique(best):
        inside = best == a
        if not inside.all():
            rivals = np.delete(times, a, axis=0)
            lead = times[a] - np.where(abs(rivals - times[a]) < _TIED, rivals + 1, rivals).min(axis=0)
            is_edge = binary_dilation(inside, iterations=2) & ~binary_erosion(inside, iterations=2, border_value=1)
            axes.contour(x, y, np.ma.array(lead, mask=~is_edge), levels=[0.0], colors=[_INK], linewidths=1.3, zorder=2)


def _label_regions(axes: Axes, grid: ForecastGrid, x: Floats, y: Floats, best: NDArray[np.intp]) -> list[int]:
    """Write the algorithm's name into each region with enough room; return the algorithms of the other regions.

    Algorithms are returned by index in `grid`. The arguments `x`, `y` and `best` are those of `_fill_regions`.
    """
    from scipy.ndimage import label

    unlabelled = []
    for a in np.unique(best):
        regions, count = label(best == a)
        for number in range(1, count + 1):
            inside = regions == number
            if _has_square(inside) and not _label_region(axes, _format_name(grid, a), x, y, inside):
                unlabelled.append(int(a))
    return list(dict.fromkeys(unlabelled))


def _format_name(grid: ForecastGrid, a: int) -> str:
    """Return the name of algorithm number `a` of `grid` as the map shows it, such as `recursive doubling`."""
    return grid.algorithms[a].name.replace("_", " ")


def _label_region(axes: Axes, name: str, x: Floats, y: Floats, inside: NDArray[np.bool_]) -> bool:
    """Write `name` into a region, vertically if it does not fit horizontally; return whether it fits at all.

    `inside` marks the points of the region, shape (Y, X); `x` and `y` are those of `_fill_regions`.
    """
    from matplotlib.patheffects import withStroke

    frame = axes.get_window_extent()
    for size, weight in _LABEL_FONTS:
        for rotation in (0, 90):
            text = axes.text(x[0], y[0], name, ha="center", va="center", rotation=rotation, fontsize=size, color=_INK)
            text.set(fontweight=weight, zorder=5, path_effects=[withStroke(linewidth=3, foreground="white", alpha=0.6)])
            box = text.get_window_extent()
            width, height = box.width / frame.width * _RESOLUTION, box.height / frame.height * _RESOLUTION
            place = _find_label_place(inside, width * _SLACK, height * _SLACK)
            if place is not None:
                text.set_position((x[place[1]], y[place[0]]))
                return True
            text.remove()
    return False


def _find_label_place(inside: NDArray[np.bool_], width: float, height: float) -> tuple[int, int] | None:
    """Return the point (row, column) at which to center a label in a region; None if the label does not fit.

    Of the points at which the label fits, the point with the most room around the label is chosen. `inside` states for
    each point of the map, shape (Y, X), whether the point belongs to the region. `width` and `height` are those of the
    label, in points of the map.
    """
    from scipy.ndimage import distance_transform_cdt

    # After resampling, the label's box is a square, so a chessboard distance shows whether the label fits.
    rows, columns = (np.arange(0, n, s / 12).astype(int) for n, s in zip(inside.shape, (height, width), strict=True))
    room = distance_transform_cdt(np.pad(inside[np.ix_(rows, columns)], 1), "chessboard")[1:-1, 1:-1]
    row, column = np.unravel_index(int(np.argmax(room)), room.shape)
    return (int(rows[row]), int(columns[column])) if room[row, column] > 6 else None


def _draw_legend(figure: Figure, colours: dict[str, str]) -> None:
    """Draw a legend below the map for regions that have no room for a label.

    `colours` has the colour of each algorithm of the legend, by name; if it is empty, nothing is drawn.
    """
    from matplotlib.patches import Patch

    if colours:
        handles = [Patch(facecolor=colour, edgecolor=_INK, label=name) for name, colour in colours.items()]
        title = "regions too small for a label:"
        figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False, fontsize=9, labelcolor=_INK,
                      title=title, title_fontsize=9, alignment="left")  # fmt: skip


def _draw_axes(axes: Axes, grid: ForecastGrid, across: Floats, up: Floats, marks: tuple[int, ...]) -> None:
    """Set the map's title, axis labels, ticks and limits, and draw vertical lines at the rank counts in `marks`.

    `across` and `up` are log2 of the grid's rank counts and message sizes.
    """
    q = grid.machine.ranks_per_node
    inside = grid.ranks[0] < q < grid.ranks[-1]
    operations = sorted({algorithm.operation.value for algorithm in grid.algorithms})
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
    """Draw a vertical line at a rank count, with the label `text` above the map and matplotlib's pattern `dashes`."""
    at = float(np.log2(ranks))
    axes.axvline(at, color=_INK, linewidth=1.2, linestyle=dashes, zorder=3)
    place: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
    axes.annotate(text, (at, 1.0), xytext=(0, 3), ha="center", va="bottom", fontsize=9, color=_INK, **place)
