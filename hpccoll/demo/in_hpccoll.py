"""The examples of `hpccoll demo` in calls of hpccoll; the command runs these functions and prints their bodies.

Each function takes a communicator and this rank's arrays, and returns this rank's resulting values.
"""
# ruff: noqa: RET504 - results have names because `hpccoll demo` does not print the return statement

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hpccoll import premul_sum


def broadcast(comm: Any, x: Any) -> Any:
    """Overwrite x on every rank with rank 0's x, and return x."""
    comm.broadcast(x, root=0)
    return x


def reduce(comm: Any, x: Any) -> Any:
    """Overwrite x on rank 0 with the sum of every rank's x, and return x."""
    comm.reduce(x, root=0, op="sum")
    return x


def all_reduce(comm: Any, x: Any) -> Any:
    """Overwrite x on every rank with the sum of every rank's x, and return x."""
    comm.all_reduce(x, op="sum")
    return x


def gather(comm: Any, x: Any) -> Any:
    """On rank 0, return an array whose row r is rank r's x; on other ranks, return None."""
    rows = comm.gather(x, root=0)
    return rows


def all_gather(comm: Any, x: Any) -> Any:
    """On every rank, return an array whose row r is rank r's x."""
    rows = comm.all_gather(x)
    return rows


def scatter(comm: Any, x: Any) -> Any:
    """On rank r, return row r of the matrix x of rank 0."""
    row = np.empty(5, np.float32)
    comm.scatter(x, root=0, out=row)
    return row


def reduce_scatter(comm: Any, x: Any) -> Any:
    """On rank r, return row r of the sum of all ranks' matrices x."""
    rows = comm.reduce_scatter(x, op="sum")  # one row
    return rows[0]


def send_recv_chain(comm: Any, x: Any) -> Any:
    """Send x from rank 0 to rank 1, which doubles x and sends it to rank 2, by blocking calls; return x."""
    if comm.rank == 0:
        comm.send(x, dest=1)
    elif comm.rank == 1:
        comm.recv(x, source=0)
        x *= 2
        comm.send(x, dest=2)
    else:
        comm.recv(x, source=1)
    return x


def send_recv_chain_async(comm: Any, x: Any) -> Any:
    """Send x along ranks 0, 1 and 2 (rank 1 doubles x), by isend and irecv with a computation before each wait.

    Returns x.
    """
    sent = [comm.isend(x, dest=1)] if comm.rank == 0 else []
    if comm.rank > 0:
        coming = comm.irecv(x, source=comm.rank - 1)
        _ = sum(k * k for k in range(1000))  # any work that does not use x
        coming.wait()
    if comm.rank == 1:
        x *= 2
        sent.append(comm.isend(x, dest=2))
    _ = sum(k * k for k in range(1000))  # any work that does not change x
    for work in sent:
        work.wait()
    return x


