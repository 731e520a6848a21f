"""A clock that does not count the time in which this process is suspended."""

from __future__ import annotations

from typing import Final

MOST_STEP_S: Final = 0.75  # longest time between two readings that counts


class RunningClock:
    """A clock of seconds that stands still while this process does not run, such as between Ctrl-Z and `fg`.

    To be read at least twice per second: from one reading to the next, the clock advances by at most MOST_STEP_S.
    """

    __slots__ = ("_last_s", "_shown_s")

    def __init__(self, now_s: float) -> None:
        self._shown_s = self._last_s = now_s

    def read(self, now_s: float) -> float:
        """Advance this clock to the time `now_s` of the monotonic clock, and return its time in seconds.

        The clock advances by at most MOST_STEP_S.
        """
        self._shown_s += min(now_s - self._last_s, MOST_STEP_S)
        self._last_s = now_s
        return self._shown_s
