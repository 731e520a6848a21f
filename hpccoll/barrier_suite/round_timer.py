"""Times rounds of a barrier on a clock that all ranks share; ranks enter at planned times and note entry and exit.

Rank 0 plans the rounds of a batch, one window of time per round, and broadcasts the begin of the first window and the
length of a window. In each round, a rank waits until the round's window begins, waits for its own planned delay, enters
the barrier, and notes the times of entry and exit. If a round takes longer than a window, the next rounds begin late,
and ranks enter them as soon as they can.

Ranks with a core of their own wait by reading the clock. Ranks that share cores sleep, because a rank that reads the
clock keeps another rank from running.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hpccoll.barrier_suite.round_times import RoundTimes
from hpccoll.plan import Floats

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpccoll.barrier_suite.time_limit import TimeLimit

FIRST_WINDOW_S = 1e-3  # the window of a barrier that has not been timed before
LEAD_S, SHARED_LEAD_S = 1e-4, 2e-3  # time from a broadcast to the first window, per doubling of the number of ranks
SLEEP_MARGIN_S = 3e-4  # a rank that sleeps wakes up this long before its entry
SLEEP_ABOVE_S, SHARED_SLEEP_ABOVE_S = 1e-2, 4e-4  # longer waits sleep
WINDOW_QUANTILE, WINDOW_FACTOR, WINDOW_MARGIN_S = 0.9, 1.5, 1e-4


class CommonClock(Protocol):
    """A clock that all ranks share, such as `hpccoll.measure.clock.GlobalClock`."""

    def now(self) -> float:
        """Return the current time in seconds, the same on all ranks."""


class RoundTimer:
    """Times calls of barriers on a clock that the ranks share, so that each rank enters at a planned time.

    Args:
        comm: the ranks that enter the barriers.
        clock: the clock that the ranks share.
        shares_cores: whether a node has more ranks than cores.
        limit: the time limit of each call; None for no limit.
    """

    def __init__(
        self, comm: MPI.Intracomm, clock: CommonClock, shares_cores: bool, limit: TimeLimit | None = None
    ) -> None:
        self.comm, self.clock, self.shares_cores, self.limit = comm, clock, shares_cores, limit
        self._sleep_above_s = SHARED_SLEEP_ABOVE_S if shares_cores else SLEEP_ABOVE_S
        doublings = 1 + (comm.size - 1).bit_length()
        self._lead_s = (SHARED_LEAD_S if shares_cores else LEAD_S) * doublings

    def time_batch(
        self, call: Callable[[], object], delays_s: Floats, window_s: float, extra_s: float = 0.0
    ) -> RoundTimes | None:
        """Call a barrier in one round per row of `delays_s`, and note when ranks enter and leave it. Collective.

        Returns the times of all ranks on rank 0, and None on other ranks.

        Args:
            call: the barrier.
            delays_s: the planned delay of each rank in each round, shape (rounds, ranks).
            window_s: the time from the begin of a round to the begin of the next round; rank 0's value is used.
            extra_s: a further delay of this rank, which the planned times of the result do not include.
        """
        now, rank = self.clock.now, self.comm.rank
        first, window = self.comm.bcast((now() + self._lead_s, window_s) if rank == 0 else None)
        times = np.empty((len(delays_s), 2))
        starts = first + window * np.arange(len(delays_s))
        own_delays_s = (delays_s[:, rank] + extra_s).tolist()
        for i, (start, delay) in enumerate(zip(starts.tolist(), own_delays_s, strict=True)):
            self.wait_until(start)
            self.wait_until(now() + delay)
            if self.limit is not None:
                self.limit.begin_call(i)
            entered = now()
            call()
            times[i, 0], times[i, 1] = entered, now()
        if self.limit is not None:
            self.limit.end_call()
        gathered = self.comm.gather(times)
        if gathered is None:
            return None
        whole = np.stack(gathered, axis=1)
        return RoundTimes(starts[:, None] + delays_s, whole[:, :, 0], whole[:, :, 1])

    def wait_until(self, target: float) -> None:
        """Wait until the common clock shows the time `target` in seconds; return at once if this time has passed."""
        now = self.clock.now
        left = target - now()
        if left > self._sleep_above_s:
            time.sleep(left - SLEEP_MARGIN_S)
        if self.shares_cores:
            while now() < target:
                os.sched_yield()
        else:
            while now() < target:
                pass


def choose_window(times: RoundTimes | None, spread_s: float) -> float:
    """Return the window of the next batch: the seconds that each of its rounds should get. Not collective; for rank 0.

    The window is 1.5 times the 90th percentile of the times that the last batch's rounds took, plus a margin. A round
    that does not fit into its window delays the next rounds of its batch.

    Args:
        times: the times of the last batch; None before the first batch.
        spread_s: the largest planned delay of a rank.
    """
    if times is None:
        return FIRST_WINDOW_S + spread_s
    begins = times.planned.min(axis=1)
    begins[1:] = np.maximum(begins[1:], times.exit.max(axis=1)[:-1])
    durations = times.exit.max(axis=1) - begins
    return WINDOW_FACTOR * float(np.quantile(durations, WINDOW_QUANTILE)) + WINDOW_MARGIN_S
