"""The barrier of a node's ranks: each rank counts its barriers (fences) in a shared word and polls the other words.

Two ranks on two cores pass the barrier in about a microsecond, without a message. From MANY_RANKS ranks on, a rank
reads all words by one call of NumPy. At the first fence of a collective
a rank also publishes a fingerprint of the collective, so ranks that called different collectives detect the
difference before they access data.

A rank that reads another rank's word must also see that rank's earlier stores. x86 keeps stores and loads in program
order. On processors other than x86 a rank calls MPI_Win_sync, a full memory barrier, before it writes its word and
after it has read the words of the other ranks.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
from mpi4py import MPI

from hpccoll.runtime.progress import Progress

if TYPE_CHECKING:
    from hpccoll.runtime.node_memory.segment import Words

DIRECT: Final = 1 << 62  # set in an entry where other ranks can access this rank's buffers in place
FINGERPRINT: Final = DIRECT - 1
# Word 0 counts a rank's fences; words 1-3 and words 4-6 hold its entries in turn (a fingerprint and two locations).
# Words for two entries suffice, because a rank is at most one entry ahead of the ranks that still read its words.
_FIRST_ENTRY, _SECOND_ENTRY = 1, 4
WORDS: Final = 8
_SPINS, _SPINS_OVERSUBSCRIBED = 500, 4
# One call of NumPy takes 0.8 us up to 64 ranks. A read of one word that another core has just written takes 42 ns.
MANY_RANKS: Final = 20
_ORDERED_MACHINES = ("x86_64", "AMD64", "i386", "i686")


class ArrivalCounter:
    """One rank's handle of counters in shared memory: each rank of a node counts its arrivals in a word of its own.

    Args:
        lines: the words of the node's ranks, shape (ranks, words); word 0 of a line is a counter, initially zero.
        row: the row of this rank in `lines`.
        synchronize: a function that executes a full memory barrier; None if the machine needs none.
    """

    __slots__ = ("_count", "_have_reached", "_own", "_synchronize")

    def __init__(self, lines: Words, row: int, synchronize: Callable[[], object] | None) -> None:
        self._count, self._synchronize = 0, synchronize
        self._own, self._have_reached = memoryview(lines[row]), bind_sweep(lines)

    def arrive(self) -> None:
        """Count this rank's arrival without waiting. Earlier stores are visible once `all_arrived` returns true."""
        if self._synchronize is not None:
            self._synchronize()
        self._own[0] = self._count = self._count + 1

    def all_arrived(self) -> bool:
        """Whether every rank of the node has arrived at least as often as this rank."""
        if not self._have_reached(self._count):
            return False
        if self._synchronize is not None:
            self._synchronize()
        return True


