"""Calls on plain arrays that the MPI library carries out, found by one look-up in the communicator's `CallTable`.

Without the `CallTable`, hpccoll would read the buffers of each call in Python, which takes 2 us, to find that `auto`
selects the MPI library's collective. The table calls MPI's function itself, without mpi4py's buffer objects,
which take 0.5 us to make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from mpi4py import MPI

from hpccoll.communicator import Communicator
from hpccoll.errors import HpccollError, UsageError
from hpccoll.failures.time_limit import read_timeout
from hpccoll.mpi4py.configuration import AUTO, LOGICAL, SUM, get_configuration
from hpccoll.mpi4py.messages import Message
from hpccoll.native import MpiCall
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import check_call
from hpccoll.runtime.call_cache import describe_arrays
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.messages.library_call import LibraryCall, PassedForm
from hpccoll.runtime.messages.mpi_collectives import MpiCollectives
from hpccoll.runtime.messages.mpi_functions import get_mpi_functions

if TYPE_CHECKING:
    from hpccoll.mpi4py.buffer_collectives import BufferCollectives


def pass_later_calls(
    comm: BufferCollectives, operation: Operation, arrays: tuple[Any, Any], message: Message | None, op: str = SUM,
    root: int = 0,
) -> None:  # fmt: skip
    """Let the C extension call the MPI library for later calls like this one, if that library was selected for them.

    Local.

    Args:
        arrays: input and output of this call. The output is None for a call in place or without output; the input is
            None on ranks without input.
        message: the buffer by whose type and size the MPI library was selected; None if mpi4py refuses the buffer.
        op: the name of the reduction.
    """
    state, (x, out) = comm._find_state(), arrays
    if message is None or not message.count or state is None or state.communicator is None:
        return
    is_passed = op in LOGICAL or state.is_passed((operation, op, message.dtype, message.count, root))
    if not is_passed or get_configuration().choices:
        return
    if not all(array is None or type(array) is np.ndarray for array in arrays):
        return
    communicator = comm._bind_table()
    try:
        known = "max" if op in LOGICAL else op  # any reduction of hpccoll may stand for MPI's
        call = check_call(operation, x, out, state.rank, state.size, root, known)
    except HpccollError:  # arrays that the table would not accept
        return
    request = communicator._make_request(operation, x, out, op, root, AUTO, None)
    passed = make_passed_call(comm, communicator, call, getattr(MPI, op.upper()))
    if passed is not None:
        sizes = describe_arrays(call, request[2], state.size)
        communicator._cache.blocking.add(request, passed, needs_idle=False, calls_left=None, **sizes)


def make_passed_call(
    comm: BufferCollectives, communicator: Communicator, call: CollectiveCall, op: MPI.Op
) -> MpiCall | None:
    """Return an object of the C extension that calls MPI's function for a collective of the user.

    Returns None with HPCCOLL_TIMEOUT, or if there are too many elements for MPI. The ranks do not compare the arguments
    of these calls. Errors of MPI raise mpi4py's exception.

    Args:
        comm: the user's communicator, over which MPI runs the collective.
        communicator: the hpccoll communicator of `comm`.
        call: the arguments of the collective.
        op: the reduction, which replaces the reduction of `call`.
    """
    if read_timeout() is not None:  # `watched_calls.py` records the calls
        return None
    engine, plain = communicator._engine, MPI.Intracomm(comm)
    library = MpiCollectives(plain, engine.progress, engine.state, lambda: False)
    form = PassedForm(get_mpi_functions(_raise_mpi_exception), MPI.Datatype.fromcode(call.dtype.numpy.char), op)
    try:
        return LibraryCall(library, call).make_native(form)
    except UsageError:  # too many elements
        return None


def _raise_mpi_exception(_: str, code: int) -> NoReturn:
    """Raise mpi4py's exception for MPI's error code `code`; the first argument is ignored."""
    raise MPI.Exception(code)
