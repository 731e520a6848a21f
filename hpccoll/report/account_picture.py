"""A picture of measured and predicted costs of training on meshes: bytes sent, shares of the time, peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from hpccoll.measure.results.output_file import save_picture
from hpccoll.records import TrainAccountRecord
from hpccoll.units import MB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"measured": "#0072B2", "simulated": "#D55E00", "estimated": "#009E73"}  # Okabe and Ito
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "hpccoll", "font.size": 9, "font.family": "sans-serif"}
SVG_METADATA = {"Date": None, "Creator": None}  # without date and creator, equal records give identical files
PANELS = ("sent MB", "communication share", "exposed share", "bubble", "peak MB")


def write_account_picture(records: Sequence[TrainAccountRecord], path: str) -> None:
    """Draw bars of measured and predicted costs of training and write them to `path`, in the format of its suffix.

    `records` has one record per strategy. Equal records give identical SVG files.
    """
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        metadata = SVG_METADATA if path.lower().endswith(".svg") else None
        save_picture(draw_account(records), path, "--plot", metadata=metadata)


def render_account_svg(records: Sequence[TrainAccountRecord]) -> str:
    """Return the picture of `write_account_picture` as an <svg> element, for an HTML page."""
    import matplotlib as mpl

    text = StringIO()
    with mpl.rc_context(STYLE):
        draw_account(records).savefig(text, format="svg", metadata=SVG_METADATA)
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def draw_account(records: Sequence[TrainAccountRecord]) -> Figure:
    """Return a figure with a panel per quantity; each strategy has a measured, a simulated and an estimated bar."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 1.8 * len(PANELS)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    every = figure.subplots(len(PANELS), 1, sharex=True)
    for axes, panel in zip(every, PANELS, strict=True):
        for at, (origin, colour) in enumerate(COLOURS.items()):
            heights = [_get_value(record, panel, origin) for record in records]
            positions = [index + 0.27 * (at - 1) for index in range(len(records))]
            axes.bar(positions, heights, 0.25, color=colour, label=origin)
        axes.set_ylabel(panel)
        axes.spines[["top", "right"]].set_visible(False)
    every[0].legend(ncols=3, frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    every[-1].set_xticks(range(len(records)), [record.label for record in records])
    return figure


def _get_value(record: TrainAccountRecord, panel: str, origin: str) -> float:
    """Return the height of a bar: MB sent by all collectives, a share of the step (0 if not measured), or peak MB.

    Args:
        record: the quantities of one strategy.
        panel: an element of `PANELS`.
        origin: `measured`, `simulated` or `estimated`.
    """
    values = {entry.quantity: float(getattr(entry, origin)) for entry in record.entries}
    peak = values.pop("peak bytes")
    if panel == "sent MB":
        return sum(value for quantity, value in values.items() if quantity.endswith("bytes")) / MB
    return peak / MB if panel == "peak MB" else values.get(panel, 0.0)
