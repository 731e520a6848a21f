"""Estimates the remaining time of a benchmark, whose rows differ in duration by orders of magnitude.

The rows of one message size are timed together, in turns, as a block. A row of short messages is predicted to take the
mean time of earlier rows of short messages. Once a block of long messages has ended, its rows predict later blocks of
long messages: each row is assumed to run as many iterations as before, each longer in proportion to the message size,
within the row's time budget. While a block runs, its measured pace gradually replaces its prediction.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

SHORT_BYTES = 32 * 1024  # iterations of at most this message size are so short that medians become precise early
LONG_BYTES = 2**20  # iterations of at least this message size show the time per byte
# Iterations longer than MOST_ABOVE_MEAN times the geometric mean of all rows are assumed slow because of latency.
# Only an iteration's time up to MOST_ABOVE_MEAN times the mean is scaled with the message size.
MOST_ABOVE_MEAN = 2.5
# With starts, resets, checks and warm-up, a block takes up to MOST_OVERHEAD times as long as its timed iterations.
# A ratio above MOST_OVERHEAD was measured on short iterations, and does not hold for longer messages.
MOST_OVERHEAD = 2.5
LONGER_PER_SHORT = 1.2  # a first guess: the time of a row of longer messages, divided by that of short messages
TRUSTED_SHARE = 1 / 3  # once this share of a block has run, its measured pace alone predicts the rest of the block


class Block(NamedTuple):
    """The rows (engines and algorithms) that are timed together: their message size in bytes, and their number."""

    nbytes: int
    rows: int


class Iterations(NamedTuple):
    """The timed iterations of a row: their number, and the median time of one in seconds."""

    number: int
    seconds: float


class RowLimits(NamedTuple):
    """The bounds of a row's timing: the fewest iterations, and the seconds after which no further iteration begins."""

    iterations: int
    budget_s: float


NO_LIMITS = RowLimits(1, math.inf)


class LongBlock(NamedTuple):
    """Rows of one long message size, timed together: the size, the rows' total time, and each row's iterations."""

    nbytes: int
    seconds: float
    rows: Sequence[Iterations]

    def predict(self, block: Block, limits: RowLimits) -> float:
        """Return the predicted seconds of another block of long messages, from the duration of this measured block."""
        ratio = block.nbytes / self.nbytes
        timed_s = sum(row.number * row.seconds for row in self.rows)
        overhead = min(self.seconds / timed_s, MOST_OVERHEAD)
        mean_s = math.exp(sum(math.log(row.seconds) for row in self.rows) / len(self.rows))
        timing_s = 0.0
        for row in self.rows:
            iteration_s = ratio * min(row.seconds, MOST_ABOVE_MEAN * mean_s)
            least_s, most_s = limits.iterations * iteration_s, limits.budget_s / overhead
            timing_s += max(least_s, min(row.number * iteration_s, most_s))
        return overhead * timing_s * block.rows / len(self.rows)


class TimeLeft:
    """The estimated time until all blocks (rows that are timed together) are measured, in the given order.

    Args:
        blocks: all blocks to measure.
        row_s: a first guess of the time of a row of short messages, in seconds.
        byte_s: a first guess of the additional time of a row per byte of its message, in seconds.
        limits: the bounds of each row's timing; needed for long messages.
        get_seconds: the clock.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        row_s: float,
        byte_s: float = 0.0,
        limits: RowLimits = NO_LIMITS,
        get_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocks, self._row_s, self._byte_s, self._limits = list(blocks), row_s, byte_s, limits
        self._get_seconds, self._begun_s = get_seconds, get_seconds()
        self._ended = 0  # blocks
        self._row_times_s: dict[bool, list[float]] = {True: [], False: []}  # of ended blocks, by whether they are short
        self._longest: LongBlock | None = None
        self._share = 0.0
        self._first: tuple[float, float] | None = None  # time and share at the first update of the current block

    def update(self, share: float) -> None:
        """Set the share of the current block that has run, from 0 to 1."""
        self._share = min(share, 1.0)
        if self._first is None:
            self._first = self._get_seconds(), self._share

    def end_block(self, rows: Sequence[Iterations] = ()) -> None:
        """End the current block, whose timed iterations are `rows`, and begin the next one."""
        now_s, block = self._get_seconds(), self._blocks[self._ended]
        if block.nbytes >= LONG_BYTES and any(row.seconds > 0 for row in rows):
            timed = [row for row in rows if row.seconds > 0]
            self._longest = LongBlock(block.nbytes, now_s - self._begun_s, timed)
        elif block.rows:
            self._row_times_s[block.nbytes <= SHORT_BYTES].append((now_s - self._begun_s) / block.rows)
        self._ended += 1
        self._begun_s, self._share, self._first = now_s, 0.0, None

    @property
    def seconds(self) -> float:
        """The estimated time left in seconds; 0 after the last block."""
        if self._ended == len(self._blocks):
            return 0.0
        block, *later = self._blocks[self._ended :]
        left_s, pace_left_s = (
            max(self._predict(block) - (self._get_seconds() - self._begun_s), 0.0),
            self._extrapolate_pace(),
        )
        if pace_left_s is not None:
            trust = min(self._share / TRUSTED_SHARE, 1.0)
            left_s += trust * (pace_left_s - left_s)
        return left_s + sum(map(self._predict, later))

    def _extrapolate_pace(self) -> float | None:
        """Return the seconds that the current block still takes at its pace since the first update; None if unknown.

        The pace excludes the time before the first update, in which buffers are allocated and algorithms are bound.
        """
        if self._first is None or self._share <= self._first[1]:
            return None
        begun_s, begun = self._first
        return (1 - self._share) * (self._get_seconds() - begun_s) / (self._share - begun)

    def _predict(self, block: Block) -> float:
        """Return the predicted seconds in which the rows of `block` will be timed."""
        if self._longest is not None and block.nbytes >= LONG_BYTES:
            return self._longest.predict(block, self._limits)
        return block.rows * (self._estimate_row(block.nbytes <= SHORT_BYTES) + self._byte_s * block.nbytes)

    def _estimate_row(self, is_short: bool) -> float:
        """Return the estimated seconds of a row, without the part that is proportional to its message size.

        The estimate is for messages of at most SHORT_BYTES if `is_short`, else for longer ones.
        """
        for known, factor in ((self._row_times_s[is_short], 1.0), (self._row_times_s[True], LONGER_PER_SHORT)):
            if known:
                return factor * sum(known) / len(known)
        current, pace_left_s = self._blocks[self._ended], self._extrapolate_pace()
        is_alike = current.rows and is_short == (current.nbytes <= SHORT_BYTES)
        if not is_alike or pace_left_s is None or self._share < TRUSTED_SHARE:
            return self._row_s
        whole_s = self._get_seconds() - self._begun_s + pace_left_s
        return max(whole_s / current.rows - self._byte_s * current.nbytes, 0.0)
