"""Findings on noisy times: wide intervals, repetitions that disagree, times that drift, too few iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpccoll.doctor.finding import Finding, Severity
from hpccoll.records import CaseKey
from hpccoll.report.load import RunMeasurement
from hpccoll.report.number_format import format_bounds, format_seconds
from hpccoll.statistics import CONFIDENCE, MAX_UNCERTAINTY, Interval, is_interval_full, ratio_of_medians
from hpccoll.units import format_count, format_size

MACHINE_FRACTION = 0.25  # report noise of the machine only if at least this fraction of the rows is affected
MAX_DISAGREEMENT = 1.10  # medians disagree if the whole interval of their ratio, larger / smaller, is above this
_MIN_HALF = 12  # samples in each half of a row, to detect drift
_MAX_LISTED = 3
_REMEDY = (
    "use nodes of your own (--exclusive), bind ranks to cores, and measure longer (--budget, --iterations); "
    "do not rely on differences smaller than these"
)


def find_noise(rows: Sequence[RunMeasurement]) -> Iterator[Finding]:
    """Yield warnings if measurements are noisy: wide intervals, runs that disagree, drift, or too few iterations."""
    yield from _find_wide_intervals(rows)
    yield from _find_disagreeing_runs(rows)
    yield from _find_drift(rows)
    yield from _find_short_rows(rows)


def describe_row(measured: RunMeasurement) -> str:
    """Return a description of a measurement, such as `all_reduce ring, 64 B on 2 ranks`."""
    row = measured.record
    return f"{row.op} {row.algorithm or row.engine}, {format_size(row.nbytes)} on {format_count(row.ranks, 'rank')}"


def _find_wide_intervals(rows: Sequence[RunMeasurement]) -> Iterator[Finding]:
    """Yield a warning if the medians of at least a quarter of the measurements have wide confidence intervals."""
    timed = [row for row in rows if row.record.time_us.p50 > 0]
    ordered = sorted(timed, key=lambda row: -row.record.time_us.uncertainty)
    wide = [row for row in ordered if row.record.time_us.uncertainty > MAX_UNCERTAINTY]
    if not timed or len(wide) < MACHINE_FRACTION * len(timed):
        return
    widest = "; ".join(f"{describe_row(row)}: {_format_median(row)}" for row in wide[:_MAX_LISTED])
    found = f"many medians are uncertain: {len(wide)} of {len(timed)} by more than {MAX_UNCERTAINTY:.0%}"
    yield Finding("noise", Severity.WARNING, found, f"widest 95 % intervals: {widest}", _REMEDY)


def _format_median(measured: RunMeasurement) -> str:
    """Return a measurement's median time and confidence interval, such as `191 µs [151, 210] µs`."""
    time = measured.record.time_us
    interval = format_bounds(time.p50_low * 1e-6, time.p50_high * 1e-6, format_seconds)
    return f"{format_seconds(time.p50 * 1e-6)} {interval}"


def _find_disagreeing_runs(rows: Sequence[RunMeasurement]) -> Iterator[Finding]:
    """Yield a warning if several measurements of one case, as in several runs, differ significantly."""
    repetitions: dict[tuple[CaseKey, int, str], list[RunMeasurement]] = {}
    for row in rows:
        repetitions.setdefault((row.record.key, row.record.nodes, row.run.mpi), []).append(row)
    pairs = [(members[0], other) for members in repetitions.values() for other in members[1:]]
    differing: list[tuple[float, str]] = []
    for first, second in pairs:
        if min(first.record.time_us.min, second.record.time_us.min) <= 0:
            continue
        ratio = ratio_of_medians(first.record.samples_us, second.record.samples_us)
        if ratio.coverage >= CONFIDENCE and _is_beyond(ratio, MAX_DISAGREEMENT):
            medians = [f"{_format_median(row)} in {row.run.title}" for row in (first, second)]
            differing.append((max(ratio.value, 1 / ratio.value), f"{describe_row(first)}: {', '.join(medians)}"))
    if not differing:
        return
    differing.sort(reverse=True)
    found = (
        f"repeated measurements disagree: {len(differing)} of {len(pairs)} rows that were measured twice differ, "
        f"by up to {differing[0][0]:.2f}x"
    )
    hosts = {run.hosts for pair in pairs for run in (pair[0].run, pair[1].run)}
    suffix = "" if len(hosts) < 2 else "; the runs were on different hosts"
    evidence = "; ".join(words for _, words in differing[:_MAX_LISTED]) + suffix
    yield Finding("noise", Severity.WARNING, found, evidence, _REMEDY)


def _is_beyond(ratio: Interval, limit: float) -> bool:
    """Whether the whole confidence interval of a ratio is above `limit` or below 1 / `limit`."""
    return ratio.low > limit or ratio.high < 1 / limit


def _find_drift(rows: Sequence[RunMeasurement]) -> Iterator[Finding]:
    """Yield a warning if the first and the second half of the iterations differ significantly in many measurements."""
    compared, drifting = 0, []
    for row in rows:
        samples = row.record.samples_us
        half = len(samples) // 2
        if half < _MIN_HALF or min(samples) <= 0:
            continue
        compared += 1
        ratio = ratio_of_medians(samples[:half], samples[half:])
        if _is_beyond(ratio, MAX_DISAGREEMENT):
            drifting.append((max(ratio.value, 1 / ratio.value), describe_row(row)))
    if not drifting or len(drifting) < MACHINE_FRACTION * compared:
        return
    factor, name = max(drifting)
    found = f"times drift during the measurement: in {len(drifting)} of {compared} rows the two halves of a run differ"
    evidence = f"medians of the first and the second half of the iterations; largest: {name}, by {factor:.2f}x"
    yield Finding("noise", Severity.WARNING, found, evidence, _REMEDY)


def _find_short_rows(rows: Sequence[RunMeasurement]) -> Iterator[Finding]:
    """Yield a note if measurements have too few iterations for a 95 % confidence interval."""
    short = [row for row in rows if not is_interval_full(row.record.samples_us)]
    if not short:
        return
    found = (
        f"{len(short)} of {len(rows)} rows have too few iterations for a 95 % interval; "
        "their range is shown instead, marked ?"
    )
    shortest = min(short, key=lambda row: len(row.record.samples_us))
    evidence = f"{describe_row(shortest)}: {len(shortest.record.samples_us)} iterations"
    yield Finding("noise", Severity.NOTE, found, evidence, "measure longer: raise --budget, or give --iterations 10")
