"""Calls of plain arrays that the MPI library carries out, found by one look-up in the communicator's `CallTable`.

Without it, each such call would read its buffers in Python, which takes 2 us, to find that `auto` selects the MPI
library's collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.errors import HpccollError
from hpccoll.mpi4py.configuration import AUTO, get_configuration
from hpccoll.mpi4py.messages import Message
from hpccoll.mpi4py.watched_calls import find_method
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import SUM, check_call
from hpccoll.runtime.call_cache import Arrays

if TYPE_CHECKING:
    from hpccoll.mpi4py.buffer_collectives import BufferCollectives

METHODS: Final = {
    Operation.ALL_REDUCE: "Allreduce",
    Operation.REDUCE: "Reduce",
    Operation.REDUCE_SCATTER: "Reduce_scatter_block",
    Operation.SCAN: "Scan",
    Operation.EXSCAN: "Exscan",
    Operation.BROADCAST: "Bcast",
    Operation.ALL_GATHER: "Allgather",
    Operation.ALL_TO_ALL: "Alltoall",
}


def pass_later_calls(
    comm: BufferCollectives, operation: Operation, arrays: tuple[Any, Any], message: Message | None, op: str = SUM,
    root: int = 0,
) -> None:  # fmt: skip
    """Let the table of a communicator pass later calls of a kind to the MPI library if it carries out all of them.

    Args:
        arrays: the arguments of the table for this call; the second is None if the first is input and output.
        message: the message by which the call was selected.
    """
    state, (x, out) = comm._find_state(), arrays
    if message is None or not message.count or state is None or state.communicator is None:
        return
    if not state.is_passed((operation, op, message.dtype, message.count, root)) or get_configuration().choices:
        return
    if type(x) is not np.ndarray or not (out is None or type(out) is np.ndarray):
        return
    communicator = comm._bind_table()
    try:
        call = check_call(operation, x, out, state.rank, state.size, root, op)
    except HpccollError:  # arrays that the table would not accept
        return
    request = communicator._cache.intern((operation, x, out, op, root, AUTO, None))
    plain = MPI.Intracomm(comm)
    passed = bind_method(operation, plain, getattr(MPI, op.upper()), root, in_place=out is None)
    Arrays.of(call, out, state.size).add_to(communicator._cache.blocking, request, passed)


def bind_method(
    operation: Operation, comm: Any, op: MPI.Op, root: int, *, in_place: bool
) -> Callable[[Any, Any], object]:
    """Return mpi4py's method as a function of the arrays of the table."""
    method: Callable[..., object] = find_method(METHODS[operation])
    if operation is Operation.BROADCAST:
        return lambda x, _: method(comm, x, root)
    if operation in (Operation.ALL_GATHER, Operation.ALL_TO_ALL):
        return lambda x, out: method(comm, x, out)
    rest = (op, root) if operation is Operation.REDUCE else (op,)
    if operation is Operation.REDUCE and comm.rank != root:
        return lambda x, _: method(comm, x, None, *rest)
    if in_place:
        return lambda x, _: method(comm, MPI.IN_PLACE, x, *rest)
    return lambda x, out: method(comm, x, out, *rest)
