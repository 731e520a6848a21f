"""Checks the arguments of a collective and returns them as a `CollectiveCall`.

`count` is the number of elements of one block in an operation with a block per rank (such as all_gather), and of the
whole vector in other operations (such as all_reduce).
"""

from __future__ import annotations

import math
from dataclasses import replace
from operator import index
from typing import Any, Final, TypeAlias

import numpy as np

from hpccoll.algorithms import Algorithm, get_algorithm
from hpccoll.arrays import Buffer, Reduction, as_buffer, is_torch_tensor
from hpccoll.errors import BufferError, ReductionError, UsageError
from hpccoll.plan import Count, Operation
from hpccoll.runtime.collective_call import CollectiveCall, is_in_place
from hpccoll.selection import MPI_LIBRARY

# The checked input and output, the array to return to the user, and the count (`CollectiveCall.count`).
CheckedArrays: TypeAlias = tuple[Buffer | None, Buffer | None, Any, Count]
# The number of rows of each rank's block, and in an all_to_all the number of rows received from each rank.
BlockCounts: TypeAlias = tuple[Any, Any]
SUM: Final = "sum"  # the default reduction


def check_call(
    operation: Operation,
    x: Any,
    out: Any,
    rank: int,
    n: int,
    root: int = 0,
    op: str | Reduction = SUM,
    algorithm: str | Algorithm = "auto",
    counts: BlockCounts | None = None,
) -> CollectiveCall:
    """Check the arguments of a collective and return the call; allocate the output if the user passed none.

    Args:
        x: the input array, or None.
        out: the output array, or None.
        n: number of ranks.
        algorithm: an algorithm or its name, "auto", or "mpi" for the MPI library's own collective.
        counts: None if all blocks have one size. If blocks differ in size, `counts` is a pair: the numbers of rows of
            all blocks, and in an all_to_all the numbers of rows received from all ranks (else None).

    Raises:
        BufferError: an array is missing or unexpected, or input and output do not match.
        UsageError: the root is not a rank, or the algorithm is for another operation.
        ReductionError, UnknownNameError: `op` or `algorithm` does not exist, or `op` is not defined for the dtype.
    """
    reduction = Reduction.parse(op)
    if not hasattr(root, "__index__") or not 0 <= root < n:
        raise UsageError(f"root {root} is not a rank of 0..{n - 1}")
    selected = _find_algorithm(operation, algorithm)
    source, result, value, count = _check_arrays(operation, x, out, rank, n, root, counts)
    buffer = source or result
    if operation.reduces and buffer is not None:
        _require_reduction(operation, reduction, buffer)
    library = algorithm == MPI_LIBRARY
    call = CollectiveCall(operation, selected, root, reduction, source, result, count, library, value)
    return replace(call, in_place=is_in_place(call, rank))


def _require_reduction(operation: Operation, reduction: Reduction, buffer: Buffer) -> None:
    """Raise ReductionError unless the reduction is defined for the operation, and for `buffer`'s dtype and shape."""
    if operation.is_scan and reduction.divides:
        raise ReductionError(f"{operation.value}: avg is not defined for scans; use sum, and divide by rank + 1")
    reduction.require(buffer.dtype, buffer.shape)


def _find_algorithm(operation: Operation, algorithm: str | Algorithm) -> Algorithm | None:
    """Return the algorithm that a call names, or None for "auto" (the selector chooses) and "mpi" (the MPI library)."""
    if isinstance(algorithm, str):
        return None if algorithm in ("auto", MPI_LIBRARY) else get_algorithm(operation, algorithm)
    if not isinstance(algorithm, Algorithm):
        raise UsageError(f"algorithm {algorithm!r} is no algorithm; pass the name of one, or auto")
    if algorithm.operation is not operation:
        raise UsageError(f"{algorithm.full_name} is not an algorithm for {operation.value}; name one that is")
    return algorithm


def _check_arrays(
    operation: Operation, x: Any, out: Any, rank: int, n: int, root: int, counts: BlockCounts | None
) -> CheckedArrays:
    """Return a call's checked input and output, the array to return to the user, and the count.

    Allocate the output if the user passed none.
    """
    rows, taken = ((), ()) if counts is None else parse_rows(operation, counts, n)
    if operation is Operation.BARRIER:
        return None, None, None, 0
    if operation is Operation.SCATTER and rank != root:
        if out is None:
            raise BufferError(f"scatter: rank {rank} needs out, an array for its block; only the root's x is read")
        result = as_buffer(out, "out", writable=True)
        block = _scale_counts(operation, "out", result, rows, rows[rank]) if rows else result.count
        return None, result, out, block
    if x is None and operation is Operation.SCATTER:
        raise BufferError(f"scatter: the root, rank {rank}, passed no x; pass an array of one block for each rank")
    if x is None:
        raise BufferError(f"{operation.value}: rank {rank} passed no array; pass x on every rank")
    if not operation.has_blocks:
        return _check_vector(operation, x, out, rank, root)
    source = as_buffer(x, "x", writable=False)
    gathers = operation in (Operation.ALL_GATHER, Operation.GATHER)
    count: Count
    if rows:
        total, own = sum(rows), rows[rank]
        count = _scale_counts(operation, "x", source, (*rows, *taken), own if gathers else total)
        shape = sum(taken) if operation is Operation.ALL_TO_ALL else total if gathers else own, *source.shape[1:]
    else:
        count = source.count if gathers else _block_count(operation, source, n)
        shape = output_shape(operation, source.shape, n)
    if operation is Operation.GATHER and rank != root:
        return source, None, None, count
    value = empty_like(x, shape) if out is None else out
    result = _require_match(operation, as_buffer(value, "out", writable=True), source, math.prod(shape))
    return source, result, value, count


