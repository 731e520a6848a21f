"""Turns tensors of torch.distributed into tensors that hpccoll communicates: contiguous, without autograd.

Legend: a list of n tensors, one per rank of the group, is passed to hpccoll as one flat tensor with n blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpccoll.errors import BufferError
from hpccoll.runtime.arrays import DTYPES

_DTYPES = {getattr(torch, name) for name in DTYPES if hasattr(torch, name)}


def is_sent_as_bytes(x: Any) -> bool:
    """Whether hpccoll does not know the dtype of a tensor (float8, for example), and can only move its bytes."""
    return x.dtype not in _DTYPES


class CopiesBack:
    """The copies that move results to the user's tensors when an operation is complete."""

    steps: tuple[Callable[[], object], ...] = ()

    def prepare_input(self, x: Any, *, as_bytes: bool = False) -> Any:
        """Return a contiguous tensor with the values of `x`; `as_bytes` allows it to be a tensor of bytes."""
        plain = _as_plain(x).contiguous()
        return plain if not as_bytes or plain.dtype in _DTYPES else plain.reshape(-1).view(torch.uint8)

    def prepare_output(self, x: Any, *, as_bytes: bool = False) -> Any:
        """Return `x`, or a contiguous copy of `x` that is copied back at the end."""
        plain = _as_plain(x)
        if not plain.is_contiguous() or (plain is not x and (x.is_conj() or x.is_neg())):
            plain = plain.contiguous()
            self.steps = *self.steps, lambda: x.detach().copy_(plain.view(x.shape))
        return plain if not as_bytes or plain.dtype in _DTYPES else plain.reshape(-1).view(torch.uint8)

    def join_inputs(self, tensors: Sequence[Any]) -> Any:
        """Return a flat tensor with the values of a list of tensors; without a copy if they are adjacent in memory."""
        flat = find_flat(tensors)
        if flat is None:
            flat = torch.cat([_as_plain(each).reshape(-1) for each in tensors])
        return flat.view(torch.uint8) if is_sent_as_bytes(flat) else flat

    def join_outputs(self, tensors: Sequence[Any]) -> Any:
        """Return a flat tensor of the size of a list of tensors, whose blocks are copied to the tensors at the end.

        If the tensors are adjacent in memory, the flat tensor is their own memory.
        """
        flat = find_flat(tensors)
        if flat is None:
            flat = tensors[0].new_empty(sum(each.numel() for each in tensors))
            self.steps = *self.steps, lambda: split_into(flat, tensors)
        return flat.view(torch.uint8) if is_sent_as_bytes(flat) else flat


def split_into(flat: Any, tensors: Sequence[Any]) -> None:
    """Copy the blocks of a flat tensor into tensors, in order."""
    for block, each in zip(flat.split([each.numel() for each in tensors]), tensors, strict=True):
        each.detach().copy_(block.view(each.shape))


def find_flat(tensors: Sequence[Any]) -> Any | None:
    """Return one flat tensor over the memory of contiguous tensors that are adjacent in one storage; None otherwise.

    Raises:
        BufferError: the tensors differ in dtype.
    """
    first = _as_plain(tensors[0])
    storage, offset = first.untyped_storage().data_ptr(), first.storage_offset()
    adjacent = True
    for each in tensors:
        if each.dtype is not first.dtype:
            raise BufferError(f"the list has tensors of {first.dtype} and {each.dtype}; pass tensors of one dtype")
        adjacent = adjacent and each.is_contiguous() and each.untyped_storage().data_ptr() == storage
        adjacent = adjacent and each.storage_offset() == offset
        offset += each.numel()
    return first.as_strided((offset - first.storage_offset(),), (1,)) if adjacent else None


def overlaps_wrongly(x: Any, out: Any, block: int | None) -> bool:
    """Whether `x` and `out` share memory other than: `x` is block number `block` of `out`, or `out` itself if None."""
    if x.untyped_storage().data_ptr() != out.untyped_storage().data_ptr():
        return False
    begin, size = x.data_ptr(), x.numel() * x.element_size()
    out_begin, out_size = out.data_ptr(), out.numel() * out.element_size()
    if begin >= out_begin + out_size or out_begin >= begin + size:
        return False
    small, large, length = (begin, out_begin, size) if size <= out_size else (out_begin, begin, out_size)
    return bool(small != large + (0 if block is None else block * length))


def _as_plain(x: Any) -> Any:
    """Return a tensor without autograd, conjugation and negation; raise BufferError for sparse tensors."""
    if x.layout is not torch.strided:
        raise BufferError(f"hpccoll communicates dense tensors, not {x.layout}; pass x.to_dense()")
    if x.requires_grad or x.is_conj() or x.is_neg():
        return x.detach().resolve_conj().resolve_neg()
    return x
