"""Records the passes, communication and waits of one rank in a training step, with their times, for a profile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


class ActivityKind(StrEnum):
    """The kind of a rank's activity in a training step; the value is its category in a trace."""

    STEP = "step"
    PASS = "pass"  # noqa: S105 - a pass through the layers of a stage, not a password
    COMPUTE = "compute"  # the parts of a pass without communication
    COMMUNICATION = "communication"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Activity:
    """A pass, communication or wait of a rank, with its begin and end in seconds of a clock.

    For a collective call, `collective` is a name that is the same on all ranks of the call; otherwise, it is empty.
    """

    kind: ActivityKind
    name: str
    begin_s: float
    end_s: float
    collective: str = ""  # name of the collective call, the same on all of its ranks; empty for other activities
    in_background: bool = False  # whether the rank may compute meanwhile


class ActivityLog:
    """The activities of a rank, in seconds of `time.perf_counter`; records nothing unless `is_enabled` is set."""

    def __init__(self) -> None:
        self.is_enabled = False
        self.activities: list[Activity] = []

    def add(
        self, kind: ActivityKind, name: str, begin_s: float, collective: str = "", *, in_background: bool = False
    ) -> None:
        """Record an activity that began at `begin_s` (seconds of `time.perf_counter`) and ends now.

        `in_background` states whether the rank may have computed during the activity.
        """
        if self.is_enabled:
            end_s = time.perf_counter()
            self.activities.append(Activity(kind, name, begin_s, end_s, collective, in_background))

    @contextmanager
    def measure(self, kind: ActivityKind, name: str) -> Iterator[None]:
        """Context manager that records its body as an activity, even if the body raises an exception."""
        begin_s = time.perf_counter()
        try:
            yield
        finally:
            self.add(kind, name, begin_s)
