"""With HPCCOLL_DEBUG=1, messages between two ranks also carry the name of their dtype, which receives compare."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpccoll.arrays import BoundCall
from hpccoll.errors import CommunicationError

NAME_BYTES: Final = 16
RAW: Final = "uint8"  # an array of bytes may hold elements of any dtype, as MPI_BYTE


class DtypeNote:
    """The name of a message's dtype, in memory that MPI sends or receives behind the data of the message.

    Args:
        dtype: the name of the dtype of this rank's array.
        sends: whether this rank sends the message.
    """

    def __init__(self, dtype: str, *, sends: bool) -> None:
        self._dtype, own = dtype, dtype.encode()[:NAME_BYTES]
        self._memory: NDArray[np.uint8] = np.zeros(NAME_BYTES, np.uint8)
        if sends:
            self._memory[: len(own)] = np.frombuffer(own, np.uint8)

    def append_to(self, segment: Any) -> list[Any]:
        """Return mpi4py's buffer argument of Isend or Irecv for `segment`, in host memory, followed by this note."""
        parts = [segment, self._memory]
        sizes, addresses = [part.nbytes for part in parts], [MPI.Get_address(part) for part in parts]
        datatype = MPI.BYTE.Create_hindexed(sizes, addresses).Commit()
        return [MPI.BOTTOM, 1, datatype]

    def bind_check(self, description: str) -> BoundCall:
        """Return a function that raises CommunicationError if the received note names another dtype.

        `description` names the rank and the sender.
        """
        return partial(self._check, description)

    def _check(self, description: str) -> None:
        """Raise CommunicationError if the received note names another dtype; bytes match every dtype."""
        sent = bytes(self._memory).rstrip(b"\0").decode(errors="replace")
        if sent != self._dtype[:NAME_BYTES] and RAW not in (sent, self._dtype):
            raise CommunicationError(
                f"{description}: received a message of dtype {sent} into an array of dtype {self._dtype}; pass an "
                "array of the dtype that is sent"
            )
