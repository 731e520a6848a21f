"""The array modules of CuPy and torch for CUDA memory; their operations queue work on the current stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from hpccoll.arrays.dtypes import DType
from hpccoll.arrays.interface import BoundCall, ExternalMemory, FlatArray, StreamTimer, combine_into
from hpccoll.arrays.reductions import Combine
from hpccoll.errors import ReductionError

_WITHOUT_TORCH_KERNELS: Final = ("uint16", "uint32", "uint64")  # torch can only create, copy and view such tensors


class CupyModule:
    """The array module for CUDA memory in CuPy arrays on device number `device`, or on the current device if None."""

    name, on_device = "cupy", True

    def __init__(self, device: int | None = None) -> None:
        import cupy

        self._cupy = cupy
        self.device = int(cupy.cuda.runtime.getDevice()) if device is None else device

    def _bind(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> BoundCall:
        """Return a function that calls `function` with this module's device current, as CuPy requires."""
        return self.bind_device(partial(function, *arguments, **options))

    def bind_device(self, call: BoundCall) -> BoundCall:
        """Return a function that runs `call` with this module's CUDA device current."""
        return partial(_call_on_device, self._cupy.cuda.Device(self.device), call)

    def empty(self, count: int, dtype: DType) -> FlatArray:
        """Return a new uninitialised CuPy array of `count` elements on this module's device."""
        return self._bind(self._cupy.empty, count, dtype.numpy)()

    def bind_reduce(self, function: str | Combine, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:
        """Return a function that queues out = function(left, right)."""
        if not isinstance(function, str):
            return self._bind(combine_into, self._cupy.copyto, function, left, right, out)
        return self._bind(getattr(self._cupy, function), left, right, out)

    def require_reduction(self, function: str | Combine, dtype: DType) -> None:
        """Do nothing, because CuPy has kernels for all reductions."""

    def bind_copy(self, out: FlatArray, source: FlatArray) -> BoundCall:
        """Return a function that queues a copy of `source` into `out`."""
        return self._bind(self._cupy.copyto, out, source)

    def get_address(self, flat: FlatArray) -> int:
        """Return the device address of a CuPy array's first element."""
        return int(flat.data.ptr)

    def as_unowned(self, flat: FlatArray) -> FlatArray:
        """Return a CuPy array over the memory of `flat` that does not keep this memory alive."""
        memory = self._cupy.cuda.UnownedMemory(flat.data.ptr, flat.nbytes, None, self.device)
        return self._cupy.ndarray(flat.shape, flat.dtype, self._cupy.cuda.MemoryPointer(memory, 0))

    def bind_scale(self, out: FlatArray, source: FlatArray, factor: Any, shape: tuple[int, ...]) -> BoundCall:
        """Return a function that queues out = source * factor, with `factor` broadcast to `shape`."""
        factor = self._bind(self._cupy.asarray, factor, out.dtype)()
        factor = self._cupy.broadcast_to(factor, shape).reshape(-1) if factor.ndim else factor
        return self._bind(self._cupy.multiply, source, factor, out)

    def bind_divide(self, out: FlatArray, divisor: int) -> BoundCall:
        """Return a function that queues the division of `out` by `divisor`, in place."""
        return self._bind(self._cupy.divide, out, out.dtype.type(divisor), out)

    def synchronize(self) -> None:
        """Block until the work on the current CUDA stream is done."""
        self._cupy.cuda.get_current_stream(self.device).synchronize()

    def current_stream(self) -> tuple[int, object]:
        """Return the handle of the current CUDA stream, and the stream object, which keeps the stream alive."""
        current = self._cupy.cuda.get_current_stream(self.device)
        return int(current.ptr), current

    def join_stream(self, previous: Any) -> object:
        """Make the current CUDA stream wait for the work queued so far on `previous`, and return the current stream."""
        current = self._cupy.cuda.get_current_stream(self.device)
        if previous is not None and previous.ptr != current.ptr:
            current.wait_event(self._bind(previous.record)())
        return current

    def make_stream_timer(self) -> StreamTimer:
        """Return three functions: record a begin event, record an end event, get the seconds between both events."""
        cuda = self._cupy.cuda
        begin, end = self._bind(cuda.Event)(), self._bind(cuda.Event)()
        return self._bind(begin.record), self._bind(end.record), partial(_elapsed_s, begin, end, cuda.get_elapsed_time)

    def as_bytes(self, flat: FlatArray) -> Any:
        """Return a CuPy array's memory as a CuPy array of bytes."""
        return flat.view(np.uint8)

    def empty_pinned(self, nbytes: int) -> Any:
        """Return new page-locked host memory as a NumPy array of bytes."""
        memory = self._cupy.cuda.alloc_pinned_memory(max(nbytes, 1))
        return np.frombuffer(memory, np.uint8, nbytes)

    def bind_copy_to_host(self, host: Any, flat: FlatArray) -> BoundCall:
        """Return a function that queues a copy of `flat`, in device memory, into pinned host memory."""
        return self._bind(flat.view(np.uint8).get, out=host, blocking=False)

    def bind_copy_from_host(self, flat: FlatArray, host: Any) -> BoundCall:
        """Return a function that queues a copy of pinned host memory into `flat`, in device memory."""
        return self._bind(flat.view(np.uint8).set, host)


class TorchCudaModule:
    """The array module for CUDA memory in torch tensors on one device."""

    name, on_device = "torch", True

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device, self.device = torch, device, int(device.index)

    def bind_device(self, call: BoundCall) -> BoundCall:
        """Return a function that runs `call` with this module's CUDA device current."""
        return partial(_call_on_device, self._torch.cuda.device(self._device), call)

    def empty(self, count: int, dtype: DType) -> FlatArray:
        """Return a new uninitialised tensor of `count` elements on this module's device."""
        return self._torch.empty(count, dtype=getattr(self._torch, dtype.name), device=self._device)

    def bind_reduce(self, function: str | Combine, left: FlatArray, right: FlatArray, out: FlatArray) -> BoundCall:
        """Return a function that queues out = function(left, right)."""
        if not isinstance(function, str):
            return partial(combine_into, self._torch.Tensor.copy_, function, left, right, out)
        return partial(getattr(self._torch, function), left, right, out=out)

    def require_reduction(self, function: str | Combine, dtype: DType) -> None:
        """Raise ReductionError if torch has no CUDA kernel for a reduction of this element type."""
        if isinstance(function, str) and dtype.name in _WITHOUT_TORCH_KERNELS:
            raise ReductionError(
                f"torch has no CUDA kernel for {function} of {dtype.name} tensors: cast to a signed dtype, or pass "
                "CuPy arrays"
            )

    def bind_copy(self, out: FlatArray, source: FlatArray) -> BoundCall:
        """Return a function that queues a copy of `source` into `out`."""
        return partial(out.copy_, source)

    def get_address(self, flat: FlatArray) -> int:
        """Return the device address of a tensor's first element."""
        return int(flat.data_ptr())

    def as_unowned(self, flat: FlatArray) -> FlatArray:
        """Return a tensor over the memory of `flat` that does not keep this memory alive."""
        if not flat.numel():  # there is no memory to share
            return flat
        memory = ExternalMemory("__cuda_array_interface__", flat.data_ptr(), flat.numel() * flat.element_size())
        return self._torch.as_tensor(memory, device=self._device).view(flat.dtype)

    def bind_scale(self, out: FlatArray, source: FlatArray, factor: Any, shape: tuple[int, ...]) -> BoundCall:
        """Return a function that queues out = source * factor, with `factor` broadcast to `shape`."""
        factor = self._torch.as_tensor(factor, dtype=out.dtype, device=self._device)
        factor = factor.expand(shape).reshape(-1) if factor.dim() else factor
        return partial(self._torch.multiply, source, factor, out=out)

    def bind_divide(self, out: FlatArray, divisor: int) -> BoundCall:
        """Return a function that queues the division of `out` by `divisor`, in place."""
        return partial(out.div_, divisor)

    def synchronize(self) -> None:
        """Block until the work on the current CUDA stream is done."""
        self._torch.cuda.current_stream(self._device).synchronize()

    def current_stream(self) -> tuple[int, object]:
        """Return the handle of the current CUDA stream, and the stream object, which keeps the stream alive."""
        current = self._torch.cuda.current_stream(self._device)
        return int(current.cuda_stream), current

    def join_stream(self, previous: Any) -> object:
        """Make the current CUDA stream wait for the work queued so far on `previous`, and return the current stream."""
        current = self._torch.cuda.current_stream(self._device)
        if previous is not None and previous != current:
            current.wait_stream(previous)
        return current

    def make_stream_timer(self) -> StreamTimer:
        """Return three functions: record a begin event, record an end event, get the seconds between both events."""
        event = self._torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        record_begin, record_end = (lambda each=each: each.record(self.join_stream(None)) for each in (begin, end))
        return record_begin, record_end, partial(_elapsed_s, begin, end, event.elapsed_time)

    def as_bytes(self, flat: FlatArray) -> Any:
        """Return a tensor's memory as a tensor of bytes."""
        return flat.view(self._torch.uint8)

    def empty_pinned(self, nbytes: int) -> Any:
        """Return new page-locked host memory as a NumPy array of bytes."""
        return self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()

    def bind_copy_to_host(self, host: Any, flat: FlatArray) -> BoundCall:
        """Return a function that queues a copy of `flat`, in device memory, into pinned host memory."""
        return partial(self._torch.from_numpy(host).copy_, flat.view(self._torch.uint8), non_blocking=True)

    def bind_copy_from_host(self, flat: FlatArray, host: Any) -> BoundCall:
        """Return a function that queues a copy of pinned host memory into `flat`, in device memory."""
        return partial(flat.view(self._torch.uint8).copy_, self._torch.from_numpy(host), non_blocking=True)


def _call_on_device(device: Any, call: BoundCall) -> Any:
    """Make a device, an object of CuPy or torch, current during a call, and return the call's result."""
    with device:
        return call()


def _elapsed_s(begin: Any, end: Any, elapsed_ms: Callable[[Any, Any], float]) -> float:
    """Wait for the CUDA event `end` and return the seconds from event `begin` to event `end`."""
    end.synchronize()
    return float(elapsed_ms(begin, end)) * 1e-3
