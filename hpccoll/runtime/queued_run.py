"""Asynchronous runs of a queue: plans on one node, which stop at each fence, or two-level plans.

Blocking and asynchronous runs of a communicator use the same barrier and slots, and run one after the other in the
order of their calls. Some ranks may therefore call a collective blocking and others asynchronously.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from hpccoll.errors import HpccollError
from hpccoll.native import QueuedRun
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.collective_call import call_in_order
from hpccoll.runtime.progress import InFlight


class RunInQueue(InFlight):
    """A native run in flight, which the progress thread advances, too; it leaves `queue` when it is done.

    Args:
        buffers: address and bytes of the input and of the output.
    """

    __slots__ = ("_buffers", "_is_marked", "_queue", "native")

    def __init__(self, native: QueuedRun, queue: deque[RunInQueue], buffers: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.native, self._queue, self._buffers, self._is_marked = native, queue, buffers, False
        queue.append(self)

    def accesses(self, address: int, nbytes: int) -> bool:
        """Whether the run's input or output has some of `nbytes` bytes at an address."""
        return any(begin < address + nbytes and address < begin + size for begin, size in self._buffers)

    def _advance(self) -> bool:
        """Advance the native run without blocking; return whether it is complete."""
        try:
            done = self.native.advance()
        except HpccollError:  # on all ranks, so that the next run may begin
            self.end()
            raise
        except BaseException:
            self._leave()
            raise
        self.mark_started()
        if done:
            self._leave()
        return done

    def mark_started(self) -> None:
        """Record the start of the operation once the runs before it are done."""
        if not self._is_marked and self.native.has_begun and self.awaited is not None:
            self._is_marked = True
            super().mark_started()

    def wait(self) -> None:
        """Block until the run, which nothing else advances, is done."""
        try:
            self.native.wait()
        except HpccollError:
            self.end()
            raise
        except BaseException:
            self.done = True
            self._leave()
            raise
        self.done = True
        self._leave()

    def end(self) -> None:
        """Let the next run begin although this one has failed or was interrupted."""
        self.done = True
        self.native.finish()
        self._leave()

    def _leave(self) -> None:
        """Leave the queue."""
        with suppress(ValueError):
            self._queue.remove(self)

    def is_settled(self) -> bool:
        """Whether the other ranks no longer read this rank's memory for what the run has begun."""
        return self.native.is_settled()

    def abandon(self) -> None:
        """Take the run from the progress thread."""
        self.native.abandon()


def get_last(queue: deque[RunInQueue]) -> QueuedRun | None:
    """Return the latest run of a queue, which a new run follows."""
    return queue[-1].native if queue else None


def call_or_defer(
    steps: Sequence[BoundCall], buffers: Sequence[tuple[int, int]], queue: Iterable[RunInQueue]
) -> Callable[[], None] | None:
    """Call the steps before a run now, or return a function for it if an earlier run accesses the buffers.

    A call of hpccoll calls the function when the earlier runs of the queue are done; the progress thread cannot.
    """
    if any(earlier.accesses(*buffer) for earlier in queue for buffer in buffers):
        return partial(call_in_order, steps)
    call_in_order(steps)
    return None
