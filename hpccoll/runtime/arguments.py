"""From what the user passed to what the runtime moves: which array is input, which output, and how large a block is.

Legend: n ranks; a *blocked* operation moves n blocks of `count` elements, the others one vector of `count` elements.
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

    `value` is what the user gets back; `given` says whether the output is memory that the user passed.
    """

    source: Buffer | None
    result: Buffer | None
    value: Any
    count: int
    given: bool
    rooted_input: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of what every rank brings, or gets where only the root brings something."""
        buffer = self.result if self.rooted_input else self.source or self.result
        return buffer.shape if buffer else ()

    @property
    def dtype(self) -> str:
        """The element type's name, or `none`."""
        buffer = self.result or self.source
        return buffer.dtype.name if buffer else "none"


def check_arguments(operation: Operation, x: Any, out: Any, rank: int, n: int, root: int) -> CheckedArguments:
    """Check and sort the arguments of a collective.

    Raises:
        BufferError: an array is missing, too many, or does not fit the other one.
    """
    if operation is Operation.BARRIER:
        return CheckedArguments(None, None, None, 0, given=False)
    if operation in (Operation.ALL_REDUCE, Operation.REDUCE, Operation.BROADCAST):
        return _vector(operation, x, out, rank, root)
    if operation is Operation.SCATTER:
        return _scatter(x, out, rank, n, root)
    if x is None:
        raise BufferError(f"{operation.value}: rank {rank} passed no array; every rank brings x")
    source = as_buffer(x, "x", writable=False)
    if operation in (Operation.ALL_GATHER, Operation.GATHER):
        if operation is Operation.GATHER and rank != root:
            return CheckedArguments(source, None, None, source.count, given=False)
        return _into(operation, x, source, out, (n, *source.shape), source.count, source.count * n)
    count = _block(operation, source, n)
    rows = source.shape[0]
    if operation is Operation.ALL_TO_ALL:
        return _into(operation, x, source, out, source.shape, count, source.count)
    block = source.shape[1:] if rows == n else (rows // n, *source.shape[1:])
    return _into(operation, x, source, out, block, count, count)


def _vector(operation: Operation, x: Any, out: Any, rank: int, root: int) -> CheckedArguments:
    if x is None:
        raise BufferError(f"{operation.value}: rank {rank} passed no array; every rank brings x")
    everywhere = operation is not Operation.REDUCE or rank == root
    if operation is Operation.BROADCAST:
        if out is not None:
            raise BufferError("broadcast works in place: pass one array, which holds the data at the root")
        buffer = as_buffer(x, "x", writable=rank != root)
        return CheckedArguments(buffer if rank == root else None, buffer, x, buffer.count, given=True)
    source = as_buffer(x, "x", writable=out is None and everywhere)
    if not everywhere:
        return CheckedArguments(source, None, x if out is None else out, source.count, given=False)
    if out is None:
        return CheckedArguments(source, source, x, source.count, given=True)
    result = _matching(operation, as_buffer(out, "out", writable=True), source, source.count)
    return CheckedArguments(source, result, out, source.count, given=True)


def _scatter(x: Any, out: Any, rank: int, n: int, root: int) -> CheckedArguments:
    if rank != root:
        if out is None:
            raise BufferError(f"scatter: rank {rank} needs out, an array for its block; only the root's x is read")
        result = as_buffer(out, "out", writable=True)
        return CheckedArguments(None, result, out, result.count, given=False, rooted_input=True)
    if x is None:
        raise BufferError(f"scatter: the root, rank {rank}, passed no x; it brings one block for each rank")
    source = as_buffer(x, "x", writable=False)
    count = _block(Operation.SCATTER, source, n)
    block = source.shape[1:] if source.shape[0] == n else (source.shape[0] // n, *source.shape[1:])
    return replace(_into(Operation.SCATTER, x, source, out, block, count, count), rooted_input=True)


def _block(operation: Operation, source: Buffer, n: int) -> int:
    if not source.shape or source.shape[0] % n:
        raise BufferError(
            f"{operation.value}: x has shape {source.shape}, whose first dim is not divisible by {n} ranks; "
            "pass one block a rank, stacked or joined along the first dim"
        )
    return source.count // n


def _into(
    operation: Operation, x: Any, source: Buffer, out: Any, new: tuple[int, ...], count: int, total: int
) -> CheckedArguments:
    given = out is not None
    value = out if given else like(x, new)
    result = _matching(operation, as_buffer(value, "out", writable=True), source, total)
    return CheckedArguments(source, result, value, count, given)


def _matching(operation: Operation, result: Buffer, source: Buffer, total: int) -> Buffer:
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


def like(x: Any, new: tuple[int, ...]) -> Any:
    """Return an uninitialised array of the kind, dtype and device of `x`, of another shape."""
    if is_torch_tensor(x):
        return x.new_empty(new)
    return np.empty_like(x, shape=new, order="C", subok=False)
