"""Makes the result record of a benchmark case: its samples, their summary and the bandwidths at the median time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from hpccoll.measure.bandwidth import compute_algbw, compute_busbw, find_timed_operation
from hpccoll.records import CollectiveCase, CollectiveRecord, Staging, StopReason
from hpccoll.statistics import summarize


def make_collective_record(
    case: CollectiveCase,
    samples_us: Sequence[float],
    stop: StopReason,
    wrong: int | None,
    staging: Staging = None,
    stream_us: Sequence[float] = (),
    selected: str | None = None,
) -> CollectiveRecord:
    """Return the record of `case` with samples rounded to nanoseconds, and a summary of the rounded samples.

    Args:
        case: the operation, size, engine and algorithm that were measured.
        samples_us: the time of each iteration on the slowest rank, in microseconds, in the order measured.
        stop: the reason why timing ended.
        wrong: the number of wrong elements; None if the results were not checked.
        staging: whether MPI accessed device memory directly or through pinned host memory; None for host memory.
        stream_us: times of all iterations in microseconds, measured by CUDA events; empty for host memory.
        selected: the algorithm that `auto` selected; None if the case names its algorithm.

    Raises:
        UsageError: there are no samples, a sample is negative or infinite, or the operation is unknown.
    """
    rounded = _round_samples(samples_us)
    summary, operation = summarize(rounded), find_timed_operation(case.op)
    return CollectiveRecord(
        **{name: getattr(case, name) for name in CollectiveCase.__struct_fields__},
        iterations=len(rounded),
        stop=stop,
        time_us=summary,
        algbw=compute_algbw(case.nbytes, summary.p50 * 1e-6),
        busbw=compute_busbw(operation, case.nbytes, summary.p50 * 1e-6, case.ranks),
        wrong=wrong,
        bound_us=None,
        samples_us=rounded,
        staging=staging,
        stream_us=_round_samples(stream_us),
        selected=selected,
    )


def read_collective_record(line: Mapping[str, Any], location: str) -> CollectiveRecord:
    """Return the record in a decoded line of a result file, with summary and bandwidths recomputed from its samples.

    Raises a UsageError that contains `location` (file and line) if a field is missing or invalid.
    """
    record = CollectiveRecord.from_dict(line, location)
    made = make_collective_record(
        record, record.samples_us, record.stop, record.wrong, record.staging, record.stream_us, record.selected
    )
    kept = {name: getattr(record, name) for name in ("bound_us", "binding", "start", "discarded", "clock_residual_us")}
    return replace(made, **kept)


def _round_samples(samples_us: Iterable[float]) -> tuple[float, ...]:
    """Return times in microseconds, rounded to whole nanoseconds."""
    return tuple(round(float(sample), 3) for sample in samples_us)
