"""Checks the arrays that a user passes to a collective: which is input, which is output, and the size of a block.

An operation with blocks moves n blocks of `count` elements for n ranks, any other one vector of `count` elements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpccoll.errors import BufferError
from hpccoll.plan import Operation
from hpccoll.runtime.arrays import Buffer, as_buffer, is_torch_tensor


@dataclass(frozen=True, slots=True)
class CheckedArguments:
    """The checked arguments of one collective on this rank.

    Args:
        source: this rank's input, or None.
        result: this rank's output, or None.
        value: the object to return to the user.
        count: elements of the vector, or of one block.
        given: whether the output is memory that the user passed.
        rooted_input: whether only the root has an input.
    """

    source: Buffer | None
    result: Buffer | None
    value: Any
    count: int
    given: bool
    rooted_input: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of this rank's input, or of its output if only the root has an input."""
        buffer = self.result if self.rooted_input else self.source or self.result
        return buffer.shape if buffer else ()

    @property
    def dtype(self) -> str:
        """The name of the element type, or `none`."""
        buffer = self.result or self.source
        return buffer.dtype.name if buffer else "none"


def check_arguments(operation: Operation, x: Any, out: Any, rank: int, n: int, root: int) -> CheckedArguments:
    """Return the checked arguments of a collective; allocates the output if the user passed none.

    Args:
        operation: the collective.
        x: the input array, or None.
        out: the output array, or None.
        rank: this rank.
        n: number of ranks.
        root: rank of the root.

    Raises:
        BufferError: an array is missing, not expected, or does not fit the other one.
    """
    if operation is Operation.BARRIER:
        return CheckedArguments(None, None, None, 0, given=False)
    if operation in (Operation.ALL_REDUCE, Operation.REDUCE, Operation.BROADCAST):
        return _check_vector(operation, x, out, rank, root)
    if operation is Operation.SCATTER:
        return _check_scatter(x, out, rank, n, root)
    if x is None:
        raise BufferError(f"{operation.value}: rank {rank} passed no array; pass x on every rank")
    source = as_buffer(x, "x", writable=False)
    if operation in (Operation.ALL_GATHER, Operation.GATHER):
        if operation is Operation.GATHER and rank != root:
            return CheckedArguments(source, None, None, source.count, given=False)
        return _with_result(operation, x, source, out, (n, *source.shape), source.count, source.count * n)
    count = _block_count(operation, source, n)
    rows = source.shape[0]
    if operation is Operation.ALL_TO_ALL:
        return _with_result(operation, x, source, out, source.shape, count, source.count)
    block = source.shape[1:] if rows == n else (rows // n, *source.shape[1:])
    return _with_result(operation, x, source, out, block, count, count)


def _check_vector(operation: Operation, x: Any, out: Any, rank: int, root: int) -> CheckedArguments:
    """Return the arguments of an operation without blocks."""
    if x is None:
        raise BufferError(f"{operation.value}: rank {rank} passed no array; pass x on every rank")
    everywhere = operation is not Operation.REDUCE or rank == root
    if operation is Operation.BROADCAST:
        if out is not None:
            raise BufferError("broadcast works in place and takes no out; pass one array, with the data at the root")
        buffer = as_buffer(x, "x", writable=rank != root)
        return CheckedArguments(buffer if rank == root else None, buffer, x, buffer.count, given=True)
    source = as_buffer(x, "x", writable=out is None and everywhere)
    if not everywhere:
        return CheckedArguments(source, None, x if out is None else out, source.count, given=False)
    if out is None:
        return CheckedArguments(source, source, x, source.count, given=True)
    result = _require_match(operation, as_buffer(out, "out", writable=True), source, source.count)
    return CheckedArguments(source, result, out, source.count, given=True)


def _check_scatter(x: Any, out: Any, rank: int, n: int, root: int) -> CheckedArguments:
    if rank != root:
        if out is None:
            raise BufferError(f"scatter: rank {rank} needs out, an array for its block; only the root's x is read")
        result = as_buffer(out, "out", writable=True)
        return CheckedArguments(None, result, out, result.count, given=False, rooted_input=True)
    if x is None:
        raise BufferError(f"scatter: the root, rank {rank}, passed no x; pass an array of one block for each rank")
    source = as_buffer(x, "x", writable=False)
    count = _block_count(Operation.SCATTER, source, n)
    block = source.shape[1:] if source.shape[0] == n else (source.shape[0] // n, *source.shape[1:])
    return replace(_with_result(Operation.SCATTER, x, source, out, block, count, count), rooted_input=True)


def _block_count(operation: Operation, source: Buffer, n: int) -> int:
    """Return the elements of one of the n blocks along the first dimension."""
    if not source.shape or source.shape[0] % n:
        raise BufferError(
            f"{operation.value}: x has shape {source.shape}, whose first dim is not divisible by {n} ranks; "
            "pass one block per rank, stacked or concatenated along the first dim"
        )
    return source.count // n


def _with_result(
    operation: Operation, x: Any, source: Buffer, out: Any, new: tuple[int, ...], count: int, total: int
) -> CheckedArguments:
    """Return arguments with the output `out`, or a new array of shape `new`; either must have `total` elements."""
    given = out is not None
    value = out if given else empty_like(x, new)
    result = _require_match(operation, as_buffer(value, "out", writable=True), source, total)
    return CheckedArguments(source, result, value, count, given)


def _require_match(operation: Operation, result: Buffer, source: Buffer, total: int) -> Buffer:
    """Return `result`; raise BufferError unless it has `total` elements of the source's type and module."""
    if result.dtype is not source.dtype or result.module.name != source.module.name:
        raise BufferError(
            f"{operation.value}: x is {source.dtype.name} ({source.module.name}) and out is {result.dtype.name} "
            f"({result.module.name}); both must be of one dtype and on one device"
        )
    if result.count != total:
        raise BufferError(
            f"{operation.value}: out has shape {result.shape} ({result.count} elements), but x of shape {source.shape} "
            f"gives {total}"
        )
    return result


def empty_like(x: Any, new: tuple[int, ...]) -> Any:
    """Return an uninitialised array of shape `new` with the library, dtype and device of `x`."""
    if is_torch_tensor(x):
        return x.new_empty(new)
    return np.empty_like(x, shape=new, order="C", subok=False)
