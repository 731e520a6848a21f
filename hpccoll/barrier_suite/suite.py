"""Runs the barrier suite: first the rounds that show late ranks, then all barriers in turns with each arrival pattern.

A first turn of every barrier finds the fastest barrier, which the rounds that show late ranks use. The late rank is
reported first, because users ask for it first. The first arrival pattern is always `none` (all ranks enter together).
The times with `none` scale the other patterns: unless the user states a spread, the largest delay of a pattern is the
barrier's own median time with pattern `none`, times `SuiteOptions.scale`. Within a pattern, all barriers take
turns, each time in a new random order, so that a disturbance affects all of them.

Rank 0 computes the records. All ranks make the same collective calls, because rank 0 broadcasts its decisions.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from hpccoll.barrier_suite.all_reduce_after import time_all_reduce_after
from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern
from hpccoll.barrier_suite.barrier_calls import BarrierCall
from hpccoll.barrier_suite.barrier_row import make_barrier_record
from hpccoll.barrier_suite.prediction import BarrierPrediction, fit_to_barriers, predict_barrier
from hpccoll.barrier_suite.round_timer import CommonClock, RoundTimer, choose_window
from hpccoll.barrier_suite.round_times import RoundTimes, join_rounds
from hpccoll.barrier_suite.straggler_rounds import time_straggler_rounds
from hpccoll.plan import Machine
from hpccoll.records import BarrierKey, BarrierRecord

BATCH = 10  # rounds of a turn
LEAST_SPREAD_S = 2e-6  # a smaller spread would vanish in the error of the entries
STRAGGLER_ROUNDS = 240
LONGEST_BARRIER_S = 2e-3  # in rounds of the straggler report, a barrier gets at most this time
ROW_BUDGET_S, FEWEST_ROUNDS = 3.0, 5  # a barrier whose rounds take longer than the budget gets fewer rounds


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """Which arrival patterns `hpccoll barrier` measures, and for how many rounds."""

    patterns: tuple[ArrivalPattern, ...]  # the arrival patterns, without `none`, which is always measured
    rounds: int  # timed rounds per barrier and pattern
    scale: float  # the largest delay of a pattern, as a multiple of the barrier's time if all ranks enter together
    spread_s: float | None  # the largest delay of all patterns in seconds; None to use `scale`
    seed: int  # the seed of the patterns and of the order of the barriers
    # A delay of this rank in every round in seconds, on top of the pattern's delay (--inject-delay)
    extra_s: float = 0.0


@dataclass(slots=True)
class _TimedBarrier:
    """One barrier, and its measurements with one arrival pattern so far."""

    barrier: BarrierCall
    spread_s: float = 0.0  # the largest delay of a rank in the arrival pattern, in seconds
    parts: list[RoundTimes] = field(default_factory=list)  # the times of each turn, on rank 0 only
    done: int = 0  # number of measured rounds
    spent_s: float = 0.0  # time that the measurements took


class BarrierSuite:
    """Measures several barriers with several arrival patterns, in turns.

    Call `begin`, and then iterate over `run()`; both methods are collective over the ranks of `timer`.

    Args:
        timer: times rounds.
        barriers: the barriers to compare.
        options: the arrival patterns and the number of rounds.
        nodes: the number of ranks on each node.
        machine: the machine model of predictions; None to fit one to the barriers that all ranks enter together.
        clock_error_s: the error of the common clock; an exit too early by at most this time is not counted as unsafe.
        refresh_clock: returns a newly synchronised clock; called before each pattern, collective; None: keep the clock.
        measure_clock_error_s: returns the error of the clock now; called after each pattern, collective; None to
            assume that the error stays `clock_error_s`.
    """

    def __init__(
        self,
        timer: RoundTimer,
        barriers: Sequence[BarrierCall],
        options: SuiteOptions,
        nodes: Sequence[int],
        machine: Machine | None,
        clock_error_s: float,
        refresh_clock: Callable[[], CommonClock] | None = None,
        measure_clock_error_s: Callable[[], float] | None = None,
    ) -> None:
        self._refresh_clock, self._measure_clock_error_s = refresh_clock, measure_clock_error_s
        self.timer, self.barriers, self.options, self.nodes = timer, tuple(barriers), options, tuple(nodes)
        self.machine, self.clock_error_s = machine, clock_error_s
        self.refused: list[str] = []  # why some barriers cannot run
        self.records: list[BarrierRecord] = []  # on rank 0: those of this run and of the resumed file
        # Rank 0 calls `on_share` with the fraction of the present pattern's rounds that are done, to show progress.
        self.on_share: Callable[[float], None] | None = None
        self.on_pattern_end: Callable[[], None] | None = None
        self._finished: tuple[BarrierRecord, ...] = ()
        self._begun: list[_TimedBarrier] = []  # barriers with their first turn, in which all ranks enter together
        self._random = random.Random(options.seed)  # noqa: S311 - the same order on every rank, not a secret

    def begin(self, finished: Collection[BarrierRecord] = ()) -> None:
        """Measure a first batch of rounds of every barrier, with all ranks entering together. Collective.

        `finished` has the records of the run that is resumed, the same on all ranks; their cases are not measured
        again.
        """
        self._finished = tuple(finished)
        self.records += finished
        self._begun = [_TimedBarrier(barrier) for barrier in self._list_missing(ArrivalPattern.NONE)]
        self._refresh()
        for row in self._random.sample(self._begun, len(self._begun)):
            self._take_turn(row, ArrivalPattern.NONE)

    def run(self) -> Iterator[BarrierRecord | None]:
        """Measure all barriers with all patterns; yield each record on rank 0, and None instead on other ranks.

        Collective: all ranks must take the same number of elements from the iterator.
        """
        for pattern in (ArrivalPattern.NONE, *self.options.patterns):
            rows = self._begun
            if pattern is not ArrivalPattern.NONE:
                rows = [
                    _TimedBarrier(barrier, self._choose_spread(barrier, pattern))
                    for barrier in self._list_missing(pattern)
                ]
                self._refresh()
            for record in self._run_pattern(pattern, rows):
                if record is not None:
                    self.records.append(record)
                yield record
            if self.on_pattern_end is not None:
                self.on_pattern_end()

    def count_missing(self) -> list[int]:
        """Return how many barriers are still to be measured with each pattern, `none` first. Not collective."""
        return [len(self._list_missing(pattern)) for pattern in (ArrivalPattern.NONE, *self.options.patterns)]

    def _list_missing(self, pattern: ArrivalPattern) -> list[BarrierCall]:
        """Return the barriers without a record for `pattern` in the resumed run."""
        keys = {record.key for record in self._finished}
        return [barrier for barrier in self.barriers if self._make_key(barrier, pattern) not in keys]

    def _refresh(self) -> None:
        """Replace the common clock by a newly synchronised one, if `refresh_clock` was given. Collective."""
        if self._refresh_clock is not None:
            self.timer.clock = self._refresh_clock()

    def get_even_record(self, barrier: BarrierCall) -> BarrierRecord | None:
        """Return a barrier's record with pattern `none` (all ranks enter together) on rank 0; None if it is missing."""
        key = self._make_key(barrier, ArrivalPattern.NONE)
        return next((record for record in self.records if record.key == key), None)

    def time_straggler_rounds(self) -> RoundTimes | None:
        """Measure the rounds that show whether a rank is late. Collective.

        The rounds use the barrier that is the fastest if all ranks enter together. Returns the times on rank 0, None on
        other ranks.
        """
        times = [self._get_even_us(barrier) for barrier in self.barriers]
        best, time_us = self.timer.comm.bcast((times.index(min(times)), min(times)))
        if self.timer.limit is not None:
            self.timer.limit.description = f"{self.barriers[best].name} in the rounds of the straggler report"
        return time_straggler_rounds(
            self.timer,
            self.barriers[best].call,
            patterns=(ArrivalPattern.NONE, *self.options.patterns),
            rounds=STRAGGLER_ROUNDS,
            barrier_s=min(time_us * 1e-6, LONGEST_BARRIER_S),
            spread_s=min(max(self.options.scale * time_us * 1e-6, LEAST_SPREAD_S), LONGEST_BARRIER_S),
            seed=self.options.seed,
            extra_s=self.options.extra_s,
        )

    def _get_even_us(self, barrier: BarrierCall) -> float:
        """Return a barrier's median time in microseconds if all ranks enter together, as measured so far.

        The result is infinite if the barrier was not measured, and on ranks other than 0.
        """
        record = self.get_even_record(barrier)
        if record is not None:
            return record.completion_us.p50
        parts = [part for row in self._begun if row.barrier is barrier for part in row.parts]
        return float(np.median(join_rounds(parts).completion)) * 1e6 if parts else math.inf

    def _make_key(self, barrier: BarrierCall, pattern: ArrivalPattern) -> BarrierKey:
        """Return the fields that identify a measurement: engine, algorithm, arrival pattern and number of ranks."""
        return BarrierKey(barrier.engine, barrier.algorithm, pattern.value, self.timer.comm.size)

    def _run_pattern(self, pattern: ArrivalPattern, rows: Sequence[_TimedBarrier]) -> Iterator[BarrierRecord | None]:
        """Measure barriers with one pattern in turns; yield the records on rank 0, None on other ranks. Collective."""
        running = [row for row in rows if not self._is_done(row)]
        while running:
            for row in self._random.sample(running, len(running)):
                self._take_turn(row, pattern)
            running = [row for row in running if not self._is_done(row)]
            if self.on_share is not None:
                left = sum(self.options.rounds - row.done for row in running)
                self.on_share(1 - left / (self.options.rounds * len(rows)))
        if self._measure_clock_error_s is not None:  # a clock that drifted away would make safe rounds look unsafe
            self.clock_error_s = max(self.clock_error_s, self._measure_clock_error_s())
        is_even = pattern is ArrivalPattern.NONE
        after = [time_all_reduce_after(self.timer, row.barrier.call, row.done) if is_even else None for row in rows]
        if self.timer.comm.rank == 0:
            self._fit_machine(rows, pattern)
        for row, times in zip(rows, after, strict=True):
            yield self._make_record(row, pattern, times) if self.timer.comm.rank == 0 else None

    def _choose_spread(self, barrier: BarrierCall, pattern: ArrivalPattern) -> float:
        """Return the largest delay of a pattern for a barrier in seconds, the same on all ranks. Collective."""
        if pattern is ArrivalPattern.NONE or self.options.spread_s is not None:
            return 0.0 if pattern is ArrivalPattern.NONE else self.options.spread_s or 0.0
        even = self.get_even_record(barrier)
        spread = None if even is None else max(self.options.scale * even.completion_us.p50 * 1e-6, LEAST_SPREAD_S)
        return float(self.timer.comm.bcast(spread))

    def _take_turn(self, row: _TimedBarrier, pattern: ArrivalPattern) -> None:
        """Measure a batch of rounds of one barrier, after warm-up calls in the first turn. Collective."""
        comm, begin = self.timer.comm, time.perf_counter()
        if self.timer.limit is not None:
            self.timer.limit.description = f"{row.barrier.name} with arrival pattern {pattern}"
        if not row.done:
            self.timer.time_batch(row.barrier.call, np.zeros((2, comm.size)), 0.0)
        count = min(BATCH, self.options.rounds - row.done) if row.done else min(FEWEST_ROUNDS, self.options.rounds)
        delays = pattern.make_delays(row.done + count, comm.size, row.spread_s, self.options.seed)[row.done :]
        window = choose_window(row.parts[-1] if row.parts else None, row.spread_s)
        times = self.timer.time_batch(row.barrier.call, delays, window, extra_s=self.options.extra_s)
        row.done += count
        row.spent_s += time.perf_counter() - begin
        if times is not None:
            row.parts.append(times)

    def _is_done(self, row: _TimedBarrier) -> bool:
        """Whether all rounds of a barrier are measured, or its time is used up; rank 0 decides. Collective."""
        return bool(self.timer.comm.bcast(row.done >= self.options.rounds or row.spent_s > ROW_BUDGET_S))

    def _fit_machine(self, rows: Sequence[_TimedBarrier], pattern: ArrivalPattern) -> None:
        """Set `machine`, the model for predictions, by a fit to the times of barriers that all ranks enter together.

        Does nothing if there is a model already, or if the pattern is not `none`. For rank 0.
        """
        if self.machine is not None or pattern is not ArrivalPattern.NONE:
            return
        times = {row.barrier.name: float(np.median(join_rounds(row.parts).completion)) for row in rows}
        times |= {row.name: row.completion_us.p50 * 1e-6 for row in self.records if row.pattern == pattern}
        plans = {
            barrier.name: barrier.plan
            for barrier in self.barriers
            if barrier.plan is not None and barrier.name in times
        }
        self.machine = fit_to_barriers(list(plans.values()), [times[name] for name in plans], self.nodes)

    def _make_record(
        self, row: _TimedBarrier, pattern: ArrivalPattern, all_reduce_s: list[float] | None
    ) -> BarrierRecord:
        """Return the record of a barrier's measurements with one pattern of arrivals. For rank 0.

        `all_reduce_s` has the times of an all-reduce after the barrier; None if they were not measured.
        """
        times, plan = join_rounds(row.parts), row.barrier.plan
        prediction: BarrierPrediction | None = None
        if plan is not None and self.machine is not None:
            prediction = predict_barrier(plan, self.machine, times.get_median_entries())
        even = self.get_even_record(row.barrier)
        return make_barrier_record(
            self._make_key(row.barrier, pattern),
            times,
            spread_s=row.spread_s,
            nodes=len(self.nodes),
            clock_error_s=self.clock_error_s,
            machine=self.machine.name if self.machine is not None and prediction is not None else None,
            prediction=prediction,
            even_completion_s=None if even is None else even.completion_us.p50 * 1e-6,
            all_reduce_s=all_reduce_s,
        )
