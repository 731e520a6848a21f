"""Waiting for messages that may never come: with a time limit, and without taking the cores that others measure."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpccoll.errors import CommunicationError

if TYPE_CHECKING:
    from mpi4py import MPI

SPIN_S = 2e-3  # a message of a healthy link that takes longer is not falsified by a nap
NAP_S, LONG_NAP_S = 50e-6, 1e-3


class MessageTimeoutError(CommunicationError):
    """A message did not come in time."""


def wait(requests: Sequence[MPI.Request], limit_s: float) -> None:
    """Wait until all are done, awake at first so that short times are true.

    Raises:
        MessageTimeoutError: `limit_s` seconds went by; the requests are still under way, and so are their buffers.
    """
    begin = time.perf_counter()
    while not all(request.Test() for request in requests):
        waited = time.perf_counter() - begin
        if waited > limit_s:
            raise MessageTimeoutError(f"no answer within {limit_s:g} s")
        if waited > SPIN_S:
            time.sleep(NAP_S)
        else:
            os.sched_yield()


def rest(request: MPI.Request) -> None:
    """Wait for as long as it takes, asleep most of the time."""
    while not request.Test():
        time.sleep(LONG_NAP_S)
