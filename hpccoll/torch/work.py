"""The handle that torch.distributed gets for an operation: `torch.distributed.Work` over handles of hpccoll."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from hpccoll.errors import HpccollError
from hpccoll.runtime.backoff import Backoff
from hpccoll.runtime.work import Work

FOREVER: Final = timedelta(0)  # torch's value for "no timeout given"


class TorchWork(dist._Work):  # type: ignore[name-defined, misc]  # noqa: SLF001 - torch's only class of this kind
    """The handle of one operation of torch.distributed; it keeps all tensors of the operation alive.

    An operation only advances inside of calls of hpccoll: `wait`, `is_completed`, and any other operation. `get_future`
    therefore waits for the operation.

    Args:
        name: the operation, for error messages.
        works: the handles of hpccoll that make up the operation.
        result: the tensors that `result` and the future of the operation give.
        finish: called once when all handles are done, to move results to the user's tensors.
        timeout: the time that the group allows for an operation.
    """

    def __init__(
        self,
        name: str,
        works: Sequence[Work[Any]],
        result: Any,
        finish: Sequence[Callable[[], object]] = (),
        timeout: timedelta = FOREVER,
    ) -> None:
        super().__init__()
        self._name, self._works, self._result, self._finish, self._timeout = name, list(works), result, finish, timeout
        self._error: Exception | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._source: int | None = None
        if not self._works:
            self._complete()

    def wait(self, timeout: timedelta = FOREVER) -> bool:
        """Block until the operation is complete.

        Raises:
            DistBackendError: the operation failed, or the time is up; the time is the group's if `timeout` is zero.
        """
        limit = timeout if timeout else self._timeout
        deadline = time.monotonic() + limit.total_seconds() if limit else None
        backoff = Backoff(spins=True, sleeps=False)
        while not self._advance():
            backoff.pause()
            if deadline is not None and time.monotonic() > deadline:
                raise dist.DistBackendError(
                    f"{self._name} is not complete after {limit.total_seconds():g} s; did every rank of the group call "
                    "the same operation?"
                )
        if self._error is not None:
            raise dist.DistBackendError(f"{self._name}: {self._error}") from self._error
        return True

    def _advance(self) -> bool:
        """Advance without blocking; return whether the operation is complete or has failed."""
        try:
            while self._works:
                if not self._works[0].test():
                    return False
                self._source = self._works[0].source
                self._works.pop(0).wait()
                if not self._works:
                    self._complete()
        except HpccollError as error:
            self._error, self._works = error, []
        return True

    def _complete(self) -> None:
        """Move results to the user's tensors."""
        for step in self._finish:
            step()
        self._finish = ()

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
        """Return the tensors of the result."""
        return self._result

    def synchronize(self) -> None:
        """Block until the operation is complete."""
        self.wait()

    def source_rank(self) -> int:
        """Return the rank in the group of the sender of a received message."""
        return -1 if self._source is None else self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Wait for the operation; return a completed future of its result, or a failed future."""
        if self._future is None:
            future: torch.futures.Future[Any] = torch.futures.Future()
            try:
                self.wait()
                future.set_result(self._result)
            except dist.DistBackendError as error:
                future.set_exception(error)
            self._future = future
        return self._future
