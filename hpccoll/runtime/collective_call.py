"""A collective call of this rank after the argument checks, and the local work before and after its plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hpccoll.algorithms import Algorithm
from hpccoll.errors import BufferError
from hpccoll.plan import Count, Operation
from hpccoll.runtime.arrays import NUMPY, ArrayModule, BoundCall, Buffer, DType, FlatArray, Reduction, get_dtype
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.selection import MPI_LIBRARY


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """The checked arguments of one collective on this rank."""

    operation: Operation
    algorithm: Algorithm | None  # None if the algorithm is not selected yet
    root: int
    reduction: Reduction  # ignored unless the operation reduces
    source: Buffer | None  # this rank's input; None if the operation needs no input from this rank
    result: Buffer | None  # this rank's output; None if this rank gets no result
    count: Count  # elements of the vector, of every block, or of each block if blocks differ in size
    library: bool = False  # whether the user asked for the MPI library's own collective
    value: Any = None  # the array to return to the user
    output_given: bool = False  # whether `value` is an array of the user
    finish: Callable[[Any], Any] | None = None  # makes the user's result from `value` after the collective

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that must be equal on all ranks: the input's, or the output's in a scatter.

        If blocks differ in size, the first dim is left out.
        """
        buffer = self.result if self.operation is Operation.SCATTER else self.source or self.result
        shape = buffer.shape if buffer else ()
        return shape if isinstance(self.count, int) else shape[1:]

    @property
    def is_uneven_exchange(self) -> bool:
        """Whether this is an all-to-all with blocks of different sizes, in which no rank knows all sizes."""
        return self.operation is Operation.ALL_TO_ALL and isinstance(self.count, tuple)

    @property
    def dtype(self) -> DType:
        """The element type of the buffers; uint8 for a barrier, which has no buffer."""
        buffer = self.result or self.source
        return buffer.dtype if buffer else get_dtype("uint8")

    @property
    def module(self) -> ArrayModule:
        """The array module of the buffers."""
        buffer = self.result or self.source
        return buffer.module if buffer else NUMPY


def bind_prologue(call: CollectiveCall, rank: int) -> tuple[CollectiveCall, tuple[BoundCall, ...], bool]:
    """Return the call that the plan executes, functions to run before the plan, and whether the plan runs in place.

    Before the plan, the input of `premul_sum` is scaled, and the input of an in-place all-to-all is copied. The plan
    reads the scaled or copied input from the output's memory or from new memory.
    """
    in_place = is_in_place(call, rank)
    if call.source is None:
        return call, (), in_place
    if call.reduction.scales:
        return _scale_input(call, call.source)
    if call.operation is Operation.ALL_TO_ALL and in_place:
        target = call.module.empty(call.source.count, call.dtype)
        copy = call.module.bind_copy(target, call.source.flat)
        return replace(call, source=_relocate(call.source, target)), (copy,), False
    return call, (), in_place


def bind_epilogue(call: CollectiveCall, ranks: int) -> tuple[BoundCall, ...]:
    """Return the functions to call after the plan: for `avg`, a division of the result by the number of ranks."""
    if not call.reduction.divides or call.result is None:
        return ()
    return (call.module.bind_divide(call.result.flat, ranks),)


def _scale_input(call: CollectiveCall, source: Buffer) -> tuple[CollectiveCall, tuple[BoundCall, ...], bool]:
    """Return `bind_prologue`'s result for premul_sum, which scales the input into the output or into new memory."""
    call.module.require_reduction("multiply", call.dtype)
    has_vector = call.operation in (Operation.ALL_REDUCE, Operation.REDUCE) or call.operation.is_scan
    in_result = has_vector and call.result is not None
    target = call.result.flat if in_result and call.result else call.module.empty(source.count, call.dtype)
    scale = call.module.bind_scale(target, source.flat, call.reduction.factor, source.shape)
    return replace(call, source=_relocate(source, target)), (scale,), in_result


def _relocate(source: Buffer, memory: FlatArray) -> Buffer:
    """Return a buffer like `source` but with the memory `memory`; copy no elements."""
    return replace(source, flat=memory, address=source.module.get_address(memory))


def describe_call(
    state: CallRecorder, call: CollectiveCall, algorithm: Algorithm | None, *, asynchronous: bool = False
) -> bytes:
    """Return the bytes that the flight recorder's entries of a call share; `algorithm` None is the MPI library."""
    operation = call.operation
    return state.describe(
        operation.value,
        algorithm=algorithm.name if algorithm else MPI_LIBRARY,
        count=count_elements(operation, call.count),
        dtype=call.dtype.name if call.source or call.result else "",
        reduction=call.reduction.name if operation.reduces else "",
        root=call.root if operation.has_root else -1,
        asynchronous=asynchronous,
        uneven=not isinstance(call.count, int),
    )


def count_elements(operation: Operation, count: Count) -> int:
    """Return the number of elements that the flight recorder notes, which is the same on all ranks.

    The number is 0 for an all_to_all of blocks of different sizes, in which each rank knows only its own blocks.
    """
    if isinstance(count, int):
        return count
    return 0 if operation is Operation.ALL_TO_ALL else sum(count)


def as_unowned(call: CollectiveCall) -> CollectiveCall:
    """Return the same call with arrays that do not keep their memory alive, for a cache of calls on device memory.

    A cached call runs only for live buffers at the same addresses, so the memory exists whenever the call runs.
    """
    source, result = (
        buffer and replace(buffer, flat=buffer.module.as_unowned(buffer.flat)) for buffer in (call.source, call.result)
    )
    return replace(call, source=source, result=result, value=None, finish=None)


def without_arrays(call: CollectiveCall) -> CollectiveCall:
    """Return the same call with buffers that have sizes and dtypes, but no memory."""
    source, result = (buffer and replace(buffer, flat=None, address=0) for buffer in (call.source, call.result))
    return replace(call, source=source, result=result, value=None, finish=None)


def is_in_place(call: CollectiveCall, rank: int) -> bool:
    """Whether each chunk that is in both input and output is at the same address in both.

    Raises:
        BufferError: input and output overlap, but a chunk of both is at different addresses.
    """
    source, result = call.source, call.result
    if source is None or result is None or not source.nbytes or not result.nbytes or not source.overlaps(result):
        return False
    before = rank * call.count if isinstance(call.count, int) else sum(call.count[:rank])
    offset = before * call.dtype.itemsize
    shift = {
        Operation.ALL_GATHER: offset,
        Operation.GATHER: offset,
        Operation.REDUCE_SCATTER: -offset,
        Operation.SCATTER: -offset,
    }.get(call.operation, 0)
    if source.address != result.address + shift:
        raise BufferError(
            f"{call.operation.value}: x and out overlap on rank {rank} but are not the same chunk; "
            "pass separate memory, or for in place the rank's own block of the larger buffer"
        )
    return True
