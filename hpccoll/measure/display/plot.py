"""Draws the plot of `--plot`: latency and bus bandwidth over message size, with a line per engine and algorithm.

Each combination of operation, dtype, reduction, root, buffer, ranks and nodes has a row of two panels with logarithmic
axes. A line shows medians, and the band around the line shows their 95 % intervals. `series_styles.py` chooses colours
and markers: implementations that are the fastest at no message size are grey. Lines of in-place times are solid, and
lines of out-of-place times are dashed. If only in-place times or only out-of-place times were measured, all lines are
solid, and the title states which were measured. Measurements of 0 bytes are left out, because a logarithmic axis cannot
show them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hpccoll.errors import UsageError
from hpccoll.measure.bandwidth import compute_busbw, find_timed_operation
from hpccoll.measure.display.series_styles import COLOURS, SeriesStyle, choose_series_styles
from hpccoll.measure.display.table import PLACES, format_title
from hpccoll.measure.results.measured_case import (
    Implementation,
    MeasuredCase,
    TableKey,
    list_cases,
    list_implementations,
)
from hpccoll.measure.results.output_file import save_picture
from hpccoll.records import CollectiveRecord
from hpccoll.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = {
    "circle": "o",
    "square": "s",
    "up": "^",
    "diamond": "D",
    "down": "v",
    "plus": "P",
    "cross": "X",
    "left": "<",
    "right": ">",
    "pentagon": "p",
    "hexagon": "h",
    "star": "*",
    "thin": "d",
}
_INK, _GRID = "#333333", "#DDDDDD"
_MOST_TICKS = 9

_HEADINGS = ("Latency (µs)", "Bus bandwidth (GB/s)")

GetInterval: TypeAlias = Callable[[CollectiveRecord], tuple[float, float, float]]
Styles: TypeAlias = Mapping[Implementation, SeriesStyle]


def write_plot(records: Iterable[CollectiveRecord], path: str | Path) -> None:
    """Write (or overwrite) a plot of all records, in the format that the suffix of `path` names.

    Raises UsageError if the suffix is unknown, the file cannot be written, or no record has more than 0 bytes.
    """
    cases = [case for case in list_cases(records) if case.nbytes > 0]
    if not cases:
        raise UsageError(f"--plot {path}: nothing to draw: no row has more than 0 bytes; give a --max-bytes above 0")
    save_picture(draw_figure(cases), path, "--plot", dpi=160, bbox_inches="tight")


def draw_figure(cases: Sequence[MeasuredCase]) -> Figure:
    """Return a matplotlib figure with the times and bandwidths of `cases` over the message size.

    Each combination of operation, type, ranks and other fields (`TableKey`) has a row of two panels and a legend.
    """
    # Avoid matplotlib's pyplot, which would choose a backend and keep every figure until the process exits.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys(case.setting for case in cases))
    figure = Figure(figsize=(13.6, 5 * len(settings)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    styles = choose_series_styles(cases)
    rows = figure.subfigures(len(settings), 1, squeeze=False)[:, 0]
    for row, setting in zip(rows, settings, strict=True):
        _draw_row(row, setting, [case for case in cases if case.setting == setting], styles[setting.op])
    return figure


def _draw_row(row: Any, setting: TableKey, cases: Sequence[MeasuredCase], styles: Styles) -> None:
    """Draw a title, two panels (latency, bandwidth) and a legend into `row`, a subfigure of matplotlib.

    `setting` is the operation, type, buffer and number of ranks that all `cases` share.
    """
    names = sorted(list_implementations(cases), key=lambda name: styles[name].is_muted)
    places = sorted({case.in_place for case in cases})
    suffix = f", {PLACES[places[0]]}" if len(places) == 1 else ""
    row.suptitle(format_title(setting) + suffix, x=0.01, ha="left", fontsize=13, fontweight="bold", color=_INK)
    *panels, margin = row.subplots(1, 3, width_ratios=[1, 1, 0.5])
    for axes, get_value, heading in zip(panels, (_get_latency, _compute_bandwidth), _HEADINGS, strict=True):
        _format_x_axis(axes, heading, [case.nbytes for case in cases])
        for name in names:
            for place in places:
                records = [c.records[name] for c in cases if c.in_place == place and name in c.records]
                order = 5 if name.algorithm == "auto" else 3 + styles[name].is_library - styles[name].is_muted
                _draw_curve_with_band(axes, styles[name], place or len(places) == 1, records, get_value, order)
        _format_y_axis(axes, setting)
    _draw_legend(margin, {name.label: styles[name] for name in names}, both=len(places) > 1)


def _make_line_arguments(style: SeriesStyle, *, solid: bool) -> dict[str, Any]:
    """Return the keyword arguments of matplotlib's `plot` for a solid or a dashed line."""
    colour = COLOURS[style.colour]
    width, size = (2.0 if style.is_library else 1.6, 5.5) if not style.is_muted else (0.9, 3.5)
    return {
        "color": colour,
        "linestyle": "-" if solid else (0, (4, 2)),
        "linewidth": width if solid else 0.6 * width,
        "marker": _MARKERS[style.marker],
        "markersize": size if solid else size - 1,
        "markerfacecolor": colour if solid else "white",
        "markeredgecolor": colour,
        "markeredgewidth": 0.9,
    }


