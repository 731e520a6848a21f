"""Turns tensors of torch.distributed into tensors that hpccoll communicates: contiguous, without autograd.

A list of n tensors, one per rank of the group, is passed to hpccoll as one flat tensor with n blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hpccoll.arrays import DTYPES
from hpccoll.errors import BufferError

PLAIN_TYPES: Final = (torch.Tensor, torch.nn.Parameter)
_DTYPES = {getattr(torch, name) for name in DTYPES if hasattr(torch, name)}
_ONLY_IN_TORCH = {torch.bfloat16}


def is_sent_as_bytes(x: Any) -> bool:
    """Whether hpccoll lacks the dtype of the tensor `x` (float8, for example), and can only move its bytes."""
    return x.dtype not in _DTYPES


def count_elements(x: Any) -> int:
    """Return the number of elements of a tensor, or the number of its bytes if hpccoll sends its dtype as bytes."""
    return x.numel() if x.dtype in _DTYPES else x.nbytes  # type: ignore[no-any-return]


def flatten(x: Any) -> Any:
    """Return a contiguous tensor in one dimension; a tensor of one dimension is returned itself, which saves time."""
    return x if x.dim() == 1 else x.reshape(-1)


def as_array(x: Any) -> Any:
    """Return a NumPy array over the memory of a contiguous tensor.

    A tensor on a GPU, or of a dtype that NumPy lacks, is returned as it is. hpccoll's C extension sends and receives
    NumPy arrays, but no tensors.
    """
    return x.numpy() if x.is_cpu and x.dtype not in _ONLY_IN_TORCH else x


class CopiesBack:
    """Makes contiguous tensors for an operation; its `steps` copy the results back to the user's tensors at the end."""

    steps: tuple[Callable[[], object], ...] = ()

    def prepare_input(self, x: Any, *, as_bytes: bool = False) -> Any:
        """Return a contiguous tensor with the values of `x`.

        With `as_bytes`, the result is a tensor of bytes if hpccoll lacks the dtype of `x`.
        """
        plain = _as_plain(x).contiguous()
        return plain if not as_bytes or plain.dtype in _DTYPES else plain.reshape(-1).view(torch.uint8)

    def prepare_output(self, x: Any, *, as_bytes: bool = False) -> Any:
        """Return `x`, or a contiguous copy of `x` that is copied back to `x` at the end of the operation.

        With `as_bytes`, the result is a tensor of bytes if hpccoll lacks the dtype of `x`.
        """
        plain = _as_plain(x)
        if not plain.is_contiguous() or (plain is not x and (x.is_conj() or x.is_neg())):
            plain = plain.contiguous()
            self.steps = *self.steps, lambda: x.detach().copy_(plain.view(x.shape))
        return plain if not as_bytes or plain.dtype in _DTYPES else plain.reshape(-1).view(torch.uint8)

    def prepare_separately(self, tensors: Sequence[Any]) -> list[Any]:
        """Return contiguous tensors in which an operation stores results for `tensors`.

        A wrapper, such as torch's TwoTensor, is replaced by the tensors in it. A tensor that overlaps an earlier one of
        the list is replaced by a copy, which is copied back at the end of the operation.
        """
        flat = []
        for tensor in list_plain(tensors):
            flat.append(self.prepare_output(tensor))  # noqa: PERF401 - a comprehension is slower for a single tensor
        if len(flat) > 1:
            self._copy_overlapping(flat)
        return flat

    def _copy_overlapping(self, flat: list[Any]) -> None:
        """Replace each tensor of `flat` that overlaps an earlier one by a copy, which is copied back at the end."""
        by_storage: dict[int, list[Any]] = {}
        for at, x in enumerate(flat):
            earlier = by_storage.setdefault(x.untyped_storage().data_ptr(), [])
            if any(overlaps_wrongly(other, x, -1) for other in earlier):
                flat[at] = copy = x.clone()
                self.steps = *self.steps, partial(x.copy_, copy)
            else:
                earlier.append(x)

    def join_inputs(self, tensors: Sequence[Any]) -> Any:
        """Return a flat tensor with the values of a list of tensors; without a copy if they are adjacent in memory."""
        flat = find_flat(tensors)
        if flat is None:
            flat = torch.cat([_as_plain(tensor).reshape(-1) for tensor in tensors])
        return flat.view(torch.uint8) if is_sent_as_bytes(flat) else flat

    def join_outputs(self, tensors: Sequence[Any]) -> Any:
        """Return a flat tensor with room for a list of tensors; its blocks are copied to the list's tensors at the end.

        If the tensors are adjacent in memory, the flat tensor is their own memory.
        """
        flat = find_flat(tensors)
        if flat is None:
            flat = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))
            self.steps = *self.steps, lambda: split_into(flat, tensors)
        return flat.view(torch.uint8) if is_sent_as_bytes(flat) else flat


