"""One pair of nodes: how long a short message and a long one take, measured from both ends.

Latency is half the time of a round trip that this end began, the least of many. A transfer is a long message, answered
by a short one when it has come as a whole; its time is the round trip less one latency. The receiver has its buffer
ready before the sender starts, so that nothing but the link is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.preflight.waiting import MessageTimeoutError, wait

if TYPE_CHECKING:
    from mpi4py import MPI

PINGS = 50
_SHORT, _LONG = 7101, 7102  # tags, that no other message here has


@dataclass(frozen=True, slots=True)
class LinkSample:
    """What one end measured towards the other, in seconds; `broken` says why it could not."""

    latency_seconds: float = 0.0
    transfer_seconds: float = 0.0
    broken: str | None = None

    def nbytes_per_s(self, nbytes: int) -> float:
        """Return the rate at which `nbytes` went; 0 where they did not."""
        return 0.0 if self.broken else nbytes / self.transfer_seconds


class LinkBenchmark:
    """This end of the link to `peer`.

    Args:
        comm: the ranks.
        peer: the rank at the other end.
        limit_s: seconds after which a message counts as lost.
        kept: takes the buffers of messages that were lost: MPI may still write to them.
    """

    def __init__(self, comm: MPI.Intracomm, peer: int, limit_s: float, kept: list[Any]) -> None:
        self._comm, self._peer, self._limit_s, self._kept = comm, peer, limit_s, kept
        self._out, self._in = np.zeros(8, np.uint8), np.zeros(8, np.uint8)

    def measure(self, nbytes: int, failure: type[Exception]) -> LinkSample:
        """Measure with messages of `nbytes`; the other end does the same at the same time.

        Args:
            nbytes: of the long message.
            failure: what MPI raises where the connection fails.
        """
        first = self._comm.rank < self._peer
        long = np.zeros(nbytes, np.uint8)
        self._kept += [self._out, self._in, long]
        try:
            self._meet()
            latency = self._in_turn(first, self._ping, self._pong)
            transfer = self._in_turn(first, lambda: self._push(long), lambda: self._pull(long))
        except MessageTimeoutError as error:
            return LinkSample(broken=str(error))
        except failure as error:
            return LinkSample(broken=str(error).partition("\n")[0])
        del self._kept[-3:]
        return LinkSample(latency, max(transfer - latency, 1e-9))

    def _in_turn(self, first: bool, act: Callable[[], float], serve: Callable[[], None]) -> float:
        if first:
            seconds = act()
            serve()
            return seconds
        serve()
        return act()

    def _send(self, what: NDArray[np.uint8], tag: int = _SHORT) -> None:
        wait([self._comm.Isend(what, self._peer, tag)], self._limit_s)

    def _take(self) -> None:
        wait([self._comm.Irecv(self._in, self._peer, _SHORT)], self._limit_s)

    def _meet(self) -> None:
        """Connect, and begin at the same time."""
        coming = self._comm.Irecv(self._in, self._peer, _SHORT)
        wait([self._comm.Isend(self._out, self._peer, _SHORT), coming], self._limit_s)

    def _ping(self) -> float:
        best = float("inf")
        for _ in range(PINGS):
            begin = time.perf_counter()
            self._send(self._out)
            self._take()
            best = min(best, time.perf_counter() - begin)
        return best / 2

    def _pong(self) -> None:
        for _ in range(PINGS):
            self._take()
            self._send(self._out)

    def _push(self, long: NDArray[np.uint8]) -> float:
        self._take()  # the other end is ready
        begin = time.perf_counter()
        self._send(long, _LONG)
        self._take()
        return time.perf_counter() - begin

    def _pull(self, long: NDArray[np.uint8]) -> None:
        coming = self._comm.Irecv(long, self._peer, _LONG)
        self._send(self._out)
        wait([coming], self._limit_s)
        self._send(self._out)
