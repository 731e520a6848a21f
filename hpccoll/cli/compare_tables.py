"""Prints the results of `hpccoll compare` for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from hpccoll.cli.output import print_table, print_text
from hpccoll.compare.drift import Control
from hpccoll.compare.evidence import DEFAULT_CHANGE
from hpccoll.records import GuidelineVerdict, Verdict
from hpccoll.units import format_count, format_list, format_size

if TYPE_CHECKING:
    from hpccoll.compare.results import Comparison
    from hpccoll.records import ComparedOperationRecord, ComparedRowRecord, GuidelineRecord

MAX_ROWS = 40  # of a table, unless all rows are asked for
MAX_NAMES = 6
TIMES = ("B / A", "interval", "B slower in", "verdict")


def print_comparison(comparison: Comparison, *, all_rows: bool) -> None:
    """Print the ratios of times B / A per operation and per row, then lines about the runs, and the verdict.

    A comparison of more than MAX_ROWS rows shows only those that differ, unless `all_rows` is set.
    """
    rounds = comparison.runs[0] if comparison.paired else None
    headings = [heading for heading in TIMES if rounds is not None or heading != "B slower in"]
    if comparison.operations:
        cells = [
            [operation.op, operation.buffer, str(operation.rows), *_format_times(operation, rounds)]
            for operation in comparison.operations
        ]
        shown = ("operation", "buffer", "rows", *headings)
        print_table("Operations: median over rows", shown, cells, ("rows", "B / A"))
        print_text("\n")
    rows = list(comparison.rows)
    if len(rows) > MAX_ROWS and not all_rows:
        rows = [row for row in rows if row.verdict is not Verdict.NO_EVIDENCE]
    for op, members in groupby(rows, key=lambda row: row.op):
        shown = ("size", "contender", "A us", "B us", "P(B slower)", *headings)
        cells = [_format_row(row, rounds) for row in members]
        numbers, drops = ("size", *shown[2:5], "B / A"), ("P(B slower)", "B slower in", "A us", "B us")
        print_table(f"Rows of {op}", shown, cells, numbers, drops=drops)
        print_text("\n")
    if len(rows) < len(comparison.rows):
        print_text(f"{len(comparison.rows) - len(rows)} rows without evidence of a difference: --rows shows all")
    for line in (*_describe_circumstances(comparison), *_describe_verdict(comparison)):
        print_text(line, indent="         ")


def print_guidelines(checked: Sequence[GuidelineRecord], *, all_rows: bool) -> None:
    """Print the checked guidelines and their counts by verdict.

    Of more than MAX_ROWS guidelines, those that hold are shown only if `all_rows` is set.
    """
    shown = list(checked)
    if len(shown) > MAX_ROWS and not all_rows:
        shown = [guideline for guideline in checked if guideline.verdict is not GuidelineVerdict.HOLDS]
    for text, members in groupby(shown, key=lambda guideline: guideline.guideline):
        headings = ("size", "contender", "left us", "right us", "left / right", "interval", "verdict")
        numbers = ("size", "left us", "right us", "left / right")
        print_table(text, headings, [_format_guideline(member) for member in members], numbers)
        print_text("\n")
    if len(shown) < len(checked):
        print_text(f"{len(checked) - len(shown)} guidelines hold and are not shown: --rows shows all")
    counts = {verdict: sum(guideline.verdict is verdict for guideline in checked) for verdict in GuidelineVerdict}
    print_text(
        f"{format_count(len(checked), 'guideline')}: {counts[GuidelineVerdict.VIOLATED]} violated, "
        f"{counts[GuidelineVerdict.HOLDS]} hold, {counts[GuidelineVerdict.NO_EVIDENCE]} without evidence (the left "
        "side is slower, but perhaps by chance or within the tolerance)"
    )


def _format_times(times: ComparedOperationRecord | ComparedRowRecord, rounds: int | None) -> list[str]:
    """Return table cells with the ratio, its interval, the number of rounds in which B was slower, and the verdict.

    `rounds` is the number of rounds in which A and B ran in turns; None leaves out the number of rounds in which B was
    slower.
    """
    slower = [] if rounds is None else [f"{times.slower_rounds} of {rounds}"]
    return [f"{times.ratio:.3f}x", f"[{times.ratio_low:.4g},{times.ratio_high:.4g}]", *slower, times.verdict.value]


def _format_row(row: ComparedRowRecord, rounds: int | None) -> list[str]:
    """Return the table cells of a compared row; `rounds` is how often A and B ran in turns, None if they did not."""
    return [
        format_size(row.nbytes),
        _format_contender(row),
        f"{row.p50_a_us:.4g}",
        f"{row.p50_b_us:.4g}",
        f"{row.slower_probability:.2f}",
        *_format_times(row, rounds),
    ]


def _format_contender(row: ComparedRowRecord | GuidelineRecord) -> str:
    """Return `ENGINE/ALGORITHM` of a row, then its kind of buffer unless it is host, then `(out)` if out of place."""
    name = f"{row.engine}/{row.algorithm}" if row.algorithm else row.engine
    return name + ("" if row.buffer == "host" else f" {row.buffer}") + ("" if row.in_place else " (out)")


def _format_guideline(checked: GuidelineRecord) -> list[str]:
    """Return the table cells of a checked guideline."""
    return [
        format_size(checked.nbytes),
        _format_contender(checked),
        f"{checked.left_us:.4g}",
        f"{checked.right_us:.4g}",
        f"{checked.ratio:.2f}x",
        f"[{checked.ratio_low:.2f},{checked.ratio_high:.2f}]",
        checked.verdict.value,
    ]


def _describe_circumstances(comparison: Comparison) -> list[str]:
    """Return lines of text on the compared runs: their number, differences, disturbances, drift and noise."""
    runs = [format_count(count, "run") for count in comparison.runs]
    counts = f"{format_count(len(comparison.rows), 'row')} compared"
    lines = [f"runs:    A {runs[0]}, B {runs[1]}{' in turns' if comparison.paired else ''}; {counts}"]
    lines += [f"differ:  {difference}" for difference in comparison.differences]
    for side, names in (("A", comparison.only_a), ("B", comparison.only_b)):
        if names:
            lines.append(f"only {side}:  {format_count(len(names), 'row')}: {format_list(names, MAX_NAMES)}")
    if comparison.wrong:
        lines.append(f"wrong:   not compared: {format_list(comparison.wrong, MAX_NAMES)}")
    if comparison.disturbed:
        several = max(comparison.runs) > 1
        remedy = "disturbed runs are left out where others remain" if several else "measure again on idle cores"
        lines.append(f"busy:    other programs disturbed {format_list(comparison.disturbed, MAX_NAMES)}; {remedy}")
    if comparison.unreliable:
        lines.append(
            f"times:   unreliable by their own verdict in {format_list(comparison.unreliable, MAX_NAMES)}: not counted"
        )
    lines.append(f"drift:   {_describe_drift(comparison)}")
    lines.append(
        f"noise:   the times of a row in two runs of the same software differ by about {100 * comparison.noise:.1f} % "
        "(standard deviation)"
    )
    return lines


def _describe_drift(comparison: Comparison) -> str:
    """Return a phrase: the common change of speed that was removed from all ratios, or why none was removed."""
    if comparison.drift_doubt:
        return f"not removed: {comparison.drift_doubt}"
    removed = f"B / A {comparison.drift:.3f}x was removed from all ratios: the median over all rows"
    alike = "; a change of all rows alike does not show" if comparison.control is Control.ROWS else " of engine mpi"
    return removed + alike


def _describe_lack_of_evidence(comparison: Comparison) -> list[str]:
    """Return lines of text: how large an undetected change may be and, if too large, how to measure more precisely."""
    (low, high), change = comparison.widest_interval, comparison.tolerance or DEFAULT_CHANGE
    if not comparison.lacks_evidence:
        return [f"verdict: no difference of {100 * change:.3g} % or more: all B / A are in [{low:.3f},{high:.3f}]"]
    reasons = comparison.doubts or (f"B / A may be anything in [{low:.3f},{high:.3f}]",)
    lines = [f"verdict: not enough evidence of a difference: {'; '.join(reasons)}"]
    rounds = comparison.plan.compute_rounds(change)
    if rounds is None:
        spread = 100 * (np.exp(comparison.plan.variance**0.5) - 1)
        lines.append(
            f"next:    the two runs of a round differ by about {spread:.0f} %, too much for a change of "
            f"{100 * change:.3g} %: measure with one rank per core and no other programs, or look for a larger change "
            "(--tolerance)"
        )
    else:
        goal = f"a change of {100 * change:.3g} %" if comparison.plan.variance else "the noise between runs"
        lines.append(f"next:    to see {goal}, measure in turns, each command in the environment of its side:")
        lines.append(f"         {comparison.plan.format_command(rounds)}")
    return lines


def _describe_verdict(comparison: Comparison) -> list[str]:
    """Return lines of text that name the rows and operations that became worse or better, and the regressions.

    If no row or operation became worse or better, the lines state how large an undetected change may be.
    """
    worse, better = comparison.list_names(Verdict.WORSE), comparison.list_names(Verdict.BETTER)
    if not worse and not better:
        return _describe_lack_of_evidence(comparison)
    lines = []
    for label, names in (("worse", worse), ("better", better)):
        if names:
            lines.append(f"verdict: {label}: {format_list(names, MAX_NAMES)}")
    regressions, tolerance = comparison.list_regressions(), comparison.tolerance
    if worse:
        limit = f"slower by more than {100 * tolerance:.3g} %" if tolerance else "slower"
        lines.append(f"regress: {limit}: {format_list(regressions, MAX_NAMES) if regressions else 'none'}")
    return lines
