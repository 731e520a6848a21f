"""Carries out mpi4py's collectives of buffers by collectives of hpccoll.

Each function of this module returns whether hpccoll has carried out the call; if not, the caller calls the MPI library
instead. All ranks of a legal call decide in the same way, because the functions decide by the operation, the reduction,
the type signature and the number of bytes. If the buffer of a rank has gaps (a derived datatype), is not aligned, or is
on a GPU, this rank copies the buffer to and from a flat array.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.mpi4py.acceleration import Acceleration, CallKey
from hpccoll.mpi4py.configuration import SUM
from hpccoll.mpi4py.messages import Message, read_message
from hpccoll.mpi4py.signatures import BYTES
from hpccoll.plan import Operation

if TYPE_CHECKING:
    from hpccoll.mpi4py.buffer_collectives import BufferCollectives

_KINDS: Final = {"sum": "iufc", "prod": "iufc", "min": "iuf", "max": "iuf", "band": "iu", "bor": "iu", "bxor": "iu"}


def is_in_place(buffer: Any) -> bool:
    """Whether a buffer argument means MPI_IN_PLACE to mpi4py: it is `MPI.IN_PLACE` or None."""
    return buffer is None or buffer is MPI.IN_PLACE


def _run(
    comm: BufferCollectives, operation: Operation, x: Any, out: Any, op: str, root: int, algorithm: str,
    store: Callable[[], None] | None = None,
) -> bool:  # fmt: skip
    """Run a collective of hpccoll with input `x` and output `out`, then call `store`; return True. Collective.

    `store` copies the result from `out` (or `x` without `out`) to the user's memory; None if the result is there
    already.
    """
    comm._bind_table()._collective(operation, x, out, op, root, algorithm, False)
    if store is not None:
        store()
    return True


def barrier(comm: BufferCollectives) -> bool:
    """Carry out mpi4py's `comm.Barrier()` by hpccoll; return False if the MPI library must do it. Collective."""
    state = comm._find_state()
    key = Operation.BARRIER, SUM
    if state is None or state.count_early(key):
        return False
    algorithm = state.select(Operation.BARRIER, SUM, BYTES, 0, key=key)
    if algorithm is None:
        return False
    comm._bind_table().barrier(algorithm=algorithm)
    return True


def broadcast(comm: BufferCollectives, buffer: Any, root: int) -> bool:
    """Carry out mpi4py's `comm.Bcast(buffer, root)` by hpccoll; collective.

    Returns False if the MPI library must carry out the call instead.
    """
    state = _find_rooted_state(comm, root)
    if state is None:
        return False
    key = _make_key(Operation.BROADCAST, SUM, buffer, 0, root, state.rank != root)
    if state.count_early(key):
        return False
    message = read_message(buffer, writable=state.rank != root)
    algorithm = _select(state, Operation.BROADCAST, SUM, message, root, key)
    if message is None or algorithm is None:
        _pass_later_calls(comm, Operation.BROADCAST, (buffer, None), message, SUM, root)
        return False
    if state.rank == root:
        array, store = message.read(message.dtype), None
    else:
        array, store = message.open_for_writing(message.dtype)
    return _run(comm, Operation.BROADCAST, array, None, SUM, root, algorithm, store)


def reduce(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, op: str, root: int) -> bool:
    """Carry out mpi4py's `comm.Reduce(sendbuf, recvbuf, op, root)` by hpccoll; `op` is the name of the reduction.

    Returns False if the MPI library must carry out the call instead. Collective.
    """
    state = _find_rooted_state(comm, root)
    if state is None:
        return False
    if state.rank == root:
        return reduce_vector(comm, Operation.REDUCE, sendbuf, recvbuf, op, root)
    return _send_to_root(comm, state, Operation.REDUCE, sendbuf, op, root)


def gather(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, root: int) -> bool:
    """Carry out mpi4py's `comm.Gather(sendbuf, recvbuf, root)` by hpccoll; collective.

    Returns False if the MPI library must carry out the call instead.
    """
    state = _find_rooted_state(comm, root)
    if state is None:
        return False
    if state.rank == root:
        return collect_blocks(comm, Operation.GATHER, sendbuf, recvbuf, root)
    return _send_to_root(comm, state, Operation.GATHER, sendbuf, SUM, root)


