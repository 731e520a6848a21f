"""Copies between device memory and host memory, for the buffers of CuPy and torch that mpi4py takes.

The ranks of a collective may pass memory of different kinds, and no rank knows the kind of another rank's memory.
Device memory therefore always goes through host memory: a copy before the call for data that is sent, and after the
call for data that is received. A copy waits for all work on the current GPU.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

import numpy as np

from hpccoll.errors import UnavailableError

_HOST_KINDS: Final = (1, 3)  # DLPack's device types for memory of the CPU and for page-locked memory


class _DeviceBytes:
    """`nbytes` of GPU memory from `address` on, as an object that CuPy and torch accept (CUDA array interface)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}


def find_device(buffer: Any) -> ModuleType | None:
    """Return the loaded module, cupy or else torch, that can copy a buffer in device memory; None for host memory.

    Raises:
        UnavailableError: the buffer is in device memory, and neither cupy nor a torch with CUDA is loaded.
    """
    if isinstance(buffer, np.ndarray):
        return None
    if getattr(buffer, "__cuda_array_interface__", None) is None:
        find_kind = getattr(buffer, "__dlpack_device__", None)
        if find_kind is None or int(find_kind()[0]) in _HOST_KINDS:
            return None
    if "cupy" in sys.modules:
        return sys.modules["cupy"]
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        raise UnavailableError(
            f"the buffer of type {type(buffer).__name__} is in device memory, which hpccoll copies by CuPy or torch; "
            "import cupy (or torch with CUDA) in this program"
        )
    return torch


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