def parse_rows(operation: Operation, counts: BlockCounts, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return two tuples: the rows of each rank's block, and the rows received from each rank (all_to_all only)."""
    if not operation.has_blocks:
        raise UsageError(f"{operation.value} has no blocks per rank; leave out counts")
    if counts[1] is not None and operation is not Operation.ALL_TO_ALL:
        raise UsageError(f"{operation.value}: only an all_to_all takes out_counts; pass counts alone")
    rows = parse_counts(operation, "counts", counts[0], n)
    return rows, parse_counts(operation, "out_counts", counts[1], n) if operation is Operation.ALL_TO_ALL else ()


def output_shape(operation: Operation, shape: tuple[int, ...], n: int) -> tuple[int, ...]:
    """Return the shape of a new output for an input of shape `shape` on n ranks."""
    if operation in (Operation.ALL_GATHER, Operation.GATHER):
        return (n, *shape)
    if operation in (Operation.REDUCE_SCATTER, Operation.SCATTER):
        return (shape[0] // n, *shape[1:])
    return shape


def _check_vector(operation: Operation, x: Any, out: Any, rank: int, root: int) -> CheckedArrays:
    """Return the arrays of an all_reduce, reduce, broadcast or scan, checked, in the form of `_check_arrays`."""
    has_result = rank > 0 if operation is Operation.EXSCAN else operation is not Operation.REDUCE or rank == root
    if operation is Operation.BROADCAST:
        if out is not None:
            raise BufferError("broadcast works in place and takes no out; pass one array, with the data at the root")
        buffer = as_buffer(x, "x", writable=rank != root)
        return buffer if rank == root else None, buffer, x, buffer.count
    source = as_buffer(x, "x", writable=out is None and has_result)
    if not has_result:
        return source, None, x if out is None else out, source.count
    if out is None:
        return source, source, x, source.count
    result = _require_match(operation, as_buffer(out, "out", writable=True), source, source.count)
    return source, result, out, source.count


def _block_count(operation: Operation, source: Buffer, n: int) -> int:
    """Return the number of elements of one of n blocks; raise BufferError if n does not divide the first dim."""
    if not source.shape or source.shape[0] % n:
        raise BufferError(
            f"{operation.value}: x has shape {source.shape}, whose first dim is not divisible by {n} ranks; "
            "pass one block per rank, stacked or concatenated along the first dim"
        )
    return source.count // n


def parse_counts(operation: Operation, name: str, counts: Any, n: int) -> tuple[int, ...]:
    """Return the numbers of rows of n blocks; raise UsageError unless they are n integers that are not negative."""
    try:
        rows = tuple(index(count) for count in counts)
    except TypeError:
        rows = ()
    if len(rows) != n or min(rows) < 0:
        raise UsageError(
            f"{operation.value}: {name}={counts!r} are not {n} integers of at least 0; pass the number of rows of each "
            "rank's block"
        )
    return rows


def _scale_counts(
    operation: Operation, name: str, buffer: Buffer, rows: tuple[int, ...], expected: int
) -> tuple[int, ...]:
    """Convert numbers of rows to numbers of elements; raise BufferError unless `buffer` has `expected` rows."""
    if not buffer.shape or buffer.shape[0] != expected:
        raise BufferError(
            f"{operation.value}: {name} has shape {buffer.shape}, but counts requires a first dim of {expected}; "
            "pass an array with as many rows, and the same counts on every rank"
        )
    row = math.prod(buffer.shape[1:])
    return tuple(count * row for count in rows)


def _require_match(operation: Operation, result: Buffer, source: Buffer, total: int) -> Buffer:
    """Return `result`; raise BufferError unless it has `total` elements, and `source`'s dtype, library and device."""
    memories = [(buffer.module.name, buffer.module.device) for buffer in (source, result)]
    if result.dtype is not source.dtype or memories[0] != memories[1]:
        x, out = (f"{name} on device {device}" if device >= 0 else name for name, device in memories)
        raise BufferError(
            f"{operation.value}: x is {source.dtype.name} ({x}) and out is {result.dtype.name} ({out}); both must be "
            "of one dtype and on one device"
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
    if isinstance(x, np.ndarray):
        return np.empty(new, x.dtype)
    with x.device:
        return np.empty_like(x, shape=new, order="C")