class NodeBarrier(ArrivalCounter):
    """A barrier of the ranks of one node in shared memory; `arrive` begins a fence that `all_arrived` ends.

    Args:
        lines: the shared words of the node's ranks, shape (ranks, WORDS or more), initially zero.
        row: the row of this rank in `lines`.
        oversubscribed: whether there are more ranks than cores; if so, a wait yields the core sooner.
        progress: the operations in flight, which advance during waits.
        ordered: whether the processor keeps stores in program order; None means to decide by the processor's type.
    """

    __slots__ = ("_entry_at", "_finish", "_lines", "_many", "_others", "_progress", "_rows", "_spins", "window")

    def __init__(
        self, lines: Words, row: int, oversubscribed: bool, progress: Progress, ordered: bool | None = None
    ) -> None:
        self._entry_at = _SECOND_ENTRY  # `_publish` writes the first entry to _FIRST_ENTRY
        self._spins = _SPINS_OVERSUBSCRIBED if oversubscribed else _SPINS
        self._progress = progress
        self.window: MPI.Win | None = None
        if ordered is None:
            ordered = platform.machine() in _ORDERED_MACHINES
        if not ordered:
            self.window = MPI.Win.Create(bytearray(8), comm=MPI.COMM_SELF)
            self.window.Lock_all()
        super().__init__(lines, row, None if self.window is None else self.window.Sync)
        self._map(lines, row)

    def _map(self, lines: Words, row: int) -> None:
        """Use the words in `lines` from now on; this rank's words are row `row`."""
        self._own, self._have_reached = memoryview(lines[row]), bind_sweep(lines)
        self._rows = np.delete(np.arange(len(lines)), row)
        self._lines, self._many = lines, len(lines) >= MANY_RANKS
        self._others = () if self._many else tuple(memoryview(lines[at]) for at in self._rows)
        self._finish = self._wait_for_all if self._many else self._synchronize

    def fence(self) -> None:
        """Block until all ranks of the node have called `fence`; their earlier stores are visible afterwards."""
        if self._synchronize is not None:
            self._synchronize()
        self._own[0] = self._count = count = self._count + 1
        for other in self._others:
            if other[0] < count:
                self._wait(other, count)
        if self._finish is not None:
            self._finish()

    @property
    def synchronize(self) -> Callable[[], object] | None:
        """A function that executes a full memory barrier; None if the processor keeps stores in order."""
        return self._synchronize

    @property
    def parity(self) -> int:
        """The parity (0 or 1) of the number of the next fence, the same on all ranks."""
        return (self._count + 1) & 1

    def enter(self, entry: int, source: int = 0, result: int = 0) -> bool | None:
        """Block until all ranks enter a collective; return whether they agree on access in place (bit DIRECT).

        `enter` returns None on all ranks if ranks entered different collectives or used different arguments.

        Args:
            entry: a fingerprint of the collective and its arguments, with the bit DIRECT set if other ranks can access
                this rank's buffers in place.
            source, result: the locations of this rank's input and output, which the other ranks get by `locations`.
        """
        self._publish(entry, source, result)
        self.fence()
        return self.compare()

    def post(self, entry: int, source: int = 0, result: int = 0) -> None:
        """Begin to enter a collective without blocking; the arguments are those of `enter`.

        The caller calls `compare` once `all_arrived` returns true.
        """
        self._publish(entry, source, result)
        self.arrive()

    def compare(self) -> bool | None:
        """Return whether all ranks agree on access in place (bit DIRECT); None if their fingerprints differ."""
        at = self._entry_at
        entry, differing_bits = self._own[at], 0
        for other in self._others:
            differing_bits |= other[at] ^ entry
        if self._many:
            differing_bits = int(np.bitwise_or.reduce(self._lines[:, at] ^ self._lines[0, at]))
        return None if differing_bits & FINGERPRINT else not differing_bits

    def _publish(self, entry: int, source: int, result: int) -> None:
        """Write this rank's entry and the locations of its buffers, for the other ranks to read."""
        own = self._own
        self._entry_at = at = _FIRST_ENTRY + _SECOND_ENTRY - self._entry_at  # the other of the two
        own[at], own[at + 1], own[at + 2] = entry, source, result

    def locations(self) -> tuple[int, ...]:
        """Return the locations of the other ranks' inputs and outputs after `enter`, as two words per rank."""
        at = self._entry_at + 1
        if self._many:
            return tuple(self._lines[self._rows, at : at + 2].ravel().tolist())
        return tuple(other[word] for other in self._others for word in (at, at + 1))

    def _wait(self, other: memoryview, count: int) -> None:
        """Poll another rank's count of fences until it reaches `count`; operations in flight advance meanwhile."""
        for _ in range(self._spins):
            if other[0] >= count:
                return
        self._progress.sleep_until(lambda: other[0] >= count)

    def _wait_for_all(self) -> None:
        """Poll the counts of all ranks at once until they reach this rank's; operations in flight advance meanwhile."""
        count = self._count
        for _ in range(1 + self._spins // 4):
            if self._have_reached(count):
                break
        else:
            self._progress.sleep_until(lambda: self._have_reached(count))
        if self._synchronize is not None:
            self._synchronize()

    def free(self) -> None:
        """Release the barrier's shared memory; to be called before MPI is finalized."""
        if self.window is not None:
            self.window.Unlock_all()
            self.window.Free()
            self.window = None
        self._map(np.zeros((1, WORDS), np.uint64), 0)


def bind_sweep(lines: Words) -> Callable[[int], bool]:
    """Return a function that tells whether the counter in every rank's cache line has reached a given count."""
    if len(lines) >= MANY_RANKS:
        counters, read_all = lines[:, 0], np.minimum.reduce
        return lambda count: bool(read_all(counters) >= count)
    counts = [memoryview(line) for line in lines]

    def have_reached(count: int) -> bool:
        """Whether every counter has reached `count`; reads one counter after another."""
        for line in counts:  # noqa: SIM110 - a generator takes three times as long
            if line[0] < count:
                return False
        return True

    return have_reached