def _send_to_root(
    comm: BufferCollectives, state: Acceleration, operation: Operation, sendbuf: Any, op: str, root: int
) -> bool:
    """Carry out a reduce or gather on a rank that is not the root; return False if the MPI library must do it instead.

    Collective. The arguments are those of the collective; `state` is the `Acceleration` of the communicator `comm`.
    """
    key = _make_key(operation, op, sendbuf, 0, root, False)
    if state.count_early(key):
        return False
    message = read_message(sendbuf, writable=False)
    algorithm = _select(state, operation, op, message, root, key)
    if message is None or algorithm is None:
        _pass_later_calls(comm, operation, (sendbuf, None), message, op, root)
        return False
    return _run(comm, operation, message.read(message.dtype), None, op, root, algorithm)


def reduce_vector(
    comm: BufferCollectives, operation: Operation, sendbuf: Any, recvbuf: Any, op: str, root: int = 0
) -> bool:
    """Carry out mpi4py's Allreduce, Scan or Exscan, or the root's part of Reduce, by hpccoll; collective.

    Returns False if the MPI library must carry out the call instead. An Exscan does not change `recvbuf` on rank 0.

    Args:
        sendbuf: as in mpi4py's method.
        recvbuf: as in mpi4py's method.
        op: the name of the reduction.
    """
    state, key = comm._state or comm._find_state(), _make_key(operation, op, recvbuf, 0, root, True)
    if state is None or state.count_early(key):
        return False
    received = read_message(recvbuf, writable=True)
    algorithm = _select(state, operation, op, received, root, key)
    in_place = is_in_place(sendbuf)
    if received is None or algorithm is None:
        _pass_later_calls(comm, operation, (recvbuf, None) if in_place else (sendbuf, recvbuf), received, op, root)
        return False
    if in_place:
        out, store = received.open_for_writing(received.dtype, keep=True)
        return _run(comm, operation, out, None, op, root, algorithm, store)
    sent = read_message(sendbuf, writable=False)
    if sent is None or (sent.dtype, sent.count) != (received.dtype, received.count):
        return False
    if operation is Operation.EXSCAN and state.rank == 0:
        return _run(comm, operation, sent.read(sent.dtype), None, op, root, algorithm)
    out, store = received.open_for_writing(received.dtype)
    return _run(comm, operation, _read_apart(sent, out), out, op, root, algorithm, store)


def reduce_scatter(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, op: str) -> bool:
    """Carry out mpi4py's `comm.Reduce_scatter_block(sendbuf, recvbuf, op)` by hpccoll; collective.

    `op` is the name of the reduction. Returns False if the MPI library must carry out the call instead.
    """
    state, in_place = comm._state or comm._find_state(), is_in_place(sendbuf)
    key = _make_key(Operation.REDUCE_SCATTER, op, recvbuf, int(in_place), 0, True)
    if state is None or state.count_early(key):
        return False
    received = read_message(recvbuf, state.size if in_place else 0, writable=True)
    algorithm = _select(state, Operation.REDUCE_SCATTER, op, received, 0, key)
    if received is None or algorithm is None:
        _pass_later_calls(comm, Operation.REDUCE_SCATTER, (sendbuf, recvbuf), received, op)
        return False
    out, store = received.open_for_writing(received.dtype, keep=in_place)
    if in_place:
        x = out.copy()
    else:
        sent = read_message(sendbuf, state.size, writable=False)
        if sent is None or (sent.dtype, sent.count) != (received.dtype, received.count):
            return False
        x = _read_apart(sent, out)
    return _run(comm, Operation.REDUCE_SCATTER, x, out[: received.count], op, 0, algorithm, store)


def collect_blocks(comm: BufferCollectives, operation: Operation, sendbuf: Any, recvbuf: Any, root: int = 0) -> bool:
    """Carry out mpi4py's Allgather or Alltoall, or the root's part of Gather, by hpccoll; collective.

    `sendbuf`, `recvbuf` and `root` are as in mpi4py's method. Returns False if the MPI library must carry out the call
    instead.
    """
    state, key = comm._state or comm._find_state(), _make_key(operation, SUM, recvbuf, 1, root, True)
    if state is None or state.count_early(key):
        return False
    in_place, exchanges = is_in_place(sendbuf), operation is Operation.ALL_TO_ALL
    received = read_message(recvbuf, state.size, writable=True)
    algorithm = _select(state, operation, SUM, received, root, key)
    if received is None or algorithm is None:
        _pass_later_calls(comm, operation, (sendbuf, recvbuf), received, SUM, root)
        return False
    out, store = received.open_for_writing(received.dtype, keep=in_place)
    if in_place:
        x = out.copy() if exchanges else out[state.rank * received.count : (state.rank + 1) * received.count]
    else:
        sent = read_message(sendbuf, state.size if exchanges else 0, writable=False)
        if sent is None or sent.nbytes != received.nbytes:
            return False
        x = _read_apart(sent, out)
    return _run(comm, operation, x, out, SUM, root, algorithm, store)


