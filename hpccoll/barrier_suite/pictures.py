"""Draws the picture of `--plot`: when each rank entered and left barriers, and the time and exit skew of each barrier.

In the first part of the picture, each barrier and pattern has a panel with a bar from each rank's entry to its exit, a
line at the last entry, and a shaded range from the first exit to the last exit (the exit skew). In the second part,
bars show each barrier's time from the last entry to the last exit, and its exit skew, if all ranks enter together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern
from hpccoll.measure.results.output_file import save_picture
from hpccoll.records import BarrierRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BARRIERS = 4  # barriers with panels of ranks over time, the fastest ones
_WAIT, _LATE, _SKEW, _INK, _GRID = "#7FA8D6", "#C8462B", "#F2C46D", "#333333", "#DDDDDD"
_PANEL_WIDTH, _COST_HEIGHT = 2.7, 0.28


def write_picture(rows: Sequence[BarrierRecord], path: str | Path) -> None:
    """Write the picture of a run of `hpccoll barrier` to `path`, in the format of its suffix; overwrites the file."""
    save_picture(draw_figure(rows), path, "--plot", dpi=110, bbox_inches="tight")


def draw_figure(rows: Sequence[BarrierRecord]) -> Figure:
    """Return a figure with a panel per pattern for each of the MAX_BARRIERS fastest barriers, and one of all barriers.

    `rows` are the measurements, one per barrier and arrival pattern. Writes no file.
    """
    # Avoid matplotlib's pyplot, which would choose a backend and keep every figure until the process exits.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    patterns = list(dict.fromkeys(row.pattern for row in rows))
    even = sorted((row for row in rows if row.pattern == ArrivalPattern.NONE), key=lambda row: row.completion_us.p50)
    names = [row.name for row in even[:MAX_BARRIERS]]
    panel_height = 0.9 + 0.16 * min(max(rows[0].ranks, 2), 16)
    heights = [panel_height] * len(names) + [0.8 + _COST_HEIGHT * len(even)]
    size = max(_PANEL_WIDTH * len(patterns), 6.0), sum(heights)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(heights), len(patterns), height_ratios=heights)
    for line, name in enumerate(names):
        for column, pattern in enumerate(patterns):
            row = next((row for row in rows if (row.name, row.pattern) == (name, pattern)), None)
            if row is not None:
                axes = figure.add_subplot(grid[line, column])
                _draw_ranks(axes, row, is_first=column == 0)
    _draw_costs(figure.add_subplot(grid[len(names), :]), even)
    return figure


def _draw_ranks(axes: Axes, row: BarrierRecord, *, is_first: bool) -> None:
    """Draw the times at which each rank enters and leaves a barrier, the last entry and the exit skew (medians).

    `is_first` marks the first panel of a barrier, which shows the barrier's name.
    """
    ranks = list(range(row.ranks))
    last = max(row.entry_us)
    axes.axvspan(min(row.exit_us), max(row.exit_us), color=_SKEW, alpha=0.6, linewidth=0, zorder=1)
    waits = [leave - enter for enter, leave in zip(row.entry_us, row.exit_us, strict=True)]
    axes.barh(ranks, waits, left=list(row.entry_us), height=0.7, color=_WAIT, zorder=2)
    axes.axvline(last, color=_LATE, linewidth=1.2, zorder=3)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_title(f"{row.name}\n{row.pattern}" if is_first else f"\n{row.pattern}", loc="left", fontsize=8, color=_INK)
    axes.set_xlabel("us after the first entry", fontsize=7, color=_INK)
    if is_first:
        axes.set_ylabel("rank", fontsize=8, color=_INK)
    axes.set_yticks(ranks if row.ranks <= 8 else ranks[:: -(-row.ranks // 8)])
    _format_axes(axes)


def _draw_costs(axes: Axes, even: Sequence[BarrierRecord]) -> None:
    """Draw bars of each barrier's time and exit skew if all ranks enter together, and the predicted time as a mark."""
    places = list(range(len(even)))
    axes.barh(places, [row.completion_us.p50 for row in even], height=0.7, color=_WAIT, label="last entry to last exit")
    axes.barh(places, [row.exit_skew_us.p50 for row in even], height=0.35, color=_SKEW, label="exit skew")
    predicted = [(row.predicted_us, place) for place, row in enumerate(even) if row.predicted_us is not None]
    if predicted:
        axes.plot(*zip(*predicted, strict=True), "|", color=_LATE, markersize=9, markeredgewidth=2, label="predicted")
    axes.set_yticks(places, [row.name for row in even], fontsize=8)
    axes.invert_yaxis()
    longest, shortest = (choose(row.completion_us.p50 for row in even) for choose in (max, min))
    if shortest > 0 and longest > 20 * shortest:
        axes.set_xscale("log")
    ranks = even[0].ranks if even else 0
    axes.set_title(f"all ranks enter together, {ranks} ranks, medians in us", loc="left", fontsize=9, color=_INK)
    axes.legend(fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncol=3, borderaxespad=0.0)
    _format_axes(axes)


def _format_axes(axes: Axes) -> None:
    """Set grid, ticks and frame of a panel; the grid lines belong to the horizontal axis."""
    axes.tick_params(colors=_INK, labelsize=7)
    axes.grid(visible=True, axis="x", color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
