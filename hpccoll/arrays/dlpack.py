"""Imports arrays of other libraries, such as JAX, through DLPack, and exports results as arrays of these libraries."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from hpccoll.arrays.torch_tensors import is_torch_tensor
from hpccoll.errors import BufferError

_HOST_DEVICES = (1, 3)  # DLPack's numbers of host memory: ordinary, and page-locked by CUDA
_CUDA_DEVICES = (2, 13)  # device memory, and managed memory


def is_foreign(array: Any) -> bool:
    """Whether `array` supports DLPack, but is no array of NumPy or torch, and has no `__cuda_array_interface__`."""
    if isinstance(array, np.ndarray | np.generic) or not hasattr(array, "__dlpack__"):
        return False
    return not is_torch_tensor(array) and not hasattr(array, "__cuda_array_interface__")


def import_array(array: Any, role: str) -> Any:
    """Return a NumPy or CuPy array that shares the memory of a foreign array; read-only if the foreign array is.

    A foreign array supports DLPack, and is of a library other than NumPy, CuPy and torch. Element types that NumPy
    cannot import by DLPack, such as bfloat16, are copied through the array's `__array__`.

    Raises:
        BufferError: the array is on a device of another kind than CPU and CUDA, or cannot be exported.
    """
    kind = int(array.__dlpack_device__()[0])
    try:
        if kind in _HOST_DEVICES:
            return _import_host_array(array)
        if kind in _CUDA_DEVICES:
            import cupy

            return cupy.from_dlpack(array)
    except (ImportError, RuntimeError, TypeError, ValueError, builtins.BufferError) as error:
        reason = str(error).partition("\n")[0]
        raise BufferError(f"{role}, of type {type(array).__name__}, gives no memory by DLPack ({reason})") from error
    raise BufferError(f"{role} is on DLPack device {kind}; pass an array on CPU (1) or CUDA (2)")


def export_array(value: Any, like: Any) -> Any:
    """Return a NumPy or CuPy array as an array of the library of `like`, a foreign array.

    Arrays are made by the library's functions in `__array_namespace__` (array API standard). If `like` has no
    `__array_namespace__`, `value` itself is returned.
    """
    if not hasattr(like, "__array_namespace__"):
        return value
    namespace = like.__array_namespace__()
    try:
        return namespace.from_dlpack(value)
    except (RuntimeError, TypeError, ValueError, builtins.BufferError):  # such as bfloat16, which NumPy does not export
        return namespace.asarray(value)


def _import_host_array(array: Any) -> Any:
    """Return a NumPy array over the memory of a foreign array; a copy if NumPy cannot import its element type."""
    try:
        return np.from_dlpack(array)
    except (RuntimeError, TypeError, ValueError, builtins.BufferError):
        if not hasattr(array, "__array__"):
            raise
        copy = np.asarray(array)
        copy.flags.writeable = False  # writing to a copy would not change the user's array
        return copy