def _get_latency(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return a record's median time and the ends of its 95 % interval, in microseconds."""
    time = record.time_us
    return time.p50, time.p50_low, time.p50_high


def _compute_bandwidth(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return a record's bus bandwidth at the median time and at the ends of its 95 % interval, in GB/s."""
    op = find_timed_operation(record.op)
    middle, high, low = (compute_busbw(op, record.nbytes, us * 1e-6, record.ranks) for us in _get_latency(record))
    return middle, low, high


def _draw_curve_with_band(
    axes: Axes, style: SeriesStyle, solid: bool, records: Sequence[CollectiveRecord], get_value: GetInterval, order: int
) -> None:
    """Draw the medians of one implementation as a line, and their intervals as a band unless the line is grey.

    Args:
        axes: the panel.
        style: the colour and the marker.
        solid: whether the line is solid, not dashed.
        records: one record per message size.
        get_value: returns a record's median and the two ends of its interval.
        order: lines of higher order are drawn above others.
    """
    points = [(record.nbytes, *get_value(record)) for record in records]
    points = [point for point in points if min(point) > 0]  # a logarithmic axis cannot show zero
    if not points:
        return
    sizes, middle, low, high = (list(column) for column in zip(*points, strict=True))
    if not style.is_muted:
        axes.fill_between(sizes, low, high, color=COLOURS[style.colour], alpha=0.18, linewidth=0, zorder=2)
    axes.plot(sizes, middle, zorder=order, **_make_line_arguments(style, solid=solid))


def _format_x_axis(axes: Axes, heading: str, sizes: Sequence[int]) -> None:
    """Set a panel's heading, grid and logarithmic scales, and the ticks of its horizontal axis.

    Labelled ticks are at powers of two, and ticks without labels at the message sizes `sizes`, in bytes.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    first, last = min(sizes).bit_length() - 1, max(sizes).bit_length() - 1
    step = max(-(-(last - first) // (_MOST_TICKS - 1)), 1)
    axes.xaxis.set_major_locator(FixedLocator([2**power for power in range(first, last + 1, step)]))
    axes.xaxis.set_minor_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(round(size))))
    axes.set_title(heading, loc="left", fontsize=11, color=_INK)
    axes.set_xlabel("message size S", color=_INK)
    axes.tick_params(colors=_INK, which="both", labelsize=9)
    axes.grid(visible=True, which="major", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _format_y_axis(axes: Axes, setting: TableKey) -> None:
    """Set the ticks of a panel's vertical axis, or write into the panel why it has no curves.

    Call this function after the curves are drawn. `setting` is the operation, type and number of ranks of the panel.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if not axes.lines:
        reason = "one rank moves no data: no bus bandwidth" if setting.ranks == 1 else "nothing to draw"
        axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", color=_INK)
        axes.set_axis_off()
        return
    low, high = axes.get_ylim()
    steps = (1.0,) if high / low > 1e3 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=steps, numticks=20))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(  # without an exponent, such as 0.001, 20 or 100,000
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:.12f}".rstrip("0"))
    )


def _draw_legend(margin: Axes, styles: Mapping[str, SeriesStyle], *, both: bool) -> None:
    """Draw a legend into `margin`, the axes beside the panels: each label with its style.

    `both` adds an explanation of solid and dashed lines (in place, out of place).
    """
    from matplotlib.lines import Line2D

    margin.set_axis_off()
    handles = [Line2D([], [], label=label, **_make_line_arguments(s, solid=True)) for label, s in styles.items()]
    if both:
        words = {True: "in place", False: "out of place"}
        neutral = SeriesStyle("mpi", "circle")
        handles += [Line2D([], [], label=words[solid], **_make_line_arguments(neutral, solid=solid)) for solid in words]
    margin.legend(
        handles=handles,
        loc="center left",
        frameon=False,
        fontsize=9.5,
        handlelength=3.2,
        title="line: median\nband: its 95 % interval\ngrey: fastest at no size\n",
        title_fontsize=9,
        alignment="left",
        labelcolor=_INK,
    )
