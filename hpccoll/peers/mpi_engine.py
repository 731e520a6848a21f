"""The MPI library's own collectives as an engine to compare hpccoll with, called through mpi4py."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hpccoll.arrays import BoundCall, DType, FlatArray, Reduction, run_all
from hpccoll.errors import UnavailableError
from hpccoll.peers.library_engine import CheckedBuffers, check_buffers, unsupported_error
from hpccoll.plan import Operation
from hpccoll.runtime import job
from hpccoll.runtime.agreement import gather_or_raise
from hpccoll.runtime.cuda.probe import is_mpi_cuda_aware

if TYPE_CHECKING:
    from mpi4py import MPI


class MpiEngine:
    """Engine `mpi`: MPI_Allreduce and the other collectives of the MPI library on `comm`, which is not duplicated.

    The first call of `prepare` with device buffers probes on every rank whether MPI accepts device memory. If MPI
    rejects device memory on any rank, `prepare` refuses device buffers.
    Cost: a prepared call is a `functools.partial` of an mpi4py method; its buffer arguments are built only once.
    """

    name = "mpi"
    works_in_threads = False

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self._device_works: bool | None = None  # whether MPI accepts device memory; None: not probed yet
        self._mpi = job.load_mpi()

    def prepare(self, operation: Operation, source: Any, result: Any, redop: str, root: int) -> BoundCall:
        """Return a function that runs the MPI collective on these buffers; arguments as in `LibraryEngine.prepare`.

        The first call of `prepare` with device buffers is collective.
        """
        from hpccoll.runtime.messages.mpi_calls import METHODS

        if operation is Operation.BARRIER:
            return self.comm.Barrier
        buffers = check_buffers(operation, source, result, root, self.comm.rank, self.comm.size)
        module = buffers.module
        if module.on_device and self._device_works is None:
            self._device_works = all(gather_or_raise(self.comm, is_mpi_cuda_aware, UnavailableError))
        if module.on_device and not self._device_works:
            raise unsupported_error(self.name, f"{module.name} device buffers here", "use --buffer host")
        sent, received = self._specify(operation, buffers)
        if operation is Operation.REDUCE_SCATTER and buffers.in_place:
            # An in-place MPI_Reduce_scatter leaves the result at the front of the input, not in the rank's own block.
            raise unsupported_error(self.name, "reduce_scatter in place", "use --out-of-place")
        op = self._get_op(buffers.dtype, redop) if operation.reduces else None
        arguments = self._order_arguments(operation, sent, received, op, root, in_place=buffers.in_place)
        before: list[BoundCall] = []
        if operation is Operation.BROADCAST and buffers.source is not None and not buffers.in_place:
            before.append(module.bind_copy(buffers.result, buffers.source))
        if module.on_device:
            before.append(module.synchronize)  # MPI does not wait for work queued on the current stream
        call = partial(getattr(self.comm, METHODS[operation]), *arguments)
        return partial(run_all, (*before, call)) if before else call

    def close(self) -> None:
        """Do nothing, because prepared calls hold no MPI resources."""

    def _specify(self, operation: Operation, buffers: CheckedBuffers) -> list[tuple[Any, int, MPI.Datatype] | None]:
        """Return mpi4py's buffer arguments for input and output: memory, elements per block, and MPI datatype.

        The argument of a buffer that this rank does not use is None.
        """
        from hpccoll.runtime.messages.mpi_calls import get_datatype

        datatype = get_datatype(operation, buffers.dtype)
        if datatype == self._mpi.DATATYPE_NULL:
            missing = f"{buffers.dtype.name} reductions ({job.get_mpi_library()} has no such datatype)"
            raise unsupported_error(self.name, missing, "use float32, or --engine hpccoll")
        both: tuple[FlatArray | None, ...] = (buffers.source, buffers.result)
        # The smaller of source and result is one block, except in an all-to-all, where both have one block per rank.
        count = min(len(flat) for flat in both if flat is not None)
        if operation is Operation.ALL_TO_ALL:
            count //= self.comm.size
        return [None if flat is None else (buffers.module.as_bytes(flat), count, datatype) for flat in both]

    def _order_arguments(
        self, operation: Operation, source: Any, result: Any, op: MPI.Op | None, root: int, *, in_place: bool
    ) -> tuple[Any, ...]:
        """Return the arguments of mpi4py's method for `operation`, as a tuple in their order.

        Args:
            source, result: the buffer arguments that `_specify` returns.
            op, root: the MPI reduction and the root rank, each ignored if the operation has none.
            in_place: whether input and output share memory.
        """
        own_place = self._mpi.IN_PLACE
        if operation is Operation.BROADCAST:
            return result or source, root
        if operation is Operation.EXSCAN and result is None:
            return own_place, source, op  # on rank 0, MPI leaves a buffer in place unchanged
        if operation is Operation.SCATTER:
            return source, own_place if in_place else result, root
        ops, roots = (op,) if operation.reduces else (), (root,) if operation.has_root else ()
        return own_place if in_place else source, result, *ops, *roots

    def _get_op(self, dtype: DType, redop: str) -> MPI.Op:
        """Return the MPI operation, such as MPI.SUM, of the reduction `redop`.

        Raises an error if MPI has no such reduction, or not for elements of type `dtype`.
        """
        from hpccoll.runtime.messages.mpi_calls import OPS, get_op

        reduction = Reduction.parse(redop)
        if reduction.name not in OPS:
            remedy = f"use one of {', '.join(OPS)}, or --engine hpccoll"
            raise unsupported_error(self.name, f"reduction {reduction.name}", remedy)
        reduction.require(dtype)
        return get_op(dtype, reduction.name)
