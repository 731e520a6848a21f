"""Draws the plot of `--plot`: latency and bus bandwidth over message size, with a line per engine and algorithm.

Each combination of operation, dtype, reduction, root, buffer, ranks and nodes has a row of two panels with logarithmic
axes. A line shows medians, and the band around the line shows their 95 % intervals. Colour and marker together identify
the engine and algorithm, also in greyscale, and are the same in every plot. The lines of other libraries are black or
grey. In-place lines are solid and out-of-place lines are dashed; if only one of the two was measured, its lines are
solid, and the title names it. Measurements of 0 bytes are left out, because a logarithmic axis cannot show them.

The colours are from Okabe and Ito, Color Universal Design, 2008.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from hpccoll.errors import UsageError
from hpccoll.measure.bandwidth import compute_busbw, find_timed_operation
from hpccoll.measure.comparison import EngineComparison, TableKey, compare_engines, get_engine_sort_key
from hpccoll.measure.output_file import explain_write_errors, require_writable
from hpccoll.measure.table import PLACES, format_title
from hpccoll.records import CollectiveRecord
from hpccoll.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")  # 7 colours and 10 markers: 70 distinct pairs
_PEERS = {"mpi": ("#000000", "h"), "nccl": ("#4D4D4D", "p"), "gloo": ("#8C8C8C", "d")}
# An algorithm's position in _FAMILIAR selects its colour and marker; unlisted algorithms get later positions.
_FAMILIAR = ("ring", "tree", "recursive_doubling", "rabenseifner", "double_tree", "auto", "bruck", "chain", "pairwise")
_INK, _GRID = "#333333", "#DDDDDD"
_MOST_TICKS = 9

_HEADINGS = ("Latency (µs)", "Bus bandwidth (GB/s)")

Name: TypeAlias = tuple[str, str | None]  # engine, algorithm
Value: TypeAlias = Callable[[CollectiveRecord], tuple[float, float, float]]


class LineLook(NamedTuple):
    """The colour, marker and label of the lines of one engine and algorithm."""

    colour: str
    marker: str
    label: str
    peer: bool

    def to_matplotlib(self, *, solid: bool) -> dict[str, Any]:
        """Return the keyword arguments of matplotlib's `plot` for a solid or a dashed line."""
        width = 2.0 if self.peer else 1.6
        return {
            "color": self.colour,
            "linestyle": "-" if solid else (0, (4, 2)),
            "linewidth": width if solid else width - 0.6,
            "marker": self.marker,
            "markersize": 5.5 if solid else 4.5,
            "markerfacecolor": self.colour if solid else "white",
            "markeredgecolor": self.colour,
            "markeredgewidth": 0.9,
        }


def require_plot(path: str | Path) -> None:
    """Raise UsageError unless `path` has a known suffix and can be written; leaves no file behind."""
    _require_suffix(path)
    require_writable(path, "--plot")


def write_plot(records: Iterable[CollectiveRecord], path: str | Path) -> None:
    """Write (or overwrite) a plot of all records, in the format that the suffix of `path` names.

    Raises UsageError if the suffix is unknown, the file cannot be written, or no record has more than 0 bytes.
    """
    _require_suffix(path)
    cases = [case for case in compare_engines(records) if case.nbytes > 0]
    if not cases:
        raise UsageError(f"--plot {path}: nothing to draw: no row has more than 0 bytes; give a --max-bytes above 0")
    figure = draw_figure(cases)
    with explain_write_errors(path, "--plot"):
        figure.savefig(str(path), format=Path(path).suffix[1:].lower(), dpi=160, bbox_inches="tight")


def draw_figure(cases: Sequence[EngineComparison]) -> Figure:
    """Return a matplotlib figure: per `TableKey` (operation, type, ranks, ...) a row of two panels and a legend."""
    # Avoid matplotlib's pyplot, which would choose a backend and keep every figure until the process exits.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys(case.setting for case in cases))
    figure = Figure(figsize=(13.6, 5 * len(settings)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    looks = _assign_looks({(e.engine, e.algorithm) for case in cases for e in case.entries})
    rows = figure.subfigures(len(settings), 1, squeeze=False)[:, 0]
    for row, setting in zip(rows, settings, strict=True):
        _draw_row(row, setting, [case for case in cases if case.setting == setting], looks)
    return figure


def _require_suffix(path: str | Path) -> None:
    if Path(path).suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path}: the suffix gives the format; use one of {', '.join(SUFFIXES)}")


def _assign_looks(names: Iterable[Name]) -> dict[Name, LineLook]:
    """Return a distinct colour and marker for each engine and algorithm."""
    looks, position = {}, len(_FAMILIAR)
    for engine, algorithm in sorted(names, key=get_engine_sort_key):
        label = f"{engine} {algorithm}" if algorithm else engine
        if engine in _PEERS:
            looks[engine, algorithm] = LineLook(*_PEERS[engine], label, peer=True)
            continue
        i = _FAMILIAR.index(algorithm) if algorithm in _FAMILIAR else position
        position += i == position
        looks[engine, algorithm] = LineLook(_COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)], label, peer=False)
    return looks


