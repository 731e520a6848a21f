"""Estimates how long a benchmark still takes, while its rows differ in duration by orders of magnitude.

The rows of one message size are timed together, in turns, as a block. The time of a row is modelled as a constant plus
a time per byte: the constant is that of the short messages measured so far, the time per byte that of the longest
message so far, or a guess until a message is so long that its bytes matter. For the current block, its measured pace
replaces the model as soon as its rows have run an iteration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

SHORT_BYTES = 64 * 1024  # rows of at most this message size take about the same time
LONG_BYTES = 2**20  # rows of at least this message size show the time per byte


class Block(NamedTuple):
    """The rows that are timed together: the message size in bytes, and the number of rows."""

    nbytes: int
    rows: int


class TimeLeft:
    """The estimated time until all blocks are measured; blocks are measured in the given order.

    Args:
        blocks: all blocks to measure.
        row_s: a first guess of the time of a row with a short message, in seconds.
        byte_s: a first guess of the time that a row takes per byte of its message, in seconds.
        get_seconds: the clock.
    """

    def __init__(
        self, blocks: Sequence[Block], row_s: float, byte_s: float, get_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._blocks, self._row_s, self._byte_s = list(blocks), row_s, byte_s
        self._get_seconds, self._begun_s = get_seconds, get_seconds()
        self._done: list[tuple[Block, float]] = []
        self._share = 0.0

    def update(self, share: float) -> None:
        """Set the share of the current block's iterations that has run, from 0 to 1."""
        self._share = share

    def end_block(self) -> None:
        """End the current block and begin the next one."""
        now_s, block = self._get_seconds(), self._blocks[len(self._done)]
        self._done.append((block, now_s - self._begun_s))
        self._begun_s, self._share = now_s, 0.0

    @property
    def seconds(self) -> float:
        """The estimated time left in seconds; 0 after the last block."""
        if len(self._done) == len(self._blocks):
            return 0.0
        row_s, byte_s = self._fit()
        current, *later = (block.rows * (row_s + byte_s * block.nbytes) for block in self._blocks[len(self._done) :])
        spent_s = self._get_seconds() - self._begun_s
        if self._share > 0:
            current = spent_s / min(self._share, 1.0)
        return max(current - spent_s, 0.0) + sum(later)

    def _fit(self) -> tuple[float, float]:
        """Return the time of a row with a short message, and the time per byte, in seconds."""
        measured = [(block.nbytes, seconds / block.rows) for block, seconds in self._done if block.rows]
        current = self._blocks[len(self._done)]
        if current.rows and self._share > 0:
            pace_s = (self._get_seconds() - self._begun_s) / min(self._share, 1.0)
            measured.append((current.nbytes, pace_s / current.rows))
        if not measured:
            return self._row_s, self._byte_s
        short = [seconds for nbytes, seconds in measured if nbytes <= SHORT_BYTES]
        longest, longest_s = max(measured)
        row_s = sum(short) / len(short) if short else min(self._row_s, longest_s)
        return row_s, self._byte_s if longest < LONG_BYTES else max(longest_s - row_s, 0.0) / longest
