"""The MPI library's own collectives, called through mpi4py as thinly as by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from hpccoll.peers.library_engine import Call, CheckedBuffers, check_buffers, unsupported_error
from hpccoll.plan import Operation
from hpccoll.runtime import job
from hpccoll.runtime.arrays import ArrayModule, DType, FlatArray, Reduction

if TYPE_CHECKING:
    from mpi4py import MPI

Spec: TypeAlias = "tuple[Any, int, MPI.Datatype]"

_OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
# On truth values MPI has logical operations only: the least is "all", the greatest "any".
_LOGICAL = {"min": "LAND", "max": "LOR", "band": "LAND", "bor": "LOR", "bxor": "LXOR"}
# Where a side of the call is n blocks, MPI counts the elements of one of them.
_BLOCKS_IN = (Operation.SCATTER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
_BLOCKS_OUT = (Operation.GATHER, Operation.ALL_GATHER, Operation.ALL_TO_ALL)
_DATATYPES = {
    "bool": "C_BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}_T" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FLOAT16_T",
    "bfloat16": "BFLOAT16_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}


class MpiEngine:
    """Engine `mpi`: MPI_Allreduce and its like, on buffer specifications that are made once.

    Args:
        comm: whose ranks take part; used as it is.
        device_works: whether a probe found that this MPI takes device memory (see `cuda_probe`).

    Cost: a prepared call is one C call behind a `functools.partial`; nothing is made or checked per call.
    """

    name = "mpi"

    def __init__(self, comm: MPI.Intracomm, device_works: bool = False) -> None:
        self.comm, self._device_works = comm, device_works
        self._mpi = job.load_mpi()

    def prepare(self, operation: Operation, source: Any, result: Any, redop: str, root: int) -> Call:
        """Return what runs `operation` once; see `LibraryEngine.prepare`."""
        if operation is Operation.BARRIER:
            return self.comm.Barrier
        part = check_buffers(operation, source, result, root, self.comm.rank, self.comm.size)
        if part.module.on_device and not self._device_works:
            raise unsupported_error(self.name, f"{part.module.name} device buffers here", "use --buffer host")
        call = self._rooted(operation, part, redop, root) if operation.has_root else self._flat(operation, part, redop)
        return _after_stream(part.module, call) if part.module.on_device else call

    def close(self) -> None:
        """Nothing is held."""

    def _flat(self, operation: Operation, part: CheckedBuffers, redop: str) -> Call:
        source, result = self._specs(operation, part)
        given = self._mpi.IN_PLACE if part.in_place else source
        if operation is Operation.ALL_REDUCE:
            return partial(self.comm.Allreduce, given, result, self._op(part.dtype, redop))
        if operation is Operation.ALL_GATHER:
            return partial(self.comm.Allgather, given, result)
        if operation is Operation.ALL_TO_ALL:
            return partial(self.comm.Alltoall, given, result)
        if part.in_place:
            # MPI_IN_PLACE would put every rank's block at the front of the whole, not in its place.
            raise unsupported_error(self.name, "reduce_scatter in place", "use --out-of-place")
        return partial(self.comm.Reduce_scatter_block, source, result, self._op(part.dtype, redop))

    def _rooted(self, operation: Operation, part: CheckedBuffers, redop: str, root: int) -> Call:
        source, result = self._specs(operation, part)
        given = self._mpi.IN_PLACE if part.in_place else source
        if operation is Operation.BROADCAST:
            broadcast = partial(self.comm.Bcast, result, root)
            apart = part.source is not None and not part.in_place
            return _in_turn(part.module.bind_copy(part.result, part.source), broadcast) if apart else broadcast
        if operation is Operation.REDUCE:
            return partial(self.comm.Reduce, given, result, self._op(part.dtype, redop), root)
        if operation is Operation.GATHER:
            return partial(self.comm.Gather, given, result, root)
        return partial(self.comm.Scatter, source, self._mpi.IN_PLACE if part.in_place else result, root)

    def _specs(self, operation: Operation, part: CheckedBuffers) -> tuple[Spec | None, Spec | None]:
        source_whole, result_whole = operation in _BLOCKS_IN, operation in _BLOCKS_OUT
        source = None if part.source is None else self._spec(operation, part, part.source, source_whole)
        return source, None if part.result is None else self._spec(operation, part, part.result, result_whole)

    def _spec(self, operation: Operation, part: CheckedBuffers, flat: FlatArray, whole: bool) -> Spec:
        """The bytes of an array, how many elements, and of which MPI datatype."""
        datatype = getattr(self._mpi, _DATATYPES[part.dtype.name])
        if operation.reduces and datatype == self._mpi.DATATYPE_NULL:
            here = f"{part.dtype.name} reductions ({job.get_mpi_library()} has no such datatype)"
            raise unsupported_error(self.name, here, "use float32, or --engine hpccoll")
        if not operation.reduces and part.dtype.itemsize == 2:
            datatype = self._mpi.UINT16_T  # only moved: any two bytes will do
        return part.module.as_bytes(flat), len(flat) // (self.comm.size if whole else 1), datatype

    def _op(self, dtype: DType, redop: str) -> MPI.Op:
        reduction = Reduction.parse(redop)
        if reduction.name not in _OPS:
            raise unsupported_error(
                self.name, f"reduction {reduction.name}", f"use one of {', '.join(_OPS)}, or --engine hpccoll"
            )
        reduction.require(dtype)
        op: MPI.Op = getattr(self._mpi, (_LOGICAL if dtype.kind == "b" else _OPS)[reduction.name])
        return op


def _in_turn(first: Callable[[], Any], second: Callable[[], Any]) -> Call:
    def call() -> None:
        first()
        second()

    return call


def _after_stream(module: ArrayModule, call: Call) -> Call:
    # Kernels that write the source are queued on the current stream, of which MPI knows nothing: wait for it first.
    return _in_turn(module.synchronize, call)
