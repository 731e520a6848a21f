"""Linear models of a clock relative to another, and their estimation from the timestamps of ping-pongs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.measure.clock.ping_pong import PingPongs, Times

QUICK = 1.2  # round trips up to this many times the fastest are used; slower ones were delayed in one direction
LEAST_QUICK = 8  # use at least this many exchanges, however slow
OUTLIER = 3.5  # in robust standard deviations
FREE_DRIFT = 1e-4  # the drift that a clock without drift correction may have: 100 ppm, a poor quartz


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Maps a clock to another one: other = clock + offset_s + drift * (clock - reference_s).

    The error of the mapped time is at most error_s + drift_error * |clock - reference_s|, unless messages in one
    direction were always delayed more than those in the other direction.
    """

    reference_s: float
    offset_s: float
    drift: float
    error_s: float
    drift_error: float

    def apply(self, clock_s: Times) -> Times:
        """Return the times of the other clock at the times `clock_s`."""
        return clock_s + self.offset_s + self.drift * (clock_s - self.reference_s)

    def compute_error_s(self, clock_s: float) -> float:
        """Return the bound of the error of the mapped time at the time `clock_s`."""
        return self.error_s + self.drift_error * abs(clock_s - self.reference_s)

    def add_error(self, other: LinearModel) -> LinearModel:
        """Return this model with the errors of another model added, on whose clock this model was measured."""
        error_s = self.error_s + other.compute_error_s(self.reference_s)
        return LinearModel(self.reference_s, self.offset_s, self.drift, error_s, self.drift_error + other.drift_error)

    def as_array(self) -> Times:
        """Return the fields as an array, in the order of the constructor's arguments."""
        return np.array((self.reference_s, self.offset_s, self.drift, self.error_s, self.drift_error))


IDENTITY = LinearModel(0.0, 0.0, 0.0, 0.0, 0.0)


def fit_quick_exchanges(measured: PingPongs) -> LinearModel:
    """Return the line through the offsets of the fastest exchanges, without outliers.

    Each batch gives one point, the median offset of its quick exchanges. The error of the line is half the fastest
    round trip plus two standard errors of the fit.
    """
    times_s, offsets_s = _select_points(measured)
    line = _fit_line(times_s, offsets_s)
    scatter = np.abs(offsets_s - line.apply(times_s) + times_s)
    keep = scatter <= OUTLIER * 1.4826 * float(np.median(scatter))
    if 2 < np.count_nonzero(keep) < len(keep):
        line = _fit_line(times_s[keep], offsets_s[keep])
    half_s = float(measured.round_trips_s.min()) / 2
    return LinearModel(line.reference_s, line.offset_s, line.drift, half_s + line.error_s, line.drift_error)


def fit_quick_offset(measured: PingPongs) -> float:
    """Return the median offset of the quick exchanges in seconds, without a drift."""
    return float(np.median(_select_points(measured)[1]))


def fit_mean_round_trip(measured: PingPongs) -> LinearModel:
    """Return the line through offsets that assume half the mean round trip for each answer (Jones and Koenig, 2012).

    Each batch gives one point, the median of its offsets. No exchange is left out.
    """
    half_s = float(measured.round_trips_s.mean()) / 2
    offsets_s = np.median(measured.answered + half_s - measured.received, axis=1)
    line = _fit_line(np.median(measured.received, axis=1), offsets_s)
    return LinearModel(line.reference_s, line.offset_s, line.drift, half_s + line.error_s, line.drift_error)


def fit_offset_bounds(measured: PingPongs) -> LinearModel:
    """Return the middle of the offsets that all exchanges allow, without drift (SKaMPI).

    The client sends before the reference answers, and receives after it, so each exchange bounds the offset from both
    sides.
    """
    highest = float((measured.answered - measured.sent).min())
    lowest = float((measured.answered - measured.received).max())
    time_s = float(measured.received.max())
    return LinearModel(time_s, (highest + lowest) / 2, 0.0, abs(highest - lowest) / 2, FREE_DRIFT)


def _select_points(measured: PingPongs) -> tuple[Times, Times]:
    """Return time and offset of each batch: medians over the batch's quick exchanges; a batch may have none."""
    trips_s = measured.round_trips_s
    ordered_s = np.sort(trips_s, axis=None)
    limit_s = max(QUICK * float(ordered_s[0]), float(ordered_s[:LEAST_QUICK][-1]))
    quick = trips_s <= limit_s
    rows = [row for row in range(len(quick)) if quick[row].any()]
    if len(rows) < min(2, len(quick)):  # one batch cannot show a drift
        quick = trips_s <= trips_s.min(axis=1, keepdims=True)
        rows = list(range(len(quick)))
    times_s = np.array([np.median(measured.middles_s[row, quick[row]]) for row in rows])
    return times_s, np.array([np.median(measured.offsets_s[row, quick[row]]) for row in rows])


def _fit_line(times_s: Times, offsets_s: Times) -> LinearModel:
    """Return the least-squares line around the mean time; its errors are two standard errors of the fit."""
    reference_s, offset_s = float(times_s.mean()), float(offsets_s.mean())
    around_s = times_s - reference_s
    spread = float(around_s @ around_s)
    if spread == 0:
        return LinearModel(reference_s, offset_s, 0.0, 0.0, FREE_DRIFT)
    drift = float(around_s @ offsets_s) / spread
    rest = offsets_s - offset_s - drift * around_s
    variance = float(rest @ rest) / max(len(times_s) - 2, 1)
    errors = 2 * float(np.sqrt(variance / len(times_s))), 2 * float(np.sqrt(variance / spread))
    return LinearModel(reference_s, offset_s, drift, *errors)
