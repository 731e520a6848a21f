"""Arguments that the runtime does not accept as they are: lists of arrays, and arrays that are read through DLPack."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from hpccoll.errors import BufferError
from hpccoll.plan import Operation
from hpccoll.runtime.arguments import BlockCounts, parse_counts
from hpccoll.runtime.arrays import DType, as_buffer, export_array, import_array, is_foreign, is_torch_tensor

Finish: TypeAlias = Callable[[Any], Any]  # makes the user's result from the runtime's
IN_PLACE: Final = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.BROADCAST, Operation.SCAN, Operation.EXSCAN)
INPUT_LISTS: Final = (Operation.SCATTER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
OUTPUT_LISTS: Final = (Operation.ALL_GATHER, Operation.GATHER, Operation.ALL_TO_ALL)


@dataclass(frozen=True, slots=True)
class AdaptedArguments:
    """Arrays that stand for the user's arguments in a collective, and the function that makes the user's result.

    `counts` are the numbers of rows of each block (and, in an all_to_all, of each block that this rank receives), if
    blocks differ in size.
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
    """Return arrays that the runtime accepts instead of `x` and `out`; None if it accepts `x` and `out` themselves.

    A list `x` is copied into one array, and the result is copied into the arrays of a list `out`. The arrays of a list
    may differ in shape if all ranks know all sizes. A foreign array (of a library that is known by DLPack only, such as
    JAX) is never written, because many such arrays are immutable: without `out`, the result is a new array of the same
    library.

    Raises:
        BufferError: the operation takes no list, or arrays of a list differ in number, dtype or library, or in shape
            where the other ranks cannot know it.
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
    """Join a list of input arrays into one array, import foreign arrays, and return the adapted arguments.

    The adapted arguments include a function that splits or exports the result as the caller passed the input. To be
    called on a rank that has a result; `adapt_arguments` explains the arguments.
    """
    listed, listed_out = isinstance(x, list | tuple), isinstance(out, list | tuple)
    _require_lists(operation, listed, listed_out)
    foreign = next((each for each in (x if listed else (x,)) if is_foreign(each)), None)
    array, shapes = import_array(x, "x") if is_foreign(x) else x, None
    if listed:
        exchanges = operation is Operation.ALL_TO_ALL and listed_out and _takes_counts(algorithm)
        blocks = JoinedBlocks.from_list(operation, x, size, counts, uneven=exchanges, out_listed=listed_out)
        array, shapes, counts = blocks.array, blocks.shapes, blocks.counts
    if foreign is not None and operation in IN_PLACE and out is None:
        array = array.copy()
    if listed_out:
        return split_into(operation, out, array, rank, size, counts)
    if out is not None:
        return AdaptedArguments(array, out, lambda result: result, counts)
    if listed and operation is Operation.ALL_TO_ALL:
        ends = None if counts is None or counts[1] is None else np.cumsum(counts[1])[:-1]
        return AdaptedArguments(array, None, lambda result: _export_blocks(result, ends, foreign), counts)
    shape = None if shapes is None else shapes[rank]
    return AdaptedArguments(array, None, lambda result: _finish_array(result, shape, foreign), counts)


@dataclass(frozen=True, slots=True)
class JoinedBlocks:
    """The arrays of a list, one per rank, as one array; `counts` are the rows of its blocks, if these differ."""

    array: Any
    shapes: list[tuple[int, ...]]
    counts: BlockCounts | None

    @classmethod
    def from_list(
        cls, operation: Operation, arrays: Any, size: int, counts: BlockCounts | None, *, uneven: bool, out_listed: bool
    ) -> JoinedBlocks:
        """Join the arrays of a list.

        Args:
            counts: the user's numbers of rows, if any.
            uneven: whether to treat blocks as of different sizes even if they are not.
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


