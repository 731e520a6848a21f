"""Python objects as headers and bytes: arrays as they lie in memory, numbers in eight bytes, other objects pickled.

The C extension (`SmallObjects`) writes and reads numbers, and small tuples, lists and dicts, in the same format.

A collective of objects first exchanges one slot per rank, all of one size: a header of 64 bytes, then the object's
bytes if they fit. The header describes the object, so ranks may pass objects of different types and sizes, and objects
of up to 4 KiB need no second exchange. Arrays in tuples, lists and dicts are taken out before the rest is pickled.

The header has the fields kind, library, order, number of dims, element type or number of arrays, device, bytes, and
shape (up to six dims).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from mpi4py import MPI

from hpccoll.mpi4py.array_libraries import find_library, to_library, to_numpy
from hpccoll.mpi4py.nested_arrays import CONTAINERS, LEAVES, may_hold_arrays, put_arrays_back, take_arrays_out

# The encodings of objects in a header; the C extension (`SmallObjects`) writes FLOAT, INTEGER and SMALL_PICKLE.
PICKLE, ARRAY, SCALAR, FLOAT, INTEGER, NESTED, SMALL_PICKLE = range(7)
FIELDS: Final = struct.Struct("<BBBBhhq")  # all fields of a header but the shape
SHAPES: Final = [struct.Struct(f"<{dims}q") for dims in range(7)]  # by number of dims
HEADER_BYTES: Final = FIELDS.size + SHAPES[-1].size
MOST_DIMS: Final = len(SHAPES) - 1
ALIGNMENT: Final = 64  # in bytes, of arrays within the bytes of an object
LEAST_NESTED_BYTES: Final = 512  # smaller arrays in containers are pickled
COPIED_BYTES: Final = 4096  # pickles up to this size are copied, because bytes are unpickled faster than other buffers
_FLOAT: Final = struct.Struct("<d")
_INTEGER: Final = struct.Struct("<q")
_TYPES: Final = {np.dtype(char).num: np.dtype(char) for char in "?bBhHiIlLqQefdgFDG"}  # element types by number


class EncodedObject:
    """A Python object to be sent, as a header that describes it, and bytes.

    Attributes:
        header: the fields of the header except the shape; see `ObjectHeader`.
        shape: the shape of an array; empty for other objects.
        nbytes: the number of bytes after the header.
        data: the bytes, as an object with the buffer protocol; for a contiguous array, its own memory.
    """

    __slots__ = ("data", "header", "nbytes", "shape")

    def __init__(self, header: tuple[int, ...], data: Any, nbytes: int, shape: tuple[int, ...] = ()) -> None:
        self.header, self.data, self.nbytes, self.shape = header, data, nbytes, shape

    def write(self, slot: memoryview) -> None:
        """Write the header into a slot (a buffer of fixed size), and the bytes after it if they fit."""
        self.write_header(slot, 0)
        end = HEADER_BYTES + self.nbytes
        if end <= len(slot):
            slot[HEADER_BYTES:end] = self.data

    def write_header(self, memory: Any, offset: int) -> None:
        """Write the header into the buffer `memory`, from byte `offset` on."""
        FIELDS.pack_into(memory, offset, *self.header)
        if self.shape:
            SHAPES[len(self.shape)].pack_into(memory, offset + FIELDS.size, *self.shape)

    def flatten(self) -> Any:
        """Return the object's bytes as a flat NumPy array, which may share the memory of the user's array."""
        return np.frombuffer(self.data, np.uint8)


class ObjectHeader:
    """The header of a received object, read from `slot` (a buffer) at `offset`.

    Attributes:
        kind: the encoding of the object: PICKLE, ARRAY, SCALAR, FLOAT, INTEGER, NESTED or SMALL_PICKLE.
        library: the library of an array: NUMPY_ARRAY, TORCH_TENSOR or CUPY_ARRAY.
        order: 1 if an array is in Fortran order, else 0.
        number: NumPy's number of the element type (ARRAY, SCALAR), or the number of arrays in the object (NESTED).
        device: the index of an array's GPU; HOST (-1) for host memory.
        nbytes: the number of bytes that follow the header.
        shape: the shape of an array; empty for other objects.
    """

    __slots__ = ("device", "kind", "library", "nbytes", "number", "order", "shape")

    def __init__(self, slot: Any, offset: int = 0) -> None:
        self.kind, self.library, self.order, dims, self.number, self.device, self.nbytes = FIELDS.unpack_from(
            slot, offset
        )
        self.shape: tuple[int, ...] = SHAPES[dims].unpack_from(slot, offset + FIELDS.size) if dims else ()

    @property
    def layout(self) -> tuple[Any, ...]:
        """The tuple (kind, library, dtype number, device, shape), equal for arrays that can be reduced together."""
        return self.kind, self.library, self.number, self.device, self.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type of an array or scalar."""
        return _TYPES[self.number]


