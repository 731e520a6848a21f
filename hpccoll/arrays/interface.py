"""The interface of the runtime to array libraries (`ArrayModule`), and a flat view of a user's array (`Buffer`).

Three modules implement the interface: NumPy for host memory, CuPy and torch for CUDA memory. Arrays inside the runtime
are 1-D and contiguous; a torch tensor on the CPU is handled as a NumPy array over the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hpccoll.arrays.dtypes import DType
from hpccoll.arrays.reductions import Combine
from hpccoll.errors import BufferError, ReductionError

FlatArray = Any  # a 1-D contiguous array of the module
BoundCall = Callable[[], Any]  # ready to call: all arguments are bound
StreamTimer = tuple[BoundCall, BoundCall, Callable[[], float]]  # record begin, record end, get seconds


class ArrayModule(Protocol):
    """The operations of one array library on flat arrays.

    A `bind_...` method only returns a function that runs the operation and can be called repeatedly. On a device, a
    bound call queues work on the current stream and returns.
    """

    name: str
    on_device: bool
    device: int  # the number of the CUDA device that has the arrays; -1 for host memory

    def empty(self, count: int, dtype: DType) -> FlatArray:
        """Return a new uninitialised array of `count` elements."""

    def bind_device(self, call: BoundCall) -> BoundCall:
        """Return a function that makes this module's CUDA device current during `call`, also in another thread."""

    def bind_reduce(self, function: str | Combine, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:
        """Return a function that sets out = function(left, right).

        `function` is NumPy's name of a function, such as `add`, or a user's own function.
        """

    def require_reduction(self, function: str | Combine, dtype: DType) -> None:
        """Raise ReductionError if this library lacks `function` for arrays of this element type."""

    def bind_copy(self, out: FlatArray, source: FlatArray) -> BoundCall:
        """Return a function that copies `source` into `out`."""

    def bind_scale(self, out: FlatArray, source: FlatArray, factor: Any, shape: tuple[int, ...]) -> BoundCall:
        """Return a function that sets out = source * factor; `factor` is a number, or an array broadcast to `shape`."""

    def bind_divide(self, out: FlatArray, divisor: int) -> BoundCall:
        """Return a function that divides `out` by `divisor` in place."""

    def bind_copy_to_host(self, host: Any, flat: FlatArray) -> BoundCall:
        """Return a function that copies device memory into pinned host memory."""

    def bind_copy_from_host(self, flat: FlatArray, host: Any) -> BoundCall:
        """Return a function that copies pinned host memory into device memory."""

    def as_unowned(self, flat: FlatArray) -> FlatArray:
        """Return an array over the memory of `flat` that does not keep this memory alive."""

    def as_bytes(self, flat: FlatArray) -> Any:
        """Return the array's memory as an array of bytes that mpi4py accepts as a buffer."""

    def get_address(self, flat: FlatArray) -> int:
        """Return the address of an array's first element."""

    def empty_pinned(self, nbytes: int) -> Any:
        """Return page-locked host memory, which CUDA copies at full speed, as a NumPy array of bytes."""

    def synchronize(self) -> None:
        """Block until the work on the current CUDA stream is done; do nothing for host memory."""

    def current_stream(self) -> tuple[int, object]:
        """Return the handle of the current CUDA stream, and an object that keeps the stream alive."""

    def join_stream(self, previous: object) -> object:
        """Make the current CUDA stream wait for the work queued so far on stream `previous`; return the current stream.

        The current stream does not wait if `previous` is None or the same stream. The result is None for host memory.
        """

    def make_stream_timer(self) -> StreamTimer | None:
        """Return three functions that time work on the current CUDA stream; return None for host memory.

        The first function records a begin event, the second an end event, and the third returns the seconds between
        them.
        """


class ExternalMemory:
    """An object that exposes existing memory by `interface` (such as `__array_interface__`) and keeps `owner` alive."""

    def __init__(self, interface: str, address: int, nbytes: int, owner: Any = None) -> None:
        setattr(self, interface, {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3})
        self.address, self.owner = address, owner


def view_host_memory(address: int, nbytes: int, owner: Any = None) -> FlatArray:
    """Return a writable NumPy array of bytes over existing host memory; the array keeps only `owner` alive."""
    return np.asarray(ExternalMemory("__array_interface__", address, nbytes, owner))


@dataclass(frozen=True, slots=True)
class Buffer:
    """A user's array as a flat array, with its array module, element type, address and original shape."""

    flat: FlatArray
    module: ArrayModule
    dtype: DType
    address: int
    shape: tuple[int, ...]
    copied: bool = False  # whether `flat` is a copy of the array, made for one call
    count: int = field(init=False)  # of elements
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        count = math.prod(self.shape)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "nbytes", count * self.dtype.itemsize)

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two buffers share memory."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


def combine_into(copy: Callable[..., Any], combine: Combine, left: FlatArray, right: FlatArray, out: FlatArray) -> None:
    """Set `out` to combine(left, right) by `copy`; raise ReductionError if the result's shape or dtype is wrong."""
    result = combine(left, right)
    shape, dtype = getattr(result, "shape", None), getattr(result, "dtype", None)
    if shape != out.shape or dtype != out.dtype:
        raise ReductionError(
            f"the reduction's function returned {type(result).__name__} of shape {shape} and dtype {dtype} for arrays "
            f"of shape {tuple(out.shape)} and dtype {out.dtype}; return a new array of the same shape and dtype"
        )
    copy(out, result)


def run_all(calls: Iterable[BoundCall]) -> None:
    """Call the given bound functions in order."""
    for call in calls:
        call()


def require_contiguous(contiguous: bool, role: str, shape: tuple[int, ...], remedy: str) -> None:
    """Raise BufferError if an output array is not C-contiguous, that is, if `contiguous` is false.

    The message calls the array `role`, and says to pass `remedy` instead.
    """
    if not contiguous:
        raise BufferError(f"{role} of shape {shape} is not C-contiguous and would be written; pass {remedy}")
