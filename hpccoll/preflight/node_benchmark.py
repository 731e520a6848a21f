"""How fast a node is by itself: copies in memory and arithmetic in cache, on all cores that this process may use.

A slice counts how often a small piece of work was done within a fixed time, on one thread a core (NumPy lets go of the
interpreter meanwhile). A slice is long against the scheduler's ticks, so that a node that is held up again and again
shows in every slice.

On emulated nodes, which share one machine, the time that a thread was ready to run and waited for a core is left out:
it says how busy the machine is, not how fast the node. On a real node it counts, for whatever takes its cores slows
every job there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpccoll.units import MiB

SLICE_S, SHORTEST_S = 0.25, 0.01
COPIED = 16 * MiB  # twice that is beyond the private caches of a core
IN_CACHE, TIMES = 8192, 20  # float64 that stay in the second cache, and how often they are gone through
_WAITED = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True)
class NodeSpeed:
    """What a node did in one slice of each kind: bytes copied a second, and sines a second, over its cores."""

    copy_bytes_per_s: float
    operations_per_s: float


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def measure(*, shared: bool) -> NodeSpeed:
    """Keep all cores busy for a slice of each kind.

    Args:
        shared: whether this node is one of several on one machine.
    """
    threads = cores()
    with ThreadPoolExecutor(threads) as pool:
        rates = [
            sum(pool.map(lambda _, kind=kind: _slice(kind(), shared), range(threads))) for kind in (_copy, _compute)
        ]
    return NodeSpeed(*rates)


def _slice(work: Callable[[], float], shared: bool) -> float:
    """Return how much was done a second; the first piece, which touches new memory, is not timed."""
    work()
    waited, begin = _waited_s(), time.perf_counter()
    end, done = begin + SLICE_S, 0.0
    while (now := time.perf_counter()) < end:
        done += work()
    waiting = _waited_s() - waited if shared else 0.0
    return done / max(now - begin - waiting, SHORTEST_S)


def _waited_s() -> float:
    """Return how long this thread has been ready to run without a core; 0 where the kernel does not tell."""
    try:
        return int(_WAITED.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _copy() -> Callable[[], float]:
    source, target = np.zeros(COPIED, np.uint8), np.ones(COPIED, np.uint8)

    def work() -> float:
        np.copyto(target, source)
        return COPIED

    return work


def _compute() -> Callable[[], float]:
    x = np.linspace(0, 1, IN_CACHE)
    y = np.empty_like(x)

    def work() -> float:
        for _ in range(TIMES):
            np.sin(x, out=y)
        return IN_CACHE * TIMES

    return work
