"""Lets all ranks start a timed iteration together: by a barrier, or in a start window of a global clock.

Ranks leave a barrier one after the other, so after a barrier each sample contains the skew of that barrier. With start
windows, rank 0 announces the time of the next start, and every rank waits for this time on its global clock. A round
in which a rank was not ready in time, or lost its core, is discarded (the Round-Time scheme of Hunold and
Carpen-Amarie, CLUSTER'18). Windows need a core for every rank, because ranks wait by reading the clock.

Synchronizing the clocks may take a share of the run's time (`SyncBudget`). After this share of the time, iterations
start by a barrier.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

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

POLL_S = 20e-6  # between two looks whether all ranks are ready
LATE_S, LATE_SHARE = 3e-6, 0.02  # a rank is late if it starts this long, and this share of its time, after the start
FIRST_WINDOW_S, SHORTEST_WINDOW_S, LONGEST_WINDOW_S = 50e-6, 5e-6, 1e-3
# A window is MARGIN times as long as the share READY of the rounds needed.
# On busy cores, the other rounds need milliseconds, and a rank that waits for milliseconds is likely to lose its core.
MARGIN, READY = 1.5, 0.6
SPAN_S, HORIZON_S = 0.1, 1.0  # of the first synchronization; later ones make the drift more precise
SHORTEST_SPAN_S = 0.02  # in less time, the drift is so uncertain that windows are missed
REFRESH_S = 1.0  # the clock is synchronized again after this time
STALE_S = 5.0  # and not used any more after this time


class IterationStart(NamedTuple):
    """The start of one iteration on this rank.

    `start_s` is the announced time of the start on this rank's clock, or infinity after a barrier, so that no rank is
    late. `delay_s` is the time from the announcement until this rank was ready; `missed` is whether the rank was ready
    too late.
    """

    start_s: float
    delay_s: float
    missed: bool

    def is_late(self, begin_s: float, seconds: float) -> bool:
        """Whether an iteration that took `seconds` and began at `begin_s` on this rank's clock began too late."""
        return self.missed or begin_s - self.start_s > max(LATE_S, LATE_SHARE * seconds)


class IterationStarter(Protocol):
    """Lets all ranks start a timed iteration together. All methods are collective."""

    method: StartMethod
    barrier_reason: str  # why iterations start by a barrier, a clause that begins with "as"; empty if the user asked

    @property
    def sync_s(self) -> float:
        """The seconds that synchronizing clocks has taken so far."""

    def wait(self, works_in_threads: bool) -> IterationStart:
        """Block until all ranks may start an iteration.

        `works_in_threads` is whether the timed call needs cores for threads of its own; waiting ranks then sleep.
        """

    def adapt(self, delays_s: NDArray[np.float64]) -> None:
        """Adapt the start of later iterations to the times that the slowest rank needed in the latest iterations."""

    def refresh(self) -> None:
        """Synchronize the clocks again if they may have become wrong; called between iterations."""

    def measure_residual(self) -> Residual | None:
        """Measure and return the current errors of all ranks' clocks; None if no clocks are used."""

    def describe_clock(self) -> dict[str, str | float]:
        """Return fields for the record of kind `run`: the clock's scheme, its current error and its cost so far."""


@dataclass(slots=True)
class BarrierStarter:
    """Starts iterations by a barrier of `comm`.

    `barrier_reason` states why, as a clause that begins with "as"; it is empty if the user asked for barriers.
    """

    comm: MPI.Intracomm
    barrier_reason: str = ""
    method = StartMethod.BARRIER

    @property
    def sync_s(self) -> float:
        """Zero, because a barrier needs no synchronized clocks."""
        return 0.0

    def wait(self, works_in_threads: bool) -> IterationStart:
        """Pass a barrier; if `works_in_threads`, sleep until all ranks are there, because MPI's wait uses a core."""
        if works_in_threads:
            wait_asleep(self.comm)
        self.comm.Barrier()
        return IterationStart(float("inf"), 0.0, missed=False)

    def adapt(self, delays_s: NDArray[np.float64]) -> None:
        """Do nothing, because a barrier waits as long as the slowest rank needs."""

    def refresh(self) -> None:
        """Do nothing, because a barrier needs no clock."""

    def measure_residual(self) -> Residual | None:
        """Return None, because a barrier needs no clock."""
        return None

    def describe_clock(self) -> dict[str, str | float]:
        """Return an empty dict, because a barrier needs no clock."""
        return {}


