"""The in-flight operations of this process, and the waits in which they advance.

Every wait, test and blocking call of every communicator advances all in-flight operations of the process, so ranks may
wait for operations, on any communicators, in different orders. A native thread (native/progress.c) advances plans, and
lets MPI advance its own operations, while the program does something else.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Final, TypeVar

from mpi4py import MPI

from hpccoll.errors import CommunicationError, HpccollError, UsageError, WaitTimeoutError
from hpccoll.native import MpiFunctions, configure_progress, set_polling, stop_progress
from hpccoll.runtime.backoff import POLLED_TAG, Backoff, settle
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.waits import WaitReason
from hpccoll.runtime.running_clock import MOST_STEP_S
from hpccoll.runtime.signal_errors import is_raised_by_signal_handler

Result = TypeVar("Result")
NEVER: Final = float("inf")
TIME_IS_UP: Final = "other ranks did not arrive in time"
POLLS: Final = 16  # polls between two pauses of `wait_until`; each poll moves a few KiB of a long message


class InFlight(ABC):
    """An operation in flight; `done` is set when it completes or fails, and `error` is its exception if it fails.

    `awaited` describes a wait for the operation. `owner` is an object that the operation keeps alive until it is done.
    """

    __slots__ = ("__weakref__", "_is_advancing", "awaited", "done", "error", "owner")

    def __init__(self) -> None:
        self.done = self._is_advancing = False
        self.error: Exception | None = None
        self.awaited: WaitReason | None = None
        self.owner: object = None

    def advance(self) -> bool:
        """Advance as far as possible without blocking; return whether the operation is done.

        An exception is kept in `error`, because the caller may be waiting for another operation. An exception that a
        signal handler raised is also raised here. Does nothing while another thread advances the operation.
        """
        if not self.done and not self._is_advancing:
            self._is_advancing = True  # no thread can run between the test and this line
            try:
                self.done = self._advance() or self.done
            except Exception as error:  # `raise_error` raises it where the operation is waited for
                self._take_exception(error)
                if is_raised_by_signal_handler(error):
                    raise
            except BaseException as error:  # KeyboardInterrupt ends the program, and not only the operation
                self._take_exception(error)
                raise
            finally:
                self._is_advancing = False
            if self.done:
                self.owner = None
                if self.awaited is not None and self.awaited.state.is_lost:
                    self.error = self.error or CommunicationError("a rank has ended")  # see `raise_error`
                if self.awaited is not None:
                    self.awaited.end(failed=self.error is not None)
        return self.done

    def _take_exception(self, error: BaseException) -> None:
        """End the operation by an exception, which may make its communicator unusable."""
        self.error = error if isinstance(error, Exception) else CommunicationError(f"interrupted by {error!r}")
        self.done = True
        if self.awaited is not None:
            state = self.awaited.state
            if state.survives and isinstance(error, HpccollError | MPI.Exception):  # `raise_error` explains it
                return
            state.take_exception(self.awaited.name, error, is_message=not self.awaited.number)
            if state.interruption is not None:
                state.kept.append(self)

    def mark_started(self) -> None:
        """Record that the operation has begun to move data."""
        if self.awaited is not None:
            self.awaited.mark_started()

    def is_settled(self) -> bool:
        """Whether other ranks have finished reading this rank's memory for this operation; lets MPI advance.

        Called after an interruption, when nothing advances the operation any more.
        """
        return True

    def abandon(self) -> None:  # noqa: B027 - most operations have no other thread
        """Let nothing advance the operation from now on; called when its communicator becomes unusable."""

    @abstractmethod
    def _advance(self) -> bool:
        """Advance as far as possible without blocking; return whether the operation is complete."""

    def raise_error(self) -> None:
        """Raise the error of a failed operation."""
        if self.error is not None:
            awaited = self.awaited
            if awaited is not None and awaited.state.survives:
                self.error = awaited.state.replace_error(self.error, awaited.name) or self.error
            if awaited is not None and awaited.state.is_unusable:
                awaited.state.settle()
            raise self.error


class Progress:
    """All operations in flight of this process; truthy if one is a plan, because plans do not advance by themselves.

    `operations` are plans, in the order of their start. `transfers` are requests that MPI advances in any MPI call:
    sends, receives and the MPI library's own collectives. `Progress` keeps an operation alive until it is done.
    `hand_over` adds to `transfers` the messages that the C extension has started and until then tests by itself.
    `deadline` is the time on the monotonic clock after which blocking waits raise WaitTimeoutError; infinite if there
    is none. The time in which the process is suspended does not count. `cores_per_rank` is the least value of
    `RankLayout.cores_per_rank` of all communicators made so far.

    Args:
        poll_mpi: a function that lets MPI advance without blocking.
    """

    __slots__ = (
        "_checked", "_interrupted", "_is_advancing", "_is_ending", "_left_in_mpi",
        "cores_per_rank", "deadline", "garbage", "hand_over", "operations", "poll_mpi", "transfers",
    )  # fmt: skip

    def __init__(self, poll_mpi: Callable[[], object] = bool) -> None:
        self.operations: dict[InFlight, None] = {}
        self.transfers: dict[InFlight, None] = {}
        self.poll_mpi, self._is_advancing, self.deadline = poll_mpi, False, NEVER
        self._interrupted: CallRecorder | None = None
        self._checked = 0.0  # when a wait last read the clock
        self.garbage: deque[Callable[[], object]] = deque()
        self.hand_over: Callable[[], object] = bool
        self._is_ending = False
        self._left_in_mpi: threading.Thread | None = None  # the thread of `call` after an exception
        self.cores_per_rank = math.inf

    def __bool__(self) -> bool:
        return bool(self.operations)

    @property
    def oversubscribed(self) -> bool:
        """Whether ranks share cores; long waits then sleep between polls."""
        return self.cores_per_rank < 1

    def connect(self, functions: MpiFunctions) -> None:
        """Let the progress thread call MPI's `functions`, and let `hand_over` add the messages started by them."""
        configure_progress(functions, self.cores_per_rank)
        self.hand_over = functions.hand_over

    def add(self, operation: InFlight) -> None:
        """Add a plan in flight, which all waits then advance until it is done."""
        self.operations[operation] = None

    def add_transfer(self, transfer: InFlight) -> None:
        """Add an operation in flight that MPI advances by itself."""
        self.transfers[transfer] = None
        if len(self.transfers) == 1:
            set_polling(True)

    def forget_transfer(self, transfer: InFlight) -> None:
        """Remove a completed transfer; after the last transfer, the progress thread stops polling MPI."""
        self.transfers.pop(transfer, None)
        if not self.transfers:
            set_polling(False)

    def list_transfers(self, state: CallRecorder) -> list[InFlight]:
        """Return the transfers in flight on the communicator whose calls `state` records."""
        self.hand_over()
        return [each for each in list(self.transfers) if each.awaited is not None and each.awaited.state is state]

    def advance(self) -> bool:
        """Advance every in-flight plan as far as possible without blocking, and let MPI move its messages.

        Completed operations are removed. Each call tests only one transfer, in turn, because one test lets MPI advance
        all transfers. Returns False without an effect if this function is already running.
        """
        if self._is_advancing:
            return False
        self._is_advancing = True  # no thread and no signal handler can run between the test and `try`
        try:
            for operation in list(self.operations):
                if operation.advance():
                    self.operations.pop(operation, None)
            first = next(iter(self.transfers), None)
            if first is not None:
                self.transfers.pop(first, None)  # another thread that waits for it may have removed it
                if not first.advance():
                    self.transfers[first] = None
                elif not self.transfers:
                    set_polling(False)
        finally:
            self._is_advancing = False
        return True

    def discard(self, release: Callable[[], object]) -> None:
        """Call `release` soon, in a thread that calls hpccoll; for finalizers, which run in any thread, at any place.

        Called directly, `release` could wait for a lock that its own thread holds, or call MPI in a wrong thread.
        """
        self.garbage.append(release)
        if self._is_ending:
            self.release_garbage()

    def release_garbage(self) -> None:
        """Call the functions that were passed to `discard`; finalizers must not call `release_garbage`."""
        while self.garbage:
            self.garbage.popleft()()

    def end(self) -> None:
        """At the end of the program, call the functions passed to `discard`; call functions passed later at once."""
        self._is_ending = True
        stop_progress()  # first, because the thread uses the memory of operations in flight
        self.release_garbage()

    def stop_wait(self, state: CallRecorder) -> None:
        """Let a wait of another thread, on `state`'s communicator, raise the error of this communicator."""
        self._interrupted, self.deadline = state, -NEVER

    def limit_waits(self, seconds: float) -> None:
        """Let blocking waits raise WaitTimeoutError once this process has run for `seconds` from now."""
        self._checked = time.monotonic()
        self.deadline = self._checked + seconds

    def _is_late(self) -> bool:
        """Whether `deadline` has passed; of the time between two calls of this function, at most MOST_STEP_S counts."""
        now = time.monotonic()
        if now - self._checked > MOST_STEP_S and self._checked:
            self.deadline += now - self._checked - MOST_STEP_S
        self._checked = now
        return now > self.deadline

    def raise_if_stopped(self) -> None:
        """Raise the error of an unusable communicator if `stop_wait` has been called for the current wait."""
        if self._interrupted is not None:
            self._raise_late()

    def _raise_late(self) -> None:
        """Raise the error of a wait after `deadline`; return if `stop_wait` was called for a wait that has ended."""
        state, self._interrupted = self._interrupted, None
        if state is None:
            raise WaitTimeoutError(TIME_IS_UP)
        self.deadline = NEVER
        if state.is_in_call:
            state.raise_interruption()

    @property
    def has_thread_in_mpi(self) -> bool:
        """Whether the thread of an interrupted call is still in a blocking function of MPI."""
        return self._left_in_mpi is not None and self._left_in_mpi.is_alive()

    def prepare_fork(self) -> None:
        """Before a fork, add all messages in flight to `transfers`, so that `abandon` finds them in the child."""
        self.hand_over()

    def abandon(self) -> None:
        """Let all operations in flight fail; for a forked child process, in which MPI cannot be used."""
        for operation in (*self.operations, *self.transfers):
            operation.error = UsageError(
                "this operation began before a fork of this process, and MPI cannot be used after a fork; wait for "
                "the operation in the parent process"
            )
            operation.done, operation.owner, operation.awaited = True, None, None
        self.operations.clear()
        self.transfers.clear()

    def make_backoff(self) -> Backoff:
        """Return a `Backoff` for a wait whose polls may move data of a long message; it sleeps if ranks share cores."""
        oversubscribed = self.oversubscribed
        return Backoff(spins=not oversubscribed, sleeps=oversubscribed)

    def wait_until(self, done: Callable[[], object]) -> None:
        """Block until `done` returns true: poll it, and advance the in-flight operations after every `POLLS` polls.

        `done` must let MPI advance, as a test of a request does, unless it depends on in-flight operations alone.
        """
        backoff: Backoff | None = None  # most waits end within the first polls
        while True:
            for _ in range(POLLS):
                if done():
                    return
            if self.operations or self.transfers:
                self.advance()
            backoff = backoff or self.make_backoff()
            backoff.pause()
            if self._is_late():
                self._raise_late()

    def sleep_until(self, done: Callable[[], object]) -> None:
        """Block until `done` returns true, and sleep between its polls unless operations are in flight.

        Each pause advances the operations in flight. `done` reads shared memory, or lets MPI advance as a test of a
        request does.
        """
        backoff = Backoff(spins=False)
        while not done():
            self.idle(backoff)

    def attend(self) -> bool:
        """Advance the operations in flight during a wait of native code; return whether any operation is in flight.

        Without operations in flight, MPI is polled, because a message that MPI has buffered moves on only inside an MPI
        call.
        """
        is_busy = bool(self.operations or self.transfers)
        if is_busy:
            self.advance()
        else:
            self.poll_mpi()
        if self._is_late():
            self._raise_late()
        return is_busy

    def idle(self, backoff: Backoff) -> None:
        """Pause once between two polls of shared memory, while the operations in flight advance.

        If operations are in flight, the pause does not sleep, because each poll may move data. If no operation is in
        flight, MPI is polled after each sleep, because a message that MPI has buffered moves on only inside an MPI
        call.
        """
        if self.operations or self.transfers:
            self.advance()
            backoff.reset()
        if backoff.pause():
            self.poll_mpi()
        if self._is_late():
            self._raise_late()

    def call(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function that blocks in MPI, called in a separate thread while plans are in flight.

        Without MPI_THREAD_MULTIPLE the function is always called directly; plans in flight do not advance meanwhile.
        """
        if not self.operations or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            return function()
        outcome: list[Result] = []
        errors: list[BaseException] = []
        is_interrupted = False

        def run() -> None:
            """Call the function and keep its result or its error."""
            try:
                if not is_interrupted:
                    outcome.append(function())
            except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
                errors.append(error)

        # When Python ends, also after an exception, it waits for all threads except daemons.
        thread = threading.Thread(target=run, name="hpccoll-blocking-mpi-call", daemon=True)
        backoff = Backoff(spins=False, sleeps=False)
        try:
            thread.start()  # waits until the thread runs, and a signal handler may raise meanwhile
            self.advance()
            while self.operations and not outcome and not errors:
                backoff.pause()
                self.advance()
            thread.join()
        except BaseException:
            settle([lambda: outcome or errors])
            is_interrupted, self._left_in_mpi = True, thread
            raise
        if errors:
            raise errors[0]
        return outcome[0]


@cache
def get_progress() -> Progress:
    """Return the one `Progress` of this process; MPI must be initialized."""
    progress = Progress(_poll_mpi)
    os.register_at_fork(before=progress.prepare_fork, after_in_child=progress.abandon)
    atexit.register(progress.end)
    # MPI_Finalize first frees COMM_SELF's attributes; no thread may call MPI afterwards.
    key = MPI.Comm.Create_keyval(delete_fn=lambda *_: stop_progress())
    MPI.COMM_SELF.Set_attr(key, progress)
    atexit.register(_delete_attribute, key, os.getpid())  # its callback cannot run after the end of Python
    return progress


def _poll_mpi() -> None:
    """Let MPI advance, also after the death of a rank, which the probe of MPI.COMM_WORLD reports once."""
    try:
        MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, POLLED_TAG)
    except MPI.Exception:
        MPI.COMM_WORLD.Ack_failed()


def _delete_attribute(key: int, process: int) -> None:
    """Remove the attribute of COMM_SELF that `get_progress` has set, unless this process is a forked child."""
    if os.getpid() == process and not MPI.Is_finalized():
        MPI.COMM_SELF.Delete_attr(key)
