"""Reading and writing another process's memory where it lies, in one copy (Linux cross-memory attach).

The kernel allows it between processes of one user unless told otherwise (Yama's ptrace_scope, seccomp filters,
containers of their own); whether it does is found out by trying.
Source: process_vm_readv(2).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpccoll.errors import CommunicationError
from hpccoll.runtime.arrays import BoundCall

if TYPE_CHECKING:
    from mpi4py import MPI


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _call(name: str) -> Callable[..., int] | None:
    call = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if call is None:
        return None
    vectors = (ctypes.POINTER(_Vector), ctypes.c_ulong)
    call.argtypes, call.restype = (ctypes.c_int, *vectors, *vectors, ctypes.c_ulong), ctypes.c_ssize_t
    bound: Callable[..., int] = call
    return bound


class Remote:
    """The memory of the other ranks of a node.

    Args:
        processes: their process ids, by rank.
    """

    def __init__(self, processes: dict[int, int]) -> None:
        self._processes = processes
        self._read, self._write = _call("process_vm_readv"), _call("process_vm_writev")

    def read(self, rank: int, there: int, here: int, nbytes: int) -> BoundCall:
        """Bind a copy of `nbytes` bytes at address `there` of `rank` to address `here` of this process."""
        return self._bind(self._read, rank, there, here, nbytes)

    def write(self, rank: int, there: int, here: int, nbytes: int) -> BoundCall:
        """Bind a copy of `nbytes` bytes at address `here` of this process to address `there` of `rank`."""
        return self._bind(self._write, rank, there, here, nbytes)

    def _bind(self, call: Callable[..., int] | None, rank: int, there: int, here: int, nbytes: int) -> BoundCall:
        if call is None:
            raise CommunicationError("this C library has no process_vm_readv; cross-memory attach is Linux only")
        ours, theirs = _Vector(here, nbytes), _Vector(there, nbytes)
        bound = partial(call, self._processes[rank], ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        return partial(_whole, bound, nbytes, rank)


def _whole(call: Callable[[], int], nbytes: int, rank: int) -> None:
    moved = call()
    if moved != nbytes:
        reason = os.strerror(ctypes.get_errno()) if moved < 0 else f"{moved} of {nbytes} bytes"
        raise CommunicationError(
            f"memory of rank {rank} could not be reached ({reason}); was its buffer freed or changed meanwhile?"
        )


def reachable(comm: MPI.Intracomm, here: Sequence[int]) -> Remote | None:
    """Return the memory of the other ranks of this host, or None where any rank of `comm` cannot reach it; collective.

    Args:
        comm: all ranks, also those of other hosts.
        here: the ranks of this host.
    """
    probe = ctypes.c_uint64(comm.rank + 1)
    known = comm.allgather((os.getpid(), ctypes.addressof(probe)))
    remote = Remote({rank: known[rank][0] for rank in here if rank != comm.rank})
    found = ctypes.c_uint64(0)
    reached = True
    for rank in here:
        if rank == comm.rank:
            continue
        try:
            remote.read(rank, known[rank][1], ctypes.addressof(found), 8)()
            reached = reached and found.value == rank + 1
        except CommunicationError:
            reached = False
        if not reached:
            break
    return remote if min(comm.allgather(reached)) else None