def new_group(comm: Any, x: Any) -> Any:
    """Sum x in place over ranks {0, 1} and over {2, 3}; return this rank's sum, and element 0 of both sums."""
    mine = [0, 1] if comm.rank < 2 else [2, 3]
    pair = comm.new_group(mine)
    pair.all_reduce(x, op="sum")
    both = np.zeros(2, np.float32)
    both[comm.rank // 2] = x[0]
    comm.all_reduce(both, op="max")
    pair.close()
    return x, both


def two_broadcasts(comm: Any, x: Any, y: Any) -> Any:
    """Broadcast x from rank 0 and y from rank 1, with both in flight at the same time; return x and y."""
    first = comm.broadcast(x, root=0, async_op=True)
    second = comm.broadcast(y, root=1, async_op=True)
    first.wait()
    second.wait()
    return x, y


def weighted_sum(comm: Any, x: Any, weights: Any) -> Any:
    """Multiply x elementwise by `weights`, then overwrite x on every rank with the sum of every rank's x; return x."""
    comm.all_reduce(x, op=premul_sum(weights))
    return x


def distributed_softmax(comm: Any, x: Any) -> Any:
    """Return the softmax over ranks of each element: exp(x) divided by the sum of every rank's exp(x)."""
    top = x.copy()
    comm.all_reduce(top, op="max")
    share = np.exp(x - top)
    total = share.copy()
    comm.all_reduce(total, op="sum")
    share /= total
    return share


def l2_normalise(comm: Any, x: Any) -> Any:
    """Divide each element of x, in place, by the 2-norm of this element over all ranks; return x."""
    squares = x * x
    comm.all_reduce(squares, op="sum")
    x /= np.sqrt(squares)
    return x


def barrier_staggered(comm: Any, seconds: float) -> Any:
    """Sleep for `seconds`, then wait in a barrier until all ranks have entered it; return `seconds`."""
    time.sleep(seconds)
    comm.barrier()
    return seconds


def send_send_deadlock(comm: Any, x: Any, y: Any) -> Any:
    """Exchange x between two ranks, into y, without deadlock: rank 0 sends first, rank 1 receives first; return y."""
    if comm.rank == 0:
        comm.send(x, dest=1)
        comm.recv(y, source=1)
    else:
        comm.recv(y, source=0)
        comm.send(x, dest=0)
    return y


def ring_all_reduce_5(comm: Any, x: Any) -> Any:
    """Sum x over the ranks by reduce_scatter and then all_gather, and by all_reduce; return the three results."""
    part = comm.reduce_scatter(x, op="sum", algorithm="ring")
    rows = comm.all_gather(part, algorithm="ring")
    comm.all_reduce(x, op="sum", algorithm="ring")
    return part, rows.reshape(-1), x


def data_parallel(comm: Any, w: Any, x: Any, y: Any) -> Any:
    """Take a training step of a linear model with weights w: each rank has b samples x (b, 2) and targets y of its own.

    Gradients are averaged over the ranks. Returns the gradient and the new weights.
    """
    gradient = (x @ w - y) @ x / (len(x) * comm.size)
    comm.all_reduce(gradient, op="sum")
    w -= gradient / 2
    return gradient, w


def tensor_parallel(comm: Any, x: Any, first: Any, second: Any) -> Any:
    """Apply an MLP that is split over the ranks (tensor parallelism) to the b samples x (b, in).

    This rank has the weights `first` (in, hidden / ranks) and `second` (hidden / ranks, out) of its hidden features.
    Returns this rank's hidden features, and the output summed over the ranks.
    """
    hidden = np.maximum(x @ first, 0)  # (b, hidden / ranks)
    y = hidden @ second  # (b, out), an addend
    comm.all_reduce(y, op="sum")
    return hidden, y


def sequence_parallel(comm: Any, x: Any, first: Any, second: Any) -> Any:
    """Apply the MLP of `tensor_parallel` to tokens that are split over the ranks; x (1, in) is this rank's token.

    Returns the tokens of all ranks, and the output for this rank's token.
    """
    tokens = comm.all_gather(x).reshape(-1, x.shape[1])
    y = np.maximum(tokens @ first, 0) @ second  # (tokens, out), an addend
    own = comm.reduce_scatter(y, op="sum")
    return tokens, own.reshape(x.shape)


def pipeline(comm: Any, x: Any, w: Any) -> Any:
    """Run samples forward and backward through a pipeline, in which each rank has one layer, y = w x.

    Returns this rank's inputs, and the gradient with respect to w of the sum of the last layer's outputs.
    """
    gradient, last = np.zeros(1, np.float32), comm.size - 1
    for i in range(len(x)):
        if comm.rank > 0:
            comm.recv(x[i : i + 1], source=comm.rank - 1)
        if comm.rank < last:
            comm.send(w * x[i : i + 1], dest=comm.rank + 1)
    for i in range(len(x)):
        back = np.ones(1, np.float32)
        if comm.rank < last:
            comm.recv(back, source=comm.rank + 1)
        gradient += back * x[i]
        if comm.rank > 0:
            comm.send(w * back, dest=comm.rank - 1)
    return x, gradient


def expert_parallel(comm: Any, x: Any, w: Any) -> Any:
    """Send token i of every rank to the expert of rank i, which multiplies it by w, and send the result back.

    Returns the outputs of this rank's expert, and the processed tokens of this rank.
    """
    tokens = comm.all_to_all(x) * w
    y = comm.all_to_all(tokens)
    return tokens, y


def zero(comm: Any, w: Any, x: Any, y: Any) -> Any:
    """Take the training step of `data_parallel`, where each rank updates only its part of the weights w (ZeRO).

    Returns this rank's part of the gradient, and all new weights.
    """
    gradient = (x @ w - y) @ x / (len(x) * comm.size)
    own = comm.reduce_scatter(gradient.reshape(comm.size, -1), op="sum").reshape(-1)
    part = w.reshape(comm.size, -1)[comm.rank] - own / 2
    w = comm.all_gather(part).reshape(-1)
    return own, w


def context_parallel(comm: Any, q: Any, k: Any, v: Any) -> Any:
    """Return the attention of this rank's queries q to the keys k and values v of all ranks (ring attention).

    Keys and values travel from rank to rank.
    """
    total, weight, dest = np.zeros_like(v), np.zeros_like(q), (comm.rank + 1) % comm.size
    block = np.concatenate([k, v], axis=1)
    for _ in range(comm.size):
        score = np.exp(q @ block[:, :1].T)
        total += score @ block[:, 1:]
        weight += score.sum(1, keepdims=True)
        sent, coming = comm.isend(block.copy(), dest=dest), np.empty_like(block)
        comm.recv(coming, source=(comm.rank - 1) % comm.size)
        sent.wait()
        block = coming
    return total / weight
