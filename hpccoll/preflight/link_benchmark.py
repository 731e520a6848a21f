"""Measure the link between two nodes from both ends: latency with short messages, transfer time with a long one.

The two nodes of a link measure it one after the other. A node's latency is half the shortest of many round trips of
short messages. The transfer time is the time from sending a long message until the peer's short answer arrives, minus
one latency. The peer posts its receive before the long message is sent, so that only the link's time is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.preflight.messages import MessageTimeoutError, wait_all

if TYPE_CHECKING:
    from mpi4py import MPI

PINGS = 50
_SHORT_TAG, _LONG_TAG = 7101, 7102


@dataclass(frozen=True, slots=True)
class LinkSample:
    """One measurement of a link between two nodes by one of them: latency and time of a long message.

    `broken` is the reason if the measurement failed, else None.
    """

    latency_seconds: float = 0.0
    transfer_seconds: float = 0.0
    broken: str | None = None


class LinkBenchmark:
    """Measures the link between this rank's node and the node of rank `peer`, in turns with that rank.

    Args:
        comm: the communicator of both ranks.
        peer: the other rank.
        limit_s: seconds after which a message counts as lost.
        lost_buffers: list to which `measure` adds the buffers of lost messages, because MPI may still write to them.
    """

    def __init__(self, comm: MPI.Intracomm, peer: int, limit_s: float, lost_buffers: list[Any]) -> None:
        self._comm, self._peer, self._limit_s, self._lost_buffers = comm, peer, limit_s, lost_buffers
        self._send_buffer, self._recv_buffer = np.zeros(8, np.uint8), np.zeros(8, np.uint8)

    def measure(self, nbytes: int, failure: type[Exception]) -> LinkSample:
        """Return the latency to the peer and the time of sending `nbytes` bytes. Collective over this rank and `peer`.

        If a message is lost or MPI raises the exception `failure`, the sample's `broken` states the reason.
        """
        is_first = self._comm.rank < self._peer
        long = np.zeros(nbytes, np.uint8)
        self._lost_buffers += [self._send_buffer, self._recv_buffer, long]
        try:
            self._synchronize()
            latency = self._take_turns(is_first, self._time_pings, self._answer_pings)
            transfer = self._take_turns(
                is_first, lambda: self._time_transfer(long), lambda: self._answer_transfer(long)
            )
        except MessageTimeoutError as error:
            return LinkSample(broken=str(error))
        except failure as error:
            return LinkSample(broken=str(error).partition("\n")[0])
        del self._lost_buffers[-3:]
        return LinkSample(latency, max(transfer - latency, 1e-9))

    def _take_turns(self, is_first: bool, measure: Callable[[], float], answer: Callable[[], None]) -> float:
        """Call `measure`, and answer the peer's measurement before or after that; return the result of `measure`.

        This rank measures first if `is_first` is true, else it answers first.
        """
        if is_first:
            seconds = measure()
            answer()
            return seconds
        answer()
        return measure()

    def _send(self, buffer: NDArray[np.uint8], tag: int = _SHORT_TAG) -> None:
        """Send `buffer` to the peer; return when the send is complete."""
        wait_all([self._comm.Isend(buffer, self._peer, tag)], self._limit_s)

    def _receive_short(self) -> None:
        """Wait until a short message of the peer has arrived."""
        wait_all([self._comm.Irecv(self._recv_buffer, self._peer, _SHORT_TAG)], self._limit_s)

    def _synchronize(self) -> None:
        """Exchange short messages with the peer to open the connection and to start both ends at the same time."""
        receive = self._comm.Irecv(self._recv_buffer, self._peer, _SHORT_TAG)
        wait_all([self._comm.Isend(self._send_buffer, self._peer, _SHORT_TAG), receive], self._limit_s)

    def _time_pings(self) -> float:
        """Send PINGS short messages, each answered by the peer; return half the shortest round trip in seconds."""
        shortest = float("inf")
        for _ in range(PINGS):
            begin = time.perf_counter()
            self._send(self._send_buffer)
            self._receive_short()
            shortest = min(shortest, time.perf_counter() - begin)
        return shortest / 2

    def _answer_pings(self) -> None:
        """Answer the short messages that the peer sends in `_time_pings`, until all have arrived."""
        for _ in range(PINGS):
            self._receive_short()
            self._send(self._send_buffer)

    def _time_transfer(self, long: NDArray[np.uint8]) -> float:
        """Send the buffer `long`, when the peer is ready; return the seconds until the peer has acknowledged it."""
        self._receive_short()  # the peer has posted its receive
        begin = time.perf_counter()
        self._send(long, _LONG_TAG)
        self._receive_short()
        return time.perf_counter() - begin

    def _answer_transfer(self, long: NDArray[np.uint8]) -> None:
        """Receive the message that the peer sends in `_time_transfer` into `long`, and acknowledge it."""
        receive = self._comm.Irecv(long, self._peer, _LONG_TAG)
        self._send(self._send_buffer)
        wait_all([receive], self._limit_s)
        self._send(self._send_buffer)
