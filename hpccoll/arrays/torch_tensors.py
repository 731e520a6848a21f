"""Checks and flattens torch tensors; views CPU tensors as NumPy arrays, and NumPy and CuPy arrays as tensors."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

from hpccoll.arrays.dtypes import DType, dtype_from_numpy, get_dtype
from hpccoll.arrays.interface import FlatArray, require_contiguous, view_host_memory
from hpccoll.errors import BufferError


def is_torch_tensor(array: Any) -> bool:
    """Whether `array` is a torch tensor; answered without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def flatten_tensor(tensor: Any, role: str, writable: bool) -> Any:
    """Return a tensor as a 1-D contiguous tensor without gradient, sharing its memory.

    If `writable` is false, a tensor that is not contiguous is copied. Error messages name the tensor by `role`.

    Raises:
        BufferError: the tensor is sparse or not on CPU or CUDA; or `writable` is true and it is not contiguous or is a
            lazily conjugated or negated view.
    """
    torch = sys.modules["torch"]
    tensor = tensor.detach() if tensor.requires_grad else tensor
    if tensor.layout is not torch.strided or not (tensor.is_cpu or tensor.is_cuda):
        raise BufferError(f"{role} is a {tensor.layout} tensor on {tensor.device}; pass a dense one on cpu or cuda")
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
        if writable:
            remedy = "pass tensor.resolve_conj().resolve_neg()"
            raise BufferError(f"{role} is a lazily conjugated or negated view; {remedy}")
    if writable:
        require_contiguous(tensor.is_contiguous(), role, tuple(tensor.shape), "tensor.contiguous()")
    return tensor.contiguous().view(-1)


def as_torch_tensor(array: Any) -> Any:
    """Return a torch tensor that shares the memory of a NumPy or CuPy array, of the same shape and element type."""
    import torch

    dtype = getattr(torch, dtype_from_numpy(array.dtype).name)
    if isinstance(array, np.ndarray):
        return torch.from_numpy(array.reshape(-1).view(np.uint8)).view(dtype).reshape(array.shape)
    device = f"cuda:{array.device.id}"
    if not array.size:  # there is no memory to share
        return torch.empty(array.shape, dtype=dtype, device=device)
    return torch.as_tensor(array.reshape(-1).view(np.uint8), device=device).view(dtype).reshape(array.shape)


@cache
def get_tensor_dtype(dtype: Any) -> DType:
    """Return the element type of a `torch.dtype`; raise UnknownNameError if it is not supported."""
    return get_dtype(str(dtype).removeprefix("torch."))


def view_as_numpy(flat: Any) -> FlatArray:
    """Return a NumPy array over the memory of a flat CPU tensor; the array keeps the tensor alive.

    FSDP needs to resize the tensor's storage later, which a call of `Tensor.numpy()` would prevent.
    """
    return view_host_memory(int(flat.data_ptr()), flat.nbytes, owner=flat).view(get_tensor_dtype(flat.dtype).numpy)
