"""Arguments that the runtime does not accept as they are: lists of arrays, and arrays that are read through DLPack."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from hpccoll.errors import BufferError
from hpccoll.plan import Operation
from hpccoll.runtime.arrays import as_buffer, export_array, import_array, is_foreign, is_torch_tensor

Finish: TypeAlias = Callable[[Any], Any]  # makes the user's result from the runtime's
IN_PLACE: Final = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.BROADCAST, Operation.SCAN, Operation.EXSCAN)
INPUT_LISTS: Final = (Operation.SCATTER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
OUTPUT_LISTS: Final = (Operation.ALL_GATHER, Operation.GATHER, Operation.ALL_TO_ALL)


@dataclass(frozen=True, slots=True)
class AdaptedArguments:
    """Arrays that stand for the user's arguments in a collective, and the function that makes the user's result."""

    x: Any
    out: Any
    finish: Finish


def adapt_arguments(operation: Operation, x: Any, out: Any, rank: int, size: int, root: int) -> AdaptedArguments | None:
    """Return arrays that the runtime accepts instead of `x` and `out`; None if it accepts `x` and `out` themselves.

    A list `x` is copied into one array, and the result is copied into the arrays of a list `out`. A foreign array (of a
    library that is known by DLPack only, such as JAX) is never written, because many such arrays are immutable: without
    `out`, the result is a new array of the same library.

    Raises:
        BufferError: the operation takes no list, or arrays of a list differ in number, shape, dtype or library.
    """
    if operation is Operation.SCATTER and rank != root:
        x = None  # only the root's array is read
    elif operation is Operation.GATHER and rank != root:
        out = None
    listed, listed_out = isinstance(x, list | tuple), isinstance(out, list | tuple)
    if not (listed or listed_out or is_foreign(x)):
        return None
    _require_lists(operation, listed, listed_out)
    foreign = next((each for each in (x if listed else (x,)) if is_foreign(each)), None)
    array = stack_arrays(x, size) if listed else import_array(x, "x") if is_foreign(x) else x
    if foreign is not None and operation in IN_PLACE and out is None:
        array = array.copy()
    if listed_out:
        return AdaptedArguments(array, None, bind_split(out, array, size, stacked=operation is Operation.ALL_TO_ALL))
    if out is not None:
        return AdaptedArguments(array, out, lambda result: result)
    unchanged = x if operation is Operation.REDUCE and rank != root else None
    if listed and operation is Operation.ALL_TO_ALL:
        return AdaptedArguments(array, None, lambda result: [_export(block, foreign) for block in result])
    shape = tuple(array.shape[1:]) if listed else None
    return AdaptedArguments(array, None, lambda result: _finish_array(result, shape, foreign, unchanged))


def stack_arrays(arrays: Any, size: int) -> Any:
    """Return the arrays of a list, one per rank, as one array whose first dim is the rank."""
    if len(arrays) != size:
        raise BufferError(f"x is a list of {len(arrays)} arrays; pass one array for each of {size} ranks")
    native = [import_array(each, f"x[{at}]") if is_foreign(each) else each for at, each in enumerate(arrays)]
    buffers = [as_buffer(each, f"x[{at}]", writable=False) for at, each in enumerate(native)]
    for at, buffer in enumerate(buffers):
        if (buffer.shape, buffer.dtype) != (buffers[0].shape, buffers[0].dtype):
            raise BufferError(
                f"x[0] has shape {buffers[0].shape} and dtype {buffers[0].dtype.name}, but x[{at}] has shape "
                f"{buffer.shape} and dtype {buffer.dtype.name}; pass arrays of one shape and dtype"
            )
        if is_torch_tensor(native[at]) != is_torch_tensor(native[0]):
            raise BufferError(f"x[0] and x[{at}] are arrays of different libraries; pass arrays of one library")
    if is_torch_tensor(native[0]):
        return sys.modules["torch"].stack([each.detach() for each in native])
    return (np if isinstance(native[0], np.ndarray) else sys.modules["cupy"]).stack(native)


def bind_split(out: Any, x: Any, size: int, *, stacked: bool) -> Finish:
    """Return a function that copies the rows of a result into the arrays of the list `out`, and returns the list.

    Args:
        x: the input; each array of `out` gets as many elements as `x` has, or as a row of `x` has if `stacked`.
    """
    if len(out) != size:
        raise BufferError(f"out is a list of {len(out)} arrays; pass one array for each of {size} ranks")
    source = as_buffer(x, "x", writable=False)
    count = source.count // size if stacked else source.count
    for at, each in enumerate(out):
        buffer = as_buffer(each, f"out[{at}]", writable=True)
        if buffer.count != count or buffer.dtype is not source.dtype:
            raise BufferError(
                f"out[{at}] has {buffer.count} elements of {buffer.dtype.name}; pass an array of {count} elements of "
                f"{source.dtype.name}"
            )

    def split(result: Any) -> Any:
        """Copy row r of the result into the r-th array of the list."""
        for row, each in zip(result.reshape(size, -1), out, strict=True):
            target = each.detach() if is_torch_tensor(each) else import_array(each, "out") if is_foreign(each) else each
            target[...] = row.reshape(target.shape)
        return out

    return split


def _require_lists(operation: Operation, listed: bool, listed_out: bool) -> None:
    """Raise BufferError if an operation does not take a list as `x` or as `out`."""
    for role, given, allowed in (("x", listed, INPUT_LISTS), ("out", listed_out, OUTPUT_LISTS)):
        if given and operation not in allowed:
            names = ", ".join(each.value for each in allowed)
            raise BufferError(f"{operation.value}: {role} is a list; pass one array ({names} take lists as {role})")


def _finish_array(result: Any, shape: tuple[int, ...] | None, foreign: Any, unchanged: Any) -> Any:
    """Return a result in the given shape and library, or `unchanged` (the user's `x`) on a rank without a result."""
    if unchanged is not None or result is None:
        return unchanged
    return _export(result if shape is None else result.reshape(shape), foreign)


def _export(result: Any, foreign: Any) -> Any:
    """Return a result as an array of the library of `foreign`, or `result` itself if `foreign` is None."""
    return result if foreign is None else export_array(result, foreign)