def split_into(flat: Any, tensors: Sequence[Any]) -> None:
    """Copy consecutive blocks of the one-dimensional tensor `flat` into `tensors`, one after the other."""
    for block, tensor in zip(flat.split([tensor.numel() for tensor in tensors]), tensors, strict=True):
        tensor.detach().copy_(block.view(tensor.shape))


def find_flat(tensors: Sequence[Any]) -> Any | None:
    """Return one flat tensor over the memory of contiguous tensors that are adjacent in one storage; None otherwise.

    Raises:
        BufferError: the tensors differ in dtype.
    """
    first = _as_plain(tensors[0])
    storage, offset = first.untyped_storage().data_ptr(), first.storage_offset()
    adjacent = True
    for given in tensors:
        plain = given if type(given) in PLAIN_TYPES and given.layout is torch.strided else _as_plain(given)
        if plain.dtype is not first.dtype:
            raise BufferError(f"the list has tensors of {first.dtype} and {plain.dtype}; pass tensors of one dtype")
        adjacent = adjacent and plain.is_contiguous() and plain.untyped_storage().data_ptr() == storage
        adjacent = adjacent and plain.storage_offset() == offset and not (given.is_conj() or given.is_neg())
        offset += plain.numel()
    return first.as_strided((offset - first.storage_offset(),), (1,)) if adjacent else None


def overlaps_wrongly(x: Any, out: Any, block: int | None) -> bool:
    """Whether two contiguous tensors overlap in a way that an operation does not allow.

    Args:
        x: the input.
        out: the output.
        block: the index of the block of the longer tensor that may be the memory of the shorter tensor; None if
            overlapping tensors must begin at the same address; -1 if no overlap is allowed.
    """
    if x.untyped_storage().data_ptr() != out.untyped_storage().data_ptr():
        return False
    begin, size = x.data_ptr(), x.numel() * x.element_size()
    out_begin, out_size = out.data_ptr(), out.numel() * out.element_size()
    if begin >= out_begin + out_size or out_begin >= begin + size:
        return False
    small, large, length = (begin, out_begin, size) if size <= out_size else (out_begin, begin, out_size)
    return bool(small != large + (0 if block is None else block * length))


def list_plain(tensors: Sequence[Any]) -> Sequence[Any]:
    """Return `tensors` with each wrapper, such as torch's TwoTensor, replaced by the tensors in it."""
    for tensor in tensors:
        if type(tensor) not in PLAIN_TYPES:
            return [inner for given in tensors for inner in _list_wrapped(given)]
    return tensors


def _list_wrapped(x: Any) -> list[Any]:
    """Return the tensors in a wrapper, such as torch's TwoTensor, or `[x]` for a plain tensor.

    For the result of a functional collective, the call waits until the collective is complete.
    """
    if type(x) in PLAIN_TYPES:
        return [x]
    if isinstance(x, AsyncCollectiveTensor):
        return _list_wrapped(x.trigger_wait())
    if not is_traceable_wrapper_subclass(x):
        return [x]
    return [inner for name in x.__tensor_flatten__()[0] for inner in _list_wrapped(getattr(x, name))]


def _as_plain(x: Any) -> Any:
    """Return a plain tensor with the values of `x`, without autograd, lazy conjugation and lazy negation.

    Raises:
        BufferError: the tensor is sparse, or wraps several tensors.
    """
    if type(x) not in PLAIN_TYPES:
        wrapped = _list_wrapped(x)
        if len(wrapped) > 1:
            raise BufferError(
                f"this operation takes no {type(x).__name__}, which wraps {len(wrapped)} tensors; pass each"
            )
        x = wrapped[0]
    if x.layout is not torch.strided:
        raise BufferError(f"hpccoll communicates dense tensors, not {x.layout}; pass x.to_dense()")
    if x.requires_grad or x.is_conj() or x.is_neg():
        return x.detach().resolve_conj().resolve_neg()
    return x
