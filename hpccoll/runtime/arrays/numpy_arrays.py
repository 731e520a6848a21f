"""The array module of NumPy, for host memory."""

from __future__ import annotations

from contextvars import Context
from functools import partial
from typing import Any, Final

import numpy as np

from hpccoll.runtime.arrays.dtypes import DType
from hpccoll.runtime.arrays.half_precision import NAMES as HALVES
from hpccoll.runtime.arrays.half_precision import HalfPrecision
from hpccoll.runtime.arrays.interface import BoundCall, FlatArray, combine_into, view_host_memory
from hpccoll.runtime.arrays.reductions import Combine
from hpccoll.runtime.arrays.torch_tensors import flatten_tensor, is_torch_tensor, view_as_numpy

# Up to this size, memory views copy 0.1 to 0.3 us faster than np.copyto, but no other thread can run meanwhile.
SHORT_COPY_BYTES: Final = 64 * 2**10


class NumPyModule:
    """The array module (see `interface.ArrayModule`) for host memory; `half` computes with float16 and bfloat16."""

    name, on_device, device = "numpy", False, -1

    def __init__(self, half: HalfPrecision | None = None) -> None:
        self._half = half or HalfPrecision()

    def empty(self, count: int, dtype: DType) -> FlatArray:
        """Return a new uninitialised NumPy array of `count` elements."""
        return np.empty(count, dtype.numpy)

    def bind_device(self, call: BoundCall) -> BoundCall:
        """Return `call` itself, because host memory belongs to no device."""
        return call

    def bind_reduce(self, function: str | Combine, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:
        """Return a function that sets out = function(left, right)."""
        if not isinstance(function, str):
            return _quiet(partial(combine_into, np.copyto, function, left, right, out))
        if (half := self._bind_half(function, left, right, out)) is not None:
            return half
        if function in ("minimum", "maximum"):  # they take `out` by keyword only, which is a little slower
            return _quiet(partial(getattr(np, function), left, right, out=out))
        if function == "multiply":
            return self._bind_multiply(out, left, right)
        return _quiet(partial(getattr(np, function), left, right, out))

    def require_reduction(self, function: str | Combine, dtype: DType) -> None:
        """Do nothing, because NumPy supports all reductions."""

    def bind_copy(self, out: FlatArray, source: FlatArray) -> BoundCall:
        """Return a function that copies `source` into `out`; short arrays use `memoryview`, which is faster."""
        if out.nbytes > SHORT_COPY_BYTES:
            return partial(np.copyto, out, source)
        return partial(memoryview(out.view(np.uint8)).__setitem__, slice(None), memoryview(source.view(np.uint8)))

    def get_address(self, flat: FlatArray) -> int:
        """Return the address of an array's first element."""
        return int(flat.__array_interface__["data"][0])

    def as_unowned(self, flat: FlatArray) -> FlatArray:
        """Return an array over the memory of `flat` that does not keep this memory alive."""
        return view_host_memory(self.get_address(flat), flat.nbytes).view(flat.dtype)

    def bind_scale(self, out: FlatArray, source: FlatArray, factor: Any, shape: tuple[int, ...]) -> BoundCall:
        """Return a function that sets out = source * factor, with `factor` broadcast to `shape`."""
        if is_torch_tensor(factor):
            factor = view_as_numpy(flatten_tensor(factor.cpu(), "factor", writable=False)).reshape(factor.shape)
        factor = _quiet(partial(np.asarray(factor).astype, out.dtype))()
        factor = np.broadcast_to(factor, shape).reshape(-1) if factor.ndim else factor
        return self._bind_half("multiply", source, factor, out) or self._bind_multiply(out, source, factor)

    def _bind_half(self, function: str, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall | None:
        """Bind a function of float16 or bfloat16 arrays; None for other types, or if NumPy's own function is faster."""
        call = self._half.bind(function, left, right, out) if out.dtype in HALVES else None
        return call and _quiet(call)

    def _bind_multiply(self, out: FlatArray, source: FlatArray, factor: FlatArray) -> BoundCall:
        """Return a function that sets out = source * factor for two arrays that broadcast to `out`."""
        if out.dtype.kind == "c" and len(out) == 1:
            # In place, NumPy multiplies a single complex number without fused multiply-add, which changes the bits.
            return _quiet(partial(_multiply_by_copy, source, factor, out))
        return _quiet(partial(np.multiply, source, factor, out))

    def bind_divide(self, out: FlatArray, divisor: int) -> BoundCall:
        """Return a function that divides `out` by `divisor` in place."""
        number = np.asarray(out.dtype.type(divisor), out.dtype)
        return self._bind_half("divide", out, number, out) or _quiet(partial(np.divide, out, number, out))

    def synchronize(self) -> None:
        """Do nothing, because work on host memory is never queued."""

    def current_stream(self) -> tuple[int, object]:
        """Return (0, None) in place of a stream's handle and object, because host memory has no streams."""
        return 0, None

    def join_stream(self, previous: object) -> None:
        """Return None and ignore `previous`, because host memory has no streams."""

    def make_stream_timer(self) -> None:
        """Return None in place of a timer, because host memory has no streams."""

    def as_bytes(self, flat: FlatArray) -> Any:
        """Return an array's memory as an array of bytes."""
        return flat.view(np.uint8)

    def empty_pinned(self, nbytes: int) -> Any:
        """Return new host memory as an array of bytes; it is not page-locked, because no device copies it."""
        return np.empty(nbytes, np.uint8)

    def bind_copy_to_host(self, host: Any, flat: FlatArray) -> BoundCall:
        """Return a function that copies the bytes of `flat` into `host`."""
        return partial(np.copyto, host, flat.view(np.uint8))

    def bind_copy_from_host(self, flat: FlatArray, host: Any) -> BoundCall:
        """Return a function that copies the bytes of `host` into `flat`."""
        return partial(np.copyto, flat.view(np.uint8), host)


_QUIET = Context()
_QUIET.run(np.seterr, all="ignore")


def _quiet(call: BoundCall) -> BoundCall:
    """Return a call that ignores NumPy's float errors, because an exception on one rank would block the other ranks.

    NumPy 2 keeps its error state in a `contextvars.Context`. Running a call in a context adds 0.01 us; np.errstate
    would add 0.5 us.
    """
    return partial(_QUIET.copy().run, call)


def _multiply_by_copy(left: FlatArray, right: FlatArray, out: FlatArray) -> None:
    """Multiply two arrays into new memory and copy the product to `out`."""
    np.copyto(out, np.multiply(left, right))


NUMPY = NumPyModule()
