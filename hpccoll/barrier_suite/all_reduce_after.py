"""Times an all-reduce that starts after a barrier, as in most benchmarks, and one that all ranks start at a fixed time.

A benchmark that starts its iterations by a barrier also measures the exit skew of the barrier: the ranks that leave
early wait in the all-reduce for the ranks that leave late. If each rank starts the all-reduce at the same time of a
synchronised clock, no rank waits for a late one. A barrier's bias is the fraction by which the all-reduce
takes longer after the barrier than after a common start at a fixed time of the clock.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern
from hpccoll.barrier_suite.round_timer import RoundTimer, choose_window


def time_all_reduce_after(timer: RoundTimer, barrier: Callable[[], object], rounds: int) -> list[float] | None:
    """Time `rounds` all-reduces of 8 bytes, each of which starts when a call of `barrier` returns. Collective.

    Returns:
        On rank 0, the seconds of each all-reduce on its slowest rank; None on other ranks.
    """
    comm, now, one, total = timer.comm, timer.clock.now, np.zeros(1), np.zeros(1)
    times = np.empty(rounds)
    for i in range(rounds):
        if timer.limit is not None:
            timer.limit.begin_call(i)
        barrier()
        begin = now()
        comm.Allreduce(one, total)
        times[i] = now() - begin
    if timer.limit is not None:
        timer.limit.end_call()
    gathered = comm.gather(times)
    return None if gathered is None else np.max(gathered, axis=0).tolist()


def time_all_reduce_at_start(timer: RoundTimer, rounds: int) -> list[float] | None:
    """Time an all-reduce of 8 bytes that all ranks start at the same time of their common clock. Collective.

    Args:
        timer: has the ranks and the clock.
        rounds: the least number of all-reduces; it is rounded up to whole batches.

    Returns:
        On rank 0, the seconds of each all-reduce on its slowest rank; None on other ranks.
    """
    one, total = np.zeros(1), np.zeros(1)
    delays = ArrivalPattern.NONE.make_delays(max(rounds // 10, 1), timer.comm.size, 0.0, 0)
    waits: list[float] = []
    times = None
    for _ in range(-(-rounds // len(delays))):
        times = timer.time_batch(lambda: timer.comm.Allreduce(one, total), delays, choose_window(times, 0.0))
        if times is not None:
            waits += times.wait.max(axis=1).tolist()
    return waits if timer.comm.rank == 0 else None
