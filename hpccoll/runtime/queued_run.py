"""Asynchronous runs of plans by C code: plans of messages, shared-memory plans of one node, and two-level plans.

The runs of shared-memory plans form a queue, and those of two-level plans form another. Blocking and asynchronous runs
of a communicator use the same barrier and slots, and run one after the other in the order of their calls. Some ranks
may therefore call a collective blocking while other ranks call it asynchronously.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from hpccoll.arrays import BoundCall, run_all
from hpccoll.errors import HpccollError
from hpccoll.native import MessageRun, QueuedRun
from hpccoll.runtime.progress import InFlight


class NativeRun(InFlight):
    """A run of a plan by C code, in flight; the progress thread advances it, too."""

    __slots__ = ("native",)
    native: QueuedRun | MessageRun

    def __init__(self, native: QueuedRun | MessageRun) -> None:
        super().__init__()
        self.native = native

    def _advance(self) -> bool:
        """Advance the native run without blocking; return whether it is complete."""
        return self.native.advance()

    def is_settled(self) -> bool:
        """Whether other ranks have finished reading this rank's memory for this run."""
        return self.native.is_settled()

    def abandon(self) -> None:
        """Keep the progress thread from advancing the run any further."""
        self.native.abandon()


class RunInQueue(NativeRun):
    """A run of a plan by C code that begins after the earlier runs of its queue, and leaves the queue when it is done.

    Args:
        buffers: address and bytes of the input and of the output.
    """

    __slots__ = ("_buffers", "_is_marked", "_queue")
    native: QueuedRun

    def __init__(self, native: QueuedRun, queue: deque[RunInQueue], buffers: Sequence[tuple[int, int]]) -> None:
        super().__init__(native)
        self._queue, self._buffers, self._is_marked = queue, buffers, False
        queue.append(self)

    def accesses(self, address: int, nbytes: int) -> bool:
        """Whether the run's input or output overlaps the `nbytes` bytes at `address`."""
        return any(begin < address + nbytes and address < begin + size for begin, size in self._buffers)

    def _advance(self) -> bool:
        """Advance the native run without blocking; return whether it is complete."""
        try:
            done = super()._advance()
        except BaseException as error:
            if isinstance(error, HpccollError):  # on all ranks, so that the next run may begin
                self.native.finish()
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
        except HpccollError:  # on all ranks, so that the next run may begin
            self.native.finish()
            raise
        finally:
            self.done = True
            self._leave()

    def _leave(self) -> None:
        """Leave the queue."""
        with suppress(ValueError):
            self._queue.remove(self)


def bind_start(
    make_run: Callable[..., QueuedRun], queue: deque[RunInQueue], steps: Sequence[BoundCall], nbytes: tuple[int, int]
) -> Callable[[int, int, object], RunInQueue]:
    """Return a function that starts a run after those in `queue`, on the addresses of an input and an output.

    The function's third argument is an object that is kept alive until the end of the run.

    Args:
        make_run: returns the native run; called with both addresses, the previous run, a function to call before the
            run, and the object to keep alive.
        steps: functions that do the local work before a run. If an earlier run accesses the buffers, `steps` run in a
            call of hpccoll after the earlier runs are done, because the progress thread cannot run them.
        nbytes: the sizes in bytes of the input and the output.
    """

    def start(source: int, result: int, keep: object) -> RunInQueue:
        """Start a run on an input and an output at two addresses."""
        buffers = (source, nbytes[0]), (result, nbytes[1])
        before: BoundCall | None = None
        if steps and any(earlier.accesses(*buffer) for earlier in queue for buffer in buffers):
            before = partial(run_all, steps)
        else:
            run_all(steps)
        previous = queue[-1].native if queue else None
        return RunInQueue(make_run(source, result, previous, before, keep), queue, buffers)

    return start
