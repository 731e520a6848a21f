"""The collective calls of a rank on one communicator: how many it has made, and the call that it waits in.

All ranks make the same calls in the same order, so they give a call the same number. A rank that has made fewer calls
than the number of another rank's call will be waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class CallState:
    """The number of collective calls that this rank has begun on a communicator, and the call that it is in now.

    `current` is the name of blocking call number `count`, or a `WaitReason`, or None outside of calls. Code that runs
    often sets `count` and `current` without calling a method, which takes 50 ns per call.
    """

    __slots__ = ("count", "current")

    def __init__(self) -> None:
        self.count = 0
        self.current: str | WaitReason | None = None

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Count a blocking collective call, which lasts as long as the `with` block."""
        self.count += 1
        self.current = name
        try:
            yield
        finally:
            self.current = None


@dataclass(frozen=True, slots=True, eq=False)
class WaitReason:
    """The reason for a wait that is not itself a collective call; a context manager that lasts as long as the wait.

    Waits are either for an asynchronous collective, whose call number is `number`, or for the ranks `peers`, whose
    messages this rank sends or receives.
    """

    state: CallState
    name: str
    number: int = 0
    peers: tuple[int, ...] = ()

    def __enter__(self) -> None:
        self.state.current = self

    def __exit__(self, *_: object) -> None:
        self.state.current = None
