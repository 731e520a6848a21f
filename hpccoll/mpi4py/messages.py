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

from hpccoll.mpi4py.device_memory import copy_from_device, copy_to_device, find_device
from hpccoll.mpi4py.signatures import BYTES, find_element_type, list_basic_types, list_element_types

_NUMPY_TYPES: Final = {dtype: dtype for dtype in list_element_types()}  # both libraries send them as one basic type


class Message:
    """The memory that one rank sends or receives in a collective.

    Attributes:
        dtype: the element type; equal on all ranks if the call is legal.
        count: the number of elements; of one block, if the message was read with a number of blocks.
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
        """Return the message of a NumPy array without gaps, whose element type is in `_NUMPY_TYPES`."""
        self = cls.__new__(cls)
        self._flat, self._blocks, self.dtype, self.reducible = array, max(blocks, 1), _NUMPY_TYPES[array.dtype], True
        self.count, self.nbytes = array.size // self._blocks, array.nbytes // self._blocks
        return self

    def read(self, dtype: np.dtype[Any]) -> Any:
        """Return the elements as a flat array of `dtype`; a copy if they have gaps, are not aligned, or on a device."""
        flat = self._view()
        if flat is None:
            flat = self._pack()
        flat = flat.view(dtype)
        return flat if flat.flags.aligned else flat.copy()

    def open_for_writing(self, dtype: np.dtype[Any], *, keep: bool = False) -> tuple[Any, Callable[[], None] | None]:
        """Return a flat array for the result, and a function that stores it in the user's memory, if that is needed.

        Args:
            keep: whether the array must hold the elements of the user's memory, because not all are written.
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
        """Return the user's memory as a flat array; None if it has gaps or is on a device."""
        if self._flat is not None:
            return self._flat.reshape(-1)
        if self._device is not None or not self._is_dense():
            return None
        return _view_memory(self._address, self.nbytes * self._blocks)

    def _is_dense(self) -> bool:
        """Whether MPI sends the elements as they lie in memory: the datatype is predefined and has no gaps."""
        return bool(self._type.is_predefined) and self._type.Get_extent() == (0, self._type.Get_size())

    def _make_whole_type(self) -> MPI.Datatype:
        """Return a new datatype of all elements, relative to the user's address; MPI packs one of these."""
        repeated = self._type.Create_contiguous(self._items * self._blocks)
        whole = repeated.Create_hindexed([1], [self._address - _BASE.ctypes.data])
        sized = whole.Create_resized(0, 1).Commit()
        repeated.Free()
        whole.Free()
        return sized

    def _pack(self) -> Any:
        """Return a copy of the elements without gaps."""
        if self._device is not None:
            return copy_from_device(self._device, self._address, self.nbytes * self._blocks)
        flat = np.empty(self.nbytes * self._blocks, BYTES)
        whole = self._make_whole_type()
        whole.Pack(_BASE, flat, 0, MPI.COMM_SELF)
        whole.Free()
        return flat

    def _unpack(self, flat: Any) -> None:
        """Store elements without gaps in the user's memory."""
        if self._device is not None:
            copy_to_device(self._device, self._address, flat)
            return
        whole = self._make_whole_type()
        whole.Unpack(flat, 0, _BASE, MPI.COMM_SELF)
        whole.Free()


_BASE: Final = np.zeros(1, BYTES)  # the address to which the displacements of `_make_whole_type` refer


def read_message(given: Any, blocks: int = 0, *, writable: bool) -> Message | None:
    """Return the message of a buffer as mpi4py reads it; None if mpi4py refuses it.

    Args:
        blocks: the number of blocks in the buffer, of which `count` describes one; 0 if the buffer is one block.
    """
    if type(given) is np.ndarray and given.dtype in _NUMPY_TYPES and (given.flags.writeable or not writable):
        if given.flags.c_contiguous and not (blocks and given.size % blocks):
            return Message.of_array(given, blocks)
        if given.flags.f_contiguous and not (blocks and given.size % blocks):
            return Message.of_array(given.T, blocks)
    with suppress(Exception):
        return _read_specification(given, blocks, writable=writable)
    return None


def _read_specification(given: Any, blocks: int, *, writable: bool) -> Message | None:
    """Return the message of any buffer that mpi4py accepts; raise an error or return None for others."""
    buffer, count, displacement, datatype = _split_specification(given)
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


def _split_specification(given: Any) -> tuple[Any, int | None, int, Any]:
    """Return buffer, count, displacement and datatype of a specification; count and datatype may be None."""
    if not isinstance(given, list | tuple):
        return given, None, 0, None
    buffer, *rest = given
    datatype = rest.pop() if rest and isinstance(rest[-1], MPI.Datatype | str) else None
    if len(rest) == 1 and isinstance(rest[0], list | tuple):
        rest = list(rest[0])
    if len(rest) > 2:
        raise ValueError(given)
    count, displacement = [*rest, None, None][:2]
    return buffer, None if count is None else index(count), 0 if displacement is None else index(displacement), datatype


def _find_datatype(given: Any) -> MPI.Datatype:
    """Return a datatype, that of its name, or that of the elements of a buffer."""
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
    """Return memory as a flat array of bytes that does not keep the memory alive."""
    memory: Any = MPI.buffer.fromaddress(address, nbytes)
    return np.frombuffer(memory, BYTES) if nbytes else np.empty(0, BYTES)
