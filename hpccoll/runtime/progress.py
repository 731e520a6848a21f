"""The in-flight operations of a communicator, and how waits let them advance.

There is no progress thread. Every wait, test and blocking call of a communicator advances all of its in-flight
operations, so ranks may wait for them in different orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hpccoll.runtime.backoff import Backoff


class InFlight(Protocol):
    """An operation that has begun and may not have completed."""

    def advance(self) -> bool:
        """Go as far as possible without blocking; return whether the operation is complete."""


class Progress:
    """The in-flight operations of one communicator, by tag; true if there is any operation."""

    __slots__ = ("operations",)

    def __init__(self) -> None:
        self.operations: dict[int, InFlight] = {}

    def __bool__(self) -> bool:
        return bool(self.operations)

    def __contains__(self, tag: int) -> bool:
        return tag in self.operations

    def add(self, tag: int, operation: InFlight) -> None:
        """Add an operation, which waits then advance; its tag is in use until the operation is complete."""
        self.operations[tag] = operation

    def advance(self) -> None:
        """Let every in-flight operation go as far as possible without blocking; remove the complete ones."""
        for tag, operation in list(self.operations.items()):
            if operation.advance():
                del self.operations[tag]

    def wait_until(self, done: Callable[[], object]) -> None:
        """Block until `done` returns true: poll it, and advance the in-flight operations between polls."""
        backoff = Backoff(spins=True, sleeps=False)
        while not done():
            if self.operations:
                self.advance()
            backoff.pause()
