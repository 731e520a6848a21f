"""Small messages between the rank that conducts and the others: one JSON object each, of fixed size on the wire."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.preflight.waiting import rest, wait

if TYPE_CHECKING:
    from mpi4py import MPI

MOST_BYTES = 1024
_ORDER, _REPLY = 7103, 7104
COORDINATOR = 0


class ControlChannel:
    """Orders from the conductor, and replies to it.

    Collectives would cross links that nobody chose, and one that is broken would hang them all: this is a star.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.kept: list[Any] = []  # what MPI still uses of messages that were lost
        self._posted: list[tuple[NDArray[np.uint8], MPI.Request]] = []

    def order(self, rank: int, what: dict[str, Any]) -> None:
        """Tell a rank what to do, without waiting for it to listen."""
        self._post(rank, _ORDER, what)

    def reply(self, what: dict[str, Any]) -> None:
        """Tell the conductor."""
        self._post(COORDINATOR, _REPLY, what)

    def await_order(self) -> dict[str, Any]:
        """Return the conductor's next order, whenever it comes."""
        letter = _empty()
        rest(self._comm.Irecv(letter, COORDINATOR, _ORDER))
        return _read(letter)

    def await_reply(self, rank: int, limit_s: float) -> dict[str, Any]:
        """Return what a rank says.

        Raises:
            MessageTimeoutError: nothing came within `limit_s` seconds.
        """
        letter = _empty()
        coming = self._comm.Irecv(letter, rank, _REPLY)
        self.kept.append((letter, coming))
        wait([coming], limit_s)
        self.kept.pop()
        return _read(letter)

    def _post(self, rank: int, tag: int, what: dict[str, Any]) -> None:
        letter, text = _empty(), json.dumps(what).encode()
        if len(text) > MOST_BYTES:
            raise ValueError(f"a letter of {len(text)} bytes, at most {MOST_BYTES}")
        letter[: len(text)] = np.frombuffer(text, np.uint8)
        self._posted = [(buffer, request) for buffer, request in self._posted if not request.Test()]
        self._posted.append((letter, self._comm.Isend(letter, rank, tag)))

    def flush(self, limit_s: float) -> None:
        """Wait until all that was told has been heard.

        Raises:
            MessageTimeoutError: somebody does not listen.
        """
        wait([request for _, request in self._posted], limit_s)


def _empty() -> NDArray[np.uint8]:
    return np.full(MOST_BYTES, ord(" "), np.uint8)


def _read(letter: NDArray[np.uint8]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(letter.tobytes())
    return found
