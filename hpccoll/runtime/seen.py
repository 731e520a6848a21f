"""Arrays that a communicator has seen before: from the very same arrays straight to what was bound to them.

An entry must not outlive what it stands for. Another array may get the id of one that is gone; a NumPy array can
change its dtype, a torch tensor its storage, under the same id. (A NumPy array that is referred to weakly cannot be
resized.)
"""

from __future__ import annotations

import os
import weakref
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

from hpccoll.runtime.arrays import is_torch_tensor
from hpccoll.runtime.engine import Bound

_MOST = 512


# A sum in place over all ranks, the call that is made most, by the id of the very array it was bound to: what carries
# it out, the dtype, address and bytes of a torch tensor (None otherwise), and the array, with which the entry goes
# before its id can be another's. A plain tuple: one with names takes 0.1 us longer to take apart.
Sum: TypeAlias = tuple[Bound, Any, tuple[int, int] | None, weakref.ref[Any]]


class _Call(NamedTuple):
    """An executable and the very arrays it was bound to."""

    executable: Bound
    arrays: tuple[weakref.ref[Any], ...]
    kinds: tuple[tuple[Any, int], ...]  # dtype and bytes
    addresses: tuple[int | None, ...]  # of torch tensors

    def fits(self, *arrays: Any) -> bool:
        """Whether the executable still stands for these arrays."""
        if not self.executable.live:
            return False
        for array, known, kind, address in zip(arrays, self.arrays, self.kinds, self.addresses, strict=False):
            same = known() is array
            if not same or kind != (array.dtype, array.nbytes):
                return False
            if address is not None and address != array.data_ptr():
                return False
        return True


class Seen:
    """What was bound to which arrays; `sums` are those that `Communicator.all_reduce` looks up by itself."""

    def __init__(self) -> None:
        self.sums: dict[int, Sum] = {}
        self._calls: dict[tuple[object, ...], _Call] = {}
        _forgetting_at_fork().add(self)

    def get(self, key: tuple[object, ...], x: Any, out: Any) -> Bound | None:
        """Return what was bound for a call with these very arrays, if it still stands for them."""
        call = self._calls.get(key)
        return call.executable if call is not None and call.fits(x, out) else None

    def clear(self) -> None:
        """Forget everything."""
        self._calls.clear()
        self.sums.clear()

    def remember(self, key: tuple[object, ...], executable: Bound, x: Any, out: Any) -> None:
        """Let the next call with the very same arrays go straight to the executable."""
        if len(self._calls) >= _MOST:
            self.clear()
        arrays: tuple[Any, ...] = (x,) if out is None else (x, out)
        self._calls[key] = _Call(
            executable,
            tuple(weakref.ref(array) for array in arrays),
            tuple((array.dtype, array.nbytes) for array in arrays),
            tuple(array.data_ptr() if is_torch_tensor(array) else None for array in arrays),
        )

    def remember_sum(self, executable: Bound, x: Any) -> None:
        """Let `all_reduce(x)` without further arguments go there straight away."""
        gone = partial(_forget, self.sums, id(x))
        kind = (x.data_ptr(), x.nbytes) if is_torch_tensor(x) else None
        self.sums[id(x)] = (executable, x.dtype, kind, weakref.ref(x, gone))


@cache
def _forgetting_at_fork() -> weakref.WeakSet[Seen]:
    """Return those who forget everything in a forked child: a way that is checked then says that MPI is the parent's.

    Asking for the process in every call would cost a system call each.
    """
    known: weakref.WeakSet[Seen] = weakref.WeakSet()

    def forget() -> None:
        for seen in known:
            seen.clear()

    os.register_at_fork(after_in_child=forget)
    return known


def _forget(sums: dict[int, Sum], key: int, _: weakref.ref[Any]) -> None:
    sums.pop(key, None)
