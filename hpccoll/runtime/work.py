"""Handles of what is under way: an asynchronous collective, or messages between two ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mpi4py import MPI

from hpccoll.errors import CommunicationError
from hpccoll.runtime.arrays import BoundCall, Buffer
from hpccoll.runtime.engine import Engine

_SPINS_BEFORE_YIELDING = 64


class Work:
    """Something under way. `wait` and `test` carry it on, and everything else on its communicator with it."""

    def __init__(self, engine: Engine, advance: Callable[[], bool], result: Any, keep: tuple[Any, ...] = ()) -> None:
        self._engine, self._advance, self._result = engine, advance, result
        self._keep = keep  # MPI still reads or writes this memory
        self.done = False

    def test(self) -> bool:
        """Go on as far as possible without blocking; return whether it is done."""
        if not self.done:
            self._engine.progress()
            self.done = self._advance()
        return self.done

    def wait(self, timeout: float | None = None) -> Any:
        """Block until done and return the result array.

        Args:
            timeout: seconds after which to give up; None waits for ever.

        Raises:
            CommunicationError: the time is up; the operation is still under way and may be waited for again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        spins = 0
        while not self.test():
            spins += 1
            if spins % _SPINS_BEFORE_YIELDING == 0:
                time.sleep(0)  # ranks may outnumber cores
                if deadline is not None and time.monotonic() > deadline:
                    raise CommunicationError(
                        f"rank {self._engine.rank}: not done after {timeout} s; is every rank in the same operation?"
                    )
        self._keep = ()
        return self._result


@dataclass(slots=True)
class Transfer:
    """Messages between two ranks under way.

    Args:
        what: what is being done, and by which rank, for messages.
        requests: all parts, in order.
        last: runs once when all parts are through.
        sizes: of receives, the bytes that each part must have.
    """

    what: str
    requests: list[MPI.Request]
    last: list[BoundCall]
    sizes: list[int]
    _status: MPI.Status = field(default_factory=MPI.Status)

    def advance(self) -> bool:
        """Take in what has come; return whether all is done. Never blocks."""
        while self.requests:
            try:
                if not self.requests[0].Test(self._status):
                    return False
            except MPI.Exception as error:
                raise CommunicationError(f"{self.what} failed: {error}; do both ends' sizes agree?") from error
            self.requests.pop(0)
            if self.sizes:
                self._require(self.sizes.pop(0))
        while self.last:
            self.last.pop(0)()
        return True

    def _require(self, size: int) -> None:
        found = self._status.Get_count(MPI.BYTE)
        if found != size:
            raise CommunicationError(
                f"{self.what}: a message of {found} bytes came, but the array has {size}; "
                "pass an array as large as what is sent"
            )


def cut(buffer: Buffer, most: int) -> list[tuple[int, int]]:
    """Cut a buffer into parts of at most `most` bytes, at least one part (MPI counts in 32 bits)."""
    step = max(most // buffer.dtype.itemsize, 1)
    return [(start, min(start + step, buffer.count)) for start in range(0, max(buffer.count, 1), step)]
