"""Completes the futures of operations in flight, in a thread of this process.

hpccoll's messages move only while this process calls MPI. Code of torch in C++, such as DistributedDataParallel at the
end of a backward pass, waits for futures without calling MPI. This module's thread advances operations in flight, and
sleeps while all futures are complete.

Continuations of a future run in the thread that completes futures, and may start collectives, as torch's PowerSGD hook
does. All ranks must start the collectives of a group in the same order. The futures of a group's collectives are
completed in the order of their start, and the next collective of the group starts after the continuations of the
collectives before it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Protocol

from hpccoll.runtime import job
from hpccoll.runtime.backoff import Backoff

# The pauses between two polls, in seconds.
# Messages across nodes take longer and are polled less often, because a poll delays the thread that computes.
PAUSE_S: Final = 1e-4
PAUSE_ACROSS_NODES_S: Final = 1e-3
MOST_DROPPED: Final = 256  # dropped handles that are kept, because C++ code may still wait for them
MOST_RESULTS: Final = 8  # the latest dropped handles, which also keep their tensors


class FutureOperation(Protocol):
    """The handle of an operation of torch.distributed that may have a future."""

    comm: Any  # the communicator
    is_message: bool  # whether the operation is a send or receive
    has_future: bool  # whether `get_future` was called

    def complete_future(self) -> bool:
        """Advance the operation without blocking, and complete its future if it is done or has exceeded its timeout.

        Returns whether the future is complete.
        """

    def is_completed(self) -> bool:
        """Advance the operation without blocking; return whether it is complete or has failed."""


class FutureCompleter:
    """Completes the futures of operations in a thread, because code of torch in C++ waits for them without calling MPI.

    The attribute `pending` has the operations with incomplete futures, in the order of their start.
    """

    def __init__(self) -> None:
        self.pending: list[FutureOperation] = []
        self._dropped: deque[Any] = deque(maxlen=MOST_DROPPED)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def can_take_over(self) -> bool:
        """Whether this object's thread can complete an operation that the calling thread has started.

        Returns false if MPI allows calls by one thread only, and in a continuation, which runs in this object's thread.
        """
        return threading.current_thread() is not self._thread and is_thread_safe()

    def add(self, operation: FutureOperation) -> None:
        """Let the thread complete the future of an operation as soon as the operation is done; start the thread."""
        with self._changed:
            if operation not in self.pending:  # C++ code may ask for the future of a dropped handle
                self.pending.append(operation)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hpccoll-futures", daemon=True)
                self._thread.start()
            self._changed.notify()

    def keep(self, work: Any) -> None:
        """Keep `work`, the handle of an operation that nobody has waited for, and let the thread complete it.

        The finalizer of the handle calls this method. At most MOST_DROPPED handles, the latest, are kept.
        DistributedDataParallel asks for the tensors of its latest handle, so only the MOST_RESULTS latest handles keep
        tensors alive.
        """
        self._dropped.append(work)
        if len(self._dropped) > MOST_RESULTS:
            self._dropped[-MOST_RESULTS - 1].forget_result()
        if not work.is_completed() and is_thread_safe():
            self.add(work)

    def wait_for_dropped(self, comm: Any) -> None:
        """Block until the operations of the communicator `comm` whose handles the program has dropped are complete.

        An asynchronous barrier calls this method, and records the wait as a wait of the barrier.
        """
        for work in list(self._dropped):
            if work.comm is comm and not work.is_completed():
                work.wait_unrecorded()

    def wait_for_collectives(self, comm: Any) -> None:
        """Block until the futures of all collectives of `comm` are complete and their continuations have run.

        Returns immediately in a continuation (a callback of a future): a collective that a continuation starts comes
        before the collectives of other threads, which wait in this method.
        """
        if not self.pending or threading.current_thread() is self._thread:
            return
        backoff = Backoff(spins=True)
        for operation in list(self.pending):
            while self._blocks_next_collective(operation, comm):
                if comm.node_count > 1:
                    time.sleep(PAUSE_ACROSS_NODES_S)  # meanwhile, the thread polls, and other ranks have the core
                else:
                    operation.is_completed()
                    backoff.pause()

    def _blocks_next_collective(self, operation: FutureOperation, comm: Any) -> bool:
        """Whether the next collective of the communicator `comm` must wait for the callbacks of `operation`."""
        is_collective = operation.comm is comm and not operation.is_message
        return is_collective and operation.has_future and operation in self.pending

    def _run(self) -> None:
        """Complete futures until the process ends; this is the body of the thread."""
        while True:
            with self._changed:
                while not self.pending:
                    self._changed.wait()
            self._complete_pending()
            pause_s = get_pause_s(self.pending)
            with self._changed:
                self._changed.wait(pause_s)

    def _complete_pending(self) -> None:
        """Complete futures of finished operations; for collectives of one communicator, in the order of their start.

        No reference to finished operations is kept, because it would keep tensors alive.
        """
        late: list[Any] = []  # communicators whose earlier collective is incomplete
        for operation in list(self.pending):
            if operation.comm in late and not operation.is_message:
                continue
            if operation.complete_future():
                self.pending.remove(operation)
            elif not operation.is_message:
                late.append(operation.comm)


def get_pause_s(operations: Sequence[FutureOperation]) -> float:
    """Return the seconds between two polls of the operations; longer if all of them are of groups on several nodes."""
    return PAUSE_ACROSS_NODES_S if all(operation.comm.node_count > 1 for operation in list(operations)) else PAUSE_S


@cache
def is_thread_safe() -> bool:
    """Whether MPI allows calls by several threads at once (MPI_THREAD_MULTIPLE)."""
    module = job.load_mpi()
    return bool(module.Query_thread() >= module.THREAD_MULTIPLE)


@cache
def get_completer() -> FutureCompleter:
    """Return the `FutureCompleter` of this process."""
    return FutureCompleter()
