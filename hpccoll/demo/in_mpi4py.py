"""Each example as a call of mpi4py, which `hpccoll demo` shows beside its own; tests run these functions.

Each takes the module mpi4py.MPI, a communicator and this rank's arrays, and returns what the rank holds afterwards.
"""
# ruff: noqa: N803 - MPI is how everyone writes it

from __future__ import annotations

import time
from typing import Any

import numpy as np


def broadcast(MPI: Any, comm: Any, x: Any) -> Any:  # noqa: ARG001 - every example takes the module
    """Rank 0's x becomes everyone's."""
    comm.Bcast(x, root=0)
    return x


def reduce(MPI: Any, comm: Any, x: Any) -> Any:
    """Rank 0 gets the sum."""
    if comm.rank == 0:
        comm.Reduce(MPI.IN_PLACE, x, op=MPI.SUM, root=0)
    else:
        comm.Reduce(x, None, op=MPI.SUM, root=0)
    return x


def all_reduce(MPI: Any, comm: Any, x: Any) -> Any:
    """Everyone gets the sum."""
    comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
    return x


def gather(MPI: Any, comm: Any, x: Any) -> Any:  # noqa: ARG001
    """Rank 0 gets everyone's x, in rank order."""
    rows = np.empty((comm.size, *x.shape), x.dtype) if comm.rank == 0 else None
    comm.Gather(x, rows, root=0)
    return rows


def all_gather(MPI: Any, comm: Any, x: Any) -> Any:  # noqa: ARG001
    """Everyone gets everyone's x, in rank order."""
    rows = np.empty((comm.size, *x.shape), x.dtype)
    comm.Allgather(x, rows)
    return rows


def scatter(MPI: Any, comm: Any, x: Any) -> Any:  # noqa: ARG001
    """Rank r gets row r of rank 0's x."""
    row = np.empty(5, np.float32)
    comm.Scatter(x, row, root=0)
    return row


def reduce_scatter(MPI: Any, comm: Any, x: Any) -> Any:
    """Rank r gets the sum of everyone's row r."""
    row = np.empty(x.shape[1:], x.dtype)
    comm.Reduce_scatter_block(x, row, op=MPI.SUM)
    return row


def send_recv_chain(MPI: Any, comm: Any, x: Any) -> Any:  # noqa: ARG001
    """0 sends to 1, which doubles it and sends it on to 2."""
    if comm.rank == 0:
        comm.Send(x, dest=1)
    elif comm.rank == 1:
        comm.Recv(x, source=0)
        x *= 2
        comm.Send(x, dest=2)
    else:
        comm.Recv(x, source=1)
    return x


def send_recv_chain_async(MPI: Any, comm: Any, x: Any) -> Any:
    """The same chain; between start and wait each rank works on something else."""
    sent = [comm.Isend(x, dest=1)] if comm.rank == 0 else []
    if comm.rank > 0:
        coming = comm.Irecv(x, source=comm.rank - 1)
        _ = sum(k * k for k in range(1000))  # anything that leaves x alone
        coming.Wait()
    if comm.rank == 1:
        x *= 2
        sent.append(comm.Isend(x, dest=2))
    _ = sum(k * k for k in range(1000))  # x may be read, not changed
    MPI.Request.Waitall(sent)
    return x


def new_group(MPI: Any, comm: Any, x: Any) -> Any:
    """Pairs sum among themselves; then everyone learns both sums by a maximum."""
    pair = comm.Split(color=comm.rank // 2)
    pair.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
    both = np.zeros(2, np.float32)
    both[comm.rank // 2] = x[0]
    comm.Allreduce(MPI.IN_PLACE, both, op=MPI.MAX)
    pair.Free()
    return x, both


def two_broadcasts(MPI: Any, comm: Any, x: Any, y: Any) -> Any:
    """x comes from rank 0, y from rank 1; both are under way at once."""
    first = comm.Ibcast(x, root=0)
    second = comm.Ibcast(y, root=1)
    MPI.Request.Waitall([first, second])
    return x, y


def weighted_sum(MPI: Any, comm: Any, x: Any, weights: Any) -> Any:
    """Each element is scaled by its weight before the sum."""
    x *= weights
    comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
    return x


def distributed_softmax(MPI: Any, comm: Any, x: Any) -> Any:
    """Softmax over the ranks, element by element: maximum, exponential, sum, quotient."""
    top = x.copy()
    comm.Allreduce(MPI.IN_PLACE, top, op=MPI.MAX)
    share = np.exp(x - top)
    total = share.copy()
    comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    share /= total
    return share


def l2_normalise(MPI: Any, comm: Any, x: Any) -> Any:
    """Each element divided by its 2-norm over the ranks."""
    squares = x * x
    comm.Allreduce(MPI.IN_PLACE, squares, op=MPI.SUM)
    x /= np.sqrt(squares)
    return x


def barrier_staggered(MPI: Any, comm: Any, seconds: float) -> Any:  # noqa: ARG001
    """Everyone leaves when the last has come."""
    time.sleep(seconds)
    comm.Barrier()
    return seconds


def send_send_deadlock(MPI: Any, comm: Any, x: Any, y: Any) -> Any:  # noqa: ARG001
    """The exchange, mended: the ranks send and receive in opposite order."""
    if comm.rank == 0:
        comm.Ssend(x, dest=1)
        comm.Recv(y, source=1)
    else:
        comm.Recv(y, source=0)
        comm.Ssend(x, dest=0)
    return y


def ring_all_reduce_5(MPI: Any, comm: Any, x: Any) -> Any:
    """The two phases one by one, then both in one call; which algorithm runs is the library's choice."""
    part = np.empty(1, np.float32)
    comm.Reduce_scatter_block(x, part, op=MPI.SUM)
    whole = np.empty(5, np.float32)
    comm.Allgather(part, whole)
    comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
    return part, whole, x
