"""Converts arrays of NumPy, torch and CuPy to NumPy arrays, and back."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

NUMPY_ARRAY, TORCH_TENSOR, CUPY_ARRAY = range(3)  # numbers of the array libraries in headers of objects
HOST: Final = -1  # the device of a tensor in host memory


def find_library(obj: Any) -> int | None:
    """Return NUMPY_ARRAY, TORCH_TENSOR or CUPY_ARRAY for an array; None for other objects, and for subclasses."""
    kind = type(obj)
    if kind is np.ndarray:
        return NUMPY_ARRAY
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and kind is getattr(torch, "Tensor", None):
        return TORCH_TENSOR
    return CUPY_ARRAY if cupy is not None and kind is getattr(cupy, "ndarray", None) else None


def to_numpy(obj: Any, library: int) -> tuple[Any, int]:
    """Return an array as a NumPy array, and the index of its GPU (HOST for host memory).

    The NumPy array shares host memory; GPU memory is copied. If NumPy cannot represent the array, None is returned in
    its place.

    Args:
        obj: the array.
        library: the result of `find_library` for this array.
    """
    if library == NUMPY_ARRAY:
        return obj, HOST
    if library == CUPY_ARRAY:
        return sys.modules["cupy"].asnumpy(obj), int(obj.device.id)
    torch = sys.modules["torch"]
    if obj.requires_grad or obj.layout is not torch.strided or obj.device.type not in ("cpu", "cuda"):
        return None, HOST
    try:
        return obj.cpu().numpy(), HOST if obj.is_cpu else int(obj.device.index)
    except (TypeError, RuntimeError):  # an element type that NumPy lacks, or a conjugate view
        return None, HOST


def to_library(array: Any, library: int, device: int) -> Any:
    """Return a NumPy array as an array of a library: NUMPY_ARRAY, TORCH_TENSOR or CUPY_ARRAY.

    `device` is the index of the GPU to copy to; HOST shares the host memory.
    """
    if library == NUMPY_ARRAY:
        return array
    if library == CUPY_ARRAY:
        import cupy

        with cupy.cuda.Device(device):
            return cupy.asarray(array)
    import torch

    tensor = torch.from_numpy(array)
    return tensor if device == HOST else tensor.to(torch.device("cuda", device))
