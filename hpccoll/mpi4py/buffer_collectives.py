"""The collectives of buffers: mpi4py's methods with an upper-case first letter, over hpccoll.

The table of known calls (`CallTable`) carries out a call on plain NumPy arrays of a kind that ran before. For other
calls, hpccoll reads the buffers (`messages.py`) and runs one of its collectives (`buffer_calls.py`). The MPI library
carries out the first calls of each kind (`acceleration.py`), and calls for which hpccoll has no algorithm or selects
the MPI library's algorithm (`passed_calls.py`).

The choice between hpccoll and the MPI library depends only on properties that are equal on all ranks of a legal call:
the operation, the reduction, the type signature and the number of bytes. Methods that hpccoll does not replace are
inherited from mpi4py, and are as fast as in mpi4py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mpi4py import MPI

from hpccoll.errors import UsageError
from hpccoll.mpi4py import buffer_calls
from hpccoll.mpi4py.acceleration import Acceleration, find_acceleration
from hpccoll.mpi4py.configuration import AUTO, LOGICAL, SUM, get_configuration
from hpccoll.mpi4py.watched_calls import find_method
from hpccoll.plan import Operation
from hpccoll.runtime.backoff import POLLED_TAG

# Looking up a member of an Enum, or a name in a module, takes longer than looking up a global name.
_ALL_REDUCE: Final = Operation.ALL_REDUCE
_ALL_GATHER: Final = Operation.ALL_GATHER
_ALL_TO_ALL: Final = Operation.ALL_TO_ALL
_BARRIER: Final = Operation.BARRIER
_BROADCAST: Final = Operation.BROADCAST
_REDUCE: Final = Operation.REDUCE
_REDUCE_SCATTER: Final = Operation.REDUCE_SCATTER
_SCAN: Final = Operation.SCAN
_EXSCAN: Final = Operation.EXSCAN
_GATHER: Final = Operation.GATHER
_SCATTER: Final = Operation.SCATTER
_IN_PLACE: Final = MPI.IN_PLACE
# Looking up a method in a class takes longer than looking up a global name.
_PLAIN_BARRIER: Final = find_method("Barrier")
_PLAIN_BCAST: Final = find_method("Bcast")
_PLAIN_ALLREDUCE: Final = find_method("Allreduce")
_PLAIN_REDUCE: Final = find_method("Reduce")
_PLAIN_REDUCE_SCATTER_BLOCK: Final = find_method("Reduce_scatter_block")
_PLAIN_ALLGATHER: Final = find_method("Allgather")
_PLAIN_ALLTOALL: Final = find_method("Alltoall")
_PLAIN_SCAN: Final = find_method("Scan")
_PLAIN_EXSCAN: Final = find_method("Exscan")
_PLAIN_GATHER: Final = find_method("Gather")
_PLAIN_SCATTER: Final = find_method("Scatter")
_PLAIN_IPROBE: Final = MPI.Comm.Iprobe
_ANY_SOURCE: Final = MPI.ANY_SOURCE

_NAMES: Final = ("sum", "prod", "min", "max", "band", "bor", "bxor", *LOGICAL)
_ALL_OPS: Final = [op for op in vars(MPI).values() if isinstance(op, MPI.Op)]
_BY_HANDLE: Final = {getattr(MPI, name.upper()).handle: name for name in _NAMES}
_BY_ID: Final = {id(op): _BY_HANDLE.get(op.handle) for op in _ALL_OPS}  # name by id of op; None: not in _NAMES
MOST_OPS: Final = 1000  # most ops whose names are kept by id, because a look-up by the handle takes longer

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

if TYPE_CHECKING:  # the classes that inherit from `BufferCollectives` inherit from MPI.Intracomm, too
    _Intracomm = MPI.Intracomm
else:
    _Intracomm = object


def find_reduction(op: Any) -> str | None:
    """Return the name of an MPI.Op, such as `sum` or `land`; None for MAXLOC, user-defined reductions and others."""
    if not isinstance(op, MPI.Op):
        return None
    name = _BY_HANDLE.get(op.handle)
    if len(_ALL_OPS) < MOST_OPS and id(op) not in _BY_ID:
        _ALL_OPS.append(op)  # keeps the object alive, so that no other object gets its id
        _BY_ID[id(op)] = name
    return name


def _miss(*_: Any) -> Any:
    """Return NotImplemented, as a `CallTable` does for an unknown call; used by communicators without a table."""
    return NotImplemented


class BufferCollectives(_Intracomm):
    """mpi4py's collectives of buffers, such as Allreduce, over hpccoll, or over MPI where hpccoll cannot run them.

    The methods take the arguments of mpi4py's methods of the same names. The class is a base class of classes that also
    inherit from `MPI.Intracomm`.
    """

    _state: Acceleration | None = None
    _own_rank = -1
    _run_in_table: Any = staticmethod(_miss)  # calls the hpccoll communicator's `CallTable`, once there is one

    def Barrier(self) -> None:
        """Wait until all ranks have called `Barrier`. Collective.

        MPI makes progress before and after the barrier, as in MPI_Barrier. Programs expect that the first test after a
        barrier finds messages that arrived, and accesses to a window that ended, before the barrier.
        """
        _PLAIN_IPROBE(self, _ANY_SOURCE, POLLED_TAG)
        if self._run_in_table(_BARRIER, None, None, SUM, 0, AUTO, None) is NotImplemented and not buffer_calls.barrier(
            self
        ):
            _PLAIN_BARRIER(self)
        else:
            _PLAIN_IPROBE(self, _ANY_SOURCE, POLLED_TAG)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Copy the root's buffer into the buffers of all ranks. Collective."""
        if self._run_in_table(_BROADCAST, buf, None, SUM, root, AUTO, None) is NotImplemented and not (
            buffer_calls.broadcast(self, buf, root)
        ):
            _PLAIN_BCAST(self, buf, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        """Reduce the `sendbuf` of all ranks by `op` into the `recvbuf` of every rank. Collective."""
        try:
            name = _BY_ID[id(op)]
        except KeyError:
            name = find_reduction(op)
        if name is not None:
            if sendbuf is _IN_PLACE or sendbuf is None:
                result = self._run_in_table(_ALL_REDUCE, recvbuf, None, name, 0, AUTO, None)
            else:
                result = self._run_in_table(_ALL_REDUCE, sendbuf, recvbuf, name, 0, AUTO, None)
            if result is not NotImplemented or buffer_calls.reduce_vector(self, _ALL_REDUCE, sendbuf, recvbuf, name):
                return
        _PLAIN_ALLREDUCE(self, sendbuf, recvbuf, op)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0) -> None:
        """Reduce the `sendbuf` of all ranks by `op` into the root's `recvbuf`. Collective."""
        try:
            name = _BY_ID[id(op)]
        except KeyError:
            name = find_reduction(op)
        if name is not None:
            if root != self._own_rank:
                result = self._run_in_table(_REDUCE, sendbuf, None, name, root, AUTO, None)
            elif sendbuf is _IN_PLACE or sendbuf is None:
                result = self._run_in_table(_REDUCE, recvbuf, None, name, root, AUTO, None)
            else:
                result = self._run_in_table(_REDUCE, sendbuf, recvbuf, name, root, AUTO, None)
            if result is not NotImplemented or buffer_calls.reduce(self, sendbuf, recvbuf, name, root):
                return
        _PLAIN_REDUCE(self, sendbuf, recvbuf, op, root)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        """Reduce the `sendbuf` of all ranks by `op`; rank r gets block r of the result in `recvbuf`. Collective."""
        try:
            name = _BY_ID[id(op)]
        except KeyError:
            name = find_reduction(op)
        if name is not None:
            result = self._run_in_table(_REDUCE_SCATTER, sendbuf, recvbuf, name, 0, AUTO, None)
            if result is not NotImplemented or buffer_calls.reduce_scatter(self, sendbuf, recvbuf, name):
                return
        _PLAIN_REDUCE_SCATTER_BLOCK(self, sendbuf, recvbuf, op)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Collect the `sendbuf` of all ranks in the `recvbuf` of every rank, in rank order. Collective."""
        if self._run_in_table(_ALL_GATHER, sendbuf, recvbuf, SUM, 0, AUTO, None) is NotImplemented and not (
            buffer_calls.collect_blocks(self, _ALL_GATHER, sendbuf, recvbuf)
        ):
            _PLAIN_ALLGATHER(self, sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send block r of `sendbuf` to each rank r, and collect the blocks for this rank in `recvbuf`. Collective."""
        if self._run_in_table(_ALL_TO_ALL, sendbuf, recvbuf, SUM, 0, AUTO, None) is NotImplemented and not (
            buffer_calls.collect_blocks(self, _ALL_TO_ALL, sendbuf, recvbuf)
        ):
            _PLAIN_ALLTOALL(self, sendbuf, recvbuf)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Collect the `sendbuf` of all ranks in the root's `recvbuf`, in rank order. Collective."""
        out = recvbuf if root == self._own_rank else None
        if self._run_in_table(_GATHER, sendbuf, out, SUM, root, AUTO, None) is NotImplemented and not (
            buffer_calls.gather(self, sendbuf, recvbuf, root)
        ):
            _PLAIN_GATHER(self, sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Send block r of the root's `sendbuf` to the `recvbuf` of each rank r. Collective."""
        if root == self._own_rank:
            result = self._run_in_table(_SCATTER, sendbuf, recvbuf, SUM, root, AUTO, None)
        else:  # the table gets the output in the place of a missing input
            result = self._run_in_table(_SCATTER, recvbuf, None, SUM, root, AUTO, None)
        if result is NotImplemented and not buffer_calls.scatter(self, sendbuf, recvbuf, root):
            _PLAIN_SCATTER(self, sendbuf, recvbuf, root)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        """Reduce the `sendbuf` of the ranks up to this one by `op` into `recvbuf`. Collective."""
        if not self._run_scan(_SCAN, sendbuf, recvbuf, op):
            _PLAIN_SCAN(self, sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
        """Reduce the `sendbuf` of the ranks before this one by `op` into `recvbuf`, except on rank 0. Collective."""
        if not self._run_scan(_EXSCAN, sendbuf, recvbuf, op):
            _PLAIN_EXSCAN(self, sendbuf, recvbuf, op)

    def _run_scan(self, operation: Operation, sendbuf: Any, recvbuf: Any, op: Any) -> bool:
        """Carry out mpi4py's Scan or Exscan by hpccoll; return False if the MPI library must carry it out instead."""
        name = find_reduction(op)
        if name is None:
            return False
        if sendbuf is _IN_PLACE or sendbuf is None:
            arrays = recvbuf, None
        elif operation is _EXSCAN and not self._own_rank:  # rank 0 has no result
            arrays = sendbuf, None
        else:
            arrays = sendbuf, recvbuf
        result = self._run_in_table(operation, *arrays, name, 0, AUTO, None)
        return result is not NotImplemented or buffer_calls.reduce_vector(self, operation, sendbuf, recvbuf, name)

    def barrier(self) -> None:
        """Wait until all ranks have called `barrier` or `Barrier`. Collective."""
        self.Barrier()

    def _find_state(self) -> Acceleration | None:
        """Return the `Acceleration` of this MPI communicator; None if the communicator was freed."""
        if self._state is None and self != MPI.COMM_NULL:
            self._state = find_acceleration(self)
        return self._state

    def _bind_table(self) -> Communicator:
        """Return the hpccoll communicator, and let its table of known calls run later calls on NumPy arrays.

        If the user has chosen algorithms by `configure`, the table is not used, and each call selects its algorithm.
        """
        state = self._state
        if state is None or state.communicator is None:
            raise UsageError("this communicator has no hpccoll communicator; call a collective on all its ranks first")
        communicator = state.communicator
        if get_configuration().choices:
            self._run_in_table = _miss
        else:
            self._run_in_table, self._own_rank = communicator._table.run, state.rank
        return communicator

    def _forget(self) -> None:
        """Let later calls go to the MPI library, whose error states that the communicator was freed."""
        self._state, self._run_in_table = None, _miss
