"""Page sections on barriers: when ranks enter and leave, what each barrier costs, and which rank is late."""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.records import BarrierRecord, BarrierSummaryRecord
from hpccoll.report.arrival_chart import render_arrival_chart
from hpccoll.report.bound_models import format_job_size
from hpccoll.report.line_chart import ChartLine, ChartPoint, LineChart
from hpccoll.report.line_styles import MUTED_STYLE, LineStyle
from hpccoll.report.load import RecordedRun, Results
from hpccoll.report.number_format import format_seconds
from hpccoll.report.page_section import FigurePanel, PageSection, PageTable, make_chart_panel

NO_SKEW = "none"
_MAX_RANK_ROWS = 16
_SHAPE = "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"
_CLASSES = ("c1", "c2", "c3", "c4", "c5", "c6", "c7")
_INTRO = (
    "A bar is the time of a rank in the barrier, from its entry to its exit, medians over rounds. The red line is the "
    "last entry, and the shaded range is the exit skew, from the first exit to the last. The rank that enters last "
    "waits least."
)


def build_barrier_sections(results: Results) -> list[PageSection]:
    """Return a page section per run of `hpccoll barrier`, and one on times by rank count if the counts differ."""
    rows = {run.number: (run, [row for other, row in results.barriers if other == run]) for run, _ in results.barriers}
    summaries = {run.number: summary for run, summary in results.barrier_summaries}
    sections = [_build_section(run, members, summaries.get(number)) for number, (run, members) in rows.items()]
    counts = {row.ranks for _, row in results.barriers}
    even = [row for _, row in results.barriers if row.pattern == NO_SKEW]
    return [*sections, *([_build_scaling_section(even)] if len(counts) > 1 else [])]


def _build_section(
    run: RecordedRun, rows: Sequence[BarrierRecord], summary: BarrierSummaryRecord | None
) -> PageSection:
    """Return the page section of one run of `hpccoll barrier`; `summary` is None if the run was cut short."""
    ident = f"ba{run.number}"
    even = sorted((row for row in rows if row.pattern == NO_SKEW), key=lambda row: row.completion_us.p50)
    first = even[0].name if even else rows[0].name
    panels = [_make_panel(f"{ident}-{at}", row) for at, row in enumerate(rows) if row.name == first]
    others = [_make_panel(f"{ident}-{at}", row) for at, row in enumerate(rows) if row.name != first]
    job = format_job_size((rows[0].ranks, rows[0].nodes))
    description = (
        "The run was cut short before it looked for a late rank." if summary is None else f"{_describe(summary)}"
    )
    tables = [_make_cost_table(even, summary)] if even else []
    if summary is not None and summary.ranks > 1:
        tables.append(_make_lateness_table(summary))
    return PageSection(
        ident,
        f"Barriers: {job} ({run.title})",
        f"{description} {_INTRO}",
        tuple(panels),
        tables=tuple(tables),
        folded_panels=tuple(others),
        folded_title=f"Ranks over time of {len({row.name for row in rows}) - 1} more barriers",
        notes=("Ranks share cores, so times include waits for a core.",) if summary and summary.oversubscribed else (),
        short_title=f"Barriers, {job}",
    )


def _describe(summary: BarrierSummaryRecord) -> str:
    """Return a sentence that names the late rank, or says that there is none, with the error of the clock."""
    clock = f"clock {summary.clock}, within {summary.clock_residual_us:.2g} us"
    return f"{summary.reason[:1].upper()}{summary.reason[1:]} ({clock})."


def _make_panel(element_id: str, row: BarrierRecord) -> FigurePanel:
    """Return a figure with the times at which ranks enter and leave one barrier with one arrival pattern."""
    return FigurePanel(
        f"{row.name}, {row.pattern}", render_arrival_chart(row, element_id), element_id, has_scale_button=False
    )


