"""Caches a communicator's executables (collectives bound to buffers), which a call finds by its arrays.

A cached executable must run only on the arrays that it was bound to. A new array may get the id or address of a deleted
array. A NumPy array can change its dtype, and a torch tensor its storage, without a change of `id(array)`. NumPy
refuses to resize an array that has weak references.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from functools import partial
from typing import Any, TypeAlias

from hpccoll.native import CallTable
from hpccoll.runtime.arrays import is_torch_tensor
from hpccoll.runtime.executable import Executable
from hpccoll.runtime.forks import abandon_at_fork

CAPACITY = 256  # executables found by address
ARRAY_CAPACITY = 512  # calls found by array

# An executable (or the RepeatedStart of an asynchronous call), the dtypes of input and output (None without such an
# array), the addresses, bytes and contiguity of both if there is a torch tensor, and weak references to the arrays.
# The callbacks of the weak references remove the cache entry before another array can get the same id.
# A plain tuple is used because a named tuple takes 0.1 us longer to unpack in every call.
CachedCall: TypeAlias = tuple[Executable, Any, Any, tuple[object, ...] | None, tuple[weakref.ref[Any], ...]]


class CallCache:
    """Finds executables (collectives bound to buffers) by a call's arrays or by the addresses of its buffers.

    `by_array` is public so that a call finds its key by one look-up. `by_kind` holds objects that carry out calls
    without binding them to arrays (see unbound.py), and `table` the staged calls among them for NumPy arrays.
    """

    def __init__(self, table: CallTable) -> None:
        self.by_array: dict[Hashable, CachedCall] = {}
        self.by_kind: dict[Hashable, Any] = {}
        self.table = table
        self._by_address: OrderedDict[Hashable, Executable] = OrderedDict()
        self._prepared: list[Executable] = []
        abandon_at_fork(self)

    def __len__(self) -> int:
        return len(self._by_address)

    def find_by_array(self, key: Hashable, x: Any, out: Any) -> Executable | None:
        """Return the executable bound to these arrays; None if it is missing or freed, or an array has changed."""
        cached = self.by_array.get(key)
        if cached is None:
            return None
        executable, dtype, out_dtype, storage, _ = cached
        if not executable.live:
            del self.by_array[key]
            return None
        if (dtype is not None and x.dtype is not dtype) or (out_dtype is not None and out.dtype is not out_dtype):
            return None
        return executable if storage is None or storage == (_locate(x), _locate(out)) else None

    def add_by_array(self, key: Hashable, executable: Executable, x: Any, out: Any) -> None:
        """Cache the executable of a call with these arrays until one of them is deleted or the cache is full."""
        if len(self.by_array) >= ARRAY_CAPACITY:
            self.by_array.clear()
        forget = partial(self._forget, key)
        references = tuple(weakref.ref(array, forget) for array in (x, out) if array is not None)
        dtypes, storage = (getattr(x, "dtype", None), getattr(out, "dtype", None)), (_locate(x), _locate(out))
        self.by_array[key] = executable, *dtypes, None if storage == (None, None) else storage, references

    def find_by_address(self, key: Hashable) -> Executable | None:
        """Return the executable for a key and mark it as recently used; None if it is missing or freed."""
        executable = self._by_address.get(key)
        if executable is None or not executable.live:
            return None
        self._by_address.move_to_end(key)
        return executable

    def add_by_address(self, key: Hashable, executable: Executable) -> None:
        """Cache an executable; if there are now more than CAPACITY, free the least recently used one."""
        self._by_address[key] = executable
        while len(self._by_address) > CAPACITY:
            self._by_address.popitem(last=False)[1].free()

    def _forget(self, key: Hashable, _: weakref.ref[Any]) -> None:
        """Remove a cached call after its array was deleted."""
        self.by_array.pop(key, None)

    def keep(self, executable: Executable) -> None:
        """Record an executable that the user prepared, so that `clear` frees it unless the user already has."""
        self._prepared = [*(known for known in self._prepared if known.live), executable]

    def forget_arrays(self) -> None:
        """Forget which arrays and kinds of call were used before; executables are still found by address."""
        for known in (self.by_array, self.by_kind, self.table):
            known.clear()

    def abandon(self) -> None:
        """Forget all arrays and let prepared executables refuse to run, but free nothing; for a forked child."""
        self.forget_arrays()
        for executable in self._prepared:
            executable.abandon()

    def clear(self) -> None:
        """Free all executables; to be called before MPI is finalized."""
        self.forget_arrays()
        while self._by_address:
            self._by_address.popitem()[1].free()
        while self._prepared:
            self._prepared.pop().free()


def _locate(array: Any) -> tuple[int, int, bool] | None:
    """Return address, size in bytes and contiguity of a torch tensor, all of which can change; else None."""
    return (array.data_ptr(), array.nbytes, array.is_contiguous()) if is_torch_tensor(array) else None
