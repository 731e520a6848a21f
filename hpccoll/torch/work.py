"""The handle that torch.distributed gets for an operation.

A lock lets one thread at a time call hpccoll. A thread that blocks inside a collective holds the lock until the end of
the collective, so only the main thread may block there: if two threads blocked in different orders on two ranks, the
ranks would wait for each other forever.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from functools import cache
from typing import Any, Final, NoReturn, TypeAlias

import torch
import torch.distributed as dist

from hpccoll.communicator import Communicator
from hpccoll.errors import HpccollError, UsageError, WaitTimeoutError
from hpccoll.runtime.progress import NEVER, get_progress
from hpccoll.runtime.recorder.waits import BackgroundWait
from hpccoll.runtime.running_clock import RunningClock
from hpccoll.runtime.work import Work
from hpccoll.torch.communicators import list_kept
from hpccoll.torch.compilation import exempt_from_compilation
from hpccoll.torch.futures import get_completer

Start: TypeAlias = Callable[..., Any]  # runs a part of an operation; given async_op=True, returns its `Work` at once
NOT_GIVEN: Final = timedelta(0)  # torch passes this time if the user gives none
BRIEF_S: Final = 0.002  # within a node, `get_future` waits for a collective this long before the thread takes over


@exempt_from_compilation
class TorchWork(dist._Work):  # type: ignore[misc]  # noqa: SLF001 - torch has no public class
    """The handle of one operation of torch.distributed; it keeps the tensors of the operation alive."""

    # These are attributes of the class, because a blocking operation sets few of them, and setting all takes time.
    is_message = was_interrupted = _done = False
    has_future = _is_future_complete = False
    _result: Any = ()
    _works: Sequence[Work[Any]] = ()
    _error: Exception | None = None
    _source: int | None = None
    _timeout, _deadline = NOT_GIVEN, 0.0
    _clock: RunningClock  # of `_deadline`
    _completion: torch.futures.Future[None]  # complete when the operation is complete or has failed
    _future: Any = None  # the continuation of `_completion`
    _recorded_wait: ExitStack  # open while the thread of futures waits for the operation
    is_kept_if_dropped = False  # whether the finalizer of `InFlightWork` keeps the handle: nobody has waited for it yet

    # Without an `__init__` in Python, an operation of 8 bytes takes 1 to 2 % less time.

    def run(
        self,
        name: str,
        comm: Communicator,
        starts: Sequence[Start],
        result: Any,
        finish: Sequence[Callable[[], object]],
        timeout: timedelta,
    ) -> None:
        """Run the operation to its end; only the main thread may call this. The arguments are those of `begin`.

        Raises:
            DistBackendError: the operation failed or exceeded its timeout.
        """
        self._result, progress = result, get_progress()
        try:
            with get_lock():
                progress.limit_waits(timeout.total_seconds())
                try:
                    for start in starts:
                        start()
                except WaitTimeoutError:
                    raise self._interrupt(comm, starts, timeout) from None
                finally:
                    progress.deadline = NEVER
            for step in finish:
                step()
        except HpccollError as error:
            raise dist.DistBackendError(f"{_describe(name, comm)}: {error}") from error
        self._done = True

    def begin(
        self,
        name: str,
        comm: Communicator,
        starts: Sequence[Start],
        result: Any,
        finish: Sequence[Callable[[], object]],
        timeout: timedelta,
        *,
        is_message: bool,
    ) -> None:
        """Start the operation without waiting for its end; `wait` raises all errors except those of wrong arguments.

        Args:
            name: the operation, for error messages.
            starts: functions that start the parts of the operation, called in this order.
            result: the tensors of the operation, which `result` and the future return.
            finish: called once at the end, to move results to the user's tensors.
            timeout: the time limit for the start of a collective, and for a wait whose caller gives no time limit.
            is_message: whether the parts are sends or receives, which start without waiting and return a `Work`.
        """
        self._result, self._name, self.comm, self._finish, self._timeout = result, name, comm, finish, timeout
        self.is_message = is_message
        try:
            with get_lock():
                if is_message:
                    self._works = [start() for start in starts]
                else:
                    self._begin_collective(comm, starts, timeout)
        except UsageError:
            raise  # wrong arguments, which no rank has used yet
        except HpccollError as error:
            self._fail(error)
        self.is_kept_if_dropped = True

    def _begin_collective(self, comm: Communicator, starts: Sequence[Start], timeout: timedelta) -> None:
        """Start the parts of a collective; raise WaitTimeoutError after `timeout`. The caller holds `get_lock()`."""
        progress = get_progress()
        progress.limit_waits(timeout.total_seconds())
        try:
            self._works = [start(async_op=True) for start in starts]
        except WaitTimeoutError:
            raise self._interrupt(comm, starts, timeout) from None
        finally:
            progress.deadline = NEVER

    def _interrupt(self, comm: Communicator, starts: Sequence[Start], timeout: timedelta) -> WaitTimeoutError:
        """Mark the operation as timed out, keep its tensors until the process ends, and return the error to raise."""
        self.was_interrupted = True
        list_kept().append(starts)  # MPI may use the tensors until the process ends
        return WaitTimeoutError(_explain_wait(comm, timeout))

    def wait(self, timeout: timedelta = NOT_GIVEN) -> bool:
        """Block until the operation is complete; return True. A `timeout` above zero replaces the operation's timeout.

        Raises:
            DistBackendError: the operation failed or exceeded its timeout.
        """
        if not (self._done or self._advance()):
            self._poll(timeout or self._timeout)
        self.is_kept_if_dropped = False
        if self._error is not None:
            raise dist.DistBackendError(f"{_describe(self._name, self.comm)}: {self._error}") from self._error
        return True

    def wait_unrecorded(self) -> None:
        """Block until the operation is complete; the caller has already entered the wait in the flight recorder."""
        self._poll(self._timeout, is_recorded=False)

    def _poll(self, timeout: timedelta, *, is_recorded: bool = True) -> None:
        """Advance all operations of the process until this operation is done; raise DistBackendError after `timeout`.

        `is_recorded` is whether this method enters the wait in the flight recorder.
        """
        clock, backoff = RunningClock(time.monotonic()), get_progress().make_backoff()
        deadline = clock.read(time.monotonic()) + timeout.total_seconds()
        pending = self._works[0] if self._works else None
        with (is_recorded and pending and pending.awaited) or nullcontext():
            while not self._advance():
                backoff.pause()
                if clock.read(time.monotonic()) > deadline:
                    self._raise_late(timeout, pending)

    def _raise_late(self, timeout: timedelta, pending: Work[Any] | None) -> NoReturn:
        """Raise DistBackendError, whose message names the ranks that `pending`, a part of the operation, waits for."""
        reason = _explain_wait(self.comm, timeout, pending)
        raise dist.DistBackendError(f"{_describe(self._name, self.comm)}: {reason}")

    def _advance(self) -> bool:
        """Advance the operation without blocking; return whether it is complete or has failed."""
        if self._done:
            return True
        with get_lock():
            try:
                while self._works:
                    first, *others = self._works
                    if not first.test():
                        return False
                    self._source, self._works = first.source, others
                if not self._done:
                    self._complete()
            except HpccollError as error:
                self._fail(error)
        return True

    def _complete(self) -> None:
        """Copy the results to the user's tensors and mark the operation as done."""
        for step in self._finish:
            step()
        self._finish, self._done = (), True

    def _fail(self, error: Exception) -> None:
        """Mark the operation as failed: `wait` raises DistBackendError with `error` as its cause."""
        self._error, self._finish, self._works, self._done = error, (), (), True

    def is_completed(self) -> bool:
        """Advance the operation without blocking; return whether it is complete or has failed."""
        return self._advance()

    def is_success(self) -> bool:
        """Advance the operation without blocking; return whether it is complete without an error."""
        return self._advance() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error of a failed operation, or None."""
        return self._error

    def result(self) -> Any:
        """Return the tensors of the operation, at once, whether or not it is complete."""
        return self._result

    def synchronize(self) -> None:
        """Block until the operation is complete, as `wait` does."""
        self.wait()

    def source_rank(self) -> int:
        """Return the rank that sent a received message; -1 before the message has arrived and for other operations."""
        return -1 if self._source is None else self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a torch future of the operation's tensors, which is completed in this call or by a thread.

        For a collective within one node, `get_future` waits up to `BRIEF_S` seconds for its end. The future gets the
        error of a failed operation, also if the operation exceeds its timeout.
        """
        if self._future is None:
            # C++ code sees the exception of a continuation, but not one that `Future.set_exception` has set.
            self._completion, self._recorded_wait = torch.futures.Future(), ExitStack()
            self._future = self._completion.then(self._get_outcome)
            began, completer, backoff = time.monotonic(), get_completer(), get_progress().make_backoff()
            self._clock = RunningClock(began)
            self._deadline = began + self._timeout.total_seconds()
            self.has_future = True  # from now on, the thread may complete the future of a dropped handle
            waits = self._works and not self.is_message and self.comm.node_count == 1
            brief_s = BRIEF_S if waits else 0.0
            while not self.complete_future():
                if completer.can_take_over() and time.monotonic() > began + brief_s:
                    awaited = self._works[0].awaited if self._works else None
                    self._recorded_wait.enter_context(BackgroundWait(awaited) if awaited else nullcontext())
                    completer.add(self)
                    break
                backoff.pause()
        return self._future

    def complete_future(self) -> bool:
        """Advance the operation without blocking, and complete its future if it is done or has exceeded its timeout.

        Returns whether the future is complete or, without a future, whether the operation is done.
        """
        if not self.has_future:
            return self._advance()
        if not self._advance() and self._clock.read(time.monotonic()) < self._deadline:
            return False
        with get_lock():
            is_first, self._is_future_complete = not self._is_future_complete, True
        if is_first:
            self._recorded_wait.close()
            self._completion.set_result(None)
            self.is_kept_if_dropped = False
        return True

    def forget_result(self) -> None:
        """Drop the tensors that `result` and the future return, so that the end of the operation frees them."""
        self._result = []

    def _get_outcome(self, _: object) -> Any:
        """Return the tensors of the operation for its future; raise DistBackendError if it failed or timed out."""
        if not self._done:
            self._raise_late(self._timeout, self._works[0] if self._works else None)
        self.wait()
        return self._result


