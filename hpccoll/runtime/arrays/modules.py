"""One face for NumPy, CuPy and torch: what the runtime needs of an array, with the array module as a parameter.

All arrays that the runtime handles are flat and contiguous slices; a host tensor of torch is seen as NumPy, so there
are three modules: NumPy for host memory, CuPy and torch for CUDA memory.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from hpccoll.errors import BufferError, UnavailableError
from hpccoll.runtime.arrays.dtypes import DType, dtype_from_numpy, get_dtype
from hpccoll.runtime.arrays.half_precision import NAMES as HALVES
from hpccoll.runtime.arrays.half_precision import HalfPrecision

FlatArray = Any  # a 1-D contiguous array of the module
BoundCall = Callable[[], Any]
StreamTimer = tuple[BoundCall, BoundCall, Callable[[], float]]


class ArrayModule(Protocol):
    """What NumPy, CuPy and torch each do in their own words; `out` comes first, and steps are bound, not run."""

    name: str
    on_device: bool

    def empty(self, count: int, dtype: DType) -> FlatArray:
        """Uninitialised memory for `count` elements."""

    def bind_reduce(self, function: str, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:
        """Bind out = function(left, right), element by element."""

    def bind_copy(self, out: FlatArray, source: FlatArray) -> BoundCall:
        """Bind out = source."""

    def as_unowned(self, flat: FlatArray) -> FlatArray:
        """The same memory, which is not kept alive by this."""

    def get_address(self, flat: FlatArray) -> int:
        """Where an array begins."""

    def bind_scale(self, out: FlatArray, source: FlatArray, factor: Any, shape: tuple[int, ...]) -> BoundCall:
        """Bind out = source * factor, where `factor` is a number or broadcasts against the array's `shape`."""

    def bind_divide(self, out: FlatArray, divisor: int) -> BoundCall:
        """Bind out = out / divisor."""

    def synchronize(self) -> None:
        """Wait until the current stream has done all that was queued."""

    def current_stream(self) -> tuple[int, object]:
        """The current stream, as the driver's number, and what keeps it alive."""

    def make_stream_timer(self) -> StreamTimer | None:
        """Bind marks of begin and end on the current stream, and what gives the seconds between; None on the host."""

    def as_bytes(self, flat: FlatArray) -> Any:
        """The bytes of an array as mpi4py takes them."""

    def empty_pinned(self, nbytes: int) -> Any:
        """Host memory that the device copies to and from at full speed, as a NumPy array of bytes."""

    def bind_copy_to_host(self, host: Any, flat: FlatArray) -> BoundCall:
        """Bind a copy of device memory into pinned host memory."""

    def bind_copy_from_host(self, flat: FlatArray, host: Any) -> BoundCall:
        """Bind a copy of pinned host memory into device memory."""


class ExternalMemory:
    """Bytes at an address, as NumPy's and CuPy's array interfaces describe them; keeps only `owner` alive."""

    def __init__(self, interface: str, address: int, nbytes: int, owner: Any = None) -> None:
        setattr(self, interface, {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3})
        self.owner = owner