def _make_cost_table(even: Sequence[BarrierRecord], summary: BarrierSummaryRecord | None) -> PageTable:
    """Return a table of each barrier's cost: time, exit skew, absorbed delay and effect on a later all-reduce.

    Args:
        even: the measurements in which all ranks enter the barrier together, the fastest first.
        summary: the last record of the run; None if the run was cut short, which leaves columns empty.
    """
    costs = {} if summary is None else {f"{cost.engine}/{cost.algorithm}": cost for cost in summary.barriers}
    columns = ("barrier", "time", "predicted", "exit skew", "absorbs", "all_reduce after it", "bias", "unsafe rounds")
    lines = []
    for row in even:
        cost = costs.get(row.name)
        after_us = None if row.all_reduce_us is None else row.all_reduce_us.p50
        lines.append(
            (
                row.name,
                *map(_format_us, (row.completion_us.p50, row.predicted_us, row.exit_skew_us.p50)),
                _format_percent(cost.absorbed if cost else None),
                _format_us(after_us),
                _format_percent(cost.bias if cost else None),
                str(cost.unsafe if cost else row.unsafe),
            )
        )
    return PageTable("Without skew at the entry", columns, tuple(lines), frozenset(columns[1:]))


def _make_lateness_table(summary: BarrierSummaryRecord) -> PageTable:
    """Return a table of the _MAX_RANK_ROWS latest ranks: how late they enter barriers, how little they wait there."""
    columns = ("rank", "node", "last in", "late by", "waits", "waits less by")
    ordered = sorted(summary.lateness, key=lambda late: -late.excess_us)[:_MAX_RANK_ROWS]
    lines = tuple(
        (
            str(late.rank),
            late.node,
            f"{late.last_arrivals} of {summary.rounds}",
            *(_format_us(value) for value in (late.excess_us, late.wait_us, late.wait_deficit_us)),
        )
        for late in ordered
    )
    return PageTable("Which rank is late", columns, lines, frozenset(columns) - {"node"}, is_folded=len(lines) > 8)


def _build_scaling_section(even: Sequence[BarrierRecord]) -> PageSection:
    """Return a page section with charts of each barrier's time and exit skew against the number of ranks.

    `even` has, from all runs, the measurements in which all ranks enter the barrier together.
    """
    names = list(dict.fromkeys(row.name for row in even))
    styles = {
        name: LineStyle(_CLASSES[at], _SHAPE) if at < len(_CLASSES) else MUTED_STYLE for at, name in enumerate(names)
    }
    panels = []
    for key, title in (("t", "Time from the last entry to the last exit"), ("s", "Exit skew")):
        lines = tuple(
            ChartLine(name, styles[name], _make_points(even, name, is_exit_skew=key == "s")) for name in names
        )
        panel = make_chart_panel(
            LineChart(
                f"bar-{key}",
                title,
                f"{title} of {len(names)} barriers over the number of ranks.",
                "ranks",
                lambda ranks: f"{ranks:.0f}",
                lambda us: format_seconds(us * 1e-6),
                lines,
            )
        )
        panels += [panel] if panel is not None else []
    legend = tuple((name, styles[name]) for name in names)
    intro = "All ranks enter at the same time; medians over rounds, with their 95 % intervals."
    return PageSection("bar", "Barriers over the number of ranks", intro, tuple(panels), legend)


def _make_points(even: Sequence[BarrierRecord], name: str, *, is_exit_skew: bool) -> tuple[ChartPoint, ...]:
    """Return points for a chart: the median times, or exit skews, in us of the barrier `name` by number of ranks.

    If several runs have the same number of ranks, the last run counts.
    """
    times = {row.ranks: row.exit_skew_us if is_exit_skew else row.completion_us for row in even if row.name == name}
    return tuple(ChartPoint(ranks, us.p50, us.p50_low, us.p50_high) for ranks, us in sorted(times.items()))


def _format_us(value: float | None) -> str:
    """Return a time, given in microseconds, with a fitting unit, such as `2.78 ms`; `-` for None."""
    if value is None:
        return "-"
    return format_seconds(value * 1e-6) if value > 0 else f"{value:.2f} us"


def _format_percent(value: float | None) -> str:
    """Return a fraction as a percentage with its sign, such as `+12%`; `-` for None."""
    return "-" if value is None else f"{value:+.0%}"