def split_into(
    operation: Operation, out: Any, x: Any, rank: int, size: int, counts: BlockCounts | None
) -> AdaptedArguments:
    """Return the arguments of a collective whose result is copied into the arrays of the list `out`.

    Raises:
        BufferError: the arrays of `out` differ from the result in number, dtype or size.
    """
    if len(out) != size:
        raise BufferError(f"out is a list of {len(out)} arrays; pass one array for each of {size} ranks")
    source = as_buffer(x, "x", writable=False)
    buffers = [as_buffer(each, f"out[{at}]", writable=True) for at, each in enumerate(out)]
    sizes = tuple(buffer.count for buffer in buffers)
    gathers = operation is not Operation.ALL_TO_ALL
    expected = [source.count if gathers else source.count // size] * size
    if not gathers and counts is not None and counts[1] is None:  # a list of arrays of any sizes on both sides
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
    """Whether an algorithm of all_to_all, given by the user, takes blocks of different sizes."""
    return getattr(algorithm, "name", algorithm) in ("auto", "mpi", "pairwise")


def _check_list(arrays: Any, size: int) -> tuple[list[Any], list[tuple[int, ...]]]:
    """Return the arrays of a list, imported if necessary, and their shapes."""
    if len(arrays) != size:
        raise BufferError(f"x is a list of {len(arrays)} arrays; pass one array for each of {size} ranks")
    native = [import_array(each, f"x[{at}]") if is_foreign(each) else each for at, each in enumerate(arrays)]
    buffers = [as_buffer(each, f"x[{at}]", writable=False) for at, each in enumerate(native)]
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
    """Raise BufferError unless the arrays of a list have the numbers of rows that the user passed as counts."""
    for at, (shape, count) in enumerate(zip(shapes, rows, strict=False)):
        if shape[:1] != (count,) or shape[1:] != shapes[0][1:]:
            raise BufferError(
                f"{operation.value}: x[{at}] has shape {shape}, but counts requires a first dim of {count}, and the "
                f"other dims {shapes[0][1:]} of x[0]; pass arrays with as many rows as counts states"
            )


def _require_sizes(operation: Operation, buffers: Any, expected: list[int], dtype: DType) -> None:
    """Raise BufferError unless the buffers of an output have the expected numbers of elements of a dtype."""
    for at, (buffer, count) in enumerate(zip(buffers, expected, strict=True)):
        if buffer.count != count or buffer.dtype is not dtype:
            remedy = ", or counts on all ranks" if operation is Operation.GATHER else ""
            raise BufferError(
                f"out[{at}] has {buffer.count} elements of {buffer.dtype.name}; pass an array of {count} elements of "
                f"{dtype.name}{remedy}"
            )


def _stack(arrays: list[Any]) -> Any:
    """Return arrays of one shape as one array whose first dim is the rank."""
    if is_torch_tensor(arrays[0]):
        return sys.modules["torch"].stack([each.detach() for each in arrays])
    return (np if isinstance(arrays[0], np.ndarray) else sys.modules["cupy"]).stack(arrays)


def _concatenate(arrays: list[Any], *, flat: bool) -> Any:
    """Return arrays as one, joined along the first dim, or of one dim if `flat`."""
    torch = is_torch_tensor(arrays[0])
    parts = [each.detach() if torch else each for each in arrays]
    parts = [each.reshape(-1) for each in parts] if flat else parts
    if torch:
        return sys.modules["torch"].cat(parts)
    return (np if isinstance(parts[0], np.ndarray) else sys.modules["cupy"]).concatenate(parts)


def _copy_blocks(flat: Any, ends: Any, out: Any) -> Any:
    """Copy the blocks of a flat array, which end before the elements `ends`, into the arrays of `out`; return `out`."""
    for begin, end, each in zip([0, *ends], [*ends, len(flat)], out, strict=True):
        target = each.detach() if is_torch_tensor(each) else import_array(each, "out") if is_foreign(each) else each
        target[...] = flat[int(begin) : int(end)].reshape(target.shape)
    return out


def _export_blocks(result: Any, ends: Any, foreign: Any) -> list[Any]:
    """Return the blocks of a result as a list; the blocks are its rows, or end before the rows `ends`."""
    if ends is None:
        return [_export(block, foreign) for block in result]
    cuts = zip([0, *ends], [*ends, len(result)], strict=True)
    return [_export(result[int(begin) : int(end)], foreign) for begin, end in cuts]


def _require_lists(operation: Operation, listed: bool, listed_out: bool) -> None:
    """Raise BufferError if an operation does not take a list as `x` or as `out`."""
    for role, given, allowed in (("x", listed, INPUT_LISTS), ("out", listed_out, OUTPUT_LISTS)):
        if given and operation not in allowed:
            names = ", ".join(each.value for each in allowed)
            raise BufferError(f"{operation.value}: {role} is a list; pass one array ({names} take lists as {role})")


def _finish_array(result: Any, shape: tuple[int, ...] | None, foreign: Any) -> Any:
    """Return a result in the given shape and library; None on a rank without a result."""
    if result is None:
        return None
    return _export(result if shape is None else result.reshape(shape), foreign)


def _export(result: Any, foreign: Any) -> Any:
    """Return a result as an array of the library of `foreign`, or `result` itself if `foreign` is None."""
    return result if foreign is None else export_array(result, foreign)
