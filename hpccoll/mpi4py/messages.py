"""Reads the buffers that mpi4py accepts, as flat NumPy arrays.

mpi4py takes `x`, `[x, MPI.DOUBLE]`, `[x, count, MPI.DOUBLE]`, `[x, (count, displacement), MPI.DOUBLE]` and
`[x, count, displacement, MPI.DOUBLE]`, where `x` exports the buffer protocol, DLPack or the CUDA array interface, or is
None or MPI.BOTTOM. `read_message` returns None for anything that mpi4py refuses: the caller then calls mpi4py, which
raises its own error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import index
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.errors import UnavailableError
from hpccoll.mpi4py.device_memory import copy_from_device, copy_to_device, find_device
from hpccoll.mpi4py.signatures import BYTES, find_element_type, list_basic_types, list_element_types

_ELEMENT_TYPES: Final = {dtype: dtype for dtype in list_element_types()}  # dtypes that hpccoll and MPI both have


class Message:
    """The memory that one rank sends or receives in a collective of mpi4py.

    Attributes:
        dtype: the element type; equal on all ranks if the call is legal.
        count: the number of elements of one block, if the memory has a block per rank, else of the whole memory.
        nbytes: bytes of `count` elements without gaps.
        reducible: whether the datatype is one of MPI's basic types that MPI's own reductions accept.
    """

    __slots__ = ("_address", "_blocks", "_device", "_flat", "_items", "_owner", "_type", "count", "dtype", "nbytes",
                 "reducible")  # fmt: skip

    def __init__(self, owner: Any, address: int, items: int, datatype: MPI.Datatype, blocks: int, device: Any) -> None:
        self._owner, self._address, self._items, self._type = owner, address, items, datatype
        self._blocks, self._device = max(blocks, 1), device
        self._flat: Any = None
        self.dtype = find_element_type(datatype)
        self.nbytes = items * datatype.Get_size()
        self.count = self.nbytes // self.dtype.itemsize
        self.reducible = datatype.handle in list_basic_types()

    @classmethod
    def of_array(cls, array: Any, blocks: int) -> Message:
        """Return the message of a NumPy array without gaps, which has `blocks` blocks (0 for an undivided array).

        The element type must be in `_ELEMENT_TYPES`.
        """
        self = cls.__new__(cls)
        self._flat, self._blocks, self.dtype, self.reducible = array, max(blocks, 1), _ELEMENT_TYPES[array.dtype], True
        self.count, self.nbytes = array.size // self._blocks, array.nbytes // self._blocks
        return self

    def read(self, dtype: np.dtype[Any]) -> Any:
        """Return the elements as a flat array of `dtype`; a copy if they have gaps, are unaligned, or are on a GPU."""
        flat = self._view()
        if flat is None:
            flat = self._pack()
        flat = flat.view(dtype)
        return flat if flat.flags.aligned else flat.copy()

    def open_for_writing(self, dtype: np.dtype[Any], *, keep: bool = False) -> tuple[Any, Callable[[], None] | None]:
        """Return a flat array to write to, and a function that then copies its elements to the user's memory.

        Returns None in place of the function if the array is the user's memory.

        Args:
            dtype: the element type of the array.
            keep: whether the array must first hold the elements of the user's memory, because the caller overwrites
                only some of them.
        """
        flat = self._view()
        if flat is not None:
            flat = flat.view(dtype)
            if flat.flags.carray:
                return flat, None
            copy, target = flat.copy(), flat
            return copy, lambda: np.copyto(target, copy)
        copy = self._pack() if keep else np.empty(self.nbytes * self._blocks, BYTES)
        return copy.view(dtype), lambda: self._unpack(copy)

    def _view(self) -> Any:
        """Return the user's memory as a flat array that shares it; None if it has gaps or is on a GPU."""
        if self._flat is not None:
            return self._flat.reshape(-1)
        if self._device is not None or not self._is_dense():
            return None
        return _view_memory(self._address, self.nbytes * self._blocks)

    def _is_dense(self) -> bool:
        """Whether MPI sends the elements as they lie in memory: the datatype is predefined and has no gaps."""
        return bool(self._type.is_predefined) and self._type.Get_extent() == (0, self._type.Get_size())

    def _make_placed_type(self) -> MPI.Datatype:
        """Return a new MPI datatype of all elements at their addresses, relative to `_BASE`; the caller frees it."""
        repeated = self._type.Create_contiguous(self._items * self._blocks)
        placed = repeated.Create_hindexed([1], [self._address - _BASE.ctypes.data])
        sized = placed.Create_resized(0, 1).Commit()
        repeated.Free()
        placed.Free()
        return sized

    def _pack(self) -> Any:
        """Return a copy of the user's elements without gaps, as a flat array of bytes in host memory."""
        if self._device is not None:
            return copy_from_device(self._device, self._address, self.nbytes * self._blocks)
        flat = np.empty(self.nbytes * self._blocks, BYTES)
        placed = self._make_placed_type()
        placed.Pack(_BASE, flat, 0, MPI.COMM_SELF)
        placed.Free()
        return flat

    def _unpack(self, flat: Any) -> None:
        """Copy elements without gaps, a flat array of bytes, to their places in the user's memory."""
        if self._device is not None:
            copy_to_device(self._device, self._address, flat)
            return
        placed = self._make_placed_type()
        placed.Unpack(flat, 0, _BASE, MPI.COMM_SELF)
        placed.Free()