class NumPyModule:
    """Host memory; `half` binds float16 and bfloat16."""

    name, on_device = "numpy", False

    def __init__(self, half: HalfPrecision | None = None) -> None:
        self._half = half or HalfPrecision()

    def empty(self, count: int, dtype: DType) -> FlatArray:
        return np.empty(count, dtype.numpy)

    def bind_reduce(self, function: str, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:
        if (half := self._halves(function, left, right, out)) is not None:
            return half
        if function in ("minimum", "maximum"):  # which take `out` by keyword only, a little slower
            return _quiet(partial(getattr(np, function), left, right, out=out))
        if function == "multiply":
            return self._multiply(out, left, right)
        return _quiet(partial(getattr(np, function), left, right, out))

    def bind_copy(self, out: FlatArray, source: FlatArray) -> BoundCall:
        return partial(np.copyto, out, source)

    def get_address(self, flat: FlatArray) -> int:
        return int(flat.__array_interface__["data"][0])

    def as_unowned(self, flat: FlatArray) -> FlatArray:
        return np.asarray(ExternalMemory("__array_interface__", flat.__array_interface__["data"][0], flat.nbytes)).view(
            flat.dtype
        )

    def bind_scale(self, out: FlatArray, source: FlatArray, factor: Any, shape: tuple[int, ...]) -> BoundCall:
        factor = np.asarray(
            as_buffer(factor, "factor", writable=False).flat.reshape(factor.shape)
            if is_torch_tensor(factor)
            else factor
        )
        factor = _flattened(_quiet(partial(factor.astype, out.dtype))(), shape)
        return self._halves("multiply", source, factor, out) or self._multiply(out, source, factor)

    def _halves(self, function: str, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall | None:
        step = self._half.bind(function, left, right, out) if out.dtype in HALVES else None
        return step and _quiet(step)

    def _multiply(self, out: FlatArray, source: FlatArray, factor: FlatArray) -> BoundCall:
        if out.dtype.kind == "c" and len(out) == 1:
            # NumPy multiplies one complex number in place without fused operations: other bits than anywhere else.
            return _quiet(partial(_multiply_apart, source, factor, out))
        return _quiet(partial(np.multiply, source, factor, out))

    def bind_divide(self, out: FlatArray, divisor: int) -> BoundCall:
        number = np.asarray(out.dtype.type(divisor), out.dtype)
        return self._halves("divide", out, number, out) or _quiet(partial(np.divide, out, number, out))

    def synchronize(self) -> None:
        """Host memory has no stream."""

    def current_stream(self) -> tuple[int, object]:
        return 0, None

    def make_stream_timer(self) -> None:
        return None

    def as_bytes(self, flat: FlatArray) -> Any:
        return flat.view(np.uint8)

    def empty_pinned(self, nbytes: int) -> Any:
        return np.empty(nbytes, np.uint8)

    def bind_copy_to_host(self, host: Any, flat: FlatArray) -> BoundCall:
        return partial(np.copyto, host, flat.view(np.uint8))

    def bind_copy_from_host(self, flat: FlatArray, host: Any) -> BoundCall:
        return partial(np.copyto, flat.view(np.uint8), host)


_QUIET = Context()
_QUIET.run(np.seterr, all="ignore")


def _quiet(step: BoundCall) -> BoundCall:
    """Bind a step that neither warns nor raises where floats overflow: one rank would leave the others waiting.

    NumPy keeps its error state in the context (since 2.0); a context of its own costs a step 0.01 us, np.errstate 0.5.
    """
    return partial(_QUIET.copy().run, step)


def _flattened(factor: FlatArray, shape: tuple[int, ...]) -> FlatArray:
    return np.broadcast_to(factor, shape).reshape(-1) if factor.ndim else factor


def _multiply_apart(left: FlatArray, right: FlatArray, out: FlatArray) -> None:
    np.copyto(out, np.multiply(left, right))


@dataclass(frozen=True, slots=True)
class Buffer:
    """A user's array, checked once: flat and contiguous, with its address (bytes) and element type."""

    flat: FlatArray
    module: ArrayModule
    dtype: DType
    address: int
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.count * self.dtype.itemsize

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two share memory."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


NUMPY = NumPyModule()


def is_torch_tensor(array: Any) -> bool:
    """Whether `array` is a torch tensor, without importing torch for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def as_buffer(array: Any, role: str, writable: bool) -> Buffer:
    """Check an array at the boundary and return it as a flat buffer of its module, sharing its memory.

    Args:
        array: NumPy or CuPy array, or torch tensor on CPU or CUDA.
        role: what the caller calls it, for messages: `x`, `out`.
        writable: whether the collective writes into it. What is only read may be non-contiguous: it is copied.

    Raises:
        BufferError: no array, a layout that is not C-contiguous, read-only memory, or an element type unknown here.
    """
    if isinstance(array, np.ndarray):
        return _adopt_numpy(array, role, writable)
    if is_torch_tensor(array):
        return _adopt_torch(array, role, writable)
    if hasattr(array, "__cuda_array_interface__"):
        from hpccoll.runtime.arrays.cuda import as_cupy_buffer

        return as_cupy_buffer(array, role, writable)
    raise BufferError(f"{role} is a {type(array).__name__}; pass a NumPy or CuPy array or a torch tensor")


def require_contiguous(dense: bool, role: str, shape: tuple[int, ...], how: str) -> None:
    """Raise BufferError for an output that is not C-contiguous."""
    if not dense:
        raise BufferError(f"{role} of shape {shape} is not C-contiguous and would be written; pass {how}")


def _adopt_numpy(array: Any, role: str, writable: bool) -> Buffer:
    dtype = dtype_from_numpy(array.dtype)
    if writable:
        require_contiguous(array.flags.c_contiguous, role, array.shape, "a contiguous array (numpy.ascontiguousarray)")
        if not array.flags.writeable:
            raise BufferError(f"{role} of shape {array.shape} is read-only and would be written; pass a writable copy")
    flat = np.ascontiguousarray(array).reshape(-1)
    return Buffer(flat, NUMPY, dtype, flat.__array_interface__["data"][0], array.shape)


def _adopt_torch(tensor: Any, role: str, writable: bool) -> Buffer:
    torch = sys.modules["torch"]
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda"):
        raise BufferError(f"{role} is a {tensor.layout} tensor on {tensor.device}; pass a dense one on cpu or cuda")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
        if writable:
            raise BufferError(
                f"{role} is a lazily conjugated or negated view; pass tensor.resolve_conj().resolve_neg()"
            )
    shape = tuple(tensor.shape)
    if writable:
        require_contiguous(tensor.is_contiguous(), role, shape, "tensor.contiguous()")
    dtype = get_dtype(str(tensor.dtype).removeprefix("torch."))
    flat = tensor.contiguous().reshape(-1)
    if tensor.device.type == "cuda":
        from hpccoll.runtime.arrays.cuda import TorchCudaModule

        return Buffer(flat, TorchCudaModule(torch, tensor.device), dtype, int(flat.data_ptr()), shape)
    # Not Tensor.numpy(): it forbids the tensor's storage ever to be resized, which FSDP does.
    address = int(flat.data_ptr())
    memory = ExternalMemory("__array_interface__", address, flat.numel() * dtype.itemsize, owner=flat)
    return Buffer(np.asarray(memory).view(dtype.numpy), NUMPY, dtype, address, shape)


def get_array_module(name: str) -> ArrayModule:
    """Return the module for new memory on `host` or `cuda`, or raise UnavailableError."""
    if name == "host":
        return NUMPY
    from hpccoll.runtime.arrays.cuda import find_cupy_module

    module = find_cupy_module()
    if module is None:
        raise UnavailableError(
            "no CUDA device or no CuPy here; install hpccoll[cuda12] or hpccoll[cuda13], or use --buffer host"
        )
    return module
