"""Names the rank that is late to barriers, from the times of entries and exits of many rounds.

The lateness of a rank in a round is its time of entry minus the planned time, so a rank that an arrival pattern delays
on purpose is not late. A rank's lateness differs in each round from the median lateness of the other ranks; the rank's
excess is the median of this difference over all rounds. For the noise of a run, each rank's own median is subtracted
from its lateness, so that a constant delay of one rank is no noise. The spread of a round is the largest minus the
smallest lateness after this subtraction. The noise is the median of the spread over all rounds, but at least the error
of the clock. Where other programs disturb the ranks, the noise varies tenfold from second to second, so the threshold
above which a rank is late follows from the quieter rounds: it is NOISE_FACTOR times the lower quartile of the spread,
but at least NOISE_FACTOR times the error of the clock.

A rank that waits a long time in a barrier is not late itself: the late rank waits least. The ranks' waits are reported,
but do not decide which rank is named, because some barriers release some ranks later than others. A rank is named as
late in one of two cases:

- always late: the excess is more than the threshold, in most parts of the run, and the rank has the greatest lateness
  in more rounds than chance explains;
- often late: in most parts of the run, all other ranks have waited for this rank alone during more than the share
  OFTEN_SHARE of the time, and far longer than for any other rank. A rank that shares its core with another program is
  often late.

A part is one of PARTS equal stretches of the run; bursts of noise make a rank late in few parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from hpccoll.barrier_suite.round_times import RoundTimes
from hpccoll.plan import Floats, IntArray

NOISE_FACTOR, NOISE_QUANTILE = 1.5, 0.25
PARTS, PARTS_NEEDED = 8, 6
MIN_ROUNDS = 24  # with fewer rounds, no rank is named
CHANCE = 1e-4  # largest probability that chance makes any of the ranks last in so many rounds
# A rank is often late if (wait for it alone) - OFTEN_RATIO * (longest wait for another alone) > OFTEN_SHARE * (time).
OFTEN_SHARE, OFTEN_RATIO = 0.08, 3.0


@dataclass(frozen=True, slots=True)
class ArrivalEvidence:
    """How late one rank enters barriers, and how long it waits in them, compared with the other ranks; in seconds.

    The lateness of a rank in a round is the time by which it enters after its planned entry.
    """

    rank: int
    last_arrivals: int  # rounds in which the rank had the greatest lateness
    excess_s: float  # median lateness beyond the median of the other ranks
    wait_s: float  # median time in the barrier, after subtraction of the planned wait
    wait_deficit_s: float  # median by which the rank waited less than the median of the other ranks
    caused_s: float  # time for which all other ranks waited for this rank alone, summed over rounds


@dataclass(frozen=True, slots=True)
class StragglerReport:
    """Which rank of a job enters barriers late, if any, the reason in words, and the evidence for every rank."""

    straggler: int | None  # the late rank; None if no rank is late
    reason: str  # in words
    noise_s: float  # median spread of the ranks' lateness, without constant delays
    threshold_s: float  # excess above which a rank is late
    rounds: int  # number of timed rounds
    ranks: tuple[ArrivalEvidence, ...]


def find_straggler(times: RoundTimes, resolution_s: float) -> StragglerReport:
    """Return a report on the rank that is late to barriers, or on why the evidence does not suffice to name one.

    Args:
        times: the times at which ranks entered and left barriers.
        resolution_s: the error of the common clock in seconds; smaller differences are never evidence.
    """
    lateness = times.lateness
    evidence = collect_evidence(times)
    spread = compute_spread(lateness)
    noise_s = max(float(np.median(spread)), resolution_s)
    threshold_s = NOISE_FACTOR * max(float(np.quantile(spread, NOISE_QUANTILE)), resolution_s)
    report = partial(StragglerReport, noise_s=noise_s, threshold_s=threshold_s, rounds=times.rounds, ranks=evidence)
    if times.ranks < 2:
        return report(None, "one rank waits for nobody")
    if times.rounds < MIN_ROUNDS:
        return report(None, f"{times.rounds} rounds are too few; at least {MIN_ROUNDS} are needed")
    always = max(evidence, key=lambda rank: rank.excess_s)
    if _is_always_late(times, always, threshold_s):
        return report(always.rank, _explain_always(always, times.rounds, threshold_s))
    often = max(evidence, key=lambda rank: rank.caused_s)
    if _is_often_late(times, often.rank):
        return report(often.rank, _explain_often(often, times))
    return report(None, _explain_nobody(always, threshold_s))


def collect_evidence(times: RoundTimes) -> tuple[ArrivalEvidence, ...]:
    """Return how late each rank entered barriers, compared with the other ranks, in order of rank."""
    lateness = times.lateness
    # Subtract the planned wait for the pattern's last rank, so that a rank's wait does not depend on the pattern.
    waits = times.wait - (times.planned.max(axis=1, keepdims=True) - times.planned)
    excess, surplus = subtract_others(lateness), subtract_others(waits)
    last, gaps = find_last(lateness)
    return tuple(
        ArrivalEvidence(
            rank,
            int(np.count_nonzero(last == rank)),
            float(np.median(excess[:, rank])),
            float(np.median(waits[:, rank])),
            -float(np.median(surplus[:, rank])),
            float(gaps[last == rank].sum()),
        )
        for rank in range(times.ranks)
    )


def compute_spread(lateness: Floats) -> Floats:
    """Return how much the ranks' lateness differs in each round, after subtraction of each rank's own median.

    `lateness` has shape (rounds, ranks), and the result shape (rounds,): the largest minus the smallest value.
    """
    return np.asarray(np.ptp(lateness - np.median(lateness, axis=0), axis=1))


def find_last(lateness: Floats) -> tuple[IntArray, Floats]:
    """Return the rank with the greatest lateness in each round, and by how many seconds it exceeds the second greatest.

    `lateness` has shape (rounds, ranks), and the results shape (rounds,). With one rank, the difference is zero.
    """
    last = np.asarray(lateness.argmax(axis=1), np.int64)
    ordered = np.sort(lateness, axis=1)
    gaps = ordered[:, -1] - ordered[:, -2] if lateness.shape[1] > 1 else np.zeros(len(lateness))
    return last, np.asarray(gaps)


def subtract_others(values: Floats) -> Floats:
    """Return each rank's value minus the median of the other ranks' values in the same round, shape (rounds, ranks)."""
    ranks = values.shape[1]
    if ranks < 2:
        return np.zeros_like(values)
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    position = np.argsort(order, axis=1, kind="stable")  # of each rank in its round, shape (rounds, ranks)
    # If a rank is left out of the sorted values, the values behind it move up by one position.
    low, high = ((ranks - 2) // 2, (ranks - 1) // 2)
    middles = [np.where(position > at, ordered[:, at, None], ordered[:, at + 1, None]) for at in (low, high)]
    return np.asarray(values - (middles[0] + middles[1]) / 2)


def _is_always_late(times: RoundTimes, suspect: ArrivalEvidence, threshold_s: float) -> bool:
    """Whether a rank is later than the threshold in most parts of the run, and last more often than by chance.

    A part is one of PARTS equal stretches of the rounds.
    """
    from scipy.special import bdtrc  # scipy.stats takes a second to import

    excess = subtract_others(times.lateness)[:, suspect.rank]
    parts = sum(float(np.median(part)) > threshold_s for part in np.array_split(excess, PARTS))
    by_chance = float(bdtrc(suspect.last_arrivals - 1, times.rounds, 1 / times.ranks)) * times.ranks
    return suspect.excess_s > threshold_s and parts >= PARTS_NEEDED and by_chance < CHANCE


def _is_often_late(times: RoundTimes, rank: int) -> bool:
    """Whether the other ranks often waited long for `rank` alone, and little for any other rank.

    Often means in most parts of the run; a part is one of PARTS equal stretches of the rounds.
    """
    last, gaps = find_last(times.lateness)
    parts = 0
    for rounds in np.array_split(np.arange(times.rounds), PARTS):
        caused_s = np.bincount(last[rounds], gaps[rounds], times.ranks)
        others_s = float(np.delete(caused_s, rank).max())
        part_s = float(times.exit[rounds].max() - times.entry[rounds].min())
        parts += float(caused_s[rank]) - OFTEN_RATIO * others_s > OFTEN_SHARE * part_s
    return parts >= PARTS_NEEDED


def _explain_always(suspect: ArrivalEvidence, rounds: int, threshold_s: float) -> str:
    """Return in words why a rank that is late in most rounds is named as the straggler.

    `rounds` is the number of rounds, and `threshold_s` the lateness that noise explains, in seconds.
    """
    deficit_us = suspect.wait_deficit_s * 1e6
    less = f", and waited {deficit_us:.1f} us less" if deficit_us > 0 else ""
    return (
        f"rank {suspect.rank} entered last in {suspect.last_arrivals} of {rounds} rounds, in the median "
        f"{suspect.excess_s * 1e6:.1f} us after the others (noise explains {threshold_s * 1e6:.1f} us){less}"
    )


def _explain_often(suspect: ArrivalEvidence, times: RoundTimes) -> str:
    """Return in words why `suspect`, for which the other ranks often waited, is named as the straggler."""
    total_s = float(times.exit.max() - times.entry.min())
    return (
        f"rank {suspect.rank} is often late: the others waited for it alone during {suspect.caused_s / total_s:.0%} of "
        "the time, as for a rank that shares its core with another program"
    )


def _explain_nobody(suspect: ArrivalEvidence, threshold_s: float) -> str:
    """Return in words why no rank is named as the straggler.

    `suspect` is the rank that was latest by the median over rounds, and `threshold_s` the lateness that noise explains,
    in seconds.
    """
    return (
        f"no rank is late beyond noise; rank {suspect.rank} entered {suspect.excess_s * 1e6:.1f} us after the others "
        f"in the median, and noise explains {threshold_s * 1e6:.1f} us"
    )
