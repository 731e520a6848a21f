"""Buffers in all the forms that mpi4py accepts; each rank draws the form of its buffer at random.

The functions of the forms take the elements as a flat array and the number of blocks (one per rank in an Alltoall).
"""

from __future__ import annotations

import array
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

CODES = {"float64": "d", "int32": "i", "uint8": "B", "float32": "f", "int64": "l"}


@dataclass
class DrawnBuffer:
    """A buffer in a random form.

    Attributes:
        given: the argument for mpi4py's method, such as a list of array, count and datatype.
        read: returns the current elements of the buffer as a flat array.
        free: frees the MPI datatype of the buffer.
    """

    given: Any
    read: Callable[[], Any]
    free: Callable[[], None] = lambda: None


def find_type(dtype: np.dtype[Any]) -> MPI.Datatype:
    """Return MPI's type for a NumPy dtype."""
    return MPI._typedict[dtype.char]


def draw_buffer(rng: random.Random, values: Any, *, reduces: bool = False, blocks: int = 1) -> DrawnBuffer:
    """Return a buffer that holds the elements of `values` (a flat array), in a random form.

    Args:
        rng: the random numbers of this rank.
        reduces: whether the buffer takes part in a reduction, for which MPI accepts no derived types.
        blocks: the number of blocks in the buffer; counts passed to mpi4py are elements per block.
    """
    forms = [_plain, _typed, _counted, _displaced, _unaligned, _python_array, _grid, _memory, _tensor]
    if not reduces:
        forms += [_column, _resized, _structure]
    form = rng.choice(forms)
    return form(values, blocks) if values.size else _plain(values, blocks)


def _plain(values: Any, _: int) -> DrawnBuffer:
    """Return a buffer given as a NumPy array alone."""
    x = values.copy()
    return DrawnBuffer(x, x.copy)


def _typed(values: Any, _: int) -> DrawnBuffer:
    """Return a buffer given as an array and a datatype."""
    x = values.copy()
    return DrawnBuffer([x, find_type(x.dtype)], x.copy)


def _counted(values: Any, blocks: int) -> DrawnBuffer:
    """Return a buffer given with its count, in an array that is one element longer."""
    x = np.concatenate([values, values[:1]])
    return DrawnBuffer((x, values.size // blocks, find_type(x.dtype)), x[:-1].copy)


def _displaced(values: Any, blocks: int) -> DrawnBuffer:
    """Return a buffer given with its count and a displacement of one element."""
    x = np.concatenate([values[:1], values, values[:1]])
    return DrawnBuffer([x, (values.size // blocks, 1), find_type(x.dtype)], x[1:-1].copy)


def _unaligned(values: Any, _: int) -> DrawnBuffer:
    """Return a buffer that begins at an odd address."""
    x = np.zeros(values.nbytes + 1, np.uint8)[1:].view(values.dtype)
    x[:] = values
    return DrawnBuffer([x, find_type(x.dtype)], x.copy)


def _python_array(values: Any, _: int) -> DrawnBuffer:
    """Return a buffer given as an `array.array`; a NumPy array for other element types."""
    if values.dtype.name not in CODES:
        return _plain(values, 1)
    x = array.array(CODES[values.dtype.name], values.tolist())
    return DrawnBuffer(x, lambda: np.array(x, values.dtype))


def _grid(values: Any, _: int) -> DrawnBuffer:
    """Return a buffer given as a matrix in Fortran order, whose elements MPI sends in the order of the memory."""
    if values.size % 2:
        return _plain(values, 1)
    x = values.reshape(-1, 2).copy().T
    return DrawnBuffer(x, lambda: x.T.reshape(-1).copy())


def _memory(values: Any, _: int) -> DrawnBuffer:
    """Return a buffer given as a bytearray and a datatype."""
    x = bytearray(values.tobytes())
    return DrawnBuffer([x, find_type(values.dtype)], lambda: np.frombuffer(x, values.dtype).copy())


def _tensor(values: Any, _: int) -> DrawnBuffer:
    """Return a buffer given as a torch tensor; a NumPy array without torch, and for element types that torch lacks."""
    try:
        import torch

        x = torch.from_numpy(values.copy())
    except (ImportError, TypeError):
        return _plain(values, 1)
    return DrawnBuffer([x, find_type(values.dtype)], lambda: x.numpy().copy())


def _column(values: Any, blocks: int) -> DrawnBuffer:
    """Return a buffer in the middle column of a matrix with three columns; a datatype selects the rows of one block."""
    rows = values.size // blocks
    x = np.zeros((values.size, 3), values.dtype)
    x[:, 1] = values
    vector = find_type(values.dtype).Create_vector(rows, 1, 3)
    column = vector.Create_resized(0, 3 * rows * values.itemsize).Commit()
    vector.Free()
    return DrawnBuffer([x.reshape(-1)[1:], 1, column], x[:, 1].copy, column.Free)


def _resized(values: Any, blocks: int) -> DrawnBuffer:
    """Return a buffer with a gap of one element after each element, described by a resized datatype."""
    x = np.zeros(2 * values.size, values.dtype)
    x[::2] = values
    resized = find_type(values.dtype).Create_resized(0, 2 * values.itemsize).Commit()
    return DrawnBuffer([x, values.size // blocks, resized], x[::2].copy, resized.Free)


def _structure(values: Any, blocks: int) -> DrawnBuffer:
    """Return a buffer whose blocks have their second half first in memory, described by a struct datatype."""
    rows = values.size // blocks
    half = rows // 2
    basic, size = find_type(values.dtype), values.itemsize
    x = np.concatenate([[*block[half:], *block[:half]] for block in values.reshape(blocks, rows)]).astype(values.dtype)
    struct = MPI.Datatype.Create_struct([half, rows - half], [(rows - half) * size, 0], [basic, basic])
    whole = struct.Create_resized(0, rows * size).Commit()
    struct.Free()

    def read() -> Any:
        blocks_read = x.reshape(blocks, rows)
        return np.concatenate([[*block[rows - half :], *block[: rows - half]] for block in blocks_read]).astype(x.dtype)

    return DrawnBuffer([x, 1, whole], read, whole.Free)
