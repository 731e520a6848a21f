"""Makes the records that `hpccoll compare` writes from the results of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from hpccoll.compare.evidence import DEFAULT_CHANGE
from hpccoll.compare.guidelines import CheckedGuideline
from hpccoll.compare.measured_runs import RowKey
from hpccoll.compare.results import ComparedOperation, ComparedRow, ComparedTimes, Comparison, Verdict
from hpccoll.records import ComparedOperationRecord, ComparedRowRecord, CompareSummaryRecord, GuidelineRecord

StopCause = Literal["complete", "interrupted", "failed"]


def make_row_record(row: ComparedRow, tolerance: float) -> ComparedRowRecord:
    """Return the record of a compared row; `tolerance` is the fraction up to which a slowdown is no regression."""
    case = row.key.case
    return ComparedRowRecord(
        op=case.op,
        engine=case.engine,
        algorithm=case.algorithm,
        redop=case.redop,
        root=case.root,
        **_get_memory_fields(row.key),
        runs_a=row.runs[0],
        runs_b=row.runs[1],
        samples_a=row.samples[0],
        samples_b=row.samples[1],
        p50_a_us=row.a_us,
        p50_b_us=row.b_us,
        slower_probability=row.order.probability,
        cliffs_delta=row.order.cliffs_delta,
        **_get_times_fields(row.times, tolerance),
    )


def make_operation_record(operation: ComparedOperation, tolerance: float) -> ComparedOperationRecord:
    """Return the record of a compared operation; `tolerance` is as for `make_row_record`."""
    group = operation.group
    return ComparedOperationRecord(
        op=group.op,
        buffer=group.buffer,
        dtype=group.dtype,
        ranks=group.ranks,
        nodes=group.nodes,
        rows=operation.rows,
        **_get_times_fields(operation.times, tolerance),
    )


def make_guideline_record(found: CheckedGuideline) -> GuidelineRecord:
    """Return the record of a checked guideline."""
    case = found.left.case
    redops = [key.case.redop for key in (found.left, *found.right) if key.case.redop is not None]
    return GuidelineRecord(
        guideline=found.text,
        engine=case.engine,
        algorithm=case.algorithm,
        redop=redops[0] if redops else None,
        **_get_memory_fields(found.left),
        left_us=found.left_us,
        right_us=found.right_us,
        ratio=found.ratio,
        ratio_low=found.low,
        ratio_high=found.high,
        confidence=found.confidence,
        p_value=found.p_corrected,
        verdict=found.verdict.value,
    )


def make_summary_record(
    comparison: Comparison, a: Sequence[str], b: Sequence[str], tolerance: float, stop: StopCause
) -> CompareSummaryRecord:
    """Return the last record of a comparison; `a` and `b` are the files or the command of each side."""
    return CompareSummaryRecord(
        a=tuple(a),
        b=tuple(b),
        runs_a=comparison.runs[0],
        runs_b=comparison.runs[1],
        paired=comparison.paired,
        control=comparison.control.value,
        drift=comparison.drift,
        noise=comparison.noise,
        tolerance=tolerance,
        worse=tuple(comparison.list_names(Verdict.WORSE)),
        better=tuple(comparison.list_names(Verdict.BETTER)),
        regressions=tuple(comparison.list_regressions(tolerance)),
        only_a=tuple(key.name for key in comparison.only_a),
        only_b=tuple(key.name for key in comparison.only_b),
        wrong=tuple(key.name for key in comparison.wrong),
        disturbed=comparison.disturbed,
        differences=comparison.differences,
        stop=stop,
        doubts=comparison.doubts,
        rounds=comparison.plan.compute_rounds(tolerance or DEFAULT_CHANGE)
        if comparison.lacks_evidence(tolerance)
        else None,
    )


def _get_memory_fields(key: RowKey) -> dict[str, Any]:
    """Return the fields of a row that describe its message, memory and ranks."""
    case = key.case
    names = ("buffer", "in_place", "nbytes", "dtype", "ranks")
    return {name: getattr(case, name) for name in names} | {"nodes": key.nodes}


def _get_times_fields(times: ComparedTimes, tolerance: float) -> dict[str, Any]:
    """Return the fields that records of rows and of operations share."""
    return {
        "ratio": times.ratio,
        "ratio_low": times.low,
        "ratio_high": times.high,
        "confidence": times.confidence,
        "p_value": times.p_corrected,
        "verdict": times.verdict.value,
        "regression": times.is_regression(tolerance),
        "slower_rounds": times.slower_rounds,
    }
