"""The array module of NumPy, for host memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hpccoll.arrays.dtypes import DType, dtype_from_numpy
from hpccoll.arrays.host_reducers import make_reducer
from hpccoll.arrays.interface import BoundCall, FlatArray, view_host_memory
from hpccoll.arrays.reductions import Combine
from hpccoll.arrays.torch_tensors import flatten_tensor, is_torch_tensor, view_as_numpy
from hpccoll.native import Reducer


class NumPyModule:
    """The array module (see `interface.ArrayModule`) for host memory; the native extension reduces and divides."""

    name, on_device, device = "numpy", False, -1

    def empty(self, count: int, dtype: DType) -> FlatArray:
        """Return a new uninitialised NumPy array of `count` elements."""
        return np.empty(count, dtype.numpy)

    def bind_device(self, call: BoundCall) -> BoundCall:
        """Return `call` itself, because host memory belongs to no device."""
        return call

    def bind_reduce(self, function: str | Combine, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:
        """Return a function that sets out = function(left, right)."""
        return _bind(make_reducer(function, dtype_from_numpy(out.dtype)), left, right, out)

    def require_reduction(self, function: str | Combine, dtype: DType) -> None:
        """Do nothing, because NumPy supports all reductions."""

    def bind_copy(self, out: FlatArray, source: FlatArray) -> BoundCall:
        """Return a function that copies `source` into `out`."""
        return partial(np.copyto, out, source)

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
        factor, dtype = np.asarray(factor), dtype_from_numpy(out.dtype)
        if not factor.ndim:
            return _bind(make_reducer("multiply", dtype, factor), source, source, out)
        with np.errstate(all="ignore"):  # an exception on one rank would block the other ranks
            factors = np.ascontiguousarray(np.broadcast_to(factor.astype(out.dtype), shape)).reshape(-1)
        return _bind(make_reducer("multiply", dtype), source, factors, out)

    def bind_divide(self, out: FlatArray, divisor: int) -> BoundCall:
        """Return a function that divides `out` by `divisor` in place."""
        return _bind(make_reducer("divide", dtype_from_numpy(out.dtype), divisor), out, out, out)

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


def _bind(reducer: Reducer, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:
    """Return a function that computes out = left op right in native code, and keeps the arrays alive."""
    arrays = left, right, out
    one, other, result = (array.__array_interface__["data"][0] for array in arrays)

    def run() -> None:
        """Compute out = left op right for all elements."""
        reducer(one, other, result, arrays[-1].nbytes)

    return run


NUMPY = NumPyModule()