def encode(obj: Any) -> EncodedObject:
    """Return any Python object as an `EncodedObject` (a header and bytes), to be sent to other ranks.

    Raises:
        Exception: whatever pickling raises for an object that cannot be pickled.
    """
    kind = type(obj)
    if kind in CONTAINERS:
        encoded = _encode_nested(*take_arrays_out(obj, LEAST_NESTED_BYTES)) if may_hold_arrays(obj) else None
    else:
        encoded = None if kind in LEAVES else _encode_elements(obj)
    if encoded is not None:
        return encoded
    data = MPI.pickle.dumps(obj)
    return EncodedObject((PICKLE, 0, 0, 0, 0, 0, len(data)), data, len(data))


def _encode_elements(obj: Any) -> EncodedObject | None:
    """Return an array or a NumPy number as an `EncodedObject`; None for objects that must be pickled."""
    if isinstance(obj, np.generic):
        if obj.dtype.num not in _TYPES or type(obj) is not obj.dtype.type:
            return None
        return EncodedObject((SCALAR, 0, 0, 0, obj.dtype.num, 0, obj.nbytes), obj.tobytes(), obj.nbytes)
    library = find_library(obj)
    return None if library is None else _encode_array(obj, library)


def _encode_array(obj: Any, library: int) -> EncodedObject | None:
    """Return an array as an `EncodedObject`, with the array's memory if possible; None if it must be pickled."""
    array, device = to_numpy(obj, library)
    if array is None or array.dtype.num not in _TYPES or not array.dtype.isnative or array.ndim > MOST_DIMS:
        return None
    order = int(array.flags.f_contiguous and not array.flags.c_contiguous)
    flat = array.T if order else np.ascontiguousarray(array)
    header = ARRAY, library, order, array.ndim, array.dtype.num, device, array.nbytes
    return EncodedObject(header, flat.reshape(-1).view(np.uint8), array.nbytes, array.shape)


def _encode_nested(rest: Any, arrays: Sequence[Any]) -> EncodedObject | None:
    """Return a container and the arrays that were taken out of it as one `EncodedObject`.

    Returns None if there are no arrays, or if an array must be pickled. `rest` is the container without the arrays.
    """
    encoded = [_encode_array(array, find_library(array) or 0) for array in arrays]
    if not encoded or any(array is None for array in encoded) or len(encoded) >= 2**15:
        return None
    pickled = MPI.pickle.dumps(rest)
    starts, at = [], HEADER_BYTES * len(encoded)
    for array in encoded:
        at += -at % ALIGNMENT
        starts.append(at)
        at += array.nbytes if array else 0
    data: Any = np.empty(at + len(pickled), np.uint8)
    for number, (start, array) in enumerate(zip(starts, encoded, strict=True)):
        if array is not None:
            array.write_header(data, HEADER_BYTES * number)
            data[start : start + array.nbytes] = array.data
    data[at:] = np.frombuffer(pickled, np.uint8)
    return EncodedObject((NESTED, 0, 0, 0, len(encoded), 0, data.nbytes), data, data.nbytes)


def decode(header: ObjectHeader, memory: Any, offset: int = 0, *, copy: bool = True) -> Any:
    """Return the object that a header describes.

    Args:
        memory: a buffer with the object's bytes, from byte `offset` on.
        copy: whether arrays must not share `memory`.
    """
    if header.kind == FLOAT:
        return _FLOAT.unpack_from(memory, offset)[0]
    if header.kind == INTEGER:
        return _INTEGER.unpack_from(memory, offset)[0]
    if header.kind == ARRAY:
        return to_library(make_array(header, memory, offset, copy=copy), header.library, header.device)
    if header.kind == SCALAR:
        return np.ndarray((), header.dtype, memory, offset)[()]
    view = memoryview(memory)
    if header.kind in (PICKLE, SMALL_PICKLE):
        pickled = view[offset : offset + header.nbytes]
        return MPI.pickle.loads(pickled if header.nbytes > COPIED_BYTES else bytes(pickled))
    arrays, at = [], HEADER_BYTES * header.number
    for number in range(header.number):
        inner = ObjectHeader(view, offset + HEADER_BYTES * number)
        at += -at % ALIGNMENT
        arrays.append(decode(inner, memory, offset + at, copy=copy))
        at += inner.nbytes
    return put_arrays_back(MPI.pickle.loads(view[offset + at : offset + header.nbytes]), arrays)


def make_array(header: ObjectHeader, memory: Any, offset: int = 0, *, copy: bool) -> Any:
    """Return the NumPy array that a header describes; its elements are in `memory`, from byte `offset` on.

    The array shares `memory` unless `copy` is set.
    """
    order: Any = "F" if header.order else "C"
    array: Any = np.ndarray(header.shape, header.dtype, memory, offset, order=order)
    return array.copy(order) if copy else array
