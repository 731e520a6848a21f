"""Checks the self-consistency of one set of results: an operation should not be slower than others that can replace it.

For example, an all_reduce can be replaced by a reduce_scatter and an all_gather, so it should not take longer than both
together. All operations of a guideline have the same message size S (nccl-tests' S), engine and algorithm, dtype, kind
of buffer and number of ranks. The guideline of monotony is that a message takes no longer than the next larger message
that was measured. Different operations have different algorithms, so guidelines with several operations are checked
only for engines without named algorithms and for hpccoll's `auto`. Monotony is checked for all rows.

A guideline `X <= Y` is violated if the whole confidence interval of time(X) / time(Y) is above 1 plus the tolerance. A
guideline whose right side is one operation is violated only if the Mann-Whitney U test is significant, too. The
standard deviation of a run's median is assumed to be at least `GUIDELINE_NOISE`, and larger in runs that other programs
interrupted.

Sources: Traeff, Gropp and Thakur, IEEE TPDS 21 (2010), 698; Hunold and Carpen-Amarie, PGMPI (ACM TOPC 5, 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll.compare.hypothesis_tests import compare_samples, compute_interval, correct_by_holm
from hpccoll.compare.measured_runs import ComparedSide
from hpccoll.compare.noise import DISTURBED_NOISE, PRIOR_DEGREES, compute_batch_variance, find_disturbed_operations
from hpccoll.plan import Operation
from hpccoll.records import CaseKey, GuidelineRecord, GuidelineVerdict

SIGNIFICANCE = 0.01  # probability of any violation where all guidelines hold
GUIDELINE_NOISE = 0.03  # least standard deviation of the median of a run, in logarithms
RUN_DEGREES = 30  # assumed degrees of freedom of the variance of a median within a run
AUTO = "auto"
_ONLY_IN_PLACE = (Operation.BROADCAST.value, Operation.BARRIER.value)
GUIDELINES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("all_reduce", ("reduce_scatter", "all_gather")),
    ("all_reduce", ("reduce", "broadcast")),
    ("all_gather", ("gather", "broadcast")),
    ("all_gather", ("all_reduce",)),
    ("all_gather", ("all_to_all",)),
    ("broadcast", ("scatter", "all_gather")),
    ("gather", ("all_gather",)),
    ("gather", ("reduce",)),
    ("reduce", ("all_reduce",)),
    ("reduce", ("reduce_scatter", "gather")),
    ("reduce_scatter", ("reduce", "scatter")),
    ("reduce_scatter", ("all_reduce",)),
    ("scatter", ("broadcast",)),
    ("exscan", ("scan",)),
)


@dataclass(frozen=True, slots=True)
class _LogRatio:
    """For a guideline `X <= Y`, log(time of X / time of Y), with its standard error and p-value."""

    value: float
    error: float  # standard error
    degrees: float  # degrees of freedom of `error`
    p_value: float  # one-sided: the probability of this ratio or a larger one if the guideline holds


def check_guidelines(side: ComparedSide, tolerance: float = 0.0) -> list[GuidelineRecord]:
    """Check all guidelines, such as all_reduce <= reduce + broadcast, for which a set of runs has measured times.

    Args:
        side: the runs.
        tolerance: the fraction by which X may be slower than Y without a violation of the guideline `X <= Y`.

    Returns:
        One record per guideline, size and engine, with p-values corrected for the number of records.
    """
    pairs = list(_find_rows(side.keys))
    if not pairs:
        return []
    ratios = [_measure_ratio(side, left, right) for _, left, right in pairs]
    tests = correct_by_holm(np.array([ratio.p_value for ratio in ratios]), SIGNIFICANCE)
    checked = []
    for at, ((text, left, right), ratio) in enumerate(zip(pairs, ratios, strict=True)):
        confidence = float(1 - 2 * tests.interval_significance[at])  # the lower end alone has a one-sided significance
        low, high = compute_interval(ratio.value, ratio.error, ratio.degrees, confidence)
        verdict = GuidelineVerdict.HOLDS if ratio.value <= 0 else GuidelineVerdict.NO_EVIDENCE
        if tests.p_values[at] <= SIGNIFICANCE and low > 1 + tolerance:
            verdict = GuidelineVerdict.VIOLATED
        known = {name: getattr(left, name) for name in CaseKey._fields if name in GuidelineRecord.__struct_fields__}
        redops = [key.redop for key in (left, *right) if key.redop is not None]
        checked.append(
            GuidelineRecord(
                **known | {"redop": redops[0] if redops else None},
                guideline=text,
                left_us=_get_median_us(side, [left]),
                right_us=_get_median_us(side, right),
                ratio=float(np.exp(ratio.value)),
                ratio_low=low,
                ratio_high=high,
                confidence=confidence,
                p_value=float(tests.p_values[at]),
                verdict=verdict,
            )
        )
    return checked


def _find_rows(keys: Sequence[CaseKey]) -> Iterator[tuple[str, CaseKey, tuple[CaseKey, ...]]]:
    """Yield each guideline of which all cases were measured (are in `keys`), at each size and engine.

    A guideline is yielded as its text, such as `all_reduce <= reduce + broadcast`, the case on its left and the cases
    on its right.
    """
    known = {_simplify(key): key for key in keys}
    for left, others in GUIDELINES:
        for key in keys:
            if key.op == left and key.algorithm in (None, AUTO):
                right = [_find_row(known, key, op) for op in others]
                if None not in right:
                    rows = tuple(row for row in right if row is not None)
                    yield f"{left} <= {' + '.join(others)}", key, rows
    for key in keys:
        above = [other for other in keys if other.nbytes > key.nbytes and other == key._replace(nbytes=other.nbytes)]
        if above:
            following = min(above, key=lambda longer: longer.nbytes)
            yield f"{key.op} <= {key.op} of the next larger size", key, (following,)


def _simplify(key: CaseKey, **changes: Any) -> tuple[object, ...]:
    """Return the fields of `key`, with `changes`, by which `_find_row` looks up a case: all except redop and root."""
    case = key._replace(**changes)
    place = case.op in _ONLY_IN_PLACE or case.in_place
    return (case.op, case.engine, case.algorithm, case.buffer, place, case.nbytes, case.dtype, case.ranks, case.nodes)


def _find_row(known: Mapping[tuple[object, ...], CaseKey], key: CaseKey, op: str) -> CaseKey | None:
    """Return the measured case of operation `op` with the engine, size and memory of `key`; None if there is none.

    `known` maps the result of `_simplify` for each measured case to the case.
    """
    places = (key.in_place,) if key.op not in _ONLY_IN_PLACE else (True, False)
    for place in places:
        row = known.get(_simplify(key, op=op, in_place=place))
        if row is not None and (None in (row.redop, key.redop) or row.redop == key.redop):
            return row
    return None


def _measure_ratio(side: ComparedSide, left: CaseKey, right: Sequence[CaseKey]) -> _LogRatio:
    """Return log(median time of `left` / sum of the median times of `right`), with its standard error and p-value.

    If some runs measured `left` and all cases of `right`, only these runs are used. If no run measured all of them,
    each case has its times from the first run that measured the case.
    """
    from scipy.special import stdtr

    runs = [run.rows for run in side.runs if all(key in run.rows for key in (left, *right))]
    if not runs:  # the rows are in different runs
        runs = [{key: next(run.rows[key] for run in side.runs if key in run.rows) for key in (left, *right)}]
    values, variances = [], []
    for rows in runs:
        medians = np.array([rows[key].time_us.p50 for key in right])
        shares = medians / max(float(medians.sum()), 1e-3)
        least = GUIDELINE_NOISE**2 + (DISTURBED_NOISE**2 if find_disturbed_operations(rows.values()) else 0.0)
        within = [compute_batch_variance(rows[key].samples_us) + least for key in (left, *right)]
        values.append(float(np.log(max(rows[left].time_us.p50, 1e-3) / max(float(medians.sum()), 1e-3))))
        variances.append(within[0] + float(np.sum(shares**2 * within[1:])))
    value, prior = float(np.mean(values)), float(np.mean(variances))
    degrees = float(RUN_DEGREES)
    if len(runs) > 1:
        own = len(runs) - 1
        degrees = PRIOR_DEGREES + own
        prior = (PRIOR_DEGREES * prior + own * float(np.var(values, ddof=1))) / degrees
    error = float(np.sqrt(prior / len(runs)))
    p_value = float(stdtr(degrees, -value / error))
    if len(right) == 1:
        samples = [np.concatenate([rows[key].samples_us for rows in runs]) for key in (right[0], left)]
        order = compare_samples(*samples)
        p_value = max(p_value, order.p_value / 2 if order.probability > 1 / 2 else 1.0)
    return _LogRatio(value, error, degrees, p_value)


def _get_median_us(side: ComparedSide, keys: Sequence[CaseKey]) -> float:
    """Return the summed times of the cases `keys` in us; the time of a case is the mean of its medians in all runs."""
    return float(sum(np.mean([run.rows[key].time_us.p50 for run in side.runs if key in run.rows]) for key in keys))
