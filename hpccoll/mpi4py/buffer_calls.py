"""Carries out mpi4py's collectives of buffers by collectives of hpccoll.

Each function returns whether hpccoll has carried out the call. If not, the caller calls the MPI library instead. All
ranks of a legal call decide alike, because the functions decide by the operation, the reduction, the type signature and
the number of bytes. If the buffer of a rank has gaps (a derived datatype), is not aligned, or is in device memory, this
rank copies it to and from a flat array.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.mpi4py.acceleration import Acceleration
from hpccoll.mpi4py.messages import Message, read_message
from hpccoll.mpi4py.passed_calls import pass_later_calls
from hpccoll.mpi4py.signatures import BYTES
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
    state = comm._find_state()
    algorithm = None if state is None else state.select(Operation.BARRIER, SUM, BYTES, 0)
    if algorithm is None:
        return False
    comm._bind_table().barrier(algorithm=algorithm)
    return True


def broadcast(comm: BufferCollectives, buffer: Any, root: int) -> bool:
    """Carry out mpi4py's Bcast by hpccoll; return False if the MPI library must carry it out instead."""
    state = _find_rooted_state(comm, root)
    if state is None:
        return False
    message = read_message(buffer, writable=state.rank != root)
    algorithm = _select(state, Operation.BROADCAST, SUM, message, root)
    if message is None or algorithm is None:
        pass_later_calls(comm, Operation.BROADCAST, (buffer, None), message, SUM, root)
        return False
    if state.rank == root:
        array, store = message.read(message.dtype), None
    else:
        array, store = message.open_for_writing(message.dtype)
    comm._bind_table()._collective(Operation.BROADCAST, array, None, SUM, root, algorithm, False)
    if store is not None:
        store()
    return True


def reduce(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, op: str, root: int) -> bool:
    """Carry out mpi4py's Reduce by hpccoll; return False if the MPI library must carry it out instead."""
    state = _find_rooted_state(comm, root)
    if state is None:
        return False
    if state.rank == root:
        return reduce_vector(comm, Operation.REDUCE, sendbuf, recvbuf, op, root)
    message = read_message(sendbuf, writable=False)
    algorithm = _select(state, Operation.REDUCE, op, message, root)
    if message is None or algorithm is None:
        pass_later_calls(comm, Operation.REDUCE, (sendbuf, None), message, op, root)
        return False
    x = message.read(message.dtype)
    comm._bind_table()._collective(Operation.REDUCE, x, None, op, root, algorithm, False)
    return True


def reduce_vector(
    comm: BufferCollectives, operation: Operation, sendbuf: Any, recvbuf: Any, op: str, root: int = 0
) -> bool:
    """Carry out mpi4py's Allreduce, Scan or Exscan, or Reduce on its root; return False if the MPI library must.

    An Exscan leaves the result of rank 0 as it is.
    """
    state = comm._find_state()
    if state is None:
        return False
    received = read_message(recvbuf, writable=True)
    algorithm = _select(state, operation, op, received, root)
    in_place = is_in_place(sendbuf)
    if received is None or algorithm is None:
        pass_later_calls(comm, operation, (recvbuf, None) if in_place else (sendbuf, recvbuf), received, op, root)
        return False
    if in_place:
        out, store = received.open_for_writing(received.dtype, keep=True)
        comm._bind_table()._collective(operation, out, None, op, root, algorithm, False)
    else:
        sent = read_message(sendbuf, writable=False)
        if sent is None or (sent.dtype, sent.count) != (received.dtype, received.count):
            return False
        has_result = operation is not Operation.EXSCAN or state.rank > 0
        out, store = received.open_for_writing(received.dtype) if has_result else (None, None)
        x = _read_apart(sent, out) if has_result else sent.read(sent.dtype)
        comm._bind_table()._collective(operation, x, out, op, root, algorithm, False)
    if store is not None:
        store()
    return True


def reduce_scatter(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, op: str) -> bool:
    """Carry out mpi4py's Reduce_scatter_block by hpccoll; return False if the MPI library must carry it out instead."""
    state = comm._find_state()
    if state is None:
        return False
    in_place = is_in_place(sendbuf)
    received = read_message(recvbuf, state.size if in_place else 0, writable=True)
    algorithm = _select(state, Operation.REDUCE_SCATTER, op, received)
    if received is None or algorithm is None:
        pass_later_calls(comm, Operation.REDUCE_SCATTER, (sendbuf, recvbuf), received, op)
        return False
    out, store = received.open_for_writing(received.dtype, keep=in_place)
    if in_place:
        x = out.copy()
    else:
        sent = read_message(sendbuf, state.size, writable=False)
        if sent is None or (sent.dtype, sent.count) != (received.dtype, received.count):
            return False
        x = _read_apart(sent, out)
    block = out[: received.count]
    comm._bind_table()._collective(Operation.REDUCE_SCATTER, x, block, op, 0, algorithm, False)
    if store is not None:
        store()
    return True


