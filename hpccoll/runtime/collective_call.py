"""A collective call of this rank after the argument checks, and the local work before and after its plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

from hpccoll.algorithms import Algorithm
from hpccoll.arrays import NUMPY, ArrayModule, BoundCall, Buffer, DType, FlatArray, Reduction, get_dtype
from hpccoll.errors import BufferError
from hpccoll.plan import Count, Operation
from hpccoll.runtime.recorder.call_recorder import CallRecorder
from hpccoll.selection import MPI_LIBRARY


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """The checked arguments of one collective on this rank."""

    operation: Operation
    algorithm: Algorithm | None  # the one that the user names or that is selected; None before, and for the MPI library
    root: int
    reduction: Reduction  # ignored unless the operation reduces
    source: Buffer | None  # this rank's input; None if the operation needs no input from this rank
    result: Buffer | None  # this rank's output; None if this rank gets no result
    count: Count  # elements of the vector, of every block, or of each block if blocks differ in size
    library: bool = False  # whether the user asked for the MPI library's own collective
    value: Any = None  # the array to return to the user
    finish: Callable[[Any], Any] | None = None  # makes the user's result from `value` after the collective
    has_new_counts: bool = False  # whether blocks differ in size, and few calls had these sizes so far
    in_place: bool = False  # whether each chunk that is in both input and output is at the same address in both
    chunks: int = 1  # the number of chunks of the selected algorithm's plan

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that must be equal on all ranks: the input's, or the output's in a scatter.

        If blocks differ in size, the first dim is left out.
        """
        buffer = self.result if self.operation is Operation.SCATTER else self.source or self.result
        shape = buffer.shape if buffer else ()
        return shape if isinstance(self.count, int) else shape[1:]

    @property
    def counting_key(self) -> tuple[Operation, str, str, int, Count]:
        """The key by which ranks count calls: operation, names of dtype and reduction, root and count.

        The key is the same on all ranks, except in an all-to-all of blocks of different sizes, where counts differ.
        """
        return self.operation, self.dtype.name, self.reduction.name, self.root, self.count

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

    @property
    def addresses(self) -> tuple[int, int]:
        """The addresses of the input and the output; 0 for an array that this rank does not have."""
        return self.source.address if self.source else 0, self.result.address if self.result else 0

    @property
    def nbytes(self) -> tuple[int, int]:
        """The sizes of the input and the output in bytes; 0 for an array that this rank does not have."""
        return self.source.nbytes if self.source else 0, self.result.nbytes if self.result else 0

    @property
    def plan_key(self) -> tuple[Hashable, ...]:
        """The properties on which the execution of a plan depends, except for addresses; a key for caches."""
        plan = self.operation, self.algorithm, self.chunks, self.root, self.count
        return *plan, self.dtype.name, self.reduction.key, self.in_place, *self.nbytes

    @property
    def compared_arguments(self) -> tuple[object, ...]:
        """The arguments that must be equal on all ranks of a node, in the order of COMPARED_ARGUMENTS."""
        name = self.algorithm.name if self.algorithm else ""
        memory = "device" if self.module.on_device else "host"
        others = self.root, self.count, self.dtype.name, self.reduction.name, memory
        return self.operation.value, name, self.chunks, *others

    def describe(self, state: CallRecorder, *, asynchronous: bool = False) -> bytes:
        """Return the bytes that describe this call in the flight recorder; without an algorithm, MPI carries it out."""
        operation = self.operation
        return state.describe(
            operation.value,
            algorithm=self.algorithm.name if self.algorithm else MPI_LIBRARY,
            count=count_elements(operation, self.count),
            dtype=self.dtype.name if self.source or self.result else "",
            reduction=self.reduction.name if operation.reduces else "",
            root=self.root if operation.has_root else -1,
            asynchronous=asynchronous,
            uneven=not isinstance(self.count, int),
        )


def bind_prologue(call: CollectiveCall) -> tuple[CollectiveCall, tuple[BoundCall, ...]]:
    """Return the call that the plan executes, and functions to run before the plan.

    Before the plan, the input of `premul_sum` is scaled, and the input of an in-place all-to-all is copied. The plan
    reads the scaled or copied input from the output's memory or from new memory.
    """
    if call.source is None:
        return call, ()
    if call.reduction.scales:
        return _scale_input(call, call.source)
    if call.operation is Operation.ALL_TO_ALL and call.in_place:
        target = call.module.empty(call.source.count, call.dtype)
        copy = call.module.bind_copy(target, call.source.flat)
        return replace(call, source=_relocate(call.source, target), in_place=False), (copy,)
    return call, ()


def bind_epilogue(call: CollectiveCall, ranks: int) -> tuple[BoundCall, ...]:
    """Return the functions to call after the plan: for `avg`, a division of the result by the number of ranks."""
    if not call.reduction.divides or call.result is None:
        return ()
    return (call.module.bind_divide(call.result.flat, ranks),)


def _scale_input(call: CollectiveCall, source: Buffer) -> tuple[CollectiveCall, tuple[BoundCall, ...]]:
    """Return `bind_prologue`'s result for premul_sum, which scales the input into the output or into new memory."""
    call.module.require_reduction("multiply", call.dtype)
    has_vector = call.operation in (Operation.ALL_REDUCE, Operation.REDUCE) or call.operation.is_scan
    in_result = has_vector and call.result is not None
    target = call.result.flat if in_result and call.result else call.module.empty(source.count, call.dtype)
    scale = call.module.bind_scale(target, source.flat, call.reduction.factor, source.shape)
    return replace(call, source=_relocate(source, target), in_place=in_result), (scale,)


def _relocate(source: Buffer, memory: FlatArray) -> Buffer:
    """Return a buffer like `source` but with the memory `memory`; copy no elements."""
    return replace(source, flat=memory, address=source.module.get_address(memory))


def count_elements(operation: Operation, count: Count) -> int:
    """Return the number of elements that the flight recorder notes, which is the same on all ranks.

    The number is 0 for an all_to_all of blocks of different sizes, in which each rank knows only its own blocks.
    """
    if isinstance(count, int):
        return count
    return 0 if operation is Operation.ALL_TO_ALL else sum(count)


def as_unowned(call: CollectiveCall) -> CollectiveCall:
    """Return a copy of this call whose arrays do not keep their memory alive, for a cache of device-memory calls.

    A cached call runs only for live buffers at the same addresses, so the memory exists whenever the call runs.
    """
    source, result = (
        buffer and replace(buffer, flat=buffer.module.as_unowned(buffer.flat)) for buffer in (call.source, call.result)
    )
    return replace(call, source=source, result=result, value=None, finish=None)


def without_arrays(call: CollectiveCall) -> CollectiveCall:
    """Return a copy of this call whose buffers have sizes and dtypes, but no memory."""
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
