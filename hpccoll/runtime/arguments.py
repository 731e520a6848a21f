"""Checks the arguments of a collective and returns them as a `CollectiveCall`.

`count` is the number of elements of one block in an operation with a block per rank (such as all_gather), and of the
whole vector in other operations (such as all_reduce).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final, TypeAlias

import numpy as np

from hpccoll.algorithms import Algorithm, get_algorithm
from hpccoll.errors import BufferError, ReductionError, UsageError
from hpccoll.plan import Operation
from hpccoll.runtime.arrays import Buffer, Reduction, as_buffer, is_torch_tensor
from hpccoll.runtime.collective_call import CollectiveCall, is_in_place
from hpccoll.selection import MPI_LIBRARY

# The checked input and output, the array to return to the user, the count, and whether the user passed the output.
CheckedArrays: TypeAlias = tuple[Buffer | None, Buffer | None, Any, int, bool]
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
) -> CollectiveCall:
    """Check the arguments of a collective and return the call; allocate the output if the user passed none.

    Args:
        x: the input array, or None.
        out: the output array, or None.
        n: number of ranks.
        algorithm: an algorithm or its name, "auto", or "mpi" for the MPI library's own collective.

    Raises:
        BufferError: an array is missing or unexpected, or input and output do not fit together.
        UsageError: the root is not a rank, or the algorithm is for another operation.
        ReductionError, UnknownNameError: `op` or `algorithm` does not exist, or `op` is not defined for the dtype.
    """
    reduction = Reduction.parse(op)
    if not 0 <= root < n:
        raise UsageError(f"root {root} is not a rank of 0..{n - 1}")
    selected = _find_algorithm(operation, algorithm)
    source, result, value, count, output_given = _check_arrays(operation, x, out, rank, n, root)
    buffer = source or result
    if operation.reduces and buffer is not None:
        reduction.require(buffer.dtype, buffer.shape)
    if operation.is_scan and reduction.name == "avg":
        raise ReductionError(f"{operation.value}: avg is not defined for scans; use sum, and divide by rank + 1")
    library = algorithm == MPI_LIBRARY
    call = CollectiveCall(operation, selected, root, reduction, source, result, count, library, value, output_given)
    is_in_place(call, rank)  # raises if input and output overlap but do not coincide
    return call


def _find_algorithm(operation: Operation, algorithm: str | Algorithm) -> Algorithm | None:
    """Return the algorithm that a call names, or None for "auto" (the selector chooses) and "mpi" (the MPI library)."""
    if isinstance(algorithm, str):
        return None if algorithm in ("auto", MPI_LIBRARY) else get_algorithm(operation, algorithm)
    if algorithm.operation is not operation:
        raise UsageError(f"{algorithm.full_name} is not an algorithm for {operation.value}; name one that is")
    return algorithm


def _check_arrays(operation: Operation, x: Any, out: Any, rank: int, n: int, root: int) -> CheckedArrays:
    """Return the checked arrays of a call; allocate the output if the user passed none."""
    if operation is Operation.BARRIER:
        return None, None, None, 0, False
    if operation is Operation.SCATTER:
        return _check_scatter(x, out, rank, n, root)
    if x is None:
        raise BufferError(f"{operation.value}: rank {rank} passed no array; pass x on every rank")
    if not operation.has_blocks:
        return _check_vector(operation, x, out, rank, root)
    source = as_buffer(x, "x", writable=False)
    if operation in (Operation.ALL_GATHER, Operation.GATHER):
        if operation is Operation.GATHER and rank != root:
            return source, None, None, source.count, False
        new = output_shape(operation, source.shape, n)
        return _with_result(operation, x, source, out, new, source.count, source.count * n)
    count = _block_count(operation, source, n)
    total = source.count if operation is Operation.ALL_TO_ALL else count
    return _with_result(operation, x, source, out, output_shape(operation, source.shape, n), count, total)


def output_shape(operation: Operation, shape: tuple[int, ...], n: int) -> tuple[int, ...]:
    """Return the shape of a new output for an input of shape `shape` on n ranks."""
    if operation in (Operation.ALL_GATHER, Operation.GATHER):
        return (n, *shape)
    if operation in (Operation.REDUCE_SCATTER, Operation.SCATTER):
        return shape[1:] if shape[0] == n else (shape[0] // n, *shape[1:])
    return shape


def _check_vector(operation: Operation, x: Any, out: Any, rank: int, root: int) -> CheckedArrays:
    """Return the checked arrays of an all_reduce, reduce, broadcast or scan."""
    has_result = rank > 0 if operation is Operation.EXSCAN else operation is not Operation.REDUCE or rank == root
    if operation is Operation.BROADCAST:
        if out is not None:
            raise BufferError("broadcast works in place and takes no out; pass one array, with the data at the root")
        buffer = as_buffer(x, "x", writable=rank != root)
        return buffer if rank == root else None, buffer, x, buffer.count, True
    source = as_buffer(x, "x", writable=out is None and has_result)
    if not has_result:
        return source, None, x if out is None else out, source.count, False
    if out is None:
        return source, source, x, source.count, True
    result = _require_match(operation, as_buffer(out, "out", writable=True), source, source.count)
    return source, result, out, source.count, True


def _check_scatter(x: Any, out: Any, rank: int, n: int, root: int) -> CheckedArrays:
    """Return the checked arrays of a scatter; allocate the root's output if the user passed none."""
    if rank != root:
        if out is None:
            raise BufferError(f"scatter: rank {rank} needs out, an array for its block; only the root's x is read")
        result = as_buffer(out, "out", writable=True)
        return None, result, out, result.count, False
    if x is None:
        raise BufferError(f"scatter: the root, rank {rank}, passed no x; pass an array of one block for each rank")
    source = as_buffer(x, "x", writable=False)
    count = _block_count(Operation.SCATTER, source, n)
    block = output_shape(Operation.SCATTER, source.shape, n)
    return _with_result(Operation.SCATTER, x, source, out, block, count, count)


def _block_count(operation: Operation, source: Buffer, n: int) -> int:
    """Return the number of elements of one of n blocks; raise BufferError if n does not divide the first dim."""
    if not source.shape or source.shape[0] % n:
        raise BufferError(
            f"{operation.value}: x has shape {source.shape}, whose first dim is not divisible by {n} ranks; "
            "pass one block per rank, stacked or concatenated along the first dim"
        )
    return source.count // n


def _with_result(
    operation: Operation, x: Any, source: Buffer, out: Any, new: tuple[int, ...], count: int, total: int
) -> CheckedArrays:
    """Return the checked arrays; allocate an output of shape `new` if the user passed no `out`."""
    given = out is not None
    value = out if given else empty_like(x, new)
    result = _require_match(operation, as_buffer(value, "out", writable=True), source, total)
    return source, result, value, count, given


def _require_match(operation: Operation, result: Buffer, source: Buffer, total: int) -> Buffer:
    """Return `result`; raise BufferError unless it has `total` elements, and the dtype and module of `source`."""
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
    with nullcontext() if isinstance(x, np.ndarray) else x.device:
        return np.empty_like(x, shape=new, order="C", subok=False)
