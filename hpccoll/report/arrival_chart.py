"""Charts, as SVG elements, of the times at which each rank enters and leaves a barrier.

A bar begins when a rank enters the barrier and ends when the rank leaves, so its length is the rank's wait. A vertical
line marks the last entry, and a shaded range goes from the first exit to the last exit, the exit skew. Colors are those
of the page's style sheet.
"""

from __future__ import annotations

from html import escape

from hpccoll.records import BarrierRecord
from hpccoll.report.axis_scale import choose_ticks, make_linear_scale, thin_values
from hpccoll.report.number_format import format_seconds

WIDTH = 560
LEFT, RIGHT, TOP, BOTTOM = 44, 16, 8, 40
_HEIGHT, _MIN_BAR = 230, 2.0
_MAX_LABELS = 16
# The CSS variables, such as --c1, are colors of the report's style sheet.
_WAIT, _SKEW = "fill:var(--c1);opacity:.75", "fill:var(--c5);opacity:.35"
_LAST = "stroke:var(--problem);stroke-width:1.6;fill:none"


def render_arrival_chart(row: BarrierRecord, element_id: str) -> str:
    """Return a chart of the times at which ranks enter and leave a barrier (medians), as an <svg> element.

    `element_id` is the element's `id`, unique on the page.
    """
    scale = make_linear_scale([0.0, *row.exit_us], LEFT, WIDTH - RIGHT)
    step = (_HEIGHT - TOP - BOTTOM) / row.ranks
    bottom = _HEIGHT - BOTTOM
    last = scale.position_of(max(row.entry_us))
    first_exit, last_exit = scale.position_of(min(row.exit_us)), scale.position_of(max(row.exit_us))
    description = (
        f"Median entry and exit of each of {row.ranks} ranks of {row.name} with arrival pattern {row.pattern}."
    )
    ident = element_id
    return "\n".join(
        [
            f'<svg id="{ident}" class="chart" viewBox="0 0 {WIDTH} {_HEIGHT}" role="img"'
            f' aria-labelledby="{ident}-t {ident}-d">',
            f'<title id="{ident}-t">{escape(f"{row.name}, {row.pattern}")}</title>',
            f'<desc id="{ident}-d">{escape(description)}</desc>',
            f'<rect style="{_SKEW}" x="{first_exit:.1f}" y="{TOP}" width="{max(last_exit - first_exit, 1):.1f}"'
            f' height="{bottom - TOP}"><title>exit skew</title></rect>',
            *(_render_wait(row, rank, TOP + rank * step, step) for rank in range(row.ranks)),
            f'<path style="{_LAST}" d="M{last:.1f} {TOP}V{bottom}"><title>last entry</title></path>',
            *_render_axes(row, step, bottom),
            "</svg>",
        ]
    )


def _render_wait(row: BarrierRecord, rank: int, y: float, step: float) -> str:
    """Return the bar from a rank's entry to its exit, with the times as a tooltip, as an SVG element.

    `y` is the top of the rank's strip of the chart and `step` the height of the strip, in pixels.
    """
    scale = make_linear_scale([0.0, *row.exit_us], LEFT, WIDTH - RIGHT)
    begin, end = scale.position_of(row.entry_us[rank]), scale.position_of(row.exit_us[rank])
    times = [format_seconds(us * 1e-6) for us in (row.entry_us[rank], row.exit_us[rank], row.wait_us[rank])]
    says = "entered {}, left {} after the first entry; waited {}".format(*times)
    return (
        f'<rect style="{_WAIT}" x="{begin:.1f}" y="{y + 0.12 * step:.1f}" width="{max(end - begin, _MIN_BAR):.1f}"'
        f' height="{0.76 * step:.1f}"><title>rank {rank}: {escape(says)}</title></rect>'
    )


def _render_axes(row: BarrierRecord, step: float, bottom: float) -> list[str]:
    """Return the labels of the ranks and the time axis as SVG elements.

    `step` is the height of a rank's strip and `bottom` the y coordinate of the time axis, in pixels.
    """
    scale = make_linear_scale([0.0, *row.exit_us], LEFT, WIDTH - RIGHT)
    parts = ['<g class="y">']
    parts += [
        f'<text x="{LEFT - 7}" y="{TOP + (rank + 0.5) * step:.1f}" dy=".35em">{rank}</text>'
        for rank in thin_values(list(range(row.ranks)), _MAX_LABELS)
    ]
    parts += ["</g>", f'<path class="base" d="M{LEFT} {bottom}H{WIDTH - RIGHT}"/>']
    for tick in choose_ticks(scale):
        x = scale.position_of(tick)
        parts.append(f'<path class="tick" d="M{x:.1f} {bottom}v4"/>')
        parts.append(f'<text class="x" x="{x:.1f}" y="{bottom + 18}">{escape(format_seconds(tick * 1e-6))}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="x label" x="{middle:.0f}" y="{_HEIGHT - 4}">time after the first entry, by rank</text>')
    return parts
