"""The examples of `hpccoll demo` in calls of mpi4py; the command prints the functions' bodies, and tests run them.

Each function takes the module mpi4py.MPI, a communicator and this rank's arrays, and returns this rank's new values.
Arguments and results are those of the function of the same name in in_hpccoll.py.
"""
# ruff: noqa: N803 - MPI is the conventional name of the module mpi4py.MPI

from __future__ import annotations

import time
from typing import Any

import numpy as np


def broadcast(MPI: Any, comm: Any, x: Any) -> Any:  # noqa: ARG001 - every example takes the module
    """Overwrite x on every rank with rank 0's x, and return x."""
    comm.Bcast(x, root=0)
    return x


def reduce(MPI: Any, comm: Any, x: Any) -> Any:
    """Overwrite x on rank 0 with the sum of every rank's x, and return x."""
    if comm.rank == 0:
        comm.Reduce(MPI.IN_PLACE, x, op=MPI.SUM, root=0)
    else:
        comm.Reduce(x, None, op=MPI.SUM, root=0)
    return x


def all_reduce(MPI: Any, comm: Any, x: Any) -> Any:
    """Overwrite x on every rank with the sum of every rank's x, and return x."""
    comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
    return x


def gather(MPI: Any, comm: Any, x: Any) -> Any:  # noqa: ARG001
    """On rank 0, return an array whose row r is rank r's x; on other ranks, return None."""
    rows = np.empty((comm.size, *x.shape), x.dtype) if comm.rank == 0 else None
    comm.Gather(x, rows, root=0)
    return rows


def all_gather(MPI: Any, comm: Any, x: Any) -> Any:  # noqa: ARG001
    """On every rank, return an array whose row r is rank r's x."""
    rows = np.empty((comm.size, *x.shape), x.dtype)
    comm.Allgather(x, rows)
    return rows


def scatter(MPI: Any, comm: Any, x: Any) -> Any:  # noqa: ARG001
    """On rank r, return row r of the matrix x of rank 0."""
    row = np.empty(5, np.float32)
    comm.Scatter(x, row, root=0)
    return row


def reduce_scatter(MPI: Any, comm: Any, x: Any) -> Any:
    """On rank r, return row r of the sum of all ranks' matrices x."""
    row = np.empty(x.shape[1:], x.dtype)
    comm.Reduce_scatter_block(x, row, op=MPI.SUM)
    return row


def send_recv_chain(MPI: Any, comm: Any, x: Any) -> Any:  # noqa: ARG001
    """Send x from rank 0 to rank 1, which doubles x and sends it to rank 2, by blocking calls; return x."""
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
    """Send x along ranks 0, 1 and 2 (rank 1 doubles x), by isend and irecv with a computation before each wait."""
    sent = [comm.Isend(x, dest=1)] if comm.rank == 0 else []
    if comm.rank > 0:
        coming = comm.Irecv(x, source=comm.rank - 1)
        _ = sum(k * k for k in range(1000))  # any work that does not use x
        coming.Wait()
    if comm.rank == 1:
        x *= 2
        sent.append(comm.Isend(x, dest=2))
    _ = sum(k * k for k in range(1000))  # any work that does not change x
    MPI.Request.Waitall(sent)
    return x


