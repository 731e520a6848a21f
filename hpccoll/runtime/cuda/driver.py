"""The CUDA driver calls that tests of the GPU and of MPI need, made through ctypes without torch or CuPy.

Function names and constants are those of NVIDIA's CUDA Driver API (cuda.h).
"""

from __future__ import annotations

import ctypes

LIBRARY = "libcuda.so.1"
_COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
_MODES = {0: "default", 2: "prohibited", 3: "exclusive_process"}
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is
_DISABLE_TIMING, _INTERPROCESS = 2, 4  # CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS
HANDLE_NBYTES = 64  # CU_IPC_HANDLE_SIZE


def format_cuda_version(number: int) -> str:
    """Return a version number of CUDA's interfaces as text, such as `12.9` for 12090."""
    return f"{number // 1000}.{number % 1000 // 10}"


class _IpcHandle(ctypes.Structure):
    """The driver's types `CUipcMemHandle` and `CUipcEventHandle`, structures because the driver takes them by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_NBYTES),)


class CudaDriver:
    """The initialised driver, with the primary context of device number `device` current in this thread.

    MPI, torch and CuPy use the primary context as well. `device` None creates no context.

    Raises:
        OSError: the driver library cannot be loaded.
        RuntimeError: the driver or the device cannot be initialised.
    """

    def __init__(self, device: int | None = 0) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self.call("cuInit", 0)
        if device is not None:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Call a driver function by name; raise RuntimeError if it returns an error code."""
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            error_name = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(error_name))
            raise RuntimeError(f"{name} returned {status} ({(error_name.value or b'unknown').decode()})")

    def query_int(self, name: str, *arguments: object) -> int:
        """Call a driver function and return the integer that it writes through its first argument."""
        result = ctypes.c_int(0)
        self.call(name, ctypes.byref(result), *arguments)
        return result.value

    def count_devices(self) -> int:
        """Return the number of devices that this process may use."""
        return self.query_int("cuDeviceGetCount")

    def query_device_name(self, device: int) -> str:
        """Return the product name of a device."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), device)
        return name.value.decode()

    def query_compute_mode(self, device: int) -> str:
        """Return the device's compute mode: `default`, `exclusive_process` or `prohibited`."""
        mode = self.query_int("cuDeviceGetAttribute", _COMPUTE_MODE, device)
        return _MODES.get(mode, str(mode))

    def allocate(self, nbytes: int) -> int:
        """Allocate device memory (cuMemAlloc) and return its address."""
        address = ctypes.c_uint64(0)
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def allocate_async(self, nbytes: int) -> int:
        """Allocate from the stream-ordered allocator (cudaMallocAsync), synchronise, and return the address."""
        address = ctypes.c_uint64(0)
        self.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(nbytes), None)
        self.call("cuStreamSynchronize", None)
        return address.value

    def write(self, address: int, data: bytes) -> None:
        """Copy `data` to device memory and synchronise the context."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
        self.call("cuCtxSynchronize")

    def read(self, address: int, nbytes: int) -> bytes:
        """Synchronise the context and return a copy of `nbytes` of device memory."""
        self.call("cuCtxSynchronize")
        copy = ctypes.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoH_v2", copy, ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        return copy.raw

    def export_memory(self, address: int) -> bytes:
        """Return the CUDA IPC handle of an allocation."""
        handle = _IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return ctypes.string_at(ctypes.addressof(handle), HANDLE_NBYTES)

    def open_memory(self, exported: bytes) -> int:
        """Map another process's allocation, given its IPC handle, and return its address in this process."""
        handle, address = _IpcHandle.from_buffer_copy(exported), ctypes.c_uint64(0)
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def create_event(self) -> ctypes.c_void_p:
        """Create an event that can be exported to other processes."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_DISABLE_TIMING | _INTERPROCESS))
        return event

    def record_event(self, event: ctypes.c_void_p) -> None:
        """Record an event on the default stream, behind all work queued so far."""
        self.call("cuEventRecord", event, None)

    def synchronize_event(self, event: ctypes.c_void_p) -> None:
        """Block until all work that was queued before the event's latest record is done."""
        self.call("cuEventSynchronize", event)

    def export_event(self, event: ctypes.c_void_p) -> bytes:
        """Return the CUDA IPC handle of an event that `create_event` returned."""
        handle = _IpcHandle()
        self.call("cuIpcGetEventHandle", ctypes.byref(handle), event)
        return ctypes.string_at(ctypes.addressof(handle), HANDLE_NBYTES)

    def open_event(self, exported: bytes) -> ctypes.c_void_p:
        """Return another process's event, given its IPC handle."""
        event = ctypes.c_void_p()
        self.call("cuIpcOpenEventHandle", ctypes.byref(event), _IpcHandle.from_buffer_copy(exported))
        return event

    def close_memory(self, address: int) -> None:
        """Unmap memory that `open_memory` returned."""
        self.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))
