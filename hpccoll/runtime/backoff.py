"""Pauses between polls, while a rank waits for another rank's writes to shared memory or for MPI requests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Final

SPIN_S: Final = 50e-6
YIELD_S: Final = 100e-6
FIRST_SLEEP_S: Final = 10e-6
LONGEST_SLEEP_S: Final = 400e-6
# The tag of the probes of MPI.COMM_WORLD that let MPI advance; hpccoll sends no message with the probed tag.
# MPICH does not advance accesses to windows during a probe of MPI.COMM_SELF.
POLLED_TAG: Final = 32767
SETTLE_S: Final = 0.5  # longer than other ranks take to read the notice of an interruption (endings.NOTICE_TICK_S)


class Backoff:
    """The pauses between the polls of a wait: none at first, then yields of the core, then sleeps that become longer.

    Args:
        spins: whether to poll without a pause at first; true only if every rank has a core of its own.
        sleeps: whether to sleep in a long wait; false if polls move data and no other rank needs the core.
    """

    __slots__ = ("_since", "_sleep_s", "_sleeps", "_spin_s")

    def __init__(self, *, spins: bool, sleeps: bool = True) -> None:
        self._spin_s, self._sleeps = SPIN_S if spins else 0.0, sleeps
        self._since, self._sleep_s = 0.0, FIRST_SLEEP_S

    def reset(self) -> None:
        """Start again with the shortest pause; to be called after a poll that found something to do."""
        self._since, self._sleep_s = 0.0, FIRST_SLEEP_S

    def pause(self) -> bool:
        """Pause: at first not at all, then by yielding the core, later by sleeping; return whether it slept."""
        now = time.perf_counter()
        if not self._since:
            self._since = now
        waited_s = now - self._since
        if waited_s < self._spin_s:
            return False
        if waited_s < YIELD_S or not self._sleeps:
            os.sched_yield()
            return False
        time.sleep(self._sleep_s)
        self._sleep_s = min(2 * self._sleep_s, LONGEST_SLEEP_S)
        return True


def settle(conditions: Iterable[Callable[[], object]]) -> None:
    """Poll each of `conditions` until it has returned true, but not longer than SETTLE_S seconds in all.

    To be called after an exception in a call, before the program goes on. The program may then write to the call's
    arrays, and a rank that does not know of the exception yet would take the written values for data of the call.
    """
    end, backoff = time.monotonic() + SETTLE_S, Backoff(spins=False)
    waiting = list(conditions)
    while (waiting := [is_true for is_true in waiting if not is_true()]) and time.monotonic() < end:
        backoff.pause()
