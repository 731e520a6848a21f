"""Wait for MPI messages with a time limit, and exchange commands and replies between rank 0 and the other ranks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import CommunicationError

if TYPE_CHECKING:
    from mpi4py import MPI

COORDINATOR = 0
MESSAGE_NBYTES = 1024
SPIN_S = 2e-3  # a message on a healthy link takes less than this time, in which the receiver polls without sleeping
SLEEP_S, LONG_SLEEP_S = 50e-6, 1e-3
_COMMAND_TAG, _REPLY_TAG = 7103, 7104


class MessageTimeoutError(CommunicationError):
    """A message did not arrive within the time limit."""


def wait_all(requests: Sequence[MPI.Request], limit_s: float) -> None:
    """Wait until all requests are complete, at most `limit_s` seconds.

    Polls without sleeping for the first two milliseconds, so that measured times of short messages are accurate.

    Raises:
        MessageTimeoutError: `limit_s` seconds have passed. Incomplete requests stay active and still use their buffers.
    """
    begin = time.perf_counter()
    while not all(request.Test() for request in requests):
        waited = time.perf_counter() - begin
        if waited > limit_s:
            raise MessageTimeoutError(f"no answer within {limit_s:g} s")
        if waited > SPIN_S:
            time.sleep(SLEEP_S)
        else:
            os.sched_yield()


class ControlChannel:
    """Sends commands from rank 0 to the other ranks, and their replies to rank 0, as JSON objects in MPI messages.

    All messages are point-to-point, because a collective would hang if any link of the job were broken. `comm` is the
    communicator of the job.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.lost_buffers: list[Any] = []  # buffers of messages that timed out: MPI may still write to them
        self._sent: list[tuple[NDArray[np.uint8], MPI.Request]] = []

    def send_command(self, rank: int, command: dict[str, Any]) -> None:
        """Start to send a command from rank 0 to a rank; return without waiting."""
        self._send(rank, _COMMAND_TAG, command)

    def send_reply(self, reply: dict[str, Any]) -> None:
        """Start to send a reply to rank 0; return without waiting."""
        self._send(COORDINATOR, _REPLY_TAG, reply)

    def receive_command(self) -> dict[str, Any]:
        """Wait for the next command of rank 0, without a time limit, and return it; sleeps between polls."""
        message = _make_empty_message()
        request = self._comm.Irecv(message, COORDINATOR, _COMMAND_TAG)
        while not request.Test():
            time.sleep(LONG_SLEEP_S)
        return _decode(message)

    def receive_reply(self, rank: int, limit_s: float) -> dict[str, Any]:
        """Wait for the next reply of a rank and return it; raise MessageTimeoutError after `limit_s` seconds."""
        message = _make_empty_message()
        request = self._comm.Irecv(message, rank, _REPLY_TAG)
        self.lost_buffers.append((message, request))
        wait_all([request], limit_s)
        self.lost_buffers.pop()
        return _decode(message)

    def _send(self, rank: int, tag: int, content: dict[str, Any]) -> None:
        """Start to send `content` as a message with an MPI tag; return without waiting.

        The message's buffer is kept until the send is complete.
        """
        message, text = _make_empty_message(), json.dumps(content).encode()
        if len(text) > MESSAGE_NBYTES:
            raise ValueError(f"a control message of {len(text)} bytes, at most {MESSAGE_NBYTES}")
        message[: len(text)] = np.frombuffer(text, np.uint8)
        self._sent = [(buffer, request) for buffer, request in self._sent if not request.Test()]
        self._sent.append((message, self._comm.Isend(message, rank, tag)))

    def flush(self, limit_s: float) -> None:
        """Wait until all sends are complete; raise MessageTimeoutError if that takes more than `limit_s` seconds."""
        wait_all([request for _, request in self._sent], limit_s)


def _make_empty_message() -> NDArray[np.uint8]:
    """Return a message buffer of MESSAGE_NBYTES bytes that is filled with spaces."""
    return np.full(MESSAGE_NBYTES, ord(" "), np.uint8)


def _decode(message: NDArray[np.uint8]) -> dict[str, Any]:
    """Return the JSON object that a received message contains."""
    content: dict[str, Any] = json.loads(message.tobytes())
    return content
