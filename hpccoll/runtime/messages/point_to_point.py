"""Messages between two ranks, of any size, in host or device memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from mpi4py import MPI

from hpccoll.arrays import NUMPY, ArrayModule, BoundCall, Buffer, as_buffer
from hpccoll.errors import UsageError
from hpccoll.native import Messenger
from hpccoll.recordings.layout import CallKind
from hpccoll.runtime.backoff import settle
from hpccoll.runtime.forks import abandon_at_fork
from hpccoll.runtime.messages.dtype_check import NAME_BYTES, DtypeNote
from hpccoll.runtime.messages.mpi_functions import get_handle, get_mpi_functions
from hpccoll.runtime.plain_arrays import is_plain
from hpccoll.runtime.progress import Progress
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.runtime.recorder.waits import WaitReason
from hpccoll.runtime.work import MessageWork, MpiTransfer, Work, explain_mpi_error, explain_wrong_size

ArrayT = TypeVar("ArrayT")
# A message of `Messenger.exchange`: whether it is pending, its request, and the place of its entry in the recorder.
# The last three numbers of a message are the error number of MPI, the bytes received, and the rank of the sender.
ExchangedMessage: TypeAlias = tuple[bool, int, int, int, int, int]
LONGEST_SEGMENT: Final = 2**30  # bytes; MPI counts in 32 bits
PROC_NULL: Final = MPI.PROC_NULL  # in place of a rank: no rank, so that a message is neither sent nor received
ANY_SOURCE: Final = MPI.ANY_SOURCE
MOST_DESCRIPTIONS: Final = 512  # kept for kinds of messages: peer, tag, dtype and size


class PointToPoint:
    """Sends and receives of one communicator; `comm` carries only these messages.

    With `compares_dtypes`, which must be the same on all ranks, receives from a given rank compare dtypes.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        progress: Progress,
        state: CallRecorder,
        uses_pinned_memory: Callable[[ArrayModule], bool],
        *,
        compares_dtypes: bool = False,
    ) -> None:
        self._comm, self._progress, self._state = comm, progress, state
        self._rank, self._size = comm.rank, comm.size
        self._uses_pinned_memory = uses_pinned_memory
        # The recorder's descriptions of messages whose data is a plain array, by kind of message.
        self._plain: dict[Hashable, bytes] = {}
        ring, handle = state.recorder.take_entry, get_handle(comm)
        self.messenger = Messenger(
            get_mpi_functions(), handle, comm.rank, comm.size, PROC_NULL, state, ring, np.ndarray, MessageWork,
            self._describe_native, self._adopt, progress.oversubscribed,
        )  # fmt: skip
        self._compares_dtypes = compares_dtypes
        if compares_dtypes:
            self.messenger.close()  # leaves all messages to Python
        abandon_at_fork(self)

    def isend(self, x: Any, dest: Any, tag: int) -> Work[None]:
        """Start sending `x` to rank `dest`; waits for the current stream if `x` is in device memory.

        `dest` None or PROC_NULL sends nothing.
        """
        work: Work[None] = self.messenger.start(True, x, dest, tag)
        return self._start(True, x, PROC_NULL if dest is None else dest, tag) if work is NotImplemented else work

    def irecv(self, x: ArrayT, source: Any, tag: int) -> Work[ArrayT]:
        """Start receiving from rank `source` into `x`; waits for the current stream if `x` is in device memory.

        `source` None or ANY_SOURCE receives from any rank; PROC_NULL receives nothing.
        """
        work: Work[ArrayT] = self.messenger.start(False, x, source, tag)
        return self._start(False, x, ANY_SOURCE if source is None else source, tag) if work is NotImplemented else work

    def _start(self, sends: bool, x: Any, peer: Any, tag: int) -> Work[Any]:
        """Start sending `x` to rank `peer`, or receiving into `x` from `peer`; `isend` and `irecv` describe `peer`."""
        if peer == PROC_NULL:
            return self._skip(x, tag, None if sends else x, writable=not sends)
        named, start = sends or peer != ANY_SOURCE, self._comm.Isend if sends else self._comm.Irecv
        self.require_peer("dest" if sends else "source", peer if named else 0, tag)
        if self._compares_dtypes:
            return self._start_with_dtype(sends, x, peer if named else None, tag)
        rank, last = peer if named else None, list[BoundCall]()
        keep: tuple[Any, ...] = (x,)
        name, peers, description = self._name_message(sends, rank)
        key = self._find_plain(sends, x, rank, tag)
        if (known := self._plain.get(key)) is not None:
            record = self._state.start_message(name, known, peers)
            segments = [x if type(x) is np.ndarray else MPI.buffer.fromaddress(x.data_ptr(), x.nbytes)]
        else:
            buffer = as_buffer(x, "x", writable=not sends)
            if (nbytes := buffer.nbytes) > LONGEST_SEGMENT and not named:
                raise UsageError(f"x has {nbytes} bytes; pass source for messages of more than {LONGEST_SEGMENT}")
            record = self._state.start_message(name, self._describe(sends, buffer, rank, tag, key), peers)
            module = buffer.module
            host = module.empty_pinned(nbytes) if self._uses_pinned_memory(module) else None
            if host is not None and sends:
                module.bind_copy_to_host(host, buffer.flat)()
            elif host is not None:  # the copy must be done before the pinned memory is given back
                last = [module.bind_copy_from_host(buffer.flat, host), module.synchronize]
            module.synchronize()  # the stream may still be writing x, copying it to the host, or reading it
            payload = module.as_bytes(buffer.flat) if host is None else host
            segments, keep = cut_payload(buffer, payload), (x, payload)
        requests = [start([segment, MPI.BYTE], peer, tag) for segment in segments]
        sizes = [] if sends else [segment.nbytes for segment in segments]
        transfer = MpiTransfer(description, requests, last, sizes, keep)
        transfer.awaited = record
        record.mark_started()
        if not transfer.advance():
            self._progress.add_transfer(transfer)
        return Work(self._rank, self._progress, transfer, None if sends else x)

    def _start_with_dtype(self, sends: bool, x: Any, rank: int | None, tag: int) -> Work[Any]:
        """Start a message as `_start` does, which carries the name of its dtype; a receive from `rank` compares it."""
        start, peer = self._comm.Isend if sends else self._comm.Irecv, ANY_SOURCE if rank is None else rank
        buffer = as_buffer(x, "x", writable=not sends)
        if (nbytes := buffer.nbytes) > LONGEST_SEGMENT and rank is None:
            raise UsageError(f"x has {nbytes} bytes; pass source for messages of more than {LONGEST_SEGMENT}")
        name, peers, description = self._name_message(sends, rank)
        record = self._state.start_message(name, self._describe(sends, buffer, rank, tag, None), peers)
        module, note = buffer.module, DtypeNote(buffer.dtype.name, sends=sends)
        last = [] if sends or rank is None else [note.bind_check(description)]
        payload = module.as_bytes(buffer.flat) if module is NUMPY else module.empty_pinned(nbytes)
        if module is not NUMPY and sends:
            module.bind_copy_to_host(payload, buffer.flat)()
        elif module is not NUMPY:
            last += [module.bind_copy_from_host(buffer.flat, payload), module.synchronize]
        module.synchronize()
        *segments, final = cut_payload(buffer, payload)
        requests = [start([segment, MPI.BYTE], peer, tag) for segment in segments]
        specification = note.append_to(final)
        requests.append(start(specification, peer, tag))
        specification[2].Free()  # MPI keeps the datatype until the message is complete
        sizes = [] if sends else [*(segment.nbytes for segment in segments), final.nbytes]
        transfer = MpiTransfer(description, requests, last, sizes, (x, payload, note), note_bytes=NAME_BYTES)
        transfer.awaited = record
        record.mark_started()
        if not transfer.advance():
            self._progress.add_transfer(transfer)
        return Work(self._rank, self._progress, transfer, None if sends else x)

    def _name_message(self, sends: bool, peer: int | None) -> tuple[str, tuple[int, ...], str]:
        """Return the name of a message for the recorder, its peers, and its description for error messages.

        `peer` None means any rank.
        """
        other, peers = ("any rank", ()) if peer is None else (f"rank {peer}", (peer,))
        name, doing = ("send", "sending to") if sends else ("recv", "receiving from")
        return name, peers, f"rank {self._rank}: {doing} {other}"

    def finish_exchange(
        self, states: tuple[ExchangedMessage | None, ExchangedMessage | None], out: Any, source: Any, x: Any, dest: Any
    ) -> int | None:
        """Wait for the pending messages of `Messenger.exchange`; return the sender's rank, or None without a receive.

        Raises:
            CommunicationError: one of the messages has failed, or the received message has another size than `out`.
        """
        incoming, outgoing = states
        received = None if incoming is None or not incoming[0] else self._adopt(False, incoming, out, source)
        if outgoing is not None and (outgoing[0] or outgoing[3]):
            self._adopt(True, outgoing, x, dest).wait()
        if received is None and incoming is not None:
            received = self._adopt(False, incoming, out, source)
        if received is None:
            return None
        received.wait()
        return received.source

    def _adopt(self, sends: bool, state: ExchangedMessage, array: Any, peer: int | None) -> Work[Any]:
        """Return the handle of a message that the extension has begun; raise the error if the message has failed."""
        is_pending, request, place, error, received, sender = state
        name, peers, description = self._name_message(sends, peer)
        if error:
            raise explain_mpi_error(MPI.Exception(error), description, receives=not sends)
        if not is_pending and not sends and received != array.nbytes:
            raise explain_wrong_size(description, received, array.nbytes)
        requests = [MPI.Request.fromhandle(request)] if is_pending else []
        transfer = MpiTransfer(description, requests, [], [] if sends else [array.nbytes], (array,))
        transfer.source, transfer.done = None if is_pending or sends else sender, not is_pending
        transfer.awaited = WaitReason(self._state, name, place, 0, peers)
        if is_pending:
            self._progress.add_transfer(transfer)
        return Work(self._rank, self._progress, transfer, None if sends else array)

    def _describe_native(self, sends: bool, x: Any, peer: int, tag: int) -> tuple[bytes, int]:
        """Return the description of a message for the recorder, and the size in bytes of an element of `x`."""
        buffer, rank = as_buffer(x, "x", writable=not sends), None if peer == ANY_SOURCE else peer
        return self._describe(sends, buffer, rank, tag, None), buffer.dtype.itemsize

    def _describe(self, sends: bool, buffer: Buffer, peer: int | None, tag: int, key: Hashable) -> bytes:
        """Return the description of a message for the recorder, which is kept under `key` unless `key` is None.

        `peer` None means any rank.
        """
        name, kind = ("send", CallKind.SEND) if sends else ("recv", CallKind.RECEIVE)
        root = -1 if peer is None else peer
        description = self._state.describe(
            name, kind=kind, count=buffer.count, dtype=buffer.dtype.name, root=root, tag=tag, asynchronous=True
        )
        if key is not None:
            if len(self._plain) >= MOST_DESCRIPTIONS:
                self._plain.clear()
            self._plain[key] = description
        return description

    def take_exception(self, call: str, before: int, error: BaseException) -> None:
        """Make the communicator unusable if an exception in `call` came after its first message had begun.

        Receives that have no message yet are cancelled. Sends get SETTLE_S seconds to complete, because a receiver that
        does not know of the interruption would otherwise read what the program writes to the array after the exception.

        Args:
            call: the name of the call.
            before: the value of `CallRecorder.messages` before the call.
        """
        state = self._state
        if state.messages == before or state.is_unusable:
            return
        state.take_exception(call, error, is_message=True)
        if state.interruption is not None:
            self._settle()

    def _settle(self) -> None:
        """Cancel the receives of this communicator, and wait up to SETTLE_S seconds for its sends."""
        state, pending = self._state, self._progress.list_transfers(self._state)
        for transfer in pending:
            if isinstance(transfer, MpiTransfer):
                transfer.cancel_receive()
        state.kept.extend(pending)
        settle([transfer.advance for transfer in pending])

    def finish(self) -> None:
        """Block until this communicator's sends and receives in flight are done; other operations advance meanwhile."""
        for transfer in self._progress.list_transfers(self._state):
            self._progress.wait_until(transfer.advance)

    def abandon(self) -> None:
        """In a forked child process, leave all messages to Python code, which refuses them."""
        self.messenger.close()

    def _find_plain(self, sends: bool, x: Any, peer: int | None, tag: int) -> Hashable:
        """Return the kind of a message (key of `_plain`); None if `x` must be checked, cut into segments or copied."""
        if not is_plain(x) or not 0 < x.nbytes <= LONGEST_SEGMENT:
            return None
        return sends, x.dtype, x.nbytes, peer, tag

    def _skip(self, x: Any, tag: int, result: ArrayT, *, writable: bool) -> Work[ArrayT]:
        """Check the arguments of a message to or from PROC_NULL, and return a handle that is done."""
        self._require_tag(tag)
        as_buffer(x, "x", writable=writable)
        return Work(self._rank, self._progress, None, result)

    def require_peer(self, role: str, peer: Any, tag: int) -> None:
        """Raise UsageError unless `peer` is a rank and `tag` is in range; `role` names the argument."""
        if not hasattr(peer, "__index__") or not 0 <= peer < self._size:
            raise UsageError(f"{role} {peer} is not a rank of 0..{self._size - 1}, nor hpccoll.PROC_NULL (no rank)")
        self._require_tag(tag)

    @staticmethod
    def _require_tag(tag: int) -> None:
        """Raise UsageError unless `tag` is in range."""
        if not 0 <= tag < 2**15:
            raise UsageError(f"tag {tag} is not between 0 and {2**15 - 1}")


def cut_payload(buffer: Buffer, payload: Any) -> list[Any]:
    """Cut a buffer's bytes, `payload`, into segments of whole elements, each of at most LONGEST_SEGMENT bytes."""
    itemsize = buffer.dtype.itemsize
    step = max(LONGEST_SEGMENT // itemsize, 1) * itemsize
    return [payload[start : start + step] for start in range(0, max(buffer.nbytes, 1), step)]


def set_status(status: MPI.Status, source: int | None, tag: int) -> None:
    """Store the sender and the tag of a received message in `status`; `source` is None if nothing was received."""
    status.Set_source(PROC_NULL if source is None else source)
    status.Set_tag(MPI.ANY_TAG if source is None else tag)
