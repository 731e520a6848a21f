"""The bytes of a rank's tensors in a training step on a CPU: weights, gradients, activations and so on.

The caller lists the tensors of the training state. All other tensors are observed: a dispatch mode of torch sees which
storages each operation of the forward and the backward pass allocates, and when they are freed. Memory inside an
operation and the memory of libraries are not counted. A symmetric buffer counts on the rank to which it belongs.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpccoll.records import AllocatedBytes


def list_storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Return the size in bytes of each storage (memory) that torch tensors use, by the address of the storage."""
    return {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}


class AllocationLog(TorchDispatchMode):  # type: ignore[misc] # torch has no types here
    """A context manager that logs which storages (memory of torch tensors) its body allocates and frees."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []  # per event: number of the storage, and its bytes, negative when freed
        self._numbers: dict[int, int] = {}  # number by address of each living storage; -1: allocated before
        self._counter = itertools.count()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of torch, and log the storages of its results."""
        for tensor in tree_leaves((args, kwargs)):
            self._add_storage(tensor, is_new=False)
        results = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            self._add_storage(tensor, is_new=True)
        return results

    def _add_storage(self, tensor: Any, *, is_new: bool) -> None:
        """Log the storage of a tensor unless it is empty or known; `is_new` states that an operation allocated it."""
        if not isinstance(tensor, Tensor):
            return
        storage = tensor.untyped_storage()
        address, nbytes = storage.data_ptr(), storage.nbytes()
        if not nbytes or address in self._numbers:
            return
        number = self._numbers[address] = next(self._counter) if is_new else -1
        if is_new:
            self.events.append((number, nbytes))
        weakref.finalize(storage, self._remove_storage, address, number, nbytes).atexit = False

    def _remove_storage(self, address: int, number: int, nbytes: int) -> None:
        """Log that a storage was freed; `number` is -1 if the storage existed before the context manager's body."""
        self._numbers.pop(address, None)
        if number >= 0:
            self.events.append((number, -nbytes))

    def is_older(self, address: int) -> bool:
        """Whether the storage at `address` was allocated before the body began, or no operation of the body used it."""
        return self._numbers.get(address, -1) < 0

    def compute_peak(self, left_out: Iterable[int] = ()) -> int:
        """Return the largest sum of allocated bytes at any time, without the storages at the addresses `left_out`."""
        ignored = {self._numbers.get(address, -1) for address in left_out}
        changes = (nbytes for number, nbytes in self.events if number not in ignored)
        return max(itertools.accumulate(changes), default=0)


def measure_allocated_bytes(log: AllocationLog, lasting: Mapping[str, Iterable[Any]]) -> AllocatedBytes:
    """Return the bytes of weights, gradients, activations and so on in a step; activations and the total are peaks.

    The total always includes the buffers that the first step allocates, because later steps begin with these buffers.

    Args:
        log: the log of the whole step.
        lasting: the tensors that outlive the step, by field of `AllocatedBytes`. A storage that several fields list
            counts only in the first of these fields.
    """
    by_kind: dict[str, dict[int, int]] = {}
    for name, tensors in lasting.items():
        known = {address for storages in by_kind.values() for address in storages}
        by_kind[name] = {at: nbytes for at, nbytes in list_storages(tensors).items() if at not in known}
    every = {address: nbytes for storages in by_kind.values() for address, nbytes in storages.items()}
    buffers = by_kind.get("buffers", {})
    before = sum(nbytes for address, nbytes in every.items() if address in buffers or log.is_older(address))
    return AllocatedBytes(
        **{name: sum(sizes.values()) for name, sizes in by_kind.items()},
        activations=log.compute_peak(left_out=every),
        total=before + log.compute_peak(left_out=buffers),
    )
