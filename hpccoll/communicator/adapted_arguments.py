"""Arguments that the runtime does not accept as they are: lists of arrays, and arrays that are read through DLPack."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from hpccoll.arrays import DType, as_buffer, export_array, import_array, is_foreign, is_torch_tensor
from hpccoll.errors import BufferError
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import BlockCounts, parse_counts

Finish: TypeAlias = Callable[[Any], Any]  # makes the user's result from the runtime's
IN_PLACE: Final = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.BROADCAST, Operation.SCAN, Operation.EXSCAN)
INPUT_LISTS: Final = (Operation.SCATTER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
OUTPUT_LISTS: Final = (Operation.ALL_GATHER, Operation.GATHER, Operation.ALL_TO_ALL)


@dataclass(frozen=True, slots=True)
class AdaptedArguments:
    """Arrays that replace lists and arrays of other libraries, which the user passed to a collective.

    Args:
        x: the input array that the collective reads.
        out: the output array, or None.
        finish: makes the result for the user, such as a list, from the result of the collective.
        counts: a pair: the number of rows of each block that is sent or gathered, and the number of rows of each block
            that an all_to_all receives; None if all blocks have the same size.
    """

    x: Any
    out: Any
    finish: Finish
    counts: BlockCounts | None = None


def adapt_arguments(
    operation: Operation,
    x: Any,
    out: Any,
    rank: int,
    size: int,
    root: int,
    algorithm: Any = "auto",
    counts: BlockCounts | None = None,
) -> AdaptedArguments | None:
    """Return arrays that replace `x` and `out` if one is a list or an array of another library; else None. Local.

    A list `x` is copied into one array, and the result is copied into the arrays of a list `out`. The arrays of a list
    may differ in shape if all ranks know the sizes of all these arrays. A foreign array (of a library that is known by
    DLPack only, such as JAX) is never written, because many foreign arrays are immutable: without `out`, the result is
    a new array of the same library.

    The arguments are those of the collective, with the number of this rank as `rank` and the number of ranks as `size`.

    Raises:
        BufferError: the operation takes no list; a list does not have one array per rank; or the arrays of a list
            differ in dtype or library, or in shape although other ranks cannot know the shapes.
    """
    if operation is Operation.SCATTER and rank != root:
        x = None  # only the root's array is read
    elif operation is Operation.GATHER and rank != root:
        out = None
    if not (isinstance(x, list | tuple) or isinstance(out, list | tuple) or is_foreign(x)):
        return None
    if counts is not None:
        received = parse_counts(operation, "out_counts", counts[1], size) if operation is Operation.ALL_TO_ALL else None
        counts = parse_counts(operation, "counts", counts[0], size), received
    adapted = _adapt_call(operation, x, out, rank, size, algorithm, counts)
    if operation is Operation.REDUCE and rank != root and out is None:
        return replace(adapted, finish=lambda _: x)  # a rank without a result gets its own input
    return adapted


def _adapt_call(
    operation: Operation, x: Any, out: Any, rank: int, size: int, algorithm: Any, counts: BlockCounts | None
) -> AdaptedArguments:
    """Join a list `x` into one array, import arrays of other libraries, and return the arguments of the collective.

    The parameters are those of `adapt_arguments`. The `finish` of the returned object turns the result of the
    collective into the form of the user's input; it is called on ranks with a result.
    """
    listed, listed_out = isinstance(x, list | tuple), isinstance(out, list | tuple)
    _require_lists(operation, listed, listed_out)
    foreign = next((array for array in (x if listed else (x,)) if is_foreign(array)), None)
    array, shapes = import_array(x, "x") if is_foreign(x) else x, None
    if listed:
        exchanges = operation is Operation.ALL_TO_ALL and listed_out and _takes_counts(algorithm)
        blocks = JoinedBlocks.from_list(operation, x, size, counts, uneven=exchanges, out_listed=listed_out)
        array, shapes, counts = blocks.array, blocks.shapes, blocks.counts
    if foreign is not None and operation in IN_PLACE and out is None:
        array = array.copy()
    if listed_out:
        return adapt_output_list(operation, out, array, rank, size, counts)
    if out is not None:
        return AdaptedArguments(array, out, lambda result: result, counts)
    if listed and operation is Operation.ALL_TO_ALL:
        ends = None if counts is None or counts[1] is None else np.cumsum(counts[1])[:-1]
        return AdaptedArguments(array, None, lambda result: _export_blocks(result, ends, foreign), counts)
    shape = None if shapes is None else shapes[rank]
    return AdaptedArguments(array, None, lambda result: _finish_array(result, shape, foreign), counts)


@dataclass(frozen=True, slots=True)
class JoinedBlocks:
    """A list of arrays, one per rank, copied into one array; `counts` is the collective's argument of that name."""

    array: Any
    shapes: list[tuple[int, ...]]
    counts: BlockCounts | None

    @classmethod
    def from_list(
        cls, operation: Operation, arrays: Any, size: int, counts: BlockCounts | None, *, uneven: bool, out_listed: bool
    ) -> JoinedBlocks:
        """Copy the arrays of a list into one array; raise BufferError if their shapes are incompatible.

        Args:
            arrays: the list, with one array per rank.
            size: the number of ranks.
            counts: the number of rows of each array, as the user passed them; None if the user passed none.
            uneven: whether the collective is told the size of each block even if all sizes are equal.
            out_listed: whether the user passes a list for the output.
        """
        native, shapes = _check_list(arrays, size)
        if counts is not None:
            _require_rows(operation, shapes, counts[0])
            return cls(_concatenate(native, flat=False), shapes, counts)
        differing = next((at for at, shape in enumerate(shapes) if shape != shapes[0]), None)
        if differing is None and not uneven:
            return cls(_stack(native), shapes, None)
        if operation is not Operation.REDUCE_SCATTER and not uneven:
            remedy = "pass counts on all ranks"
            if operation is Operation.ALL_TO_ALL:
                remedy = "pass out, a list of arrays of the sizes that this rank receives" if not out_listed else ""
                remedy = remedy or "choose algorithm auto, mpi or pairwise"
            raise BufferError(
                f"{operation.value}: x[0] has shape {shapes[0]}, but x[{differing}] has shape "
                f"{shapes[differing or 0]}, which other ranks cannot know; {remedy}, or arrays of one shape"
            )
        sizes = tuple(math.prod(shape) for shape in shapes)
        return cls(_concatenate(native, flat=True), shapes, (sizes, None))


