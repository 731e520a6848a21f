"""The linear model by which the time of one clock is computed from the time of another clock."""

from __future__ import annotations

from typing import NamedTuple


class ClockModel(NamedTuple):
    """Maps a clock to another one: other = clock + offset_s + drift * (clock - reference_s), in seconds.

    The error of the mapped time is at most error_s + drift_error * |clock - reference_s|, unless messages in one
    direction were always delayed more than those in the other direction.
    """

    reference_s: float = 0.0
    offset_s: float = 0.0
    drift: float = 0.0
    error_s: float = 0.0
    drift_error: float = 0.0

    def apply(self, clock_s: float) -> float:
        """Return the time of the other clock when this clock shows `clock_s`."""
        return clock_s + self.offset_s + self.drift * (clock_s - self.reference_s)

    def compute_error_s(self, clock_s: float) -> float:
        """Return the largest possible error, in seconds, of `apply(clock_s)`."""
        return self.error_s + self.drift_error * abs(clock_s - self.reference_s)

    def then(self, other: ClockModel) -> ClockModel:
        """Return the model that applies this model and then `other`; its errors are the sums of both models' errors."""
        shown_s = self.reference_s + self.offset_s
        error_s = self.error_s + other.compute_error_s(shown_s)
        offset_s = other.apply(shown_s) - self.reference_s
        drift = self.drift + other.drift + self.drift * other.drift
        return ClockModel(self.reference_s, offset_s, drift, error_s, self.drift_error + other.drift_error)
