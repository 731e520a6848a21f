"""Fits linear models of the difference between two ranks' clocks to the timestamps of ping-pong messages."""

from __future__ import annotations

import numpy as np

from hpccoll.measure.clock.ping_pong import JITTER, PingPongs, Times, compute_deviations_s
from hpccoll.recordings import ClockModel

FREE_DRIFT = 1e-4  # the drift that a clock without drift correction may have: 100 ppm, a poor quartz


def fit_weighted_exchanges(measured: PingPongs) -> ClockModel:
    """Return a linear model of the clock difference of two ranks, fitted to ping-pongs; fast ones weigh most (HCA3).

    A delayed message makes a round trip longer, and the measured offset wrong by at most half the delay. The model is a
    line that is fitted to one point per batch of ping-pongs; the model's error is half the fastest round trip plus two
    standard errors of the fit.
    """
    times_s, offsets_s, deviations_s = summarize_batches(measured)
    line = _fit_line(times_s, offsets_s, deviations_s)
    half_s = float(measured.round_trips_s.min()) / 2
    return line._replace(error_s=half_s + line.error_s)


def drop_doubtful_drift(fitted: ClockModel, measured: PingPongs) -> ClockModel:
    """Return the model `fitted`, without its drift if messages that became slower could have caused the drift.

    While the ping-pongs `measured` ran, messages in one direction may have become slower than those in the other, which
    changes the measured offset by up to the fastest round trip. A drift is set to zero unless it changes the offset by
    more than the fastest round trip. The function is for two ranks of a node: both read the same clock, so their true
    drift is zero.
    """
    span_s = float(np.ptp(measured.middles_s))
    if abs(fitted.drift) * span_s > float(measured.round_trips_s.min()):
        return fitted
    return fitted._replace(drift=0.0, drift_error=fitted.drift_error + abs(fitted.drift))


def summarize_batches(measured: PingPongs) -> tuple[Times, Times, Times]:
    """Return arrays in seconds, by batch: the time, the clock difference, and the difference's standard deviation.

    The times and clock differences are means over a batch of ping-pongs, in which fast ping-pongs weigh most. The
    standard deviation is that of the most precise ping-pong of the batch.
    """
    trips_s = measured.round_trips_s
    deviations_s = compute_deviations_s(trips_s, float(trips_s.min()))
    weights = deviations_s**-2
    weights /= weights.sum(axis=1, keepdims=True)
    times_s, offsets_s = (weights * measured.middles_s).sum(axis=1), (weights * measured.offsets_s).sum(axis=1)
    return times_s, offsets_s, deviations_s.min(axis=1)


def fit_usual_round_trip(measured: PingPongs) -> ClockModel:
    """Return a linear model of the clock difference of two ranks, assuming that messages take equal times both ways.

    Every answer is assumed to take half the median round trip (Jones and Koenig, 2012). The model is a line that is
    fitted to the median offset of each batch of ping-pongs. All ping-pongs have equal weight.
    """
    half_s = float(np.median(measured.round_trips_s)) / 2
    offsets_s = np.median(measured.answered + half_s - measured.received, axis=1)
    line = _fit_line(np.median(measured.received, axis=1), offsets_s, np.full(len(offsets_s), JITTER * half_s))
    return line._replace(error_s=half_s + line.error_s)


def fit_offset_bounds(measured: PingPongs) -> ClockModel:
    """Return a model of the clock difference of two ranks without drift: the middle of all possible offsets.

    As in SKaMPI, each ping-pong gives a lower and an upper bound of the offset, because the client sends before the
    reference answers, and receives afterwards.
    """
    highest = float((measured.answered - measured.sent).min())
    lowest = float((measured.answered - measured.received).max())
    time_s = float(measured.received.max())
    return ClockModel(time_s, (highest + lowest) / 2, 0.0, abs(highest - lowest) / 2, FREE_DRIFT)


def _fit_line(times_s: Times, offsets_s: Times, deviations_s: Times) -> ClockModel:
    """Return the weighted least-squares line through clock differences, with two standard errors as its error bounds.

    All arguments are arrays in seconds: times, clock differences, and the standard deviations of the differences. The
    standard errors follow from the given standard deviations, or from the scatter around the line if that is larger.
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
