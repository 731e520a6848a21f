"""Handles of asynchronous operations: collectives, and messages between two ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI

from hpccoll.errors import CommunicationError
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.backoff import Backoff
from hpccoll.runtime.progress import InFlight, Progress


class Work:
    """The handle of an asynchronous operation. `wait` and `test` advance all operations of the communicator.

    Args:
        rank: this rank, for error messages.
        operation: the operation in flight; None if it is already complete.
        result: the array that `wait` returns.
        keep: objects whose memory MPI reads or writes until the operation is complete.
    """

    def __init__(
        self, rank: int, progress: Progress, operation: InFlight | None, result: Any, keep: tuple[Any, ...] = ()
    ) -> None:
        self._rank, self._progress, self._operation, self._result = rank, progress, operation, result
        self._keep = keep
        self.done = operation is None

    def test(self) -> bool:
        """Advance the operation as far as possible without blocking; return whether it is complete."""
        if not self.done and self._operation is not None:
            self._progress.advance()
            self.done = self._operation.advance()
        return self.done

    def wait(self, timeout: float | None = None) -> Any:
        """Block until the operation is complete and return the result array.

        Args:
            timeout: seconds to wait at most; None means no limit.

        Raises:
            CommunicationError: `timeout` has passed; the operation is still in flight, and `wait` may be called again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        backoff = Backoff(spins=True, sleeps=False)
        while not self.test():
            backoff.pause()
            if deadline is not None and time.monotonic() > deadline:
                raise CommunicationError(
                    f"rank {self._rank}: not complete after {timeout} s; did every rank call the same operation?"
                )
        self._keep = ()
        return self._result


@dataclass(slots=True)
class MessageTransfer:
    """A message in flight between two ranks, sent in one or more segments."""

    description: str  # the direction and the ranks, for error messages
    requests: list[MPI.Request]  # requests of the segments that are not complete, in order
    last: list[BoundCall]  # calls to make when all segments are complete
    sizes: list[int]  # bytes that each received segment must have; empty for a send
    _status: MPI.Status = field(default_factory=MPI.Status)

    def advance(self) -> bool:
        """Test the segments in order without blocking; if all are complete, call `last` and return true."""
        while self.requests:
            try:
                if not self.requests[0].Test(self._status):
                    return False
            except MPI.Exception as error:
                raise CommunicationError(
                    f"{self.description} failed: {error}; do the sizes on both sides agree?"
                ) from error
            self.requests.pop(0)
            if self.sizes:
                self._require_size(self.sizes.pop(0))
        while self.last:
            self.last.pop(0)()
        return True

    def _require_size(self, expected: int) -> None:
        """Raise CommunicationError unless the received segment has `expected` bytes."""
        received = self._status.Get_count(MPI.BYTE)
        if received != expected:
            raise CommunicationError(
                f"{self.description}: received a message of {received} bytes into an array of {expected}; "
                "pass an array as large as the one that is sent"
            )