def _draw_row(row: Any, setting: TableKey, cases: Sequence[EngineComparison], looks: dict[Name, LineLook]) -> None:
    """Draw one row of the figure, for one operation, type, buffer and job size: title, two panels and legend."""
    names = sorted({(e.engine, e.algorithm) for case in cases for e in case.entries}, key=get_engine_sort_key)
    places = sorted({record.in_place for case in cases for e in case.entries for record in e.records})
    suffix = f", {PLACES[places[0]]}" if len(places) == 1 else ""
    row.suptitle(format_title(setting) + suffix, x=0.01, ha="left", fontsize=13, fontweight="bold", color=_INK)
    *panels, margin = row.subplots(1, 3, width_ratios=[1, 1, 0.5])
    for axes, get_value, heading in zip(panels, (_get_latency, _compute_bandwidth), _HEADINGS, strict=True):
        _format_x_axis(axes, heading, [case.nbytes for case in cases])
        for name in names:
            for place in places:
                entries = [e for case in cases for e in case.entries if (e.engine, e.algorithm) == name]
                records = [record for e in entries if (record := e.get_record(place)) is not None]
                _draw_curve_with_band(axes, looks[name], place or len(places) == 1, records, get_value)
        _format_y_axis(axes, setting)
    _draw_legend(margin, [looks[name] for name in names], both=len(places) > 1)


def _get_latency(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return the median time and the ends of its 95 % interval, in microseconds."""
    time = record.time_us
    return time.p50, time.p50_low, time.p50_high


def _compute_bandwidth(record: CollectiveRecord) -> tuple[float, float, float]:
    """Return the bus bandwidth at the median time and the ends of its 95 % interval, in GB/s."""
    op = find_timed_operation(record.op)
    middle, high, low = (compute_busbw(op, record.nbytes, us * 1e-6, record.ranks) for us in _get_latency(record))
    return middle, low, high


def _draw_curve_with_band(
    axes: Axes, look: LineLook, solid: bool, records: Sequence[CollectiveRecord], get_value: Value
) -> None:
    """Draw the medians of one engine and algorithm over message size as a line, and their intervals as a band."""
    points = [(record.nbytes, *get_value(record)) for record in records]
    points = [point for point in points if min(point) > 0]  # a logarithmic axis cannot show zero
    if not points:
        return
    sizes, middle, low, high = (list(column) for column in zip(*points, strict=True))
    axes.fill_between(sizes, low, high, color=look.colour, alpha=0.18, linewidth=0, zorder=2)
    axes.plot(sizes, middle, zorder=4 if look.peer else 3, **look.to_matplotlib(solid=solid))


def _format_x_axis(axes: Axes, heading: str, sizes: Sequence[int]) -> None:
    """Set a panel's heading, grid, logarithmic scales and the ticks of the message-size axis."""
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
    """Set the ticks of a panel's vertical axis after its curves are drawn, or show why the panel has no curves."""
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


def _draw_legend(margin: Axes, looks: Sequence[LineLook], *, both: bool) -> None:
    """Draw the legend beside the panels; `both` adds solid (in place) and dashed (out of place) lines."""
    from matplotlib.lines import Line2D

    margin.set_axis_off()
    handles = [Line2D([], [], label=look.label, **look.to_matplotlib(solid=True)) for look in looks]
    if both:
        words = {True: "in place", False: "out of place"}
        neutral = LineLook(_INK, "o", "", peer=False)
        handles += [Line2D([], [], label=words[solid], **neutral.to_matplotlib(solid=solid)) for solid in words]
    margin.legend(
        handles=handles,
        loc="center left",
        frameon=False,
        fontsize=9.5,
        handlelength=3.2,
        title="line: median\nband: its 95 % interval\n",
        title_fontsize=9,
        alignment="left",
        labelcolor=_INK,
    )
