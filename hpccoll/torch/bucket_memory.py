"""Moves the gradient buckets of DistributedDataParallel to memory that the other ranks of the node can map.

The other ranks reduce a moved bucket in place, without a copy or a system call. Only buckets are moved, because only
torch's own C++ code holds them: no program has the address of a bucket, and no program resizes one. The views of a
bucket keep working, because the bucket keeps its storage object, and only the memory of the storage is replaced.
"""

from __future__ import annotations

import sys
import weakref
from functools import cache
from typing import Any, Final

import torch
from torch.autograd.graph import _engine_run_backward

from hpccoll.runtime.node_memory.symmetric import empty_in_file

LEAST_BYTES: Final = 256 * 2**10  # smaller tensors are copied through slots, which needs no mapping
WRAPPER: Final = "_make_visible.<locals>.call"  # in dispatch_modes.py
USES: Final = 3  # a bucket moves at this all-reduce; torch replaces its first buckets after one backward pass


class BucketMemory:
    """Moves each gradient bucket of DDP, at its third all-reduce, to memory that other ranks of the node can map."""

    def __init__(self) -> None:
        self._uses: dict[int, int] = {}  # by the id of the storage's Python object, which lives as long as the storage

    def note(self, x: Any) -> None:
        """Count an all-reduce of the bucket `x`, a tensor, and move the memory of `x` at its third all-reduce.

        Tensors of less than LEAST_BYTES, or not in CPU memory, are ignored.
        """
        if x.nbytes < LEAST_BYTES or not x.is_cpu:
            return
        storage = x.untyped_storage()
        key = id(storage)
        if key not in self._uses:
            self._uses[key] = 0
            weakref.finalize(storage, self._uses.pop, key, None).atexit = False
        self._uses[key] += 1
        if self._uses[key] == USES and storage.resizable():  # torch has waited for the last all-reduce of the bucket
            move(storage)


def move(storage: Any) -> None:
    """Replace the memory of a torch storage by memory that other ranks of the node can map, with the same values.

    The storage stays as it is if hpccoll cannot allocate memory that other ranks can map, or if torch cannot replace
    the memory of a storage. A moved storage cannot be resized any more.
    """
    own = empty_in_file(storage.nbytes()) if hasattr(storage, "_swap_data_ptr_") else None
    if own is not None:
        moved = torch.from_numpy(own).untyped_storage()
        moved.copy_(storage)
        storage._swap_data_ptr_(moved)


def is_called_by_backward() -> bool:
    """Whether torch's backward pass (in C++) called the caller of this function directly, as for a DDP bucket.

    The wrapper that `show_operations` puts around operations may be between the backward pass and the caller. The
    function keeps no stack frame after it returns, because a frame would keep all tensors of the call alive.
    """
    caller = sys._getframe(1).f_back  # noqa: SLF001 - documented, and faster than the module inspect
    if caller is not None and caller.f_code.co_qualname == WRAPPER:
        caller = caller.f_back
    return caller is not None and caller.f_code is _engine_run_backward.__code__


@cache
def get_bucket_memory() -> BucketMemory:
    """Return the `BucketMemory` of this process."""
    return BucketMemory()
