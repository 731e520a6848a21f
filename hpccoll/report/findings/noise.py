"""Findings on noise: wide intervals, a row measured twice and not alike, times that drift, too few iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.measure.record import CaseKey
from hpccoll.measure.statistics import CONFIDENCE, Interval, median_ranks, ratio_of_medians
from hpccoll.report.axis_scale import format_interval, format_seconds
from hpccoll.report.load import MeasuredRow
from hpccoll.units import format_size

WIDE = 0.10  # half the interval over the median
MANY = 0.25  # of the rows, from which on it is a matter of the machine and not of a row
AGAIN = 1.10  # the same thing measured twice: by this factor apart at least, chance aside
_HALF = 12  # samples of a half, at least, to say that times drift
_MOST_TOLD = 3
_QUIETER = (
    "measure on nodes of your own (--exclusive), bind ranks to cores, and give more time (--budget, --iterations); "
    "believe no difference that is smaller than this one"
)


def find_noise(rows: Sequence[MeasuredRow]) -> Iterator[Finding]:
    """Yield every finding on noise."""
    yield from _find_wide_intervals(rows)
    yield from _find_disagreeing_runs(rows)
    yield from _find_drift(rows)
    yield from _find_short_rows(rows)


def name_row(timed: MeasuredRow) -> str:
    """Return what to call a row in a sentence."""
    row = timed.record.row
    return f"{row.op} {row.algorithm or row.engine}, {format_size(row.nbytes)} on {row.ranks} ranks"


def _find_wide_intervals(rows: Sequence[MeasuredRow]) -> Iterator[Finding]:
    widths = [(_compute_relative_width(row), row) for row in rows if row.record.time_us.p50 > 0]
    wide = sorted((each for each in widths if each[0] > WIDE), key=lambda each: -each[0])
    if not widths or len(wide) < MANY * len(widths):
        return
    worst = "; ".join(f"{name_row(row)}: {_format_median(row)}" for _, row in wide[:_MOST_TOLD])
    found = f"many medians are not known well: {len(wide)} of {len(widths)} are uncertain by more than {WIDE:.0%}"
    yield Finding("noise", Severity.WARNING, found, f"95 % intervals, the widest: {worst}", _QUIETER)


def _compute_relative_width(timed: MeasuredRow) -> float:
    time = timed.record.time_us
    return (time.p50_high - time.p50_low) / 2 / time.p50


def _format_median(timed: MeasuredRow) -> str:
    time = timed.record.time_us
    interval = format_interval(time.p50_low * 1e-6, time.p50_high * 1e-6, format_seconds)
    return f"{format_seconds(time.p50 * 1e-6)} {interval}"


def _find_disagreeing_runs(rows: Sequence[MeasuredRow]) -> Iterator[Finding]:
    """Hold measurements of the same row by several runs against each other (A/A)."""
    alike: dict[tuple[CaseKey, int, str], list[MeasuredRow]] = {}
    for row in rows:
        alike.setdefault((row.record.row.key, row.record.row.nodes, row.run.mpi), []).append(row)
    pairs = [(several[0], other) for several in alike.values() for other in several[1:]]
    found: list[tuple[float, str]] = []
    for one, other in pairs:
        ratio = _compare_medians(one, other)
        if ratio is not None and (ratio.low > AGAIN or ratio.high < 1 / AGAIN):
            size = max(ratio.value, 1 / ratio.value)
            medians = [f"{_format_median(row)} in {row.run.title}" for row in (one, other)]
            words = f"{name_row(one)}: {', '.join(medians)}"
            found.append((size, words))
    if not found:
        return
    found.sort(reverse=True)
    about = f"{len(found)} of {len(pairs)} rows that were measured twice differ, by up to {found[0][0]:.2f}x"
    hosts = sorted({str(timed.run.hosts) for pair in pairs for timed in pair})
    where = "" if len(hosts) < 2 else "; the runs were on different hosts"
    evidence = "; ".join(words for _, words in found[:_MOST_TOLD]) + where
    yield Finding(
        "noise", Severity.WARNING, f"the same was measured again and came out different: {about}", evidence, _QUIETER
    )


def _compare_medians(one: MeasuredRow, other: MeasuredRow) -> Interval | None:
    if min(one.record.time_us.min, other.record.time_us.min) <= 0:
        return None
    ratio = ratio_of_medians(one.record.samples_us, other.record.samples_us)
    return ratio if ratio.coverage >= CONFIDENCE else None


def _find_drift(rows: Sequence[MeasuredRow]) -> Iterator[Finding]:
    """Hold the first half of each row's iterations against the second."""
    judged, drifting = 0, []
    for row in rows:
        samples = row.record.samples_us
        half = len(samples) // 2
        if half < _HALF or min(samples) <= 0:
            continue
        judged += 1
        ratio = ratio_of_medians(samples[:half], samples[half:])
        if ratio.low > AGAIN or ratio.high < 1 / AGAIN:
            drifting.append((max(ratio.value, 1 / ratio.value), name_row(row)))
    if not drifting or len(drifting) < MANY * judged:
        return
    drifting.sort(reverse=True)
    size, name = drifting[0]
    found = f"times drift while they are measured: in {len(drifting)} of {judged} rows the halves of a run differ"
    evidence = f"medians of the first and the second half of the iterations; most: {name}, by {size:.2f}x"
    yield Finding("noise", Severity.WARNING, found, evidence, _QUIETER)


def _find_short_rows(rows: Sequence[MeasuredRow]) -> Iterator[Finding]:
    few = [row for row in rows if median_ranks(len(row.record.samples_us))[1] < CONFIDENCE]
    if not few:
        return
    found = f"{len(few)} of {len(rows)} rows have too few iterations for a 95 % interval; theirs is the range, marked ?"
    fewest = min(few, key=lambda row: len(row.record.samples_us))
    evidence = f"{name_row(fewest)}: {len(fewest.record.samples_us)} iterations"
    yield Finding("noise", Severity.NOTE, found, evidence, "give more time: --budget, or --iterations 10")
