"""Makes records of kind `barrier` from the times at which ranks enter and leave barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpccoll.barrier_suite.prediction import BarrierPrediction
from hpccoll.barrier_suite.round_times import RoundTimes
from hpccoll.plan import Floats
from hpccoll.records import BarrierKey, BarrierRecord
from hpccoll.statistics import summarize

MOST_LATE = 0.5  # if more than this fraction of the rounds are late, the entries were not those of the pattern
TOLERANCE_S, TOLERANCE = 10e-6, 0.1  # a round is late if a rank enters later than this, or this share of the spread


def make_barrier_record(
    key: BarrierKey,
    times: RoundTimes,
    *,
    spread_s: float,
    nodes: int,
    clock_error_s: float,
    machine: str | None = None,
    prediction: BarrierPrediction | None = None,
    even_completion_s: float | None = None,
    all_reduce_s: Sequence[float] | None = None,
) -> BarrierRecord:
    """Return the record of one barrier with one arrival pattern, from the times of its rounds.

    Args:
        key: engine, algorithm, arrival pattern and number of ranks.
        times: the times of all rounds.
        spread_s: the largest planned delay.
        nodes: the number of nodes.
        clock_error_s: the error of the clock on which the times were read.
        machine: the name of the machine model with which `prediction` was simulated.
        prediction: the simulated times; None without a simulation.
        even_completion_s: the barrier's median time if all ranks enter together; None in the record of pattern `none`.
        all_reduce_s: times of an all-reduce after the barrier; None if they were not measured.
    """
    return BarrierRecord(
        **key._asdict(),
        **_summarize_times(times),
        spread_us=round(spread_s * 1e6, 3),
        nodes=nodes,
        late_rounds=_count_late_rounds(times, spread_s),
        absorbed=_compute_absorbed(times, spread_s, even_completion_s),
        unsafe=times.count_unsafe_rounds(clock_error_s),
        clock_error_us=round(clock_error_s * 1e6, 3),
        machine=machine,
        predicted_us=None if prediction is None else round(max(prediction.completion_s, 0.0) * 1e6, 3),
        predicted_exit_skew_us=None if prediction is None else round(prediction.exit_skew_s * 1e6, 3),
        all_reduce_us=None if all_reduce_s is None else summarize(_to_us(np.asarray(all_reduce_s))),
    )


def _summarize_times(times: RoundTimes) -> dict[str, Any]:
    """Return the fields of a `barrier` record that are computed from `times` alone, by the field's name."""
    # Barrier times below zero, which the error of the clock can cause, count as zero; unsafe rounds are counted apart.
    completion, skew = (_to_us(np.maximum(seconds, 0.0)) for seconds in (times.completion, times.exit_skew))
    planned = times.planned - times.planned.min(axis=1, keepdims=True)
    return {
        "rounds": times.rounds,
        "planned_us": _to_us(np.median(planned, axis=0)),
        "entry_us": _to_us(times.get_median_entries()),
        "exit_us": _to_us(times.get_median_exits()),
        "wait_us": _to_us(np.median(times.wait, axis=0)),
        "release_order": tuple(times.find_release_order()),
        "entry_spread_us": summarize(_to_us(times.entry_spread)),
        "completion_us": summarize(completion),
        "exit_skew_us": summarize(skew),
        "completion_samples_us": completion,
        "exit_skew_samples_us": skew,
    }


def _compute_absorbed(times: RoundTimes, spread_s: float, even_completion_s: float | None) -> float | None:
    """Return the fraction of the ranks' planned spread that a barrier hides, rounded to four decimals.

    `even_completion_s` is the barrier's median time if all ranks enter together. The result is None if
    `even_completion_s` is None, if all ranks enter together (`spread_s` is 0), or if a rank entered too late in most
    rounds.
    """
    disturbed = _count_late_rounds(times, spread_s) > MOST_LATE * times.rounds
    if even_completion_s is None or not spread_s or disturbed:
        return None
    absorbed = times.compute_absorbed(even_completion_s)
    return None if absorbed is None else round(absorbed, 4)


def _count_late_rounds(times: RoundTimes, spread_s: float) -> int:
    """Return the number of rounds in which a rank entered later than planned by more than the tolerance.

    The tolerance is 10 us or a tenth of `spread_s` (the largest planned delay), whichever is more.
    """
    return times.count_late_rounds(max(TOLERANCE_S, TOLERANCE * spread_s))


def _to_us(seconds: Floats) -> tuple[float, ...]:
    """Return times in microseconds, rounded to nanoseconds."""
    return tuple(np.round(seconds * 1e6, 3).tolist())
