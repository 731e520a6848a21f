"""The account of training on meshes as a picture: bytes sent, shares and peak memory, three bars per strategy."""

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
SVG_METADATA = {"Date": None, "Creator": None}  # without them, equal records give identical files
PANELS = ("sent MB", "communication share", "exposed share", "bubble", "peak MB")


def write_account_picture(records: Sequence[TrainAccountRecord], path: str) -> None:
    """Write the picture to a file in the format of its suffix; equal records give identical SVG files."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        metadata = SVG_METADATA if path.lower().endswith(".svg") else None
        save_picture(draw_account(records), path, "--plot", metadata=metadata)


def render_account_svg(records: Sequence[TrainAccountRecord]) -> str:
    """Return the picture as an <svg> element."""
    import matplotlib as mpl

    text = StringIO()
    with mpl.rc_context(STYLE):
        draw_account(records).savefig(text, format="svg", metadata=SVG_METADATA)
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def draw_account(records: Sequence[TrainAccountRecord]) -> Figure:
    """Return the figure, with one panel per quantity and one group of three bars per strategy."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 1.8 * len(PANELS)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    every = figure.subplots(len(PANELS), 1, sharex=True)
    for axes, panel in zip(every, PANELS, strict=True):
        for at, (side, colour) in enumerate(COLOURS.items()):
            heights = [_get_value(record, panel, side) for record in records]
            places = [place + 0.27 * (at - 1) for place in range(len(records))]
            axes.bar(places, heights, 0.25, color=colour, label=side)
        axes.set_ylabel(panel)
        axes.spines[["top", "right"]].set_visible(False)
    every[0].legend(ncols=3, frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    every[-1].set_xticks(range(len(records)), [record.label for record in records])
    return figure


def _get_value(record: TrainAccountRecord, panel: str, side: str) -> float:
    """Return the height of a bar: the sum of the bytes of all collectives, a share, or the peak memory."""
    values = {entry.quantity: float(getattr(entry, side)) for entry in record.entries}
    peak = values.pop("peak bytes")
    if panel == "sent MB":
        return sum(value for quantity, value in values.items() if quantity.endswith("bytes")) / MB
    return peak / MB if panel == "peak MB" else values.get(panel, 0.0)
