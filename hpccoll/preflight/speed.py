"""How fast a node is by itself: copies in memory and arithmetic in cache, on all cores that this process may use.

A slice counts how often a small piece of work was done within a fixed time, on one thread a core (NumPy lets go of the
interpreter meanwhile). A slice is long against the scheduler's ticks, so that a node that is held up again and again
shows in every slice, while what disturbs a healthy one for a moment spoils some and not the best.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hpccoll.units import GB, MiB

SLICE_S = 0.15
COPIED = 16 * MiB  # twice that is beyond the private caches of a core
IN_CACHE, TIMES = 2048, 200  # float64 that stay in the first cache, and how often they are gone through


@dataclass(frozen=True, slots=True)
class Speed:
    """What a node did in one slice of each kind: bytes copied a second, and operations a second, over its cores."""

    copy_bytes_per_s: float
    operations_per_s: float


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def measure() -> Speed:
    """Keep all cores busy for a slice of each kind."""
    threads = cores()
    with ThreadPoolExecutor(threads) as pool:
        rates = [sum(pool.map(lambda _, kind=kind: _slice(kind()), range(threads))) for kind in (_copy, _compute)]
    return Speed(*rates)


def _slice(work: Callable[[], float]) -> float:
    """Return how much was done a second; the first piece, which touches new memory, is not timed."""
    work()
    begin = time.perf_counter()
    end, done = begin + SLICE_S, 0.0
    while (now := time.perf_counter()) < end:
        done += work()
    return done / (now - begin)


def _copy() -> Callable[[], float]:
    source, target = np.zeros(COPIED, np.uint8), np.ones(COPIED, np.uint8)

    def work() -> float:
        np.copyto(target, source)
        return COPIED

    return work


def _compute() -> Callable[[], float]:
    x = np.ones(IN_CACHE)

    def work() -> float:
        for _ in range(TIMES):
            np.multiply(x, 0.999, out=x)
            np.add(x, 0.001, out=x)
        return 2.0 * IN_CACHE * TIMES

    return work


def told(speed: Speed) -> str:
    """Return a speed for people."""
    return f"{speed.copy_bytes_per_s / GB:.3g} GB/s copied, {speed.operations_per_s / 1e9:.3g} Gop/s"
