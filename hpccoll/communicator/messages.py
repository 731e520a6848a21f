"""Messages between two ranks: send, recv, isend and irecv."""

from __future__ import annotations

from hpccoll.communicator.array_types import Array, ArrayT
from hpccoll.communicator.base import CommunicatorBase
from hpccoll.errors import UsageError
from hpccoll.runtime.work import Work


class MessageMethods(CommunicatorBase):
    """The messages of a communicator between two ranks."""

    def send(self, x: Array, dest: int, tag: int = 0) -> None:
        """Send `x` to rank `dest`; block until `x` may be reused. Raise UsageError if `dest` is this rank."""
        if dest == self.rank:
            raise UsageError(f"rank {dest} would wait for itself in send; use isend, then recv")
        self.isend(x, dest, tag).wait()

    def recv(self, x: ArrayT, source: int, tag: int = 0) -> ArrayT:
        """Receive a message from rank `source` into `x`, and return `x`; `x` must have exactly the message's size."""
        return self.irecv(x, source, tag).wait()

    def isend(self, x: Array, dest: int, tag: int = 0) -> Work[None]:
        """Start sending `x` to rank `dest`; `x` must not change until the Work is done."""
        self._require_open()
        return self._messages.isend(x, dest, tag)

    def irecv(self, x: ArrayT, source: int, tag: int = 0) -> Work[ArrayT]:
        """Start receiving from rank `source` into `x`, which must not be accessed until the Work is done."""
        self._require_open()
        return self._messages.irecv(x, source, tag)
