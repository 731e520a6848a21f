"""The few calls of the CUDA driver that the probes need, by ctypes: no torch and no CuPy stands between.

Names and numbers are those of NVIDIA's CUDA Driver API (cuda.h).
"""

from __future__ import annotations

import ctypes

LIBRARY = "libcuda.so.1"
_COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
_MODES = {0: "default", 2: "prohibited", 3: "exclusive_process"}
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is
HANDLE_NBYTES = 64  # CU_IPC_HANDLE_SIZE


class DriverError(Exception):
    """A call of the driver failed: which, and with what code."""


class _Handle(ctypes.Structure):
    """`CUipcMemHandle`: passed by value, so that it must be a structure."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_NBYTES),)


class Driver:
    """The driver with one device's primary context current, which MPI, torch and CuPy share.

    Args:
        device: number of the device, or None to leave every device alone.

    Raises:
        OSError: there is no driver library.
        DriverError: it does not start, or the device does not.
    """

    def __init__(self, device: int | None = 0) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self.call("cuInit", 0)
        if device is not None:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver.

        Raises:
            DriverError: it returned something else than success.
        """
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            words = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(words))
            raise DriverError(f"{name} returned {status} ({(words.value or b'unknown').decode()})")

    def number(self, name: str, *arguments: object) -> int:
        """Return the whole number that a function writes to its first argument."""
        result = ctypes.c_int(0)
        self.call(name, ctypes.byref(result), *arguments)
        return result.value

    def device_name(self, device: int) -> str:
        """Return the device's name."""
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), device)
        return name.value.decode()

    def compute_mode(self, device: int) -> str:
        """Return who may use the device: `default`, `exclusive_process` or `prohibited`."""
        mode = self.number("cuDeviceGetAttribute", _COMPUTE_MODE, device)
        return _MODES.get(mode, str(mode))

    def allocate(self, nbytes: int) -> int:
        """Return the address of new device memory."""
        address = ctypes.c_uint64(0)
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        return address.value

    def allocate_async(self, nbytes: int) -> int:
        """Return the address of memory of the stream-ordered allocator (cudaMallocAsync), ready to use."""
        address = ctypes.c_uint64(0)
        self.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(nbytes), None)
        self.call("cuStreamSynchronize", None)
        return address.value

    def write(self, address: int, data: bytes) -> None:
        """Copy `data` to device memory, and wait until it is there."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
        self.call("cuCtxSynchronize")

    def read(self, address: int, nbytes: int) -> bytes:
        """Return `nbytes` of device memory, after all that was queued before."""
        self.call("cuCtxSynchronize")
        landing = ctypes.create_string_buffer(nbytes)
        self.call("cuMemcpyDtoH_v2", landing, ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        return landing.raw

    def export(self, address: int) -> bytes:
        """Return the handle by which another process may open this memory."""
        handle = _Handle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return ctypes.string_at(ctypes.addressof(handle), HANDLE_NBYTES)

    def open(self, exported: bytes) -> int:
        """Return the address, in this process, of memory that another one exported."""
        handle, address = _Handle.from_buffer_copy(exported), ctypes.c_uint64(0)
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, ctypes.c_uint(_LAZY_PEER_ACCESS))
        return address.value

    def close(self, address: int) -> None:
        """Give back memory that `open` returned."""
        self.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))
