"""The CUDA runtime calls behind symmetric device memory (through CuPy), and the deferred freeing of that memory.

CUDA IPC can share cudaMalloc memory only, not memory from CuPy's pool or cudaMallocAsync. CUDA puts small allocations
together in blocks of 2 MiB, and IPC shares whole blocks. `allocate` therefore rounds sizes up to whole blocks of 2 MiB.

Freeing memory that another process still has mapped is undefined behaviour. `defer_free` therefore frees an allocation
whose last array is gone only once every other rank has closed its mapping. Source: CUDA Runtime API, "Device
Management", cudaIpcGetMemHandle, cudaIpcOpenMemHandle and cudaIpcCloseMemHandle.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from hpccoll.arrays import FlatArray
from hpccoll.errors import UnavailableError
from hpccoll.optional_packages import format_install_command
from hpccoll.runtime.cuda.kernels import OPTIONS, THREADS, KernelSpec, generate_source

BLOCK: Final = 2 * 2**20  # bytes of CUDA's allocation blocks
SLOTS: Final = 512  # close counters per rank
# Deferred frees of all communicators as (can_free, free), so memory of a closed communicator can still be freed.
_DEFERRED: Final[deque[tuple[Callable[[], bool], Callable[[], object]]]] = deque()


class CudaRuntime:
    """CuPy's CUDA calls behind symmetric memory, for the device that is current when the object is made.

    Addresses, events and streams are integers, as in CUDA's runtime API.

    Raises:
        UnavailableError: CuPy is not installed, or there is no working CUDA device.
    """

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise UnavailableError(f"CuPy cannot be imported ({error}); {format_install_command('cuda13')}") from error
        self._cupy, self._runtime, self._launch = cupy, cupy.cuda.runtime, cupy.cuda.driver.launchKernel
        runtime = self._runtime
        self._kernels: dict[KernelSpec, Any] = {}
        try:
            self._device = int(runtime.getDevice())
            runtime.free(0)  # initializes the device
            self.processors = int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, self._device))
        except runtime.CUDARuntimeError as error:
            raise UnavailableError(f"no CUDA device works here ({error}); see `hpccoll doctor`") from error
        # Binding CuPy's functions as attributes avoids a call of a Python method around each of them.
        self.record_event, self.destroy_event = runtime.eventRecord, runtime.eventDestroy
        self.export_event, self.open_event = runtime.ipcGetEventHandle, runtime.ipcOpenEventHandle
        self.export_memory, self.close_memory = runtime.ipcGetMemHandle, runtime.ipcCloseMemHandle
        self.free, self.synchronize = runtime.free, runtime.deviceSynchronize  # blocks; too slow in every collective

    def get_device_uuid(self) -> str:
        """Return the UUID of the current device, which is the same in all processes."""
        uuid = self._runtime.getDeviceProperties(self._runtime.getDevice())["uuid"]
        return bytes(uuid).hex()

    def make_current(self) -> int:
        """Make this device current and return the number of the device that was current before."""
        current = int(self._runtime.getDevice())
        if current != self._device:
            self._runtime.setDevice(self._device)
        return current

    def restore_current(self, device: int) -> None:
        """Make device number `device` current again."""
        if device != self._device:
            self._runtime.setDevice(device)

    def allocate(self, nbytes: int) -> int:
        """Allocate memory that can be shared between processes and return its address.

        If the device is full, the memory pools of CuPy and torch first give their unused blocks back to CUDA.
        """
        size = max(-(-nbytes // BLOCK), 1) * BLOCK
        try:
            return int(self._runtime.malloc(size))
        except self._runtime.CUDARuntimeError:
            self._cupy.get_default_memory_pool().free_all_blocks()
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            return int(self._runtime.malloc(size))

    def open_memory(self, handle: bytes) -> int:
        """Map another process's allocation, given its IPC handle, and return its address in this process."""
        return int(self._runtime.ipcOpenMemHandle(handle, self._runtime.cudaIpcMemLazyEnablePeerAccess))

    def wrap_memory(self, address: int, nbytes: int, owner: object) -> FlatArray:
        """Return device memory as a CuPy array of bytes that keeps `owner` alive."""
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(address, nbytes, owner, self._device)
        return self._cupy.ndarray((nbytes,), np.uint8, cuda.MemoryPointer(memory, 0))

    def create_event(self, *, shared: bool) -> int:
        """Create a CUDA event without timing; a `shared` event can be exported to other processes."""
        runtime = self._runtime
        flags = runtime.eventDisableTiming | (runtime.eventInterprocess if shared else 0)
        return int(runtime.eventCreateWithFlags(flags))

    def stream_wait_event(self, event: int, stream: int) -> None:
        """Make later work on the stream wait for the event's latest record; the host does not wait."""
        self._runtime.streamWaitEvent(stream, event, 0)

    def compile_kernel(self, kernel: KernelSpec) -> Any:
        """Return the kernel compiled for the current device; each kernel is compiled once per process.

        `cupy.RawKernel` is not used, because it appends the compiler option -ftz=true, which turns subnormal numbers
        into zeros.
        """
        if kernel not in self._kernels:
            cubin, _ = self._cupy.cuda.compiler.compile_using_nvrtc(generate_source(kernel), OPTIONS)
            module = self._cupy.cuda.function.Module()
            module.load(cubin)
            self._kernels[kernel] = module.get_function("fused")
        return self._kernels[kernel]

    def launch_kernel(self, function: Any, grid: tuple[int, int], parameters: int, stream: int) -> None:
        """Queue a kernel on a stream; `parameters` points to an array with the address of each kernel parameter."""
        self._launch(function.ptr, grid[0], grid[1], 1, THREADS, 1, 1, 0, stream, parameters, 0)


class IpcCloseCounters:
    """Counters in shared host memory: each rank counts the buffers whose mappings it has closed.

    Each rank has SLOTS counters, and buffer b is counted in counter b modulo SLOTS. Once counter i of every other rank
    has reached the number of buffers counted in it, no other rank maps any of these buffers. Buffers that share a
    counter may be freed later than necessary, never too early. This rank writes the counters `own` and reads the
    counters `others`.
    """

    def __init__(self, own: memoryview, others: Sequence[memoryview]) -> None:
        self._own, self._others = own, tuple(others)
        self._made = [0] * SLOTS

    def add_buffer(self, number: int) -> None:
        """Count a new buffer in the counter with index `number` modulo SLOTS."""
        self._made[number % SLOTS] += 1

    def count_close(self, number: int) -> None:
        """Record for the other ranks that this rank has closed its mappings of a buffer."""
        self._own[number % SLOTS] += 1

    def is_closed_by_all(self, number: int) -> bool:
        """Whether all other ranks have unmapped all buffers that share a counter with buffer `number`."""
        slot = number % SLOTS
        return all(other[slot] >= self._made[slot] for other in self._others)


def defer_free(can_free: Callable[[], bool], free: Callable[[], object]) -> None:
    """Call `free` once `can_free` returns True: now, or in a later call of `free_ready`."""
    _DEFERRED.append((can_free, free))
    free_ready()


def free_ready() -> int:
    """Free all deferred memory that no other rank maps any more, and return the number of frees still deferred."""
    unchecked = len(_DEFERRED)
    while unchecked and _DEFERRED:  # a finalizer may call this function again meanwhile
        unchecked -= 1
        can_free, free = _DEFERRED.popleft()
        if can_free():
            free()
        else:
            _DEFERRED.append((can_free, free))
    return len(_DEFERRED)
