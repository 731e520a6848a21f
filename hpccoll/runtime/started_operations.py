"""The asynchronous collectives that a communicator has started, and what happens to them after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from hpccoll.errors import CommunicationError
from hpccoll.runtime.backoff import settle
from hpccoll.runtime.progress import InFlight, Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.interruption import LostRanks


class StartedOperations:
    """The asynchronous collectives of one communicator, which fail when the communicator becomes unusable.

    Operations that have not failed are referenced weakly. `failed` keeps the operations that were ended, because MPI
    may still write to their memory.

    Args:
        progress: the operations in flight of the process.
        state: records the calls of the communicator, and whether it is unusable.
        retract: a function that keeps other ranks from passing any further fence in shared memory.
    """

    def __init__(self, progress: Progress, state: CallRecorder, retract: Callable[[], object]) -> None:
        self._progress, self._state, self._retract = progress, state, retract
        # Unlike a WeakSet, a dictionary can be listed while another thread adds to the dictionary.
        self._operations: WeakValueDictionary[int, InFlight] = WeakValueDictionary()
        self.failed: list[InFlight] = []  # kept alive, because MPI may still write to their memory
        self._settled: set[InFlight] = set()

    def add(self, operation: InFlight) -> None:
        """Add an operation that has been started."""
        self._operations[id(operation)] = operation

    def list_live(self) -> list[InFlight]:
        """Return the operations that still exist, in the order of their start."""
        return [operation for reference in self._operations.valuerefs() if (operation := reference()) is not None]

    def fail(self, make_error: Callable[[str], CommunicationError]) -> None:
        """Let the operations in flight fail, because the communicator has become unusable.

        `make_error` returns the error for the name of an operation. An operation that an exception has already ended
        keeps its own error; it is added to `failed` as well, because its messages may still be in flight.
        """
        for operation in self.list_live():
            if not operation.done or operation.error is not None:
                operation.abandon()
                name = operation.awaited.name if operation.awaited is not None else ""
                operation.error, operation.done = operation.error or make_error(name), True
                self.failed.append(operation)

    def settle(self) -> None:
        """Wait up to SETTLE_S seconds until other ranks no longer read memory of failed operations and of sends.

        To be called before an exception reaches the program, which may then overwrite the arrays. Each operation is
        waited for in one call only. After a death there is nothing to wait for: no survivor returns a result any more
        (recorder/call_recorder.py). A survivor that did not answer, because it is stopped, must not pass the last fence
        of a collective later.
        """
        if isinstance(self._state.interruption, LostRanks):
            self._retract()
            return
        operations = *self.failed, *self._progress.list_transfers(self._state)
        waiting = [operation for operation in operations if operation not in self._settled]
        settle([operation.is_settled for operation in waiting])
        self._settled.update(waiting)
