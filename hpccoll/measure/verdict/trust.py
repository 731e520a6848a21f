"""States in words which parts of a benchmark can be trusted: the results, the ranking of choices, and the times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpccoll.measure.core_share import is_shared
from hpccoll.measure.hardware_limit import HardwareLimit
from hpccoll.measure.other_process_load import BUSY
from hpccoll.measure.results.measured_case import MeasuredCase, get_choice
from hpccoll.records import CollectiveRecord, StartMethod
from hpccoll.statistics import MAX_UNCERTAINTY, is_interval_full
from hpccoll.units import format_count

if TYPE_CHECKING:
    from hpccoll.synthesis import Network

MAX_UNCERTAIN = 0.5  # fraction of uncertain medians above which a benchmark says little


@dataclass(frozen=True, slots=True)
class RunConditions:
    """The circumstances of a benchmark that its records do not contain."""

    cores: tuple[int, ...] = ()  # the number of cores that each rank may run on; empty if unknown
    oversubscribed: bool = False  # whether a node has more ranks than cores that they may run on
    # The least share of a core that a rank got while all ranks computed; None if unknown
    core_share: float | None = None
    # Why iterations started by barriers, as a clause that begins with "as"; empty if the user asked
    barrier_reason: str = ""
    busy_cores: float | None = None  # the number of cores that other programs kept busy; None if unknown
    unavailable: tuple[str, ...] = field(default_factory=tuple)  # sentences about engines that could not be started
    stopped: bool = False  # whether the run ended before all cases were measured
    limit: HardwareLimit | None = None  # the measured speed of memory or links; None if it was not measured
    # The network of --machine, whose optimum replaces the limit; None if it is not known
    network: Network | None = None
    results: str | None = None  # the result file; None if the results were not written
    has_report: bool = False  # whether the caller makes a report of the result file
    mpi_library: str = ""  # the MPI library's name and version; empty if unknown
    # The options that the user gave and that further benchmarks should repeat, such as `-b` and its value; a flag has
    # the value ""
    options: Mapping[str, str] = field(default_factory=dict)


def describe_trust(cases: Sequence[MeasuredCase], conditions: RunConditions) -> list[str]:
    """Return sentences that state whether the results, the ranking of choices, and the times can be trusted."""
    rows = [row for case in cases for row in case.rows]
    wrong = sorted({get_choice(row) for row in rows if row.wrong})
    if wrong:
        bad = sum(bool(row.wrong) for row in rows)
        return [
            f"results: NO: {bad} of {len(rows)} rows have wrong results ({', '.join(wrong)}); do not use these here"
        ]
    unchecked = sum(row.wrong is None for row in rows)
    right = f"all {len(rows)} are right" if len(rows) > 1 else "the only one is right"
    results = f"{unchecked} of {format_count(len(rows), 'row')} not checked" if unchecked else right
    missing = [*["the run was stopped early"] * conditions.stopped, *conditions.unavailable]
    doubts = "; ".join(_list_doubts(rows, conditions))
    certain = f"reliable: no median is uncertain by more than {100 * MAX_UNCERTAINTY:.0f} %"
    findings = [f"results: {results}", _describe_clear_winners(cases)]
    findings += [
        f"times: {'unreliable: ' * are_unreliable(rows)}{doubts or certain}",
        _describe_starts(rows, conditions),
    ]
    return [finding for finding in [*findings, f"missing: {'; '.join(missing)}" * bool(missing)] if finding]


def _describe_clear_winners(cases: Sequence[MeasuredCase]) -> str:
    """Return a sentence: at how many sizes one choice is clearly the fastest; "" if no size has two choices."""
    compared = [case for case in cases if len({get_choice(row) for row in case.rows}) > 1]
    clear = sum(len(case.best_choices) < 2 for case in compared)
    if not compared:
        return ""
    sizes = f"{len(compared)} size{'s' * (len(compared) > 1)}"
    if clear == len(compared):
        return f"fastest: clear at {f'all {sizes}' if clear > 1 else 'the only size'} (95 % intervals)"
    return f'fastest: clear at {clear} of {sizes} (95 % intervals); not clear where the table says "or"'


def _describe_starts(rows: Sequence[CollectiveRecord], conditions: RunConditions) -> str:
    """Return a sentence: how iterations started, how wrong the clock was, and how many iterations were discarded.

    The sentence is empty if the records do not state how iterations started.
    """
    windows = [row for row in rows if row.start is StartMethod.WINDOW]
    barriers = [row for row in rows if row.start is StartMethod.BARRIER and row.ranks > 1]
    if not windows:
        reason = conditions.barrier_reason or "whose skew is in each time"
        if any(row.discarded for row in barriers):
            reason = "as ranks missed most start windows; other programs may keep the cores busy"
        return f"starts: by barriers, {reason}" if barriers else ""
    residuals = [row.clock_residual_us for row in windows if row.clock_residual_us is not None]
    clock = f"a clock with errors up to {max(residuals):.1f} us" if residuals else "a clock whose error is unknown"
    discarded = sum(row.discarded or 0 for row in windows)
    share = discarded / (discarded + sum(row.iterations for row in windows))
    missed = [row for row in barriers if row.discarded]  # Gloo's rows discard none: they start by a barrier
    some = f"; {format_count(len(missed), 'row')} by barriers, as ranks missed most windows" if missed else ""
    if conditions.barrier_reason:
        some += f"; the last ones by barriers, {conditions.barrier_reason}"
    return f"starts: in windows of {clock}, {share:.0%} of rounds discarded{some}"


def _list_doubts(rows: Sequence[CollectiveRecord], conditions: RunConditions) -> Iterator[str]:
    """Yield phrases with reasons to doubt the measured times, such as shared cores."""
    ranks = max(row.ranks for row in rows)
    if ranks == 1:
        yield "one rank sends nothing, so times are the cost of a call"
    if conditions.oversubscribed:
        own = set(conditions.cores)
        if own == {1}:
            yield f"WRONG BINDING: the {ranks} ranks are bound to fewer cores than ranks"
        else:
            cores = f"{max(own)} cores" if len(own) == 1 and max(row.nodes for row in rows) == 1 else "fewer cores"
            yield f"only valid where {ranks} ranks share {cores}"
        if any(row.engine == "gloo" for row in rows):
            yield "gloo's own threads need cores, too, so the factors over gloo vary widely"
    elif conditions.core_share is not None and is_shared(conditions.core_share):
        yield f"a rank got only {conditions.core_share:.0%} of a core while all ranks computed"
    uncertain = [row for row in rows if is_uncertain(row)]
    if uncertain:
        medians = format_count(len(rows), "median")
        yield f"{len(uncertain)} of {medians} uncertain by more than {100 * MAX_UNCERTAINTY:.0f} %"
    short = sum(not is_interval_full(row.samples_us) for row in rows)
    if short:
        yield f"{short} of {format_count(len(rows), 'interval')} below 95 %, for lack of iterations"
    if conditions.busy_cores is not None and conditions.busy_cores > BUSY:
        yield f"other programs kept {conditions.busy_cores:.1f} cores busy"


def are_unreliable(rows: Sequence[CollectiveRecord]) -> bool:
    """Whether more than a fraction `MAX_UNCERTAIN` of the median times are uncertain."""
    return sum(map(is_uncertain, rows)) > MAX_UNCERTAIN * len(rows)


def is_uncertain(row: CollectiveRecord) -> bool:
    """Whether half the width of the median's interval exceeds the fraction `MAX_UNCERTAINTY` of the median."""
    return row.time_us.uncertainty > MAX_UNCERTAINTY