_BASE: Final = np.zeros(1, BYTES)  # the address to which the displacements of `_make_placed_type` refer


def read_message(specification: Any, blocks: int = 0, *, writable: bool) -> Message | None:
    """Return a buffer argument of mpi4py as a `Message`; None if mpi4py refuses the argument.

    Args:
        specification: the argument, such as an array or `[x, count, MPI.DOUBLE]`.
        blocks: the number of blocks in the buffer, one per rank; a count in `specification` is the count of one block.
            `blocks` is 0 if the buffer has no blocks.
        writable: whether the memory must be writable.

    Raises:
        UnavailableError: the buffer is in device memory that no loaded library can copy.
    """
    if (
        type(specification) is np.ndarray
        and specification.dtype in _ELEMENT_TYPES
        and (specification.flags.writeable or not writable)
    ):
        if specification.flags.c_contiguous and not (blocks and specification.size % blocks):
            return Message.of_array(specification, blocks)
        if specification.flags.f_contiguous and not (blocks and specification.size % blocks):
            return Message.of_array(specification.T, blocks)
    try:
        return _read_specification(specification, blocks, writable=writable)
    except UnavailableError:
        raise
    except Exception:  # noqa: BLE001 - mpi4py raises its own error
        return None


def _read_specification(specification: Any, blocks: int, *, writable: bool) -> Message | None:
    """Return any buffer argument of mpi4py as a `Message`; raise an error or return None if mpi4py refuses it.

    The arguments are those of `read_message`.
    """
    buffer, count, displacement, datatype = _split_specification(specification)
    if buffer is None or buffer is MPI.BOTTOM:
        if datatype is None:
            return None
        memory, address, nbytes, device = None, 0, 0, None
    else:
        memory = MPI.buffer.frombuffer(buffer, readonly=not writable)
        address, nbytes, device = memory.address, memory.nbytes, find_device(buffer)
    datatype = _find_datatype(buffer if datatype is None else datatype)
    _, extent = datatype.Get_extent()
    if displacement:
        if displacement < 0 or extent <= 0 or displacement * extent > nbytes:
            return None
        address, nbytes = address + displacement * extent, nbytes - displacement * extent
    if count is None:
        count = nbytes // extent if nbytes else 0
        if nbytes and (nbytes % extent or (blocks and count % blocks)):
            return None
        count //= max(blocks, 1)
    if count < 0 or (count > 0 and buffer is None):
        return None
    return Message((memory, buffer), address, count, datatype, blocks, device)


def _split_specification(specification: Any) -> tuple[Any, int | None, int, Any]:
    """Return buffer, count, displacement and datatype of a buffer argument of mpi4py.

    Count and datatype are None if the argument does not state them.
    """
    if not isinstance(specification, list | tuple):
        return specification, None, 0, None
    buffer, *rest = specification
    datatype = rest.pop() if rest and isinstance(rest[-1], MPI.Datatype | str) else None
    if len(rest) == 1 and isinstance(rest[0], list | tuple):
        rest = list(rest[0])
    if len(rest) > 2:
        raise ValueError(specification)
    count, displacement = [*rest, None, None][:2]
    return buffer, None if count is None else index(count), 0 if displacement is None else index(displacement), datatype


def _find_datatype(given: Any) -> MPI.Datatype:
    """Return the MPI datatype `given`, or the datatype of this name, or the datatype of this buffer's elements."""
    if isinstance(given, MPI.Datatype):
        return given
    if isinstance(given, str):
        return MPI._typedict[given]
    if isinstance(given, MPI.buffer):
        return MPI.BYTE
    return MPI._typedict[_find_format(given).removeprefix("@").removeprefix("<")]


def _find_format(buffer: Any) -> str:
    """Return the format of a buffer's elements, in the characters of the struct module."""
    with suppress(TypeError, BufferError):
        return str(memoryview(buffer).format)
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is not None:
        return str(np.dtype(interface["typestr"]).char)
    return str(np.from_dlpack(buffer).dtype.char)


def _view_memory(address: int, nbytes: int) -> Any:
    """Return an array of the `nbytes` bytes of host memory from `address` on; it does not keep the memory allocated."""
    memory: Any = MPI.buffer.fromaddress(address, nbytes)
    return np.frombuffer(memory, BYTES) if nbytes else np.empty(0, BYTES)