class InFlightWork(TorchWork):
    """The handle of an operation that may still be in flight when the handle is dropped.

    C++ code, such as that of `DistributedDataParallel.join`, may keep the C++ part of a handle alone, and wait for it
    later. Without its Python part, a handle never becomes complete, so a dropped handle is kept until `wait` has
    returned.
    """

    def __del__(self) -> None:
        """Keep the handle, and let the operation complete."""
        if self.is_kept_if_dropped and not sys.is_finalizing():
            get_completer().keep(self)


def _describe(name: str, comm: Communicator) -> str:
    """Return the start of an error message: the operation `name` and this rank of `comm`."""
    return f"{name} on rank {comm.rank} of {comm.size}"


def _explain_wait(comm: Communicator, timeout: timedelta, pending: Work[Any] | None = None) -> str:
    """Return the message of a timeout: it begins as Gloo's message does, and names the ranks that are waited for.

    `pending` is the operation that waits; None stands for the latest blocking collective of `comm`.
    """
    seconds = timeout.total_seconds()
    with get_lock():
        return f"Timed out waiting {1000 * seconds:.0f}ms (timeout: {seconds:g} s); {comm.explain_wait(pending)}"


@cache
def get_lock() -> Any:
    """Return the lock of this process that a thread must hold while it calls a method of a communicator."""
    return threading.RLock()


def advance_operations() -> None:
    """Advance all operations in flight of this process, once no other thread is inside a call of hpccoll."""
    with get_lock():
        get_progress().advance()
