"""Asynchronous runs of shared-memory plans on one node, which stop at each fence until the other ranks reach it.

Blocking and asynchronous runs of a communicator use the same barrier and slots, and run one after the other in the
order of their calls. Some ranks may therefore call a collective blocking and others asynchronously.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from hpccoll.errors import HpccollError
from hpccoll.native import StagedCall, StagedRun
from hpccoll.runtime.progress import InFlight


class QueuedRun(InFlight):
    """A run in flight in the queue of its communicator; `native` is what later native runs wait for."""

    __slots__ = ("_queue", "native")

    def __init__(self, native: StagedRun, queue: deque[QueuedRun]) -> None:
        super().__init__()
        self.native, self._queue = native, queue
        queue.append(self)

    def _end(self) -> None:
        """Leave the queue, so that the next run begins."""
        with suppress(ValueError):
            self._queue.remove(self)

    def abandon(self) -> None:
        """Take the run from the progress thread."""
        self.native.abandon()


class QueuedStagedRun(QueuedRun):
    """A run of a staged call, which the progress thread advances, too; `keep` is kept alive until the run is done."""

    __slots__ = ()

    def __init__(self, staged: StagedCall, addresses: tuple[int, int], queue: deque[QueuedRun], keep: object) -> None:
        super().__init__(StagedRun(staged, *addresses, _get_last(queue), keep), queue)

    def _advance(self) -> bool:
        try:
            done = self.native.advance()
        except BaseException:
            self._end()
            raise
        if done:
            self._end()
        return done


class QueuedPythonRun(QueuedRun):
    """A run in Python, which advances in calls of hpccoll only, when it is the first of `queue`.

    Args:
        begin: starts the run, and returns an iterator that yields whenever the run has to wait for other ranks.
        queue: the runs of the communicator in the order of their calls.
        keep: an object that is kept alive until the run is done, such as the arrays.
        have_all_arrived: whether all ranks are at this rank's fence, and therefore do not read its arrays any more.
    """

    __slots__ = ("_begin", "_have_all_arrived", "_keep", "_steps")

    def __init__(
        self,
        begin: Callable[[], Iterator[None]],
        queue: deque[QueuedRun],
        keep: object,
        have_all_arrived: Callable[[], bool],
    ) -> None:
        super().__init__(StagedRun(None, 0, 0, None, None), queue)
        self._begin, self._keep, self._have_all_arrived = begin, keep, have_all_arrived
        self._steps: Iterator[None] | None = None

    def _advance(self) -> bool:
        if self._queue[0] is not self:
            return False
        try:
            if self._steps is None:
                self._steps = self._begin()
            for _ in self._steps:
                return False  # the run waits for other ranks; the next call continues it
        except HpccollError:  # on all ranks, so that the next run may begin
            self._finish()
            raise
        except BaseException:
            self._end()
            raise
        self._finish()
        return True

    def is_settled(self) -> bool:
        """Whether the other ranks have read this rank's arrays, if they have begun to."""
        return self._steps is None or self._have_all_arrived()

    def _finish(self) -> None:
        """Let the next run begin, and drop the arrays."""
        self.native.finish()
        self._end()
        self._keep = self._steps = None


def _get_last(queue: deque[QueuedRun]) -> StagedRun | None:
    """Return the native part of the latest run of a queue."""
    return queue[-1].native if queue else None
