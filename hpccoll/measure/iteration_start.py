"""Lets all ranks start a timed iteration together: by a barrier, or in a start window of a global clock.

Ranks leave a barrier one after the other, so a sample that begins after a barrier contains the skew of that barrier.
With start windows, rank 0 announces the time of the next start, and every rank waits for this time on its global clock.
An iteration for which a rank was not ready in time, or lost its core, is discarded (the Round-Time scheme of Hunold and
Carpen-Amarie, CLUSTER'18). Start windows need a core for every rank, because ranks wait by reading the clock.

Synchronizing the clocks may take only a share of the run's time (`SyncBudget`); once this share is used up, iterations
start by a barrier.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import UsageError
from hpccoll.measure.clock import (
    GlobalClock,
    Residual,
    SyncBudget,
    count_waves,
    measure_residual,
    resynchronize,
    synchronize,
)
from hpccoll.records import StartMethod

if TYPE_CHECKING:
    from mpi4py import MPI

POLL_S = 20e-6  # pause between two tests whether all ranks are ready
LATE_S, LATE_SHARE = 3e-6, 0.02  # a rank is late if it starts this long, and this share of its time, after the start
FIRST_WINDOW_S, SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 50e-6, 5e-6, 1e-3
# A start window is MARGIN times as long as the time within which all ranks were ready in a fraction READY of rounds.
# On busy cores, ranks may need milliseconds until all are ready; in so long a window, waiting ranks would lose cores.
MARGIN, READY = 1.5, 0.6
SPAN_S, HORIZON_S = 0.1, 1.0  # `synchronize` gets these values first; later synchronizations refine the drift
SHORTEST_SPAN_S = 0.02  # a shorter synchronization leaves the drift so uncertain that ranks miss their start windows
REFRESH_S = 1.0  # the clock is synchronized again after this time
STALE_S = 5.0  # a clock that was synchronized longer ago than this is not used


class IterationStart(NamedTuple):
    """The start of one iteration on this rank.

    `start_s` is the announced time of the start on this rank's clock, or infinity if the iteration starts by a barrier,
    for which no rank is late. `delay_s` is the time from the announcement until this rank was ready; `missed` is
    whether the rank was ready too late.
    """

    start_s: float
    delay_s: float
    missed: bool

    def is_late(self, begin_s: float, seconds: float) -> bool:
        """Whether an iteration began too late: it began at `begin_s` on this rank's clock and took `seconds`."""
        return self.missed or begin_s - self.start_s > max(LATE_S, LATE_SHARE * seconds)


class BarrierStarter:
    """Lets all ranks of `comm` start a timed iteration together, by a barrier; base class of `WindowStarter`.

    All methods are collective. `barrier_reason` states why iterations start by a barrier, as a clause that begins with
    "as"; it is empty if the user asked for barriers.
    """

    def __init__(self, comm: MPI.Intracomm, barrier_reason: str = "") -> None:
        self.comm, self.barrier_reason = comm, barrier_reason
        self.method = StartMethod.BARRIER

    @property
    def sync_s(self) -> float:
        """The seconds that synchronizing clocks has taken so far on this rank; 0 without clocks."""
        return 0.0

    def wait(self, works_in_threads: bool) -> IterationStart:
        """Block until all ranks may start an iteration; return the start, for which no rank is late with a barrier.

        `works_in_threads` is whether the timed call needs cores for threads of its own; waiting ranks then sleep, which
        frees their cores.
        """
        if works_in_threads:
            wait_asleep(self.comm)
        self.comm.Barrier()
        return IterationStart(float("inf"), 0.0, missed=False)

    def adapt(self, delays_s: NDArray[np.float64]) -> None:
        """Adapt the start of later iterations to the times that the slowest rank lately needed to be ready.

        A barrier waits as long as the slowest rank needs.
        """

    def refresh(self) -> None:
        """Synchronize the clocks, if any, again if they may have become wrong; called between iterations."""

    def measure_residual(self) -> Residual | None:
        """Return the current errors of all ranks' clocks; None without clocks, or if measuring takes too long."""
        return None

    def describe_clock(self) -> dict[str, str | float]:
        """Return the clock's scheme, current error and cost so far, as fields of a `run` record; {} without a clock."""
        return {}


