"""The few CUDA calls that symmetric device memory is made of, through CuPy; and who gives memory back, and when.

Plain cudaMalloc memory alone can be shared: neither CuPy's pool nor cudaMallocAsync's can. A small allocation is a part
of a block of 2 MiB, and the whole block would be shared with it; so sizes are rounded up to such blocks.

Freeing memory that another process still has mapped is undefined behaviour. So when the last array over an allocation
is gone, the allocation goes into `DeferredFrees`; a later sweep frees it once every other rank has closed its mapping.
Source: CUDA Runtime API, "Device Management", cudaIpcGetMemHandle, cudaIpcOpenMemHandle and cudaIpcCloseMemHandle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, Protocol

import numpy as np

from hpccoll.errors import UnavailableError
from hpccoll.runtime.arrays import FlatArray
from hpccoll.runtime.cuda.kernels import OPTIONS, THREADS, Kernel, source

BLOCK: Final = 2 * 2**20  # bytes
SLOTS: Final = 512  # counters of a rank, which its symmetric buffers take in turn


class Driver(Protocol):
    """One CUDA device as this process sees it. Addresses, events and streams are numbers, as the driver gives them."""

    processors: int

    def identity(self) -> str:
        """Return the device that is current, by a name that all processes share."""

    def select(self) -> int:
        """Make this device current, and return the one that was."""

    def restore(self, device: int) -> None:
        """Make another device current again."""

    def allocate(self, nbytes: int) -> int:
        """Return memory that can be shared."""

    def release(self, address: int) -> None:
        """Free such memory."""

    def export(self, address: int) -> bytes:
        """Return what another process opens memory by."""

    def open(self, handle: bytes) -> int:
        """Map memory of another process."""

    def close(self, address: int) -> None:
        """Unmap it."""

    def array(self, address: int, nbytes: int, owner: object) -> FlatArray:
        """Return memory as an array of bytes that keeps `owner` alive."""

    def event(self, *, shared: bool) -> int:
        """Make an event without times."""

    def export_event(self, event: int) -> bytes:
        """Return what another process opens an event by."""

    def open_event(self, handle: bytes) -> int:
        """Open an event of another process."""

    def drop_event(self, event: int) -> None:
        """Let go of an event."""

    def record(self, event: int, stream: int) -> None:
        """Queue on a stream: now the event is."""

    def wait(self, event: int, stream: int) -> None:
        """Queue on a stream: wait for what was last recorded in the event, as of this call."""

    def drain(self) -> None:
        """Wait until the device has done all that this process queued. Not for what is called often."""

    def kernel(self, kernel: Kernel) -> Any:
        """Compile a kernel for this device."""

    def launch(self, function: Any, grid: tuple[int, int], parameters: int, stream: int) -> None:
        """Queue a kernel on a stream; `parameters` is where the addresses of its parameters lie."""


class CupyDriver:
    """The device that is current when this is made.

    Raises:
        UnavailableError: no CuPy, no driver or no device.
    """

    def __init__(self) -> None:
        try:
            import cupy
        except ImportError as error:
            raise UnavailableError(f"CuPy is not here ({error}); install hpccoll[cuda12] or hpccoll[cuda13]") from error
        self._cupy, self._runtime, self._launch = cupy, cupy.cuda.runtime, cupy.cuda.driver.launchKernel
        self._kernels: dict[Kernel, Any] = {}
        try:
            self._device = int(self._runtime.getDevice())
            self._runtime.free(0)  # the first call that needs a device at work
            self.processors = int(
                self._runtime.deviceGetAttribute(self._runtime.cudaDevAttrMultiProcessorCount, self._device)
            )
        except self._runtime.CUDARuntimeError as error:
            raise UnavailableError(f"no CUDA device works here ({error}); see `hpccoll doctor`") from error
        self.record, self.drain = self._runtime.eventRecord, self._runtime.deviceSynchronize
        self.release, self.open, self.close = self._runtime.free, self._open, self._runtime.ipcCloseMemHandle
        self.export, self.export_event = self._runtime.ipcGetMemHandle, self._runtime.ipcGetEventHandle
        self.open_event, self.drop_event = self._runtime.ipcOpenEventHandle, self._runtime.eventDestroy

    def identity(self) -> str:
        uuid = self._runtime.getDeviceProperties(self._runtime.getDevice())["uuid"]
        return bytes(uuid).hex()

    def select(self) -> int:
        current = int(self._runtime.getDevice())
        if current != self._device:
            self._runtime.setDevice(self._device)
        return current

    def restore(self, device: int) -> None:
        if device != self._device:
            self._runtime.setDevice(device)

    def allocate(self, nbytes: int) -> int:
        return int(self._runtime.malloc(max(-(-nbytes // BLOCK), 1) * BLOCK))

    def _open(self, handle: bytes) -> int:
        return int(self._runtime.ipcOpenMemHandle(handle, self._runtime.cudaIpcMemLazyEnablePeerAccess))

    def array(self, address: int, nbytes: int, owner: object) -> FlatArray:
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(address, nbytes, owner, self._device)
        return self._cupy.ndarray((nbytes,), np.uint8, cuda.MemoryPointer(memory, 0))

    def event(self, *, shared: bool) -> int:
        runtime = self._runtime
        return int(
            runtime.eventCreateWithFlags(runtime.eventDisableTiming | (runtime.eventInterprocess if shared else 0))
        )

    def wait(self, event: int, stream: int) -> None:
        self._runtime.streamWaitEvent(stream, event, 0)

    def kernel(self, kernel: Kernel) -> Any:
        if kernel not in self._kernels:
            self._kernels[kernel] = self._cupy.RawKernel(source(kernel), "fused", OPTIONS).kernel
        return self._kernels[kernel]

    def launch(self, function: Any, grid: tuple[int, int], parameters: int, stream: int) -> None:
        self._launch(function.ptr, grid[0], grid[1], 1, THREADS, 1, 1, 0, stream, parameters, 0)


class IpcCloseCounters:
    """How often each rank has closed its mappings of each slot: words in host memory that the ranks share.

    A buffer's slot is its number modulo SLOTS. A slot is through when each other rank closed as many mappings as were
    made of it: with several buffers in a slot that is later than it need be, and never too early.
    """

    def __init__(self, own: memoryview, others: Sequence[memoryview]) -> None:
        self._own, self._others = own, tuple(others)
        self._made = [0] * SLOTS

    def made(self, number: int) -> None:
        """Note a new buffer."""
        self._made[number % SLOTS] += 1

    def close(self, number: int) -> None:
        """Say that this rank's mappings of a buffer are closed."""
        self._own[number % SLOTS] += 1

    def through(self, number: int) -> bool:
        """Whether all other ranks closed theirs."""
        slot = number % SLOTS
        return all(other[slot] >= self._made[slot] for other in self._others)


class DeferredFrees:
    """Memory whose arrays are gone, but which others may still have mapped."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], Callable[[], object]]] = []

    def add(self, through: Callable[[], bool], release: Callable[[], object]) -> None:
        """Release memory once `through` says so: now or at a later sweep; at the latest when the process ends."""
        self._waiting.append((through, release))
        self.sweep()

    def sweep(self) -> int:
        """Release what can be; return how many pieces still wait."""
        waiting, self._waiting = self._waiting, []
        for through, release in waiting:
            if through():
                release()
            else:
                self._waiting.append((through, release))
        return len(self._waiting)


@cache
def get_deferred_frees() -> DeferredFrees:
    """Return the get_deferred_frees of this process: what a closed communicator leaves is swept by the next one."""
    return DeferredFrees()
