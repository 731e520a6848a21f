"""Handles of asynchronous operations: collectives, and messages between two ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

from mpi4py import MPI

from hpccoll.arrays import BoundCall
from hpccoll.errors import DEBUG_HINT, CommunicationError, WaitTimeoutError
from hpccoll.native import StartedMessage
from hpccoll.runtime.progress import InFlight, Progress
from hpccoll.runtime.recorder.waits import WaitReason
from hpccoll.runtime.running_clock import RunningClock

ResultT = TypeVar("ResultT")


class Work(Generic[ResultT]):
    """The handle of an asynchronous operation. `wait` and `test` also advance all other operations of the process.

    An operation whose handle is dropped goes on, and keeps its arrays alive until it is done.

    Args:
        rank: this rank, for error messages.
        operation: the operation; None if it is already complete.
        result: the array that `wait` returns.
        finish: a function that is called once with `result` and makes the value that `wait` returns instead.
    """

    def __init__(
        self,
        rank: int,
        progress: Progress,
        operation: InFlight | None,
        result: ResultT,
        finish: Callable[[ResultT], ResultT] | None = None,
    ) -> None:
        self._rank, self._progress, self._operation, self._result = rank, progress, operation, result
        self._finish = finish
        self.done = operation is None

    @property
    def source(self) -> int | None:
        """The rank of the sender, if this is a receive and it is done; otherwise None."""
        return self._operation.source if isinstance(self._operation, MpiTransfer) else None

    @property
    def awaited(self) -> WaitReason | None:
        """The context manager that records a wait for the operation; None if the operation was complete at once."""
        return None if self._operation is None else self._operation.awaited

    def test(self) -> bool:
        """Advance as far as possible without blocking; return whether the operation is complete.

        Raises:
            CommunicationError: MPI reported an error, or a received message has another size than the array.
            MismatchError: ranks of a node called different collectives.
        """
        operation, progress = self._operation, self._progress
        if operation is None:
            return True
        if not self.done:
            has_others = progress.operations or len(progress.transfers) > 1
            advanced = has_others and progress.advance() and operation in progress.operations
            self.done = not advanced and operation.advance()
            if self.done:
                progress.forget_transfer(operation)
        operation.raise_error()
        return self.done

    def wait(self, timeout: float | None = None) -> ResultT:
        """Block until the operation is complete and return the result array.

        Args:
            timeout: seconds after which to give up, not counting time in which the process is suspended; None waits
                forever.

        Raises:
            WaitTimeoutError: the time is up; the operation is still in flight, and may be waited for again.
        """
        if not self.test():
            self._poll(timeout)
        if self._finish is not None:
            self._result, self._finish = self._finish(self._result), None
        return self._result

    def _poll(self, timeout: float | None) -> None:
        """Test until the operation is complete; raise WaitTimeoutError after `timeout` seconds."""
        clock = RunningClock(time.monotonic())
        deadline = None if timeout is None else clock.read(time.monotonic()) + timeout
        backoff = self._progress.make_backoff()
        with self.awaited or nullcontext():
            while not self.test():
                backoff.pause()
                self._progress.raise_if_stopped()
                if deadline is not None and clock.read(time.monotonic()) > deadline:
                    raise WaitTimeoutError(
                        f"rank {self._rank}: not complete after {timeout} s; did every rank call the same operation? "
                        f"{DEBUG_HINT}"
                    )


class MessageWork(StartedMessage, Work[Any]):
    """The handle of a message between two ranks that the extension has begun."""


class MpiTransfer(InFlight):
    """An operation in flight: a message between two ranks, in one or more segments, or an MPI library collective.

    Args:
        description: names the rank and its operation in error messages.
        requests: the requests of the segments, in order; a collective has one.
        last: functions to call when all requests are complete.
        sizes: bytes that each received segment must have; empty for a send or a collective.
        keep: objects whose memory MPI reads or writes until all requests are complete.
        note_bytes: bytes behind the data in the last segment (dtype_check.py); `sizes` does not count them.
    """

    __slots__ = (
        "_description", "_failure", "_keep", "_last", "_note_bytes", "_requests", "_sizes", "_status", "source"
    )  # fmt: skip

    def __init__(
        self,
        description: str,
        requests: list[MPI.Request],
        last: list[BoundCall],
        sizes: Sequence[int] = (),
        keep: tuple[Any, ...] = (),
        note_bytes: int = 0,
    ) -> None:
        super().__init__()
        self._note_bytes = note_bytes
        self._description, self._requests, self._last, self._sizes = description, requests, last, list(sizes)
        self._keep, self._status = keep, MPI.Status() if sizes else None
        self._failure: CommunicationError | None = None  # the first error of a receive
        self.source: int | None = None  # the sender of a received message

    def _advance(self) -> bool:
        """Test the requests in order without blocking; return whether all are complete, and `last` was called.

        After an error in one segment of a receive, the error is raised when the other segments have been cancelled,
        because MPI may write to their memory until then.
        """
        requests = self._requests
        while requests:
            try:
                if not requests[0].Test(self._status):
                    return False
                if self._status is not None and self._failure is None:
                    self._check_received(self._status)
            except (MPI.Exception, CommunicationError) as error:
                self._keep_failure(error)
            requests.pop(0)
            self._sizes = self._sizes[1:]
        if self._failure is not None:
            raise self._failure
        while self._last:
            self._last.pop(0)()
        self._keep = ()
        return True

    def is_settled(self) -> bool:
        """Whether all requests are complete or have failed; always true for a receive, because it sends no data."""
        try:
            return self._status is not None or bool(MPI.Request.Testall(self._requests))
        except MPI.Exception:  # the communicator has been revoked
            return True

    def cancel_receive(self) -> None:
        """Keep MPI from writing to the memory of a receive that no message has matched."""
        if self._status is not None:
            for request in self._requests:
                if request != MPI.REQUEST_NULL:  # complete, but an exception came before it was removed
                    request.Cancel()

    def _check_received(self, status: MPI.Status) -> None:
        """Record the sender of a received segment; raise CommunicationError if the segment has an unexpected size."""
        self.source, received = status.source, status.Get_count(MPI.BYTE)
        if len(self._sizes) == 1:
            received -= self._note_bytes
        if received != self._sizes[0]:
            raise explain_wrong_size(self._description, received, self._sizes[0])

    def _keep_failure(self, error: MPI.Exception | CommunicationError) -> None:
        """On a receive, cancel the other segments and keep the first error; on another operation, raise the error."""
        receives = self._status is not None
        if isinstance(error, MPI.Exception):
            error = explain_mpi_error(error, self._description, receives=receives)
        if not receives:
            raise error
        self._failure = self._failure or error
        for request in self._requests[1:]:
            request.Cancel()


def explain_wrong_size(description: str, received: int, expected: int) -> CommunicationError:
    """Return the error of a receive that got `received` bytes instead of `expected`; `description` names the call."""
    return CommunicationError(
        f"{description}: received a message of {received} bytes into an array of {expected}; pass an array as large as "
        "the one that is sent"
    )


def explain_mpi_error(error: MPI.Exception, description: str, *, receives: bool = False) -> CommunicationError:
    """Return the error of a collective or message that MPI refused, mostly because sizes differ across ranks.

    Args:
        description: names the collective or message.
        receives: whether the operation is a receive, which MPI refuses if the message is longer than the array.
    """
    remedy = f"do the sizes agree on all ranks? {DEBUG_HINT}"
    if receives:
        remedy = "pass an array as large as the one that is sent"
    reason = CommunicationError(f"{description} failed: {name_mpi_error(error)}; {remedy}")
    reason.__cause__ = error
    return reason


def name_mpi_error(error: MPI.Exception) -> str:
    """Return the message of an MPI error without the stack of calls that MPICH adds."""
    return str(error).partition("\n")[0].removesuffix(", error stack:")
