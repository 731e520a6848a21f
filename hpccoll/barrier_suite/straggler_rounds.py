"""Times the rounds that show whether a rank is late: all ranks keep their cores busy, and enter barriers as planned.

A round lasts at least ROUND_S seconds. Until a round begins, each rank keeps its core busy by reading the clock (unless
ranks share cores), so a rank whose core another program also uses often enters late, as it would after computing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpccoll.barrier_suite.arrival_patterns import ArrivalPattern
from hpccoll.barrier_suite.round_timer import RoundTimer
from hpccoll.barrier_suite.round_times import RoundTimes, join_rounds

ROUND_S = 2.5e-3
BATCHES = 8  # batches per pattern


def time_straggler_rounds(
    timer: RoundTimer,
    call: Callable[[], object],
    patterns: Sequence[ArrivalPattern],
    rounds: int,
    barrier_s: float,
    spread_s: float,
    seed: int,
    extra_s: float = 0.0,
) -> RoundTimes | None:
    """Call a barrier with each arrival pattern in turns, and note when ranks enter and leave it. Collective.

    Returns the times of all ranks on rank 0, and None on other ranks. The times show whether a rank is late.

    Args:
        timer: times the rounds.
        call: the barrier.
        patterns: the arrival patterns; each gets the same number of rounds.
        rounds: the number of rounds of all patterns together, rounded up to whole batches.
        barrier_s: the median time of the barrier in seconds if all ranks enter together.
        spread_s: the largest delay of the patterns in seconds.
        extra_s: a delay of this rank in seconds that is not part of the patterns.
    """
    batch = max(1, -(-rounds // (BATCHES * len(patterns))))
    # The window does not grow with the noise, because ranks sleep in a long window, and a disturbance would not show.
    window_s = ROUND_S + 2 * barrier_s + spread_s
    parts: list[RoundTimes] = []
    for turn in range(BATCHES):
        for pattern in patterns:
            delays = pattern.make_delays((turn + 1) * batch, timer.comm.size, spread_s, seed)[turn * batch :]
            times = timer.time_batch(call, delays, window_s, extra_s=extra_s)
            if times is not None:
                parts.append(times)
    return join_rounds(parts) if parts else None