def new_group(MPI: Any, comm: Any, x: Any) -> Any:
    """Sum x in place over ranks {0, 1} and over {2, 3}; return this rank's sum, and element 0 of both sums."""
    pair = comm.Split(color=comm.rank // 2)
    pair.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
    both = np.zeros(2, np.float32)
    both[comm.rank // 2] = x[0]
    comm.Allreduce(MPI.IN_PLACE, both, op=MPI.MAX)
    pair.Free()
    return x, both


def two_broadcasts(MPI: Any, comm: Any, x: Any, y: Any) -> Any:
    """Broadcast x from rank 0 and y from rank 1, with both in flight at the same time; return x and y."""
    first = comm.Ibcast(x, root=0)
    second = comm.Ibcast(y, root=1)
    MPI.Request.Waitall([first, second])
    return x, y


def weighted_sum(MPI: Any, comm: Any, x: Any, weights: Any) -> Any:
    """Multiply x elementwise by `weights`, then overwrite x on every rank with the sum of every rank's x; return x."""
    x *= weights
    comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
    return x


def distributed_softmax(MPI: Any, comm: Any, x: Any) -> Any:
    """Return the softmax over ranks of each element: exp(x) divided by the sum of every rank's exp(x)."""
    top = x.copy()
    comm.Allreduce(MPI.IN_PLACE, top, op=MPI.MAX)
    share = np.exp(x - top)
    total = share.copy()
    comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    share /= total
    return share


def l2_normalise(MPI: Any, comm: Any, x: Any) -> Any:
    """Divide each element of x, in place, by the 2-norm of this element over all ranks; return x."""
    squares = x * x
    comm.Allreduce(MPI.IN_PLACE, squares, op=MPI.SUM)
    x /= np.sqrt(squares)
    return x


def barrier_staggered(MPI: Any, comm: Any, seconds: float) -> Any:  # noqa: ARG001
    """Sleep for `seconds`, then wait in a barrier until all ranks have entered it; return `seconds`."""
    time.sleep(seconds)
    comm.Barrier()
    return seconds


def send_send_deadlock(MPI: Any, comm: Any, x: Any, y: Any) -> Any:  # noqa: ARG001
    """Exchange x between two ranks, into y, without deadlock: rank 0 sends first, rank 1 receives first; return y."""
    if comm.rank == 0:
        comm.Ssend(x, dest=1)
        comm.Recv(y, source=1)
    else:
        comm.Recv(y, source=0)
        comm.Ssend(x, dest=0)
    return y


def ring_all_reduce_5(MPI: Any, comm: Any, x: Any) -> Any:
    """Sum x over the ranks by reduce_scatter and then all_gather, and by all_reduce; return the three results."""
    part = np.empty(1, np.float32)
    comm.Reduce_scatter_block(x, part, op=MPI.SUM)
    whole = np.empty(5, np.float32)
    comm.Allgather(part, whole)
    comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
    return part, whole, x


def data_parallel(MPI: Any, comm: Any, w: Any, x: Any, y: Any) -> Any:
    """Take a training step of a linear model with weights w: each rank has b samples x (b, 2) and targets y of its own.

    Gradients are averaged over the ranks.
    """
    gradient = (x @ w - y) @ x / (len(x) * comm.size)
    comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)
    w -= gradient / 2
    return gradient, w


def tensor_parallel(MPI: Any, comm: Any, x: Any, first: Any, second: Any) -> Any:
    """Apply an MLP that is split over the ranks (tensor parallelism) to the b samples x (b, in)."""
    hidden = np.maximum(x @ first, 0)  # (b, hidden / ranks)
    y = hidden @ second  # (b, out), an addend
    comm.Allreduce(MPI.IN_PLACE, y, op=MPI.SUM)
    return hidden, y


def sequence_parallel(MPI: Any, comm: Any, x: Any, first: Any, second: Any) -> Any:
    """Apply the MLP of `tensor_parallel` to tokens that are split over the ranks; x (1, in) is this rank's token."""
    tokens, own = np.empty((comm.size, x.shape[1]), np.float32), np.empty_like(x)
    comm.Allgather(x, tokens)
    y = np.maximum(tokens @ first, 0) @ second  # (tokens, out), an addend
    comm.Reduce_scatter_block(y, own, op=MPI.SUM)
    return tokens, own


def pipeline(MPI: Any, comm: Any, x: Any, w: Any) -> Any:  # noqa: ARG001
    """Run samples forward and backward through a pipeline, in which each rank has one layer, y = w x."""
    gradient, last = np.zeros(1, np.float32), comm.size - 1
    for i in range(len(x)):
        if comm.rank > 0:
            comm.Recv(x[i : i + 1], source=comm.rank - 1)
        if comm.rank < last:
            comm.Send(w * x[i : i + 1], dest=comm.rank + 1)
    for i in range(len(x)):
        back = np.ones(1, np.float32)
        if comm.rank < last:
            comm.Recv(back, source=comm.rank + 1)
        gradient += back * x[i]
        if comm.rank > 0:
            comm.Send(w * back, dest=comm.rank - 1)
    return x, gradient


def expert_parallel(MPI: Any, comm: Any, x: Any, w: Any) -> Any:  # noqa: ARG001
    """Send token i of every rank to the expert of rank i, which multiplies it by w, and send the result back."""
    tokens, y = np.empty_like(x), np.empty_like(x)
    comm.Alltoall(x, tokens)
    tokens *= w
    comm.Alltoall(tokens, y)
    return tokens, y


def zero(MPI: Any, comm: Any, w: Any, x: Any, y: Any) -> Any:
    """Take the training step of `data_parallel`, where each rank updates only its part of the weights w (ZeRO)."""
    gradient = (x @ w - y) @ x / (len(x) * comm.size)
    own = np.empty(len(w) // comm.size, np.float32)
    comm.Reduce_scatter_block(gradient, own, op=MPI.SUM)
    part = w.reshape(comm.size, -1)[comm.rank] - own / 2
    comm.Allgather(part, w)
    return own, w


def context_parallel(MPI: Any, comm: Any, q: Any, k: Any, v: Any) -> Any:  # noqa: ARG001
    """Return the attention of this rank's queries q to the keys k and values v of all ranks (ring attention)."""
    total, weight, dest = np.zeros_like(v), np.zeros_like(q), (comm.rank + 1) % comm.size
    block = np.concatenate([k, v], axis=1)
    for _ in range(comm.size):
        score = np.exp(q @ block[:, :1].T)
        total += score @ block[:, 1:]
        weight += score.sum(1, keepdims=True)
        comm.Sendrecv_replace(block, dest=dest, source=(comm.rank - 1) % comm.size)
    return total / weight
