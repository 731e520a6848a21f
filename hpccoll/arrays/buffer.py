"""Turns a user's array into a `Buffer`, and selects the array module (NumPy or CuPy) for new memory."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from hpccoll.arrays.cuda_arrays import CupyModule, TorchCudaModule
from hpccoll.arrays.dlpack import import_array, is_foreign
from hpccoll.arrays.dtypes import dtype_from_numpy
from hpccoll.arrays.interface import ArrayModule, Buffer, require_contiguous
from hpccoll.arrays.numpy_arrays import NUMPY
from hpccoll.arrays.torch_tensors import flatten_tensor, get_tensor_dtype, is_torch_tensor, view_as_numpy
from hpccoll.errors import BufferError, UnavailableError
from hpccoll.optional_packages import format_install_command


def as_buffer(array: Any, role: str, writable: bool) -> Buffer:
    """Check a user's array and return it as a flat buffer that shares its memory.

    If `writable` is false, an array whose memory cannot be used as it is (not contiguous, or a lazily conjugated view)
    is copied. Error messages name the array by `role`.

    Raises:
        BufferError: `array` is not a NumPy, CuPy, torch or DLPack array on CPU or CUDA, or is sparse; or `writable` is
            true and the array is read-only, not C-contiguous or a lazily conjugated view.
        UnknownNameError: the element type of `array` is not supported.
    """
    if isinstance(array, np.ndarray):
        return _from_numpy(array, role, writable)
    if is_torch_tensor(array):
        return _from_torch(array, role, writable)
    if hasattr(array, "__cuda_array_interface__"):
        return _from_cupy(array, role, writable)
    if is_foreign(array):
        return replace(as_buffer(import_array(array, role), role, writable), copied=True)  # it may move its memory
    raise BufferError(
        f"{role} is of type {type(array).__name__}; pass an array of NumPy, CuPy, torch or a library with DLPack"
    )


def _from_numpy(array: Any, role: str, writable: bool) -> Buffer:
    """Return the buffer of a NumPy array; see `as_buffer`."""
    dtype = dtype_from_numpy(array.dtype)
    if writable:
        require_contiguous(array.flags.c_contiguous, role, array.shape, "a contiguous array (numpy.ascontiguousarray)")
        if not array.flags.writeable:
            raise BufferError(f"{role} of shape {array.shape} is read-only and would be written; pass a writable copy")
    flat, copied = np.ascontiguousarray(array).reshape(-1), not array.flags.c_contiguous
    return Buffer(flat, NUMPY, dtype, flat.__array_interface__["data"][0], array.shape, copied)


def _from_torch(tensor: Any, role: str, writable: bool) -> Buffer:
    """Return the buffer of a tensor; a CPU tensor becomes a buffer of the NumPy module."""
    flat, shape = flatten_tensor(tensor, role, writable), tuple(tensor.shape)
    dtype, address = get_tensor_dtype(flat.dtype), int(flat.data_ptr())
    copied = address != tensor.data_ptr()
    if flat.is_cuda:
        return Buffer(flat, TorchCudaModule(sys.modules["torch"], flat.device), dtype, address, shape, copied)
    return Buffer(view_as_numpy(flat), NUMPY, dtype, address, shape, copied)


def _from_cupy(array: Any, role: str, writable: bool) -> Buffer:
    """Return the buffer of a CuPy array or of any other object that exports `__cuda_array_interface__`."""
    import cupy

    array = cupy.asarray(array)
    if writable:
        require_contiguous(array.flags.c_contiguous, role, array.shape, "a contiguous array (cupy.ascontiguousarray)")
    with array.device:
        flat, copied = cupy.ascontiguousarray(array).reshape(-1), not array.flags.c_contiguous
    dtype = dtype_from_numpy(np.dtype(array.dtype))
    return Buffer(flat, CupyModule(int(flat.device.id)), dtype, int(flat.data.ptr), tuple(array.shape), copied)


def get_array_module(memory: str, local_rank: int = 0) -> ArrayModule:
    """Return the array module for new memory: NumPy's if `memory` is `host`, CuPy's if it is `cuda`.

    If `memory` is `cuda`, device number `local_rank` modulo the number of devices becomes current, also for torch;
    `local_rank` is this rank's number on its node. Call `get_array_module` before allocating device memory.

    Raises:
        UnavailableError: `memory` is `cuda`, but there is no CUDA device or CuPy is not installed.
    """
    if memory == "host":
        return NUMPY
    with suppress(ImportError, RuntimeError):  # no CuPy, or no CUDA driver
        import cupy

        if (count := cupy.cuda.runtime.getDeviceCount()) > 0:
            cupy.cuda.Device(local_rank % count).use()
            return CupyModule()
    raise UnavailableError(f"no CUDA device or no CuPy here; {format_install_command('cuda13')}, or use --buffer host")
