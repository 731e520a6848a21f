"""The handle that torch.distributed gets for an operation.

One lock lets one thread at a time call hpccoll. Only the main thread blocks inside of a collective, because it holds
the lock meanwhile: two threads that did so in different orders on two ranks would wait for each other forever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist

from hpccoll.errors import HpccollError
from hpccoll.runtime.backoff import Backoff
from hpccoll.runtime.work import Work
from hpccoll.torch.compilation import exempt_from_compilation

Start: TypeAlias = Callable[..., Any]  # runs a part of an operation; given async_op=True, returns its `Work` at once
NOT_GIVEN: Final = timedelta(0)  # torch passes this time if the user gives none


@exempt_from_compilation
class TorchWork(dist._Work):  # type: ignore[misc]  # noqa: SLF001 - torch has no public class
    """The handle of one operation of torch.distributed; it keeps all tensors of the operation alive.

    Args:
        name: the operation and the rank, for error messages.
        starts: the parts of the operation, to be started in this order.
        result: what `result` and the future give: the tensors of the operation.
        finish: called once at the end, to move results to the user's tensors.
        timeout: the time that a wait may take if the user gives none.
        is_message: whether the parts are sends or receives, which always return a `Work`.
    """

    def __init__(
        self,
        name: str,
        starts: Sequence[Start],
        result: Any,
        finish: Sequence[Callable[[], object]],
        timeout: timedelta,
        is_message: bool,
    ) -> None:
        super().__init__()
        self._name, self._starts, self._result, self._finish, self._timeout = name, starts, result, finish, timeout
        self._works: list[Work[Any]] = []
        self._error: Exception | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._source: int | None = None
        self._done, self._is_message = False, is_message

    def begin(self, *, wait: bool) -> None:
        """Start the operation; run it to its end if `wait` is true and this is the main thread."""
        blocks = wait and not self._is_message and threading.current_thread() is threading.main_thread()
        options = {} if self._is_message or blocks else {"async_op": True}
        with get_lock():
            try:
                works = [start(**options) for start in self._starts]
            except HpccollError as error:
                self._fail(error)
                return
            self._works = [] if blocks else works
            if blocks:
                self._complete()

    def wait(self, timeout: timedelta = NOT_GIVEN) -> bool:
        """Block until the operation is complete.

        Raises:
            DistBackendError: the operation failed, or the time is up.
        """
        if not self._done:
            self._poll(timeout or self._timeout)
        if self._error is not None:
            raise dist.DistBackendError(f"{self._name}: {self._error}") from self._error
        return True

    def _poll(self, timeout: timedelta) -> None:
        """Advance all operations of the process until this one is complete or the time is up."""
        deadline, backoff = time.monotonic() + timeout.total_seconds(), Backoff(spins=True, sleeps=False)
        while not self._advance():
            backoff.pause()
            if time.monotonic() > deadline:
                raise dist.DistBackendError(
                    f"{self._name} is not complete after {timeout.total_seconds():g} s; did every rank of the group "
                    "call the same operation?"
                )

    def _advance(self) -> bool:
        """Advance without blocking; return whether the operation is complete or has failed."""
        if self._done:
            return True
        with get_lock():
            try:
                while self._works:
                    if not self._works[0].test():
                        return False
                    self._source = self._works[0].source
                    self._works.pop(0).wait()
                if not self._done:
                    self._complete()
            except HpccollError as error:
                self._fail(error)
        return True

    def _complete(self) -> None:
        """Move results to the user's tensors, and drop everything that the operation needed."""
        for step in self._finish:
            step()
        self._starts, self._finish, self._works, self._done = (), (), [], True

    def _fail(self, error: Exception) -> None:
        """Keep the error of the operation."""
        self._error, self._starts, self._finish, self._works, self._done = error, (), (), [], True

    def is_completed(self) -> bool:
        """Whether the operation is complete or has failed; also advances it."""
        return self._advance()

    def is_success(self) -> bool:
        """Whether the operation is complete without an error."""
        return self._advance() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error of a failed operation."""
        return self._error

    def result(self) -> Any:
        """Return the tensors of the operation."""
        return self._result

    def synchronize(self) -> None:
        """Block until the operation is complete."""
        self.wait()

    def source_rank(self) -> int:
        """Return the rank in the group of the sender of a received message."""
        return -1 if self._source is None else self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Wait for the operation; return a completed future of its tensors, or a failed future."""
        if self._future is None:
            self._future = torch.futures.Future()
            try:
                self.wait()
                self._future.set_result(self._result)
            except dist.DistBackendError as error:
                self._future.set_exception(error)
        return self._future


@cache
def get_lock() -> Any:
    """Return the lock of this process that lets one thread at a time call hpccoll."""
    return threading.RLock()
