"""Messages between two ranks: send, recv, isend, irecv and sendrecv.

In place of a rank, hpccoll.PROC_NULL (the constant of mpi4py) means no rank: the message is neither sent nor received.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hpccoll.arrays import export_array, import_array, is_foreign
from hpccoll.communicator.array_types import Array, ArrayT, Rank
from hpccoll.communicator.base import CommunicatorBase
from hpccoll.errors import UsageError
from hpccoll.runtime.arguments import empty_like
from hpccoll.runtime.messages.point_to_point import PROC_NULL, set_status
from hpccoll.runtime.work import Work

if TYPE_CHECKING:
    from mpi4py import MPI


class MessageMethods(CommunicatorBase):
    """The methods of a communicator that send and receive arrays between two ranks."""

    def send(self, x: Array, dest: Rank | None, tag: int = 0) -> None:
        """Send `x` to rank `dest`; block until `x` may be reused.

        Args:
            x: array of any shape.
            dest: rank of the receiver, another rank than this one; None or hpccoll.PROC_NULL sends nothing.
            tag: number from 0 to 32767; the receiver must pass the same number.

        The receiver's array should have the dtype of `x`: `recv` compares dtypes only on a communicator that compares
        arguments (HPCCOLL_DEBUG=1 or `compare_arguments`).

        Raises:
            UsageError: `dest` is this rank, or not a rank of the communicator; use `isend` for messages of a rank to
                itself.

        Example:
            >>> if comm.size > 1 and comm.rank == 0:
            ...     comm.send(np.arange(3), dest=1)
            >>> if comm.rank == 1:
            ...     assert comm.recv(np.empty(3, int), source=0)[2] == 2
        """
        if dest == self.rank:
            raise UsageError(f"rank {dest} would wait for itself in send; use isend, then recv")
        before = self._state.messages
        try:
            states = self._exchange(None, None, 0, x, dest, tag)
            if states is NotImplemented:
                self.isend(x, dest, tag).wait()
            elif type(states) is not int:
                self._messages.finish_exchange(states, None, None, x, dest)
        except BaseException as error:
            self._messages.take_exception("send", before, error)
            raise

    def recv(self, x: ArrayT, source: Rank | None = None, tag: int = 0, *, status: MPI.Status | None = None) -> ArrayT:
        """Receive a message into `x`, and return `x`; `x` must have exactly the message's size.

        Args:
            x: array for the message.
            source: rank of the sender. hpccoll.ANY_SOURCE (or None, the default) receives from any rank;
                hpccoll.PROC_NULL receives nothing and leaves `x` as it is.
            tag: the tag that the sender passed for this message.
            status: gets the rank of the sender and the tag, as with mpi4py's `Recv`; PROC_NULL and ANY_TAG if nothing
                is received.

        Unless the communicator compares arguments (HPCCOLL_DEBUG=1 or `compare_arguments`), the bytes of a message of
        another dtype are stored as they are, without an error, because messages carry no dtype.

        Raises:
            CommunicationError: the message has another size than `x`; if arguments are compared, also if `source` is a
                rank and the message has another dtype, and neither dtype is uint8.

        Example:
            >>> work = comm.isend(np.arange(3), dest=comm.rank)
            >>> comm.recv(np.empty(3, int), source=comm.rank)
            array([0, 1, 2])
            >>> work.wait()
        """
        before = self._state.messages
        try:
            sender = self._exchange(x, source, tag, None, None, 0)
            if sender is NotImplemented:
                work = self.irecv(x, source, tag)
                work.wait()
                sender = work.source
            elif type(sender) is not int:
                sender = self._messages.finish_exchange(sender, x, source, None, None)
        except BaseException as error:
            self._messages.take_exception("recv", before, error)
            raise
        if status is not None:
            set_status(status, sender if sender is not None and sender >= 0 else None, tag)
        return x

    def isend(self, x: Array, dest: Rank | None, tag: int = 0) -> Work[None]:
        """Start sending `x` to rank `dest`; `x` must not change until the returned `Work` is done.

        See `send` for the arguments; `dest` may be this rank.

        Example:
            >>> work = comm.isend(np.ones(2), dest=comm.rank)
            >>> comm.recv(np.empty(2))
            array([1., 1.])
            >>> work.wait()
        """
        self._require_open()
        before = self._state.messages
        try:
            return self._messages.isend(x, dest, tag)
        except BaseException as error:
            self._messages.take_exception("isend", before, error)
            raise

    def irecv(self, x: ArrayT, source: Rank | None = None, tag: int = 0) -> Work[ArrayT]:
        """Start receiving a message into `x`, which must not be accessed until the returned `Work` is done.

        See `recv` for the arguments. When the `Work` is done, its `source` is the rank of the sender.

        Example:
            >>> work = comm.irecv(np.empty(2))
            >>> comm.isend(np.ones(2), dest=comm.rank).wait()
            >>> work.wait()
            array([1., 1.])
            >>> work.source == comm.rank
            True
        """
        self._require_open()
        before = self._state.messages
        try:
            return self._messages.irecv(x, source, tag)
        except BaseException as error:
            self._messages.take_exception("irecv", before, error)
            raise

    def sendrecv(
        self,
        x: ArrayT,
        dest: Rank | None,
        source: Rank | None = None,
        *,
        out: ArrayT | None = None,
        sendtag: int = 0,
        recvtag: int = 0,
    ) -> ArrayT:
        """Send `x` to rank `dest` while receiving a message, and return the array with the received message.

        Args:
            x: array of any shape.
            dest: rank of the receiver of `x`; may be this rank. None or hpccoll.PROC_NULL sends nothing.
            source: rank of the sender of the received message, or one of the constants of `recv`.
            out: array for the received message, which must have the message's size; None makes a new array like `x`,
                with zeros if `source` is PROC_NULL.
            sendtag: tag of the message to `dest`.
            recvtag: tag of the message from `source`.

        Example:
            >>> right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
            >>> comm.sendrecv(np.array([comm.rank]), right, left).tolist() == [left]
            True
        """
        given: Any = import_array(x, "x") if is_foreign(x) else x
        received: Any = _make_output(given, source) if out is None else out
        before = self._state.messages
        try:
            states = self._exchange(received, source, recvtag, given, dest, sendtag)
            if states is NotImplemented:
                self._send_while_receiving(given, dest, sendtag, received, source, recvtag)
            elif type(states) is not int:
                self._messages.finish_exchange(states, received, source, given, dest)
        except BaseException as error:
            self._messages.take_exception("sendrecv", before, error)
            raise
        return cast("ArrayT", received if out is not None or not is_foreign(x) else export_array(received, x))

    def _send_while_receiving(self, x: Any, dest: Any, sendtag: int, out: Any, source: Any, recvtag: int) -> None:
        """Send `x` to `dest` while receiving from `source` into `out`; for arrays of any library.

        `sendrecv` calls this method where the C extension cannot send or receive. `dest` and `source` may be None or
        PROC_NULL.
        """
        if dest is not None and dest != PROC_NULL:
            self._messages.require_peer("dest", dest, sendtag)  # raise errors before the receive begins
        incoming = self.irecv(out, source, recvtag)
        self.isend(x, dest, sendtag).wait()
        incoming.wait()


def _make_output(x: Any, source: Rank | None) -> Any:
    """Return a new array like `x` for a message from rank `source`; filled with zeros if `source` is PROC_NULL."""
    new = empty_like(x, tuple(x.shape))
    if source is not None and source == PROC_NULL:
        new[...] = 0
    return new
