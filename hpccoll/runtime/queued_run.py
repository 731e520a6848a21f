"""Asynchronous runs of native plans: of messages, on one node (which stop at each fence), or two-level.

Runs on one node, and two-level runs, form a queue each: blocking and asynchronous runs of a communicator use the same
barrier and slots, and run one after the other in the order of their calls. Some ranks may therefore call a collective
blocking and others asynchronously.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from hpccoll.errors import HpccollError
from hpccoll.native import MessageRun, QueuedRun
from hpccoll.runtime.arrays import BoundCall, run_all
from hpccoll.runtime.progress import InFlight


class NativeRun(InFlight):
    """A native run of a plan in flight, which the progress thread advances, too."""

    __slots__ = ("native",)
    native: QueuedRun | MessageRun

    def __init__(self, native: QueuedRun | MessageRun) -> None:
        super().__init__()
        self.native = native

    def _advance(self) -> bool:
        """Advance the native run without blocking; return whether it is complete."""
        return self.native.advance()

    def is_settled(self) -> bool:
        """Whether the other ranks no longer read this rank's memory for what the run has begun."""
        return self.native.is_settled()

    def abandon(self) -> None:
        """Take the run from the progress thread."""
        self.native.abandon()


class RunInQueue(NativeRun):
    """A native run of a queue, which follows the runs before it, and leaves the queue when it is done.

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
        """Whether the run's input or output has some of `nbytes` bytes at an address."""
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
    """Return a function that starts a run on the addresses of an input and an output, which follows those in `queue`.

    The function's third argument is an object that is kept alive until the end of the run.

    Args:
        make_run: makes the native run of both addresses, the previous run, a function to call before the run, and the
            object that is kept alive.
        steps: local work before a run. If an earlier run accesses the buffers, a call of hpccoll carries out the steps
            when the earlier runs are done; the progress thread cannot.
        nbytes: bytes of input and output.
    """

    def start(source: int, result: int, keep: object) -> RunInQueue:
        """Start a run at these addresses."""
        buffers = (source, nbytes[0]), (result, nbytes[1])
        before: BoundCall | None = None
        if steps and any(earlier.accesses(*buffer) for earlier in queue for buffer in buffers):
            before = partial(run_all, steps)
        else:
            run_all(steps)
        previous = queue[-1].native if queue else None
        return RunInQueue(make_run(source, result, previous, before, keep), queue, buffers)

    return start
