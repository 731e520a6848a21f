"""Draw the charts of README.md's claims: speed relative to a baseline over message size, a line per implementation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from claims import CLAIMS, Claim, list_points, read_results

from hpccoll.units import format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73")  # Okabe and Ito, Color Universal Design, 2008
MARKERS = ("o", "s", "^")
INK, GRID = "#333333", "#DDDDDD"
NARROW_TICKS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0)
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "hpccoll", "font.size": 9, "font.family": "sans-serif"}


def write_charts(folder: Path) -> None:
    """Write one SVG file per claim into `folder`; equal records give equal files."""
    import matplotlib as mpl

    folder.mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        for claim in CLAIMS:
            _save(draw_claim(claim), folder / f"{claim.name}.svg")
        _save(draw_prediction(), folder / "prediction.svg")


def _save(figure: Figure, path: Path) -> None:
    """Write a figure without date and version, which would differ between equal charts."""
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def _make_figure() -> tuple[Figure, Any]:
    """Return a figure and its axes."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 2.7), layout="constrained", facecolor="white")
    FigureCanvasSVG(figure)
    return figure, figure.subplots()


def draw_claim(claim: Claim) -> Figure:
    """Return the chart of a claim; bars are 95 % intervals, and the horizontal line is the baseline's speed."""
    figure, axes = _make_figure()
    points = list_points(claim, read_results(claim.results))
    for (side, label), colour, marker in zip(claim.sides.items(), COLOURS, MARKERS, strict=False):
        of = points[side]
        x, y = [max(point.nbytes, 1) for point in of], [point.ratio for point in of]
        bars = [[point.ratio - point.low for point in of], [point.high - point.ratio for point in of]]
        axes.errorbar(x, y, bars, color=colour, marker=marker, markersize=4.5, linewidth=1.6, capsize=2, label=label)
    whom = claim.baseline.replace("`", "")
    title = "auto is this many times as fast as ..." if claim.is_inverse else f"times as fast as {whom}"
    _format_axes(axes, sorted({point.nbytes for of in points.values() for point in of}), title)
    return figure


def draw_prediction() -> Figure:
    """Return the chart of predicted over measured time, at the message sizes to which the model was not fitted."""
    figure, axes = _make_figure()
    sizes: set[int] = set()
    for stem, label, colour, marker in (
        ("predict-2", "2 ranks, 1 node", COLOURS[0], MARKERS[0]),
        ("predict-4x2", "8 ranks, 4 nodes", COLOURS[1], MARKERS[1]),
    ):
        records = [r for r in read_results(f"prediction/{stem}") if "measured_us" in r and not r["fitted"]]
        ratios = [record["predicted_us"] / record["measured_us"] for record in records]
        axes.plot([r["nbytes"] for r in records], ratios, marker, color=colour, markersize=4, alpha=0.6, label=label)
        sizes |= {record["nbytes"] for record in records}
    _format_axes(axes, sorted(sizes), "predicted / measured time")
    return figure


def _format_axes(axes: Any, sizes: list[int], title: str) -> None:
    """Set scales, ticks, title, grid and legend, and draw the line at 1."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axes.axhline(1, color=INK, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    step = -(-len(sizes) // 8)
    axes.set_xticks(sizes[::step], [format_size(size) for size in sizes[::step]])
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    low, high = min(low, 0.75), max(high, 1.35)
    axes.set_ylim(low, high)
    is_narrow = high / low < 6
    axes.yaxis.set_major_locator(FixedLocator(NARROW_TICKS) if is_narrow else LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(title, loc="left", color=INK, fontsize=10)
    axes.grid(visible=True, which="major", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, labelcolor=INK)
