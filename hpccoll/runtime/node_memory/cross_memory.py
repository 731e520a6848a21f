"""Whether the ranks of a node can read the memory of each other's processes (Linux cross-memory attach).

The kernel permits cross-memory attach between processes of one user, unless Yama's ptrace_scope, a seccomp filter or
separate PID namespaces forbid it. The native extension uses cross-memory attach. Source: process_vm_readv(2).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpccoll.errors import CommunicationError

if TYPE_CHECKING:
    from mpi4py import MPI


def read_memory(process_id: int, remote_address: int, local_address: int, nbytes: int) -> None:
    """Copy `nbytes` bytes at an address of another process to an address of this process.

    Raises:
        CommunicationError: the system refuses, or has no cross-memory attach.
    """
    function = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if function is None:
        raise CommunicationError("this C library has no process_vm_readv; cross-memory attach is Linux only")
    vectors = ctypes.c_void_p, ctypes.c_ulong
    function.argtypes, function.restype = (ctypes.c_int, *vectors, *vectors, ctypes.c_ulong), ctypes.c_ssize_t
    vector = ctypes.c_size_t * 2  # the C structure `iovec`: an address and a number of bytes
    local, remote = vector(local_address, nbytes), vector(remote_address, nbytes)
    copied = function(process_id, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if copied != nbytes:
        reason = os.strerror(ctypes.get_errno()) if copied < 0 else f"{copied} of {nbytes} bytes"
        raise CommunicationError(f"memory of process {process_id} could not be read ({reason})")


def find_readable_processes(comm: MPI.Intracomm, node_ranks: Sequence[int]) -> dict[int, int] | None:
    """Return the process ids of this node's other ranks, by rank; None if a test read fails on any rank of `comm`.

    Collective.
    """
    from mpi4py import MPI

    probe, received = ctypes.c_uint64(comm.rank + 1), ctypes.c_uint64(0)
    gathered = np.empty((comm.size, 2), np.uint64)
    comm.Allgather(np.array([os.getpid(), ctypes.addressof(probe)], np.uint64), gathered)
    probes: list[list[int]] = gathered.tolist()
    peers = [rank for rank in node_ranks if rank != comm.rank]
    readable = np.ones(1, np.int8)
    try:
        for rank in peers:
            process_id, address = probes[rank]
            read_memory(process_id, address, ctypes.addressof(received), 8)
            readable &= received.value == rank + 1
    except CommunicationError:
        readable[:] = 0
    comm.Allreduce(MPI.IN_PLACE, readable, MPI.MIN)
    return {rank: probes[rank][0] for rank in peers} if readable[0] else None
