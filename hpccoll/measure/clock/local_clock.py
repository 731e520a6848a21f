"""The clock of one rank: a function without arguments that returns seconds, by default `time.perf_counter`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

LocalClock: TypeAlias = Callable[[], float]


@dataclass(frozen=True, slots=True)
class SkewedClock:
    """A local clock that differs from the clock `base` by an offset, and by a drift from the time of construction on.

    With a skewed clock on each rank, synchronization can be tested on one machine, where all ranks read the same clock.
    """

    offset_s: float
    drift: float  # seconds gained per second of `base`: 5e-5 is 50 ppm
    base: LocalClock = time.perf_counter
    started_s: float = field(default_factory=time.perf_counter)

    def __call__(self) -> float:
        """Return the current time of this clock in seconds."""
        return self.skew(self.base())

    def skew(self, base_s: float) -> float:
        """Return the time that this clock shows when `base` shows `base_s`."""
        return base_s + self.offset_s + self.drift * (base_s - self.started_s)
