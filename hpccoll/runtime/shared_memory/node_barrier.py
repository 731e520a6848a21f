"""Where the ranks of a node wait for each other: a word of each in shared memory, counted up at every fence.

A rank writes its own word and reads the others'; nobody waits for a message, and two ranks on two cores meet in about
a microsecond. At the first fence of a collective the word also says which collective it is, so ranks that do not
agree find out at once instead of mixing their data.

Order of memory: what a rank stored before its word must be there for who reads the word. On x86 stores and loads are
seen in program order. On other machines MPI_Win_sync, which is a full memory barrier, comes before the word is written
and after the others' were read.

Waiting: spinning is right while every rank has a core of its own. Where ranks outnumber cores, who waits holds up who
is waited for: then the core is given away at once, and after a while for longer and longer.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence, Sized
from typing import Final

from mpi4py import MPI

DIRECT: Final = 1 << 62  # in an entry: others can touch this rank's buffers where they are
FINGERPRINT: Final = DIRECT - 1
# A rank's words: its count of fences; then, for even and odd entries (who is an entry ahead must not overwrite what
# others still read; nobody can be two ahead), what it entered and where its input and output are.
_ENTRY = (1, 4)
WORDS: Final = 8
_SPINS, _SPINS_CROWDED = 500, 4
_YIELDS = 200
_FIRST_NAP_S, _LONGEST_NAP_S = 20e-6, 1e-3
_IN_ORDER = ("x86_64", "AMD64", "i386", "i686")


class DisagreementError(Exception):
    """Ranks are in different collectives, or the same one with different arguments."""


class Gate:
    """The ranks of a node, waiting for each other.

    Args:
        own: this rank's WORDS words of 64 bits, zero at first.
        others: the words of the other ranks.
        crowded: whether ranks outnumber cores.
        under_way: the asynchronous operations of the communicator; while there are any, `progress` carries them on.
        progress: see `under_way`.
        in_order: whether the machine shows stores in program order; found out where it is None.
    """

    __slots__ = (
        "_count",
        "_entries",
        "_others",
        "_own",
        "_progress",
        "_spins",
        "_sync",
        "_under_way",
        "half",
        "window",
    )

    def __init__(
        self,
        own: memoryview,
        others: Sequence[memoryview],
        crowded: bool,
        under_way: Sized,
        progress: Callable[[], object],
        in_order: bool | None = None,
    ) -> None:
        self._own, self._others = own, tuple(others)
        self._count = self._entries = 0
        self._spins = _SPINS_CROWDED if crowded else _SPINS
        self._under_way, self._progress = under_way, progress
        self.half = 0  # of the arena, for the next block
        self.window: MPI.Win | None = None
        if in_order is None:
            in_order = platform.machine() in _IN_ORDER
        if not in_order:
            self.window = MPI.Win.Create(bytearray(8), comm=MPI.COMM_SELF)
            self.window.Lock_all()
        self._sync = None if self.window is None else self.window.Sync

    def fence(self) -> None:
        """Wait until all ranks are here; what they stored before can be loaded after."""
        if self._sync is not None:
            self._sync()
        self._own[0] = self._count = count = self._count + 1
        for other in self._others:
            if other[0] < count:
                self._wait(other, count)
        if self._sync is not None:
            self._sync()

    @property
    def sync(self) -> Callable[[], object] | None:
        """Orders memory where the machine does not; None where it does."""
        return self._sync

    @property
    def turn(self) -> int:
        """Which of two things goes with the next meeting: 0 and 1 in turn, alike on all ranks."""
        return (self._count + 1) & 1

    def enter(self, entry: int, source: int = 0, result: int = 0) -> bool:
        """Wait for all ranks at the beginning of a collective; return whether all came as DIRECT as this one.

        Args:
            entry: a fingerprint of the collective and its arguments; with DIRECT set, others can touch this rank's
                buffers where they are.
            source: where this rank's input is, for `places`.
            result: where its output is.

        Raises:
            DisagreementError: another rank came with another fingerprint; every rank finds that out.
        """
        own, slot = self._own, self._entries & 1
        self._entries += 1
        at = _ENTRY[slot]
        own[at], own[at + 1], own[at + 2] = entry, source, result
        self.fence()
        differ = 0
        for other in self._others:
            differ |= other[at] ^ entry
        if differ & FINGERPRINT:
            raise DisagreementError
        return not differ

    def places(self) -> tuple[int, ...]:
        """Return where the inputs and outputs of the others are, after `enter`: two words each, in their order."""
        at = _ENTRY[(self._entries - 1) & 1]
        return tuple(other[word] for other in self._others for word in (at + 1, at + 2))

    def _wait(self, other: memoryview, count: int) -> None:
        for _ in range(self._spins):
            if other[0] >= count:
                return
        nap, turns = _FIRST_NAP_S, 0
        while other[0] < count:
            turns += 1
            if self._under_way:
                self._progress()
            if turns <= _YIELDS:
                os.sched_yield()
            else:
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP_S)

    def free(self) -> None:
        """Let go of the shared words; MPI must not have ended."""
        if self.window is not None:
            self.window.Unlock_all()
            self.window.Free()
            self.window = None
        self._own, self._others = memoryview(bytearray(8 * WORDS)).cast("Q"), ()