def adapt_output_list(
    operation: Operation, out: Any, x: Any, rank: int, size: int, counts: BlockCounts | None
) -> AdaptedArguments:
    """Return the arguments of a collective whose output is the list `out`; nothing is copied yet.

    Later, `finish` of the returned object copies the collective's result into the arrays of `out` and returns `out`. If
    `counts` does not state the sizes of the blocks, and they may differ, they are those of the arrays of `out`.

    Args:
        operation: all_gather, gather or all_to_all.
        out: one array per rank.
        x: the input, as one array.
        rank: the number of this rank.
        size: the number of ranks.
        counts: as in `AdaptedArguments`: None, or a pair, whose second element is for an all_to_all only.

    Raises:
        BufferError: `out` does not have one array per rank, or an array of `out` has a wrong dtype or size.
    """
    if len(out) != size:
        raise BufferError(f"out is a list of {len(out)} arrays; pass one array for each of {size} ranks")
    source = as_buffer(x, "x", writable=False)
    buffers = [as_buffer(array, f"out[{at}]", writable=True) for at, array in enumerate(out)]
    sizes = tuple(buffer.count for buffer in buffers)
    gathers = operation is not Operation.ALL_TO_ALL
    expected = [source.count if gathers else source.count // size] * size
    if not gathers and counts is not None and counts[1] is None:  # input and output are lists of arrays of any sizes
        counts, expected = (counts[0], sizes), list(sizes)
    elif counts is not None:
        row = math.prod(source.shape[1:])
        expected = [rows * row for rows in (counts[0] if gathers else counts[1])]
    elif operation is Operation.ALL_GATHER and len(set(sizes)) > 1:  # all ranks know all sizes from their lists
        x, counts, expected = x.reshape(-1), (sizes, None), list(sizes)
        expected[rank] = source.count
    _require_sizes(operation, buffers, expected, source.dtype)
    ends = np.cumsum(expected)[:-1]
    return AdaptedArguments(x, None, lambda result: _copy_blocks(result.reshape(-1), ends, out), counts)


def _takes_counts(algorithm: Any) -> bool:
    """Whether `algorithm`, the user's argument of an all_to_all, can send blocks of different sizes."""
    return getattr(algorithm, "name", algorithm) in ("auto", "mpi", "pairwise")


def _check_list(arrays: Any, size: int) -> tuple[list[Any], list[tuple[int, ...]]]:
    """Return the arrays of a list as NumPy, torch or CuPy arrays, and their shapes.

    Raises BufferError unless there are `size` arrays of one dtype and one library.
    """
    if len(arrays) != size:
        raise BufferError(f"x is a list of {len(arrays)} arrays; pass one array for each of {size} ranks")
    native = [import_array(array, f"x[{at}]") if is_foreign(array) else array for at, array in enumerate(arrays)]
    buffers = [as_buffer(array, f"x[{at}]", writable=False) for at, array in enumerate(native)]
    for at, buffer in enumerate(buffers):
        if buffer.dtype != buffers[0].dtype:
            raise BufferError(
                f"x[0] has dtype {buffers[0].dtype.name}, but x[{at}] has dtype {buffer.dtype.name}; pass arrays of "
                "one dtype"
            )
        if is_torch_tensor(native[at]) != is_torch_tensor(native[0]):
            raise BufferError(f"x[0] and x[{at}] are arrays of different libraries; pass arrays of one library")
    return native, [buffer.shape for buffer in buffers]


def _require_rows(operation: Operation, shapes: list[tuple[int, ...]], rows: Any) -> None:
    """Raise BufferError unless each shape i of `shapes` has `rows[i]` rows, and all shapes agree in the other dims."""
    for at, (shape, count) in enumerate(zip(shapes, rows, strict=False)):
        if shape[:1] != (count,) or shape[1:] != shapes[0][1:]:
            raise BufferError(
                f"{operation.value}: x[{at}] has shape {shape}, but counts requires a first dim of {count}, and the "
                f"other dims {shapes[0][1:]} of x[0]; pass arrays with as many rows as counts states"
            )


def _require_sizes(operation: Operation, buffers: Any, expected: list[int], dtype: DType) -> None:
    """Raise BufferError unless each `buffers[i]`, of a list `out`, has `expected[i]` elements of the dtype `dtype`."""
    for at, (buffer, count) in enumerate(zip(buffers, expected, strict=True)):
        if buffer.count != count or buffer.dtype is not dtype:
            remedy = ", or counts on all ranks" if operation is Operation.GATHER else ""
            raise BufferError(
                f"out[{at}] has {buffer.count} elements of {buffer.dtype.name}; pass an array of {count} elements of "
                f"{dtype.name}{remedy}"
            )


def _stack(arrays: list[Any]) -> Any:
    """Copy a list of arrays of one shape into one array, along a new first dim."""
    if is_torch_tensor(arrays[0]):
        return sys.modules["torch"].stack([array.detach() for array in arrays])
    return (np if isinstance(arrays[0], np.ndarray) else sys.modules["cupy"]).stack(arrays)


def _concatenate(arrays: list[Any], *, flat: bool) -> Any:
    """Copy a list of arrays into one array, along their first dim or, if `flat`, as a one-dimensional array."""
    torch = is_torch_tensor(arrays[0])
    parts = [array.detach() if torch else array for array in arrays]
    parts = [part.reshape(-1) for part in parts] if flat else parts
    if torch:
        return sys.modules["torch"].cat(parts)
    return (np if isinstance(parts[0], np.ndarray) else sys.modules["cupy"]).concatenate(parts)


def _copy_blocks(flat: Any, ends: Any, out: Any) -> Any:
    """Copy consecutive blocks of the array `flat` into the arrays of the list `out`, and return `out`.

    For each block but the last, `ends` has the index of the element after the block.
    """
    for begin, end, array in zip([0, *ends], [*ends, len(flat)], out, strict=True):
        target = (
            array.detach() if is_torch_tensor(array) else import_array(array, "out") if is_foreign(array) else array
        )
        target[...] = flat[int(begin) : int(end)].reshape(target.shape)
    return out


def _export_blocks(result: Any, ends: Any, foreign: Any) -> list[Any]:
    """Return the blocks of an array as a list of arrays, in the library of `foreign` unless `foreign` is None.

    For each block but the last, `ends` has the index of the row after the block; if `ends` is None, each row is a
    block.
    """
    if ends is None:
        return [_export(block, foreign) for block in result]
    cuts = zip([0, *ends], [*ends, len(result)], strict=True)
    return [_export(result[int(begin) : int(end)], foreign) for begin, end in cuts]


def _require_lists(operation: Operation, listed: bool, listed_out: bool) -> None:
    """Raise BufferError if the operation cannot take a list as `x` or `out`, but `listed` or `listed_out` is true."""
    for role, given, allowed in (("x", listed, INPUT_LISTS), ("out", listed_out, OUTPUT_LISTS)):
        if given and operation not in allowed:
            names = ", ".join(other.value for other in allowed)
            raise BufferError(f"{operation.value}: {role} is a list; pass one array ({names} take lists as {role})")


def _finish_array(result: Any, shape: tuple[int, ...] | None, foreign: Any) -> Any:
    """Return a result with the shape `shape`, in the library of the array `foreign`; None leaves either as it is.

    On a rank without a result, `result` is None and is returned.
    """
    if result is None:
        return None
    return _export(result if shape is None else result.reshape(shape), foreign)


def _export(result: Any, foreign: Any) -> Any:
    """Return `result` as an array of the library of the array `foreign`, or unchanged if `foreign` is None."""
    return result if foreign is None else export_array(result, foreign)
