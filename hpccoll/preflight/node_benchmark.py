"""Measure the speed of a node on its own: memory copies, and arithmetic in cache, on all cores this process may use.

Each core runs a thread that counts how often it completes a small piece of work within a time slice; NumPy releases the
GIL during this work. A time slice is much longer than the scheduler's ticks, so that frequent interruptions show in
every slice.

On emulated nodes, which share one machine, the time that a ready thread waits for a core is subtracted, because the
other nodes cause it. On a real node the time that a thread waits for a core counts, because it slows every job.
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

SLICE_S, MIN_WORK_S = 0.25, 0.01
COPY_NBYTES = 16 * MiB  # source and destination together exceed the private caches of a core
IN_CACHE, PASSES = 8192, 20  # float64 elements that stay in the L2 cache; passes over them per piece of work
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(frozen=True, slots=True)
class NodeSpeed:
    """Bytes copied per second and sines computed per second, summed over the cores of a node."""

    copy_bytes_per_s: float
    operations_per_s: float


def measure_node(*, shares_machine: bool) -> NodeSpeed:
    """Return the measured speed of memory copies and arithmetic on all cores that this process may use.

    The measurement takes half a second. `shares_machine` states whether this node is one of several emulated nodes on
    one machine. On emulated nodes, the time that threads wait for a core is subtracted.
    """
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        copy, compute = (
            sum(pool.map(lambda _, prepare=prepare: _measure_rate(prepare(), shares_machine), range(threads)))
            for prepare in (_prepare_copy, _prepare_compute)
        )
    return NodeSpeed(copy, compute)


def _measure_rate(work: Callable[[], float], subtracts_waiting: bool) -> float:
    """Call `work` repeatedly for SLICE_S seconds; return the sum of its results (bytes or operations) per second.

    With `subtracts_waiting`, the time that this thread waits for a core does not count.
    """
    work()  # this call is not timed, because it touches new memory
    waited, begin = _read_waiting_s(), time.perf_counter()
    end, done = begin + SLICE_S, 0.0
    while (now := time.perf_counter()) < end:
        done += work()
    waiting = _read_waiting_s() - waited if subtracts_waiting else 0.0
    return done / max(now - begin - waiting, MIN_WORK_S)


def _read_waiting_s() -> float:
    """Return the seconds that this thread has waited for a core so far; 0 if the kernel does not report them."""
    try:
        return int(_SCHEDSTAT.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _prepare_copy() -> Callable[[], float]:
    """Allocate two arrays, and return a function that copies one to the other and returns the copied bytes."""
    source, target = np.zeros(COPY_NBYTES, np.uint8), np.ones(COPY_NBYTES, np.uint8)

    def copy() -> float:
        np.copyto(target, source)
        return COPY_NBYTES

    return copy


def _prepare_compute() -> Callable[[], float]:
    """Allocate arrays that fit in cache; return a function that computes sines and returns the number of sines."""
    x = np.linspace(0, 1, IN_CACHE)
    y = np.empty_like(x)

    def compute() -> float:
        for _ in range(PASSES):
            np.sin(x, out=y)
        return IN_CACHE * PASSES

    return compute
