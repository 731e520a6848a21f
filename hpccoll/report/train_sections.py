"""Page sections on training runs: loss, time and communication by training step, and costs by strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpccoll.records import TrainAccountRecord, TrainStepRecord
from hpccoll.report.account_picture import render_account_svg
from hpccoll.report.axis_scale import thin_values
from hpccoll.report.line_chart import ChartLine, ChartPoint, LineChart
from hpccoll.report.line_styles import LineStyle
from hpccoll.report.load import RecordedRun, Results
from hpccoll.report.number_format import format_seconds
from hpccoll.report.page_section import FigurePanel, PageSection, PageTable, make_chart_panel

_MAX_POINTS = 200
_STYLE = LineStyle("c1", "M-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0z")
_CHARTS: tuple[tuple[str, Callable[[TrainStepRecord], float], Callable[[float], str]], ...] = (
    ("Loss", lambda step: step.loss, lambda value: f"{value:.3g}"),
    ("Time of a step", lambda step: step.step_s, format_seconds),
    ("Share of communication", lambda step: step.comm_s / step.step_s, lambda value: f"{value:.1%}"),
    ("Share of exposed communication", lambda step: step.exposed_comm_s / step.step_s, lambda value: f"{value:.1%}"),
)
_INTRO = (
    "Communication is in flight during its share of a step; the exposed share is the part that no computation hides. "
    "Times are the maximum over ranks."
)


def build_train_sections(results: Results) -> list[PageSection]:
    """Return a page section per run of `hpccoll train`: charts by step or, with `--account`, costs by strategy."""
    steps: dict[int, tuple[RecordedRun, list[TrainStepRecord]]] = {}
    for run, step in results.train_steps:
        steps.setdefault(run.number, (run, []))[1].append(step)
    accounts: dict[int, tuple[RecordedRun, list[TrainAccountRecord]]] = {}
    for run, account in results.accounts:
        accounts.setdefault(run.number, (run, []))[1].append(account)
    return [
        # A run with --account has no charts of steps: records of steps do not distinguish its strategies (tp, sp).
        *(_build_step_section(run, records) for run, records in steps.values() if run.number not in accounts),
        *(_build_account_section(run, records) for run, records in accounts.values()),
    ]


def _build_step_section(run: RecordedRun, steps: Sequence[TrainStepRecord]) -> PageSection:
    """Return a page section with charts of loss, time and communication over the training steps of one run."""
    ident, mesh, shown, panels = f"tr{run.number}", steps[0].strategy, thin_values(steps, _MAX_POINTS), []
    for at, (title, get_value, format_value) in enumerate(_CHARTS):
        points = tuple(ChartPoint(step.step, value, value, value) for step in shown for value in [get_value(step)])
        description, line = f"{title} over the steps of training.", ChartLine(mesh, _STYLE, points)
        chart = LineChart(f"{ident}-{at}", title, description, "step", "{:.0f}".format, format_value, (line,))
        panel = make_chart_panel(chart)
        panels += [panel] if panel is not None else []
    legend = ((mesh, _STYLE),)
    return PageSection(ident, f"Training ({run.title})", _INTRO, tuple(panels), legend, short_title="Training")


def _build_account_section(run: RecordedRun, accounts: Sequence[TrainAccountRecord]) -> PageSection:
    """Return a page section with the measured and predicted costs of training by strategy, as a picture and a table."""
    ident = f"ac{run.number}"
    columns = ("strategy", "quantity", "measured", "simulated", "estimated")
    rows = tuple(
        (
            account.label,
            entry.quantity,
            *(f"{value:.5g}" for value in (entry.measured, entry.simulated, entry.estimated)),
        )
        for account in accounts
        for entry in account.entries
    )
    panel = FigurePanel("Measured, simulated, estimated", render_account_svg(accounts), ident, has_scale_button=False)
    table = PageTable("All quantities", columns, rows, frozenset(columns[2:]))
    intro = "Bytes that a rank sends in a step, shares of its time, and the peak of allocated bytes, per strategy."
    return PageSection(f"{ident}-s", f"Account of training ({run.title})", intro, (panel,), tables=(table,))