class WindowStarter(BarrierStarter):
    """Starts iterations at times of a global clock, which the constructor synchronizes.

    The constructor and all methods are collective.

    Args:
        comm: the ranks, each with a core of its own.
        clock: the name of the synchronization scheme.
        window_s: seconds from the announcement of a start to the start; None to adapt them to the time in which ranks
            get ready.
        span_s: seconds that each step of the first synchronization may take; in a step, some pairs of ranks measure.
        budget: limits the time of all later synchronizations; None for no limit.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        clock: str = "hca3",
        window_s: float | None = None,
        span_s: float = SPAN_S,
        budget: SyncBudget | None = None,
    ) -> None:
        super().__init__(comm)
        self.method, self.fixed = StartMethod.WINDOW, window_s is not None
        self.window_s = FIRST_WINDOW_S if window_s is None else window_s
        self._budget = SyncBudget(float("inf")) if budget is None else budget
        self._announced = np.empty(1)
        self._residual_s = 0.0  # seconds that the last measurement of the clocks' errors took
        with self._budget.count_time():
            self.clock: GlobalClock = synchronize(comm, clock, span_s=span_s, horizon_s=HORIZON_S, limit_s=2 * span_s)
        self._refreshed_s = time.perf_counter()
        self._refresh_s = 0.0  # seconds that the last synchronization after the first one took

    @property
    def sync_s(self) -> float:
        return self._budget.spent_s

    def wait(self, works_in_threads: bool) -> IterationStart:
        """Let rank 0 announce a time of the global clock, wait until then, and return this rank's start. Collective.

        A barrier precedes the announcement, so that the time from the announcement to the start can be short. Once
        `refresh` has stopped the use of the clock, iterations start by a barrier only.
        """
        if self.method is StartMethod.BARRIER:
            return super().wait(works_in_threads)
        if works_in_threads:
            wait_asleep(self.comm)
        read, clock, announced, window_s = time.perf_counter, self.clock, self._announced, self.window_s
        self.comm.Barrier()
        if self.comm.rank == 0:
            announced[0] = clock.now() + window_s
        self.comm.Bcast(announced)
        start_s = clock.to_local(announced.item())
        delay_s = read() - start_s + window_s
        start = IterationStart(start_s, delay_s, missed=delay_s > window_s)
        while read() < start_s:
            pass
        return start

    def adapt(self, delays_s: NDArray[np.float64]) -> None:
        """Choose the time from the announcement to the start of later iterations, unless the caller fixed it."""
        if not self.fixed and len(delays_s):
            needed_s = MARGIN * float(np.quantile(delays_s, READY))
            self.window_s = min(max(needed_s, 0.7 * self.window_s, SHORTEST_WINDOW_S), LONGEST_WINDOW_S)

    def refresh(self) -> None:
        """Synchronize the clocks again if rank 0 finds the last synchronization too old, and the budget allows it.

        If the budget allows no synchronization for STALE_S seconds, iterations start by barriers for the rest of the
        run. Collective.
        """
        if self.method is StartMethod.BARRIER:
            return
        age_s = time.perf_counter() - self._refreshed_s
        is_due, is_stale = age_s > REFRESH_S, age_s > STALE_S
        is_due, is_stale = self.comm.bcast((is_due and self._budget.left_s > self._refresh_s, is_stale))
        if is_due:
            before_s = self._budget.spent_s
            with self._budget.count_time():
                self.clock = resynchronize(self.comm, self.clock)
            self._refreshed_s = time.perf_counter()
            self._refresh_s = self._budget.spent_s - before_s
        elif is_stale:
            self.method, self.barrier_reason = StartMethod.BARRIER, describe_sync_cost(self._budget)

    def measure_residual(self) -> Residual | None:
        """Measure and return the current errors of all ranks' clocks. Collective.

        Returns None if iterations start by barriers, or if too little time is left to measure the errors.
        """
        if self.method is StartMethod.BARRIER or not self.comm.bcast(self._budget.left_s > self._residual_s):
            return None
        before_s = self._budget.spent_s
        with self._budget.count_time():
            residual = measure_residual(self.comm, self.clock)
        self._residual_s = self._budget.spent_s - before_s
        return residual

    def describe_clock(self) -> dict[str, str | float]:
        """Return the clock's scheme, cost and measured largest error, as fields of a `run` record. Collective.

        The error is left out if its measurement would exceed the budget.
        """
        residual = self.measure_residual()
        described: dict[str, str | float] = {"clock": self.clock.scheme, "clock_sync_s": round(self.clock.cost_s, 6)}
        if residual is None:
            return described
        bounds = {"clock_residual_us": residual.offset_us, "clock_bound_us": residual.bound_us}
        return described | {name: round(error_us, 3) for name, error_us in bounds.items()}

    def explain_misses(self, discarded: int, rounds: int, delays_s: NDArray[np.float64]) -> UsageError:
        """Return a UsageError, for the caller to raise, which proposes a value for a --window that is too short.

        A rank missed the start of `discarded` of `rounds` iterations; `delays_s` has the slowest rank's time to get
        ready.
        """
        enough_us = max(MARGIN * float(np.quantile(delays_s, READY)), SHORTEST_WINDOW_S) * 1e6
        missed = f"a rank missed the start of {discarded} of {rounds} rounds"
        remedy = f"use --window {enough_us:.0f} or leave the option out"
        return UsageError(f"--window {self.window_s * 1e6:g} is too short: {missed}; {remedy}")


def describe_sync_cost(budget: SyncBudget) -> str:
    """Return a clause that states why iterations start by barriers: synchronizing clocks would exceed the budget."""
    return f"as synchronizing clocks would take more than {budget.share:.0%} of the run"


def choose_span_s(comm: MPI.Intracomm, clock: str, budget: SyncBudget) -> float | None:
    """Return how many seconds each step of the first synchronization may take; None if fewer than SHORTEST_SPAN_S.

    `clock` is the name of the scheme. Half of the budget is kept in reserve, because messages on busy cores take longer
    than planned. Collective.
    """
    span_s = float(comm.bcast(min(SPAN_S, budget.left_s / 2 / max(count_waves(comm, clock), 1))))
    return span_s if span_s >= SHORTEST_SPAN_S else None


def wait_asleep(comm: MPI.Intracomm) -> None:
    """Block until all ranks have called this function; ranks that wait sleep, which frees their cores. Collective."""
    arrival = comm.Ibarrier()
    while not arrival.Test():
        time.sleep(POLL_S)
