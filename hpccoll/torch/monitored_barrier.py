"""The barrier of torch.distributed that names the missing ranks; it goes through torch's key-value store, not MPI.

Errors contain the words of Gloo's errors, by which programs recognize them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from hpccoll.runtime.running_clock import RunningClock

POLL_S: Final = 0.0005
_COMPLETE: Final = "complete"


@dataclass(slots=True)
class MonitoredBarrier:
    """Carries out torch's `monitored_barrier` of one group, whose error names the missing ranks.

    Each rank sets a key in torch's store; rank 0 waits for all these keys and answers by a key that the other ranks
    wait for.
    """

    store: Any  # torch's key-value store of the group
    rank: int  # this process's rank in the group
    size: int  # the number of ranks of the group
    # A function that advances the operations in flight of this process, called while a rank waits
    advance: Callable[[], object]
    calls: int = 0  # the number of barriers so far

    def run(self, timeout: timedelta, *, names_all: bool) -> None:
        """Block until every rank of the group has called `run`; collective.

        Args:
            timeout: the time within which every rank must call `run`.
            names_all: whether the error names all missing ranks; it names the lowest one otherwise.

        Raises:
            DistBackendError: on every rank that has called `run`, if a rank did not call it within `timeout`.
        """
        self.calls += 1
        answer = _COMPLETE
        if self.rank == 0:
            missing = self._wait_for_keys([self._key(rank) for rank in range(1, self.size)], timeout)
            ranks = [rank for rank in range(1, self.size) if self._key(rank) in missing]
            if ranks:
                listed = ", ".join(map(str, ranks if names_all else ranks[:1]))
                answer = f"Rank{'s' if names_all and len(ranks) > 1 else ''} {listed} failed to pass monitoredBarrier"
            self.store.set(self._key(0), answer)
            if not ranks:  # a missing rank may not have read the answer of the barrier before
                self._forget()
        else:
            self.store.set(self._key(self.rank), "")
            if self._wait_for_keys([self._key(0)], timeout * 1.2):  # rank 0 times out first and names the missing ranks
                answer = "Rank 0 failed to pass monitoredBarrier"
            else:
                answer = self.store.get(self._key(0)).decode()
        if answer != _COMPLETE:
            outcome = "timed out in monitoredBarrier"
            if self.rank:
                outcome = (
                    "successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
                )
            raise dist.DistBackendError(f"Rank {self.rank} {outcome}: {answer} within {timeout.total_seconds():g} s")

    def _key(self, rank: int) -> str:
        """Return the key of the store that `rank` sets in the current barrier."""
        return f"monitored_barrier/{self.calls}/{rank}"

    def _wait_for_keys(self, keys: list[str], timeout: timedelta) -> set[str]:
        """Wait until `keys` are set in the store, for up to `timeout`; return the keys that are still missing."""
        missing, clock = set(keys), RunningClock(time.monotonic())
        deadline = clock.read(time.monotonic()) + timeout.total_seconds()
        while missing:
            missing = {key for key in missing if not self.store.check([key])}
            if not missing or clock.read(time.monotonic()) > deadline:
                break
            self.advance()
            time.sleep(POLL_S)
        return missing

    def _forget(self) -> None:
        """Delete the keys that no rank reads any more; rank 0 calls this.

        The deleted keys are the keys of the other ranks in this barrier, and the key of rank 0 in the previous barrier.
        """
        with suppress(RuntimeError):  # some stores keep their keys
            for rank in range(1, self.size):
                self.store.delete_key(self._key(rank))
            self.store.delete_key(f"monitored_barrier/{self.calls - 1}/0")
