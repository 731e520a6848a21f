"""One collective as a rank sees it, checked and made ready for its plan: in place or not, scaled, set aside."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpccoll.algorithms.registry import Algorithm
from hpccoll.errors import BufferError
from hpccoll.plan import Operation
from hpccoll.runtime.arrays import NUMPY, ArrayModule, BoundCall, Buffer, DType, FlatArray, Reduction, get_dtype


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective as this rank sees it.

    `count` is the elements of the vector, or of one block; `source` and `result` are None where the operation gives
    this rank none; `algorithm` is None where it is to be chosen; `library` asks for the MPI library's own.
    """

    operation: Operation
    algorithm: Algorithm | None
    root: int
    reduction: Reduction
    source: Buffer | None
    result: Buffer | None
    count: int
    library: bool = False

    @property
    def dtype(self) -> DType:
        """The element type; bytes where there is no buffer at all (barrier)."""
        buffer = self.result or self.source
        return buffer.dtype if buffer else get_dtype("uint8")

    @property
    def module(self) -> ArrayModule:
        """The array module of the buffers."""
        buffer = self.result or self.source
        return buffer.module if buffer else NUMPY


def bind_prologue(job: CollectiveCall, rank: int) -> tuple[CollectiveCall, tuple[BoundCall, ...], bool]:
    """Return the job as its plan sees it, what must be done before, and whether it works in place."""
    in_place = is_in_place(job, rank)
    if job.reduction.name == "premul_sum" and job.source is not None:
        return _scaled(job, job.source)
    if job.operation is Operation.ALL_TO_ALL and in_place and job.source is not None:
        return (*_snapshot(job, job.source), False)
    return job, (), in_place


def bind_epilogue(job: CollectiveCall, ranks: int) -> tuple[BoundCall, ...]:
    """Return what must be done after the plan: `avg` divides."""
    averages = job.reduction.name == "avg" and job.result is not None
    return (job.module.bind_divide(job.result.flat, ranks),) if averages and job.result else ()


def _scaled(job: CollectiveCall, source: Buffer) -> tuple[CollectiveCall, tuple[BoundCall, ...], bool]:
    """premul_sum: scale into the output where it holds the whole vector, else into memory of its own."""
    whole = job.operation in (Operation.ALL_REDUCE, Operation.REDUCE) and job.result is not None
    target = job.result.flat if whole and job.result else job.module.empty(source.count, job.dtype)
    step = job.module.bind_scale(target, source.flat, job.reduction.factor, source.shape)
    return replace(job, source=_moved(source, target)), (step,), whole


def _snapshot(job: CollectiveCall, source: Buffer) -> tuple[CollectiveCall, tuple[BoundCall, ...]]:
    target = job.module.empty(source.count, job.dtype)
    return replace(job, source=_moved(source, target)), (job.module.bind_copy(target, source.flat),)


def _moved(source: Buffer, target: FlatArray) -> Buffer:
    return replace(source, flat=target, address=source.module.get_address(target))


def as_unowned(job: CollectiveCall) -> CollectiveCall:
    """Return the job on the same memory without keeping it alive.

    What is cached must not hold on to buffers that their owner has let go of. It is run only for buffers that lie
    where these lay, so the memory is there whenever it runs.
    """
    source, result = (
        buffer and replace(buffer, flat=buffer.module.as_unowned(buffer.flat)) for buffer in (job.source, job.result)
    )
    return replace(job, source=source, result=result)


def is_in_place(job: CollectiveCall, rank: int) -> bool:
    """Return whether input and output are the same memory where a chunk is both brought and wanted.

    Raises:
        BufferError: they overlap in any other way.
    """
    source, result = job.source, job.result
    if source is None or result is None or not source.nbytes or not result.nbytes or not source.overlaps(result):
        return False
    offset = rank * job.count * job.dtype.itemsize
    shift = {
        Operation.ALL_GATHER: offset,
        Operation.GATHER: offset,
        Operation.REDUCE_SCATTER: -offset,
        Operation.SCATTER: -offset,
    }.get(job.operation, 0)
    if source.address != result.address + shift:
        raise BufferError(
            f"{job.operation.value}: x and out overlap on rank {rank} but are not the same chunk; "
            "pass separate memory, or for in place the rank's own block of the larger buffer"
        )
    return True
