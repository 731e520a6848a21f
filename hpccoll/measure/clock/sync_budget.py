"""The time that synchronizing clocks may take: a share of the time since the process started."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

SHARE = 0.1


class SyncBudget:
    """Counts the time spent on synchronizing clocks, and computes how much of the allowed time is left; local.

    The limit is a fraction `share` of the time since the process started. The class does not enforce the limit: callers
    read `left_s`. Ranks may count different times, so callers use rank 0's `left_s` on all ranks.
    """

    def __init__(self, share: float = SHARE) -> None:
        self.share, self.spent_s = share, 0.0
        age_s = max(time.time() - psutil.Process().create_time(), 0.0)
        self._begun_s = time.perf_counter() - age_s

    @property
    def left_s(self) -> float:
        """The seconds that synchronizing clocks may still take; negative if synchronizing has exceeded its share."""
        return self.share * (time.perf_counter() - self._begun_s) - self.spent_s

    @contextmanager
    def count_time(self) -> Iterator[None]:
        """Context manager: count the time of the `with` block as spent on synchronizing clocks."""
        begun_s = time.perf_counter()
        try:
            yield
        finally:
            self.spent_s += time.perf_counter() - begun_s
