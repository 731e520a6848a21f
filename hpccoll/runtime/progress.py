"""The in-flight operations of a communicator, which advance during its waits.

There is no progress thread. Every wait, test and blocking call of a communicator advances all of its in-flight
operations, so ranks may wait for them in different orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hpccoll.runtime.backoff import Backoff


class InFlight(Protocol):
    """An operation that has begun, but may be incomplete."""

    def advance(self) -> bool:
        """Advance the operation as far as possible without blocking; return whether it is complete."""


class Progress:
    """The in-flight operations of one communicator, by tag; converts to true if there are any."""

    __slots__ = ("operations",)

    def __init__(self) -> None:
        self.operations: dict[int, InFlight] = {}

    def __bool__(self) -> bool:
        return bool(self.operations)

    def __contains__(self, tag: int) -> bool:
        return tag in self.operations

    def add(self, tag: int, operation: InFlight) -> None:
        """Add an operation; its tag is in use until the operation is complete."""
        self.operations[tag] = operation

    def advance(self) -> None:
        """Advance every in-flight operation as far as possible without blocking; remove complete operations."""
        for tag, operation in list(self.operations.items()):
            if operation.advance():
                del self.operations[tag]

    def wait_until(self, done: Callable[[], object]) -> None:
        """Poll `done` until it returns true; advance the in-flight operations between polls."""
        backoff = Backoff(spins=True, sleeps=False)
        while not done():
            if self.operations:
                self.advance()
            backoff.pause()
