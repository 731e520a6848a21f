"""Fits the linear model of a clock relative to another one to the timestamps of ping-pongs."""

from __future__ import annotations

import numpy as np

from hpccoll.measure.clock.ping_pong import JITTER, PingPongs, Times, compute_deviations_s
from hpccoll.runtime.recorder import ClockModel

FREE_DRIFT = 1e-4  # the drift that a clock without drift correction may have: 100 ppm, a poor quartz


def fit_weighted_exchanges(measured: PingPongs) -> ClockModel:
    """Fit a linear model of the clock difference of two ranks to ping-pongs, in which fast ones weigh most (HCA3).

    A delayed message makes a round trip longer, and the offset wrong by at most half the delay. Each batch gives one
    point. The error of the line is half the fastest round trip plus two standard errors of the fit.
    """
    times_s, offsets_s, deviations_s = summarize_batches(measured)
    line = _fit_line(times_s, offsets_s, deviations_s)
    half_s = float(measured.round_trips_s.min()) / 2
    return line._replace(error_s=half_s + line.error_s)


def drop_doubtful_drift(fitted: ClockModel, measured: PingPongs) -> ClockModel:
    """Return the model `fitted` without its drift, if messages that became slower one way could have caused the drift.

    Messages that became slower one way shift the offset by up to the fastest round trip during the measurement. This
    function is for two ranks of a node: both read the same clock, so the true drift between them is zero.
    """
    span_s = float(np.ptp(measured.middles_s))
    if abs(fitted.drift) * span_s > float(measured.round_trips_s.min()):
        return fitted
    return fitted._replace(drift=0.0, drift_error=fitted.drift_error + abs(fitted.drift))


def summarize_batches(measured: PingPongs) -> tuple[Times, Times, Times]:
    """Return three arrays in seconds, with an element per batch: time, clock difference, and its standard deviation.

    The values are weighted means over the ping-pongs of the batch, in which fast ping-pongs weigh most.
    """
    trips_s = measured.round_trips_s
    deviations_s = compute_deviations_s(trips_s, float(trips_s.min()))
    weights = deviations_s**-2
    weights /= weights.sum(axis=1, keepdims=True)
    times_s, offsets_s = (weights * measured.middles_s).sum(axis=1), (weights * measured.offsets_s).sum(axis=1)
    return times_s, offsets_s, deviations_s.min(axis=1)


def fit_usual_round_trip(measured: PingPongs) -> ClockModel:
    """Fit a linear model of the clock difference of two ranks, assuming that messages take equal times both ways.

    Every answer is assumed to take half the median round trip (Jones and Koenig, 2012). Each batch gives one point, the
    median of its offsets. All exchanges count alike.
    """
    half_s = float(np.median(measured.round_trips_s)) / 2
    offsets_s = np.median(measured.answered + half_s - measured.received, axis=1)
    line = _fit_line(np.median(measured.received, axis=1), offsets_s, np.full(len(offsets_s), JITTER * half_s))
    return line._replace(error_s=half_s + line.error_s)


def fit_offset_bounds(measured: PingPongs) -> ClockModel:
    """Return a model of the clock difference of two ranks without drift: the middle of the offsets that are possible.

    The scheme is that of SKaMPI. The client sends before the reference answers, and receives after it, so each exchange
    bounds the offset from both sides.
    """
    highest = float((measured.answered - measured.sent).min())
    lowest = float((measured.answered - measured.received).max())
    time_s = float(measured.received.max())
    return ClockModel(time_s, (highest + lowest) / 2, 0.0, abs(highest - lowest) / 2, FREE_DRIFT)


def _fit_line(times_s: Times, offsets_s: Times, deviations_s: Times) -> ClockModel:
    """Return the line through clock differences by weighted least squares; its errors are two standard errors.

    All arguments are arrays in seconds: times, differences, and the standard deviations of the differences. The
    standard errors come from the deviations or from the scatter around the line, whichever is larger.
    """
    weights = deviations_s**-2
    total = float(weights.sum())
    reference_s, offset_s = float(weights @ times_s) / total, float(weights @ offsets_s) / total
    around_s = times_s - reference_s
    spread = float(weights @ around_s**2)
    if len(times_s) < 2:
        return ClockModel(reference_s, offset_s, 0.0, 2 * total**-0.5, FREE_DRIFT)
    drift = float((weights * around_s) @ offsets_s) / spread
    rest = offsets_s - offset_s - drift * around_s
    excess = max(1.0, float(weights @ rest**2) / max(len(times_s) - 2, 1)) ** 0.5
    return ClockModel(reference_s, offset_s, drift, 2 * excess * total**-0.5, 2 * excess * spread**-0.5)
