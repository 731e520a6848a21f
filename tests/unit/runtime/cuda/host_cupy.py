"""A substitute for CuPy on host memory, with two devices, their streams, and the rules that CuPy enforces.

An array belongs to the device that was current when it was made. A computation whose arrays are not on the current
device is refused, and so is unowned memory at address zero without a device number. `calls` records the calls.
"""

from __future__ import annotations

import ctypes
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

DEVICES = 2
UNUSED = (
    "free", "eventRecord", "eventDestroy", "ipcGetEventHandle", "ipcOpenEventHandle", "ipcGetMemHandle",
    "ipcCloseMemHandle", "deviceSynchronize",
)  # fmt: skip


class CUDARuntimeError(RuntimeError):
    """An error that the CUDA runtime returned."""


class Array(np.ndarray):
    """An array on a device, which views inherit."""

    number = 0

    def __array_finalize__(self, base):
        self.number = getattr(base, "number", 0)

    @property
    def device(self):
        """The device to which the array belongs."""
        return Device(self.number)

    @property
    def data(self):
        """The address and the device of the array, as CuPy's `data`."""
        address = self.__array_interface__["data"][0] if self.size else 0
        return SimpleNamespace(ptr=address, device_id=self.number)

    def get(self, out, blocking):  # noqa: ARG002 - every copy is done at once here
        """Copy the array to host memory."""
        require_current(self)
        np.copyto(out, self.view(np.ndarray))
        return out

    def set(self, host):
        """Copy host memory into the array."""
        require_current(self)
        np.copyto(self.view(np.ndarray), host)


class Device:
    """A device by number; makes itself current."""

    def __init__(self, number=None):
        self.id = CUPY.current if number is None else number

    def __enter__(self):
        if self.id not in range(DEVICES):
            raise CUDARuntimeError(f"cudaErrorInvalidDevice: device {self.id}")
        self.before, CUPY.current = CUPY.current, self.id
        return self

    def __exit__(self, *_):
        CUPY.current = self.before

    def use(self):
        """Make the device current."""
        CUPY.current = self.id


def require_current(*arrays):
    """Refuse arrays that are not on the current device, as CuPy's computations do."""
    for array in arrays:
        if isinstance(array, Array) and array.number != CUPY.current:
            raise ValueError(f"array device must be the current device: {array.number}, not {CUPY.current}")


class Stream:
    """A stream of a device, as far as its identity goes."""

    def __init__(self, device, ptr):
        self.device, self.ptr = device, ptr

    def synchronize(self):
        """Record the call."""
        CUPY.calls.append(("synchronize", self.ptr))

    def record(self):
        """Record the call; return an event."""
        CUPY.calls.append(("record", self.ptr))
        return self.ptr

    def wait_event(self, event):
        """Record the call."""
        CUPY.calls.append(("wait", self.ptr, event))


class HostCupy(ModuleType):
    """The module `cupy`; `fail` counts the allocations of cudaMalloc that fail from now on."""

    def __init__(self):
        super().__init__("cupy")
        self.reset()
        self.add, self.multiply, self.divide, self.copyto = map(
            self._bound, (np.add, np.multiply, np.divide, np.copyto)
        )
        self.cuda = SimpleNamespace(
            Device=Device,
            UnownedMemory=self._unowned,
            MemoryPointer=lambda memory, _: memory,
            get_current_stream=lambda device=-1: self.streams[self.current if device < 0 else device],
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                cudaDevAttrMultiProcessorCount=16,
                getDevice=lambda: self.current,
                getDeviceCount=lambda: DEVICES,
                deviceGetAttribute=lambda *_: 132,
                malloc=self._malloc,
                **dict.fromkeys(UNUSED, lambda *_: None),
            ),
            driver=SimpleNamespace(launchKernel=None),
            compiler=SimpleNamespace(compile_using_nvrtc=self._compile),
            function=SimpleNamespace(Module=lambda: SimpleNamespace(load=lambda cubin: None, get_function=str)),
        )

    def reset(self):
        """Forget all recorded calls; device 0 becomes current."""
        self.current, self.calls, self.fail = 0, [], 0
        self.streams = [Stream(number, 100 + number) for number in range(DEVICES)]

    def _unowned(self, address, nbytes, owner, device=-1):  # noqa: ARG002 - CuPy's names
        """Return existing memory; refuse address zero without a device number."""
        if device < 0 and not address:
            raise RuntimeError("UnownedMemory requires explicit device ID for a null pointer.")
        return SimpleNamespace(bytes=(ctypes.c_char * nbytes).from_address(address), device_id=device)

    def ndarray(self, shape, dtype, memory):
        """Return an array over given memory, on the device of this memory."""
        made = Array(shape, dtype, memory.bytes)
        made.number = memory.device_id
        return made

    def _malloc(self, nbytes):
        """Record an allocation, which fails `fail` times."""
        self.calls.append(("malloc", nbytes))
        self.fail -= 1
        if self.fail >= 0:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        return 4096

    def _compile(self, source, options):
        """Record a compilation."""
        self.calls.append(("compile", source, options))
        return b"cubin", None

    def get_default_memory_pool(self):
        """Return a pool that records its calls."""
        return SimpleNamespace(free_all_blocks=lambda: self.calls.append(("free_all_blocks",)))

    def empty(self, shape, dtype):
        made = np.empty(shape, dtype).view(Array)
        made.number = self.current
        return made

    def asarray(self, array, dtype=None):
        if isinstance(array, Array):
            return array
        made = np.asarray(array, dtype).view(Array)
        made.number = self.current
        return made

    def _bound(self, function):
        def call(*arrays):
            require_current(*arrays)
            return function(*arrays)

        return call

    def ascontiguousarray(self, array):
        require_current(array)
        return array if array.flags.c_contiguous else array.copy()

    broadcast_to = staticmethod(np.broadcast_to)


CUPY: Any = HostCupy()
