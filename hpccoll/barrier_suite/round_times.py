"""The times at which ranks enter and leave a barrier, round by round, and the metrics that follow from these times.

In array shapes, R is the number of rounds and n the number of ranks. All times are seconds of one clock that the ranks
share (see hpccoll.measure.clock), so times of different ranks can be compared within the error of that clock.

A barrier is safe if no rank leaves it before the last rank has entered it. The wait of a rank is the time from its
entry to its exit, so the last rank to enter waits least. The completion of a round is the time from the last entry to
the last exit: the cost of the barrier without the time for which ranks wait for a late rank. The exit skew of a round
is the time from the first exit to the last exit.

Source of the metric `absorbed`: Hoefler, Mehlan, Mietke and Rehm, A Survey of Barrier Algorithms, 2004.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpccoll.plan import Floats


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """The planned entries, the entries and the exits of n ranks in R rounds of a barrier: arrays of shape (R, n).

    All times are seconds of a clock that the ranks share.
    """

    planned: Floats  # planned times of entry
    entry: Floats
    exit: Floats

    @property
    def rounds(self) -> int:
        """The number R of rounds."""
        return len(self.entry)

    @property
    def ranks(self) -> int:
        """The number n of ranks."""
        return int(self.entry.shape[1])

    @property
    def entry_spread(self) -> Floats:
        """The seconds from the first rank's entry to the last rank's entry in each round, shape (rounds,)."""
        return np.asarray(np.ptp(self.entry, axis=1))

    @property
    def exit_skew(self) -> Floats:
        """The seconds from the first rank's exit to the last rank's exit in each round, shape (rounds,)."""
        return np.asarray(np.ptp(self.exit, axis=1))

    @property
    def completion(self) -> Floats:
        """The seconds from the last rank's entry to the last rank's exit in each round, shape (rounds,)."""
        return np.asarray(self.exit.max(axis=1) - self.entry.max(axis=1))

    @property
    def wait(self) -> Floats:
        """The seconds from the entry to the exit of each rank in each round, shape (rounds, ranks)."""
        return self.exit - self.entry

    @property
    def lateness(self) -> Floats:
        """The seconds by which each rank entered after its planned entry, shape (rounds, ranks)."""
        return self.entry - self.planned

    def get_median_entries(self) -> Floats:
        """Return each rank's median time of entry in seconds after the first entry of the round, shape (ranks,)."""
        return np.asarray(np.median(self.entry - self.entry.min(axis=1, keepdims=True), axis=0))

    def get_median_exits(self) -> Floats:
        """Return each rank's median time of exit in seconds after the first entry of the round, shape (ranks,)."""
        return np.asarray(np.median(self.exit - self.entry.min(axis=1, keepdims=True), axis=0))

    def find_release_order(self) -> list[int]:
        """Return the ranks in the order in which they leave the barrier, by the median of their times of exit."""
        after_first = np.median(self.exit - self.exit.min(axis=1, keepdims=True), axis=0)
        return [int(rank) for rank in np.argsort(after_first, kind="stable")]

    def count_unsafe_rounds(self, clock_error_s: float) -> int:
        """Return the number of rounds in which a rank left before the last rank entered.

        Differences up to `clock_error_s`, the error of the common clock, do not count.
        """
        return int(np.count_nonzero(self.entry.max(axis=1) - self.exit.min(axis=1) > clock_error_s))

    def count_late_rounds(self, tolerance_s: float) -> int:
        """Return the number of rounds in which a rank entered later than planned, by more than `tolerance_s`."""
        return int(np.count_nonzero((self.lateness > tolerance_s).any(axis=1)))

    def compute_absorbed(self, even_completion_s: float) -> float | None:
        """Return the fraction of the entry spread that the barrier hides; None if ranks enter at the same time.

        The entry spread is the time from the first to the last entry. A barrier that hides nothing takes as long after
        the last entry as it takes if all ranks enter together, `even_completion_s` seconds. A barrier that finishes its
        other work while it waits for the last rank takes a shorter time after the last entry. The result is the time
        saved after the last entry, divided by the entry spread; it is negative if the barrier takes longer after the
        last entry than without a spread.
        """
        spread = float(np.median(self.entry_spread))
        return (even_completion_s - float(np.median(self.completion))) / spread if spread > 0 else None


def join_rounds(parts: Sequence[RoundTimes]) -> RoundTimes:
    """Return the rounds of several batches as one object, in order; all must have the same number of ranks."""
    return RoundTimes(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("planned", "entry", "exit"))
    )