def collect_blocks(comm: BufferCollectives, operation: Operation, sendbuf: Any, recvbuf: Any) -> bool:
    """Carry out mpi4py's Allgather or Alltoall, with a block from every rank; return False if the MPI library must."""
    state = comm._find_state()
    if state is None:
        return False
    in_place, gathers = is_in_place(sendbuf), operation is Operation.ALL_GATHER
    received = read_message(recvbuf, state.size, writable=True)
    algorithm = _select(state, operation, SUM, received)
    if received is None or algorithm is None:
        pass_later_calls(comm, operation, (sendbuf, recvbuf), received)
        return False
    out, store = received.open_for_writing(received.dtype, keep=in_place)
    if in_place:
        x = out[state.rank * received.count : (state.rank + 1) * received.count] if gathers else out.copy()
    else:
        sent = read_message(sendbuf, 0 if gathers else state.size, writable=False)
        if sent is None or sent.nbytes != received.nbytes:
            return False
        x = _read_apart(sent, out)
    comm._bind_table()._collective(operation, x, out, SUM, 0, algorithm, False)
    if store is not None:
        store()
    return True


def gather_blocks(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, root: int) -> bool:
    """Carry out mpi4py's Gather by hpccoll; return False if the MPI library must carry it out instead."""
    state = _find_rooted_state(comm, root)
    if state is None:
        return False
    is_root, in_place = state.rank == root, is_in_place(sendbuf)
    message = read_message(recvbuf, state.size, writable=True) if is_root else read_message(sendbuf, writable=False)
    algorithm = _select(state, Operation.GATHER, SUM, message, root)
    if message is None or algorithm is None:
        pass_later_calls(comm, Operation.GATHER, (sendbuf, recvbuf if is_root else None), message, SUM, root)
        return False
    if not is_root:
        x = message.read(message.dtype)
        comm._bind_table()._collective(Operation.GATHER, x, None, SUM, root, algorithm, False)
        return True
    out, store = message.open_for_writing(message.dtype, keep=in_place)
    if in_place:
        x = out[root * message.count : (root + 1) * message.count]
    else:
        sent = read_message(sendbuf, writable=False)
        if sent is None or sent.nbytes != message.nbytes:
            return False
        x = _read_apart(sent, out)
    comm._bind_table()._collective(Operation.GATHER, x, out, SUM, root, algorithm, False)
    if store is not None:
        store()
    return True


def scatter_blocks(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, root: int) -> bool:
    """Carry out mpi4py's Scatter by hpccoll; return False if the MPI library must carry it out instead."""
    state = _find_rooted_state(comm, root)
    if state is None:
        return False
    is_root, in_place = state.rank == root, is_in_place(recvbuf)
    message = read_message(sendbuf, state.size, writable=False) if is_root else read_message(recvbuf, writable=True)
    algorithm = _select(state, Operation.SCATTER, SUM, message, root)
    if message is None or algorithm is None:
        pass_later_calls(comm, Operation.SCATTER, (sendbuf if is_root else None, recvbuf), message, SUM, root)
        return False
    received = read_message(recvbuf, writable=True) if is_root and not in_place else message
    if received is None or received.nbytes != message.nbytes:
        return False
    x: Any = message.read(message.dtype) if is_root else None
    if is_root and in_place:
        out, store = x[root * message.count : (root + 1) * message.count], None
    else:
        out, store = received.open_for_writing(message.dtype)
        x = x.copy() if x is not None and np.may_share_memory(x, out) else x
    comm._bind_table()._collective(Operation.SCATTER, x, out, SUM, root, algorithm, False)
    if store is not None:
        store()
    return True


def _find_rooted_state(comm: BufferCollectives, root: Any) -> Acceleration | None:
    """Return the state for a collective with a root; None if MPI carries it out, such as to report a wrong root."""
    if not hasattr(root, "__index__") or not 0 <= root < comm.size:
        return None
    return comm._find_state()


def _select(state: Acceleration, operation: Operation, op: str, message: Message | None, root: int = 0) -> str | None:
    """Return the algorithm of a call whose buffer is `message`; None if MPI carries it out or refuses it."""
    if message is None or not message.count:
        return None
    if operation.reduces and not (message.reducible and message.dtype.kind in _KINDS.get(op, "")):
        return None
    return state.select(operation, op, message.dtype, message.count, index(root))


def _read_apart(message: Message, out: Any) -> Any:
    """Return a message's elements in the element type of `out`, in memory that does not overlap with `out`."""
    x = message.read(out.dtype)
    return x.copy() if np.may_share_memory(x, out) else x