class WindowStarter:
    """Starts iterations at times of a global clock, which the constructor synchronizes.

    Args:
        comm: the ranks, each with a core of its own.
        clock: the name of the synchronization scheme.
        window_s: time from the announcement of a start to the start; None to adapt it to the time that ranks need.
        span_s: seconds that each step of the first synchronization may take, in which some pairs of ranks measure.
        budget: limits the time of synchronizing again; None for no limit.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        clock: str = "hca3",
        window_s: float | None = None,
        span_s: float = SPAN_S,
        budget: SyncBudget | None = None,
    ) -> None:
        self.comm, self.fixed = comm, window_s is not None
        self.method, self.barrier_reason = StartMethod.WINDOW, ""
        self.window_s = FIRST_WINDOW_S if window_s is None else window_s
        self._budget = SyncBudget(float("inf")) if budget is None else budget
        self._barrier = BarrierStarter(comm)
        self._announced = np.empty(1)
        self._residual_s = 0.0  # seconds that the last measurement of the clocks' errors took
        with self._budget.count_time():
            self.clock: GlobalClock = synchronize(comm, clock, span_s=span_s, horizon_s=HORIZON_S, limit_s=2 * span_s)
        self._refreshed_s = time.perf_counter()
        self._refresh_s = 0.0  # seconds that the last synchronization after the first one took

    @property
    def sync_s(self) -> float:
        """The seconds that synchronizing clocks has taken so far on this rank."""
        return self._budget.spent_s

    def wait(self, works_in_threads: bool) -> IterationStart:
        """Let rank 0 announce a time of the global clock, and wait for this time.

        A barrier precedes the announcement, so that the window needs to be as long as a broadcast only.
        """
        if self.method is StartMethod.BARRIER:
            return self._barrier.wait(works_in_threads)
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

        If the budget allows no synchronization for STALE_S seconds, `method` becomes BARRIER for the rest of the run.
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
        """Measure and return the current errors of all ranks' clocks; None if this would exceed the budget."""
        if self.method is StartMethod.BARRIER or not self.comm.bcast(self._budget.left_s > self._residual_s):
            return None
        before_s = self._budget.spent_s
        with self._budget.count_time():
            residual = measure_residual(self.comm, self.clock)
        self._residual_s = self._budget.spent_s - before_s
        return residual

    def describe_clock(self) -> dict[str, str | float]:
        """Return fields for the record of kind `run`: the clock's scheme, its largest error, and the cost so far."""
        residual = self.measure_residual()
        described: dict[str, str | float] = {"clock": self.clock.scheme, "clock_sync_s": round(self.clock.cost_s, 6)}
        if residual is None:
            return described
        bounds = {"clock_residual_us": residual.offset_us, "clock_bound_us": residual.bound_us}
        return described | {name: round(error_us, 3) for name, error_us in bounds.items()}

    def explain_misses(self, discarded: int, rounds: int, delays_s: NDArray[np.float64]) -> UsageError:
        """Return the error to raise if --window is too short.

        `discarded` of `rounds` iterations were missed by a rank; `delays_s` are the times that the slowest rank needed.
        """
        enough_us = max(MARGIN * float(np.quantile(delays_s, READY)), SHORTEST_WINDOW_S) * 1e6
        missed = f"a rank missed the start of {discarded} of {rounds} rounds"
        remedy = f"use --window {enough_us:.0f} or leave the option out"
        return UsageError(f"--window {self.window_s * 1e6:g} is too short: {missed}; {remedy}")


def describe_sync_cost(budget: SyncBudget) -> str:
    """Return a clause that states why iterations start by barriers: synchronizing clocks would exceed the budget."""
    return f"as synchronizing clocks would take more than {budget.share:.0%} of the run"


def choose_span_s(comm: MPI.Intracomm, clock: str, budget: SyncBudget) -> float | None:
    """Return how many seconds each step of the first synchronization of clocks may take; None if there are too few.

    `clock` is the name of the scheme. Half of the budget is kept, because messages on busy cores take longer than
    planned. Collective.
    """
    span_s = float(comm.bcast(min(SPAN_S, budget.left_s / 2 / max(count_waves(comm, clock), 1))))
    return span_s if span_s >= SHORTEST_SPAN_S else None


def wait_asleep(comm: MPI.Intracomm) -> None:
    """Block until all ranks have called this function; ranks that wait sleep, which frees their cores. Collective."""
    arrival = comm.Ibarrier()
    while not arrival.Test():
        time.sleep(POLL_S)
