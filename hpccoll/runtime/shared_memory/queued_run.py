"""An asynchronous run of a shared-memory plan on one node, which stops at each fence until the other ranks reach it.

Blocking and asynchronous runs of a communicator use the same barrier and slots, and run one after the other in the
order of their calls. Some ranks may therefore call a collective blocking and others asynchronously.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from hpccoll.runtime.progress import InFlight


class QueuedRun(InFlight):
    """One run in flight; only the first run of `queue` advances.

    Args:
        begin: starts the run, and returns an iterator that yields whenever the run has to wait for other ranks.
        queue: the runs of the communicator in the order of their calls.
        keep: an object that is kept alive until the run is done, such as the arrays.
    """

    __slots__ = ("_begin", "_keep", "_queue", "_steps")

    def __init__(self, begin: Callable[[], Iterator[None]], queue: deque[InFlight], keep: object) -> None:
        super().__init__()
        self._begin, self._queue, self._keep = begin, queue, keep
        self._steps: Iterator[None] | None = None
        queue.append(self)

    def _advance(self) -> bool:
        if self._queue[0] is not self:
            return False
        try:
            if self._steps is None:
                self._steps = self._begin()
            for _ in self._steps:
                return False  # the run waits for other ranks; the next call continues it
        except BaseException:
            self._end()
            raise
        self._end()
        return True

    def _end(self) -> None:
        """Let the next run begin, and drop the arrays."""
        with suppress(ValueError):
            self._queue.remove(self)
        self._keep = self._steps = None