def scatter(comm: BufferCollectives, sendbuf: Any, recvbuf: Any, root: int) -> bool:
    """Carry out mpi4py's `comm.Scatter(sendbuf, recvbuf, root)` by hpccoll; collective.

    Returns False if the MPI library must carry out the call instead.
    """
    state = _find_rooted_state(comm, root)
    if state is None:
        return False
    is_root, in_place = state.rank == root, is_in_place(recvbuf)
    key = _make_key(Operation.SCATTER, SUM, sendbuf if is_root else recvbuf, int(is_root), root, not is_root)
    if state.count_early(key):
        return False
    message = read_message(sendbuf, state.size, writable=False) if is_root else read_message(recvbuf, writable=True)
    algorithm = _select(state, Operation.SCATTER, SUM, message, root, key)
    if message is None or algorithm is None:
        _pass_later_calls(comm, Operation.SCATTER, (sendbuf if is_root else None, recvbuf), message, SUM, root)
        return False
    received = read_message(recvbuf, writable=True) if is_root and not in_place else message
    if received is None or received.nbytes != message.nbytes:
        return False
    x: Any = message.read(message.dtype) if is_root else None
    if is_root and in_place:  # the root's block stays where it is
        return _run(comm, Operation.SCATTER, x, None, SUM, root, algorithm)
    out, store = received.open_for_writing(message.dtype)
    x = x.copy() if x is not None and np.may_share_memory(x, out) else x
    return _run(comm, Operation.SCATTER, x, out, SUM, root, algorithm, store)


def _find_rooted_state(comm: BufferCollectives, root: Any) -> Acceleration | None:
    """Return the `Acceleration` of a communicator; None if it was freed or `root` is no rank, which MPI reports."""
    if not hasattr(root, "__index__") or not 0 <= root < comm.size:
        return None
    return comm._find_state()


def _make_key(operation: Operation, op: str, buffer: Any, has_blocks: int, root: int, writable: bool) -> CallKey | None:
    """Return the arguments that determine the kind of a call if `buffer` is a NumPy array that mpi4py accepts.

    Returns None for other buffers, and for arrays that have gaps or must be writable (`writable`) and are not: mpi4py
    refuses such arrays, and `_select` does not count their calls. `buffer` is the array whose type and size MPI
    requires to be equal on all ranks, and `has_blocks` is 1 if the array has a block per rank, else 0. Reading the
    whole message takes about three times as long.
    """
    if type(buffer) is not np.ndarray:
        return None
    flags = buffer.flags
    # Most arrays are `carray` (contiguous in C's order, aligned and writable), so that one flag suffices. The flag
    # `forc` is also true for arrays in Fortran's order.
    if not flags.carray and (not flags.forc or (writable and not flags.writeable)):
        return None
    return operation, op, buffer.dtype, buffer.size, has_blocks, index(root)


def _select(
    state: Acceleration,
    operation: Operation,
    op: str,
    message: Message | None,
    root: int,
    key: CallKey | None,
) -> str | None:
    """Count a call; return its algorithm's name, or `auto`; None if the MPI library carries it out or reports an error.

    `message` is the buffer by whose type and size the algorithm is selected; None for a buffer that mpi4py refuses.
    `key` is the result of `_make_key`. Collective, as `Acceleration.select`.
    """
    if message is None or not message.count:
        return None
    if operation.reduces and not (message.reducible and message.dtype.kind in _KINDS.get(op, "")):
        state.leave_to_mpi(key)
        return None
    return state.select(operation, op, message.dtype, message.count, index(root), key)


def _pass_later_calls(
    comm: BufferCollectives,
    operation: Operation,
    arrays: tuple[Any, Any],
    message: Message | None,
    op: str,
    root: int = 0,
) -> None:
    """Call `pass_later_calls` if the communicator has an hpccoll communicator, whose table of calls it changes."""
    state = comm._find_state()
    if state is not None and state.communicator is not None:
        from hpccoll.mpi4py.passed_calls import pass_later_calls

        pass_later_calls(comm, operation, arrays, message, op, root)


def _read_apart(message: Message, out: Any) -> Any:
    """Return a message's elements as a flat array with the dtype of `out`, copied if they overlap with `out`."""
    x = message.read(out.dtype)
    return x.copy() if np.may_share_memory(x, out) else x
