"""Copies between device memory and host memory, for the buffers of CuPy and torch that mpi4py takes.

The ranks of a collective may pass memory of different kinds, and no rank knows those of the others. Device memory
therefore always goes through host memory: a copy before the call for data that is sent, and after the call for data
that is received. A copy waits for all work that is queued on its device.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

import numpy as np

_HOST_KINDS: Final = (1, 3)  # of DLPack: memory of the CPU, and page-locked memory


class _DeviceBytes:
    """`nbytes` of GPU memory from `address` on, as an object that CuPy and torch accept (CUDA array interface)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def find_device(buffer: Any) -> ModuleType | None:
    """Return CuPy or torch, whichever is loaded, if a buffer is in device memory; None if it is in host memory."""
    if isinstance(buffer, np.ndarray):
        return None
    if getattr(buffer, "__cuda_array_interface__", None) is None:
        find_kind = getattr(buffer, "__dlpack_device__", None)
        if find_kind is None or int(find_kind()[0]) in _HOST_KINDS:
            return None
    if "cupy" in sys.modules:
        return sys.modules["cupy"]
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


def copy_from_device(library: ModuleType, address: int, nbytes: int) -> Any:
    """Copy `nbytes` of GPU memory from `address` on, and return them as a NumPy array of bytes.

    `library` is the module cupy or torch. Waits for all work on the current GPU.
    """
    if library.__name__ == "cupy":
        library.cuda.runtime.deviceSynchronize()
        return library.asnumpy(library.asarray(_DeviceBytes(address, nbytes)))
    library.cuda.synchronize()
    return library.as_tensor(_DeviceBytes(address, nbytes), device="cuda").cpu().numpy()


def copy_to_device(library: ModuleType, address: int, flat: Any) -> None:
    """Copy `flat`, a NumPy array of bytes, to GPU memory from `address` on.

    `library` is the module cupy or torch. Waits for all work on the current GPU, before and after.
    """
    target = _DeviceBytes(address, flat.nbytes)
    if library.__name__ == "cupy":
        library.cuda.runtime.deviceSynchronize()
        library.asarray(target).set(flat)
        library.cuda.runtime.deviceSynchronize()
        return
    library.cuda.synchronize()
    library.as_tensor(target, device="cuda").copy_(library.from_numpy(flat))
    library.cuda.synchronize()
