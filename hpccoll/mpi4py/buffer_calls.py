"""Carries out mpi4py's collectives of buffers by collectives of hpccoll.

Each function returns whether hpccoll has carried out the call. If not, the caller lets the MPI library do it: on all
ranks of a legal call, because the functions decide by the operation, the reduction, the type signature and the number
of bytes. A rank whose buffer has gaps (a derived datatype), is not aligned or on a device packs it into a flat array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.mpi4py.messages import Message, read_message
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import SUM

if TYPE_CHECKING:
    from hpccoll.mpi4py.buffer_collectives import BufferCollectives

_KINDS: Final = {"sum": "iufc", "prod": "iufc", "min": "iuf", "max": "iuf", "band": "iu", "bor": "iu", "bxor": "iu"}


def is_in_place(buffer: Any) -> bool:
    """Whether mpi4py treats a buffer as MPI_IN_PLACE."""
    return buffer is None or buffer is MPI.IN_PLACE


def barrier(comm: BufferCollectives) -> bool:
    """Carry out mpi4py's Barrier by hpccoll; return False if the MPI library must carry it out instead."""
    entered = comm._enter()
    if entered is None:
        return False
    state, communicator = entered
    algorithm = state.select(Operation.BARRIER, SUM, np.dtype(np.uint8), 0)
    if algorithm is None:
        return False
    communicator.barrier(algorithm=algorithm)
    return True


def broadcast(comm: BufferCollectives, buffer: Any, root: int) -> bool:
    """Carry out mpi4py's Bcast by hpccoll; return False if the MPI library must carry it out instead."""
    entered = _enter_rooted(comm, root)
    if entered is None:
        return False
    state, communicator = entered
    message = read_message(buffer, writable=state.rank != root)
    algorithm = _select(state, Operation.BROADCAST, SUM, message, root)
    if message is None or algorithm is None:
        return False
    if state.rank == root:
        array, store = message.read(message.dtype), None
    else:
        array, store = message.open_for_writing(message.dtype)
    communicator._collective(Operation.BROADCAST, array, None, SUM, root, algorithm, False)
    if store is not None:
        store()
    return True


def all_reduce(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, op: str) -> bool:
    """Carry out mpi4py's Allreduce by hpccoll; return False if the MPI library must carry it out instead."""
    entered = comm._enter()
    if entered is None:
        return False
    return _reduce_vector(entered, Operation.ALL_REDUCE, sendbuf, recvbuf, op, 0)


def reduce(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, op: str, root: int) -> bool:
    """Carry out mpi4py's Reduce by hpccoll; return False if the MPI library must carry it out instead."""
    entered = _enter_rooted(comm, root)
    if entered is None:
        return False
    state, communicator = entered
    if state.rank == root:
        return _reduce_vector(entered, Operation.REDUCE, sendbuf, recvbuf, op, root)
    message = read_message(sendbuf, writable=False)
    algorithm = _select(state, Operation.REDUCE, op, message, root)
    if message is None or algorithm is None:
        return False
    communicator._collective(Operation.REDUCE, message.read(message.dtype), None, op, root, algorithm, False)
    return True


def _reduce_vector(entered: Any, operation: Operation, sendbuf: Any, recvbuf: Any, op: str, root: int) -> bool:
    """Carry out a reduction of whole buffers on a rank that gets the result; return whether hpccoll did."""
    state, communicator = entered
    received = read_message(recvbuf, writable=True)
    algorithm = _select(state, operation, op, received, root)
    if received is None or algorithm is None:
        return False
    if is_in_place(sendbuf):
        out, store = received.open_for_writing(received.dtype, keep=True)
        communicator._collective(operation, out, None, op, root, algorithm, False)
    else:
        sent = read_message(sendbuf, writable=False)
        if sent is None or (sent.dtype, sent.count) != (received.dtype, received.count):
            return False
        out, store = received.open_for_writing(received.dtype)
        communicator._collective(operation, _read_apart(sent, out), out, op, root, algorithm, False)
    if store is not None:
        store()
    return True


def reduce_scatter(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, op: str) -> bool:
    """Carry out mpi4py's Reduce_scatter_block by hpccoll; return False if the MPI library must carry it out instead."""
    entered = comm._enter()
    if entered is None:
        return False
    state, communicator = entered
    in_place = is_in_place(sendbuf)
    received = read_message(recvbuf, state.size if in_place else 0, writable=True)
    algorithm = _select(state, Operation.REDUCE_SCATTER, op, received)
    if received is None or algorithm is None:
        return False
    out, store = received.open_for_writing(received.dtype, keep=in_place)
    if in_place:
        x = out.copy()
    else:
        sent = read_message(sendbuf, state.size, writable=False)
        if sent is None or (sent.dtype, sent.count) != (received.dtype, received.count):
            return False
        x = _read_apart(sent, out)
    communicator._collective(Operation.REDUCE_SCATTER, x, out[: received.count], op, 0, algorithm, False)
    if store is not None:
        store()
    return True


def all_gather(comm: BufferCollectives, sendbuf: Any, recvbuf: Any) -> bool:
    """Carry out mpi4py's Allgather by hpccoll; return False if the MPI library must carry it out instead."""
    return _collect_blocks(comm, Operation.ALL_GATHER, sendbuf, recvbuf)


def all_to_all(comm: BufferCollectives, sendbuf: Any, recvbuf: Any) -> bool:
    """Carry out mpi4py's Alltoall by hpccoll; return False if the MPI library must carry it out instead."""
    return _collect_blocks(comm, Operation.ALL_TO_ALL, sendbuf, recvbuf)


def _collect_blocks(comm: BufferCollectives, operation: Operation, sendbuf: Any, recvbuf: Any) -> bool:
    """Carry out an all_gather or all_to_all, with one block from every rank; return whether hpccoll did."""
    entered = comm._enter()
    if entered is None:
        return False
    state, communicator = entered
    in_place, gathers = is_in_place(sendbuf), operation is Operation.ALL_GATHER
    received = read_message(recvbuf, state.size, writable=True)
    algorithm = _select(state, operation, SUM, received)
    if received is None or algorithm is None:
        return False
    out, store = received.open_for_writing(received.dtype, keep=in_place)
    if in_place:
        x = out[state.rank * received.count : (state.rank + 1) * received.count] if gathers else out.copy()
    else:
        sent = read_message(sendbuf, 0 if gathers else state.size, writable=False)
        if sent is None or sent.nbytes != received.nbytes:
            return False
        x = _read_apart(sent, out)
    communicator._collective(operation, x, out, SUM, 0, algorithm, False)
    if store is not None:
        store()
    return True


def _enter_rooted(comm: BufferCollectives, root: Any) -> tuple[Any, Any] | None:
    """Count a call with a root; return the state and communicator that carry it out, or None if MPI does.

    MPI carries out calls with a wrong root, to report it.
    """
    if not hasattr(root, "__index__") or not 0 <= root < comm.size:
        return None
    return comm._enter()


def _select(state: Any, operation: Operation, op: str, message: Message | None, root: int = 0) -> str | None:
    """Return the algorithm of a call whose buffer is `message`; None if MPI carries it out or refuses it."""
    if message is None or not message.count:
        return None
    if operation.reduces and not (message.reducible and message.dtype.kind in _KINDS[op]):
        return None
    algorithm: str | None = state.select(operation, op, message.dtype, message.count, root)
    return algorithm


def _read_apart(message: Message, out: Any) -> Any:
    """Return a message's elements in the element type of `out`, in memory that does not overlap with `out`."""
    x = message.read(out.dtype)
    return x.copy() if np.may_share_memory(x, out) else x
