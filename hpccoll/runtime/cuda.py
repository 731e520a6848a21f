"""CUDA memory through CuPy or torch: the same steps as on the host, queued on the current stream."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hpccoll.runtime.arrays import ArrayModule, Borrowed, Buffer, Flat, Step, require_dense
from hpccoll.runtime.dtypes import DType, dtype_of


class CupyModule:
    """CUDA memory as CuPy arrays."""

    name, on_device = "cupy", True

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def empty(self, count: int, dtype: DType) -> Flat:
        return self._cupy.empty(count, dtype.numpy)

    def combine(self, function: str, left: Flat, right: Flat, out: Flat) -> Step:
        return partial(getattr(self._cupy, function), left, right, out)

    def copy(self, out: Flat, source: Flat) -> Step:
        return partial(self._cupy.copyto, out, source)

    def borrow(self, flat: Flat) -> Flat:
        memory = self._cupy.cuda.UnownedMemory(flat.data.ptr, flat.nbytes, None)
        return self._cupy.ndarray(flat.shape, flat.dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    def scale(self, out: Flat, source: Flat, factor: Any, shape: tuple[int, ...]) -> Step:
        factor = self._cupy.asarray(factor, out.dtype)
        factor = self._cupy.broadcast_to(factor, shape).reshape(-1) if factor.ndim else factor
        return partial(self._cupy.multiply, source, factor, out)

    def divide(self, out: Flat, divisor: int) -> Step:
        return partial(self._cupy.divide, out, out.dtype.type(divisor), out)

    def synchronize(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def message(self, flat: Flat) -> Any:
        return flat.view(np.uint8)

    def pinned(self, nbytes: int) -> Any:
        memory = self._cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
        return np.frombuffer(memory, np.uint8, nbytes)

    def fetch(self, host: Any, flat: Flat) -> Step:
        return partial(flat.view(np.uint8).get, out=host, blocking=False)

    def deliver(self, flat: Flat, host: Any) -> Step:
        return partial(flat.view(np.uint8).set, host)


class TorchCudaModule:
    """CUDA memory as torch tensors on one device."""

    name, on_device = "torch", True

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device

    def empty(self, count: int, dtype: DType) -> Flat:
        return self._torch.empty(count, dtype=getattr(self._torch, dtype.name), device=self._device)

    def combine(self, function: str, left: Flat, right: Flat, out: Flat) -> Step:
        return partial(getattr(self._torch, function), left, right, out=out)

    def copy(self, out: Flat, source: Flat) -> Step:
        return partial(out.copy_, source)

    def borrow(self, flat: Flat) -> Flat:
        if not flat.numel():  # there is no memory to point to
            return flat
        memory = Borrowed("__cuda_array_interface__", flat.data_ptr(), flat.numel() * flat.element_size())
        return self._torch.as_tensor(memory, device=self._device).view(flat.dtype)

    def scale(self, out: Flat, source: Flat, factor: Any, shape: tuple[int, ...]) -> Step:
        factor = self._torch.as_tensor(factor, dtype=out.dtype, device=self._device)
        factor = factor.expand(shape).reshape(-1) if factor.dim() else factor
        return partial(self._torch.multiply, source, factor, out=out)

    def divide(self, out: Flat, divisor: int) -> Step:
        return partial(out.div_, divisor)

    def synchronize(self) -> None:
        self._torch.cuda.current_stream(self._device).synchronize()

    def message(self, flat: Flat) -> Any:
        return flat.view(self._torch.uint8)

    def pinned(self, nbytes: int) -> Any:
        return self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()

    def fetch(self, host: Any, flat: Flat) -> Step:
        return partial(self._torch.from_numpy(host).copy_, flat.view(self._torch.uint8), non_blocking=True)

    def deliver(self, flat: Flat, host: Any) -> Step:
        return partial(flat.view(self._torch.uint8).copy_, self._torch.from_numpy(host), non_blocking=True)


def cupy_module() -> ArrayModule | None:
    """Return the module for new CUDA memory; None without CuPy or without a device."""
    try:
        import cupy
    except ImportError:
        return None
    try:
        return CupyModule(cupy) if cupy.cuda.runtime.getDeviceCount() > 0 else None
    except cupy.cuda.runtime.CUDARuntimeError:
        return None


def adopt_cupy(array: Any, role: str, writable: bool) -> Buffer:
    """Check a CuPy array (or what exports __cuda_array_interface__) and return it as a flat buffer."""
    import cupy

    array = cupy.asarray(array)
    if writable:
        require_dense(array.flags.c_contiguous, role, array.shape, "a contiguous array (cupy.ascontiguousarray)")
    flat = cupy.ascontiguousarray(array).reshape(-1)
    return Buffer(flat, CupyModule(cupy), dtype_of(np.dtype(array.dtype)), int(flat.data.ptr), tuple(array.shape))
