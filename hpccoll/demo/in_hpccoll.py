"""Each example as a call of hpccoll. These very functions run in `hpccoll demo`, and their bodies are what it shows.

Each takes a communicator and this rank's arrays, and returns what the rank holds afterwards.
"""
# ruff: noqa: RET504 - a result is given its name first, since the last return is not shown

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hpccoll import premul_sum


def broadcast(comm: Any, x: Any) -> Any:
    """Rank 0's x becomes everyone's."""
    comm.broadcast(x, root=0)
    return x


def reduce(comm: Any, x: Any) -> Any:
    """Rank 0 gets the sum."""
    comm.reduce(x, root=0, op="sum")
    return x


def all_reduce(comm: Any, x: Any) -> Any:
    """Everyone gets the sum."""
    comm.all_reduce(x, op="sum")
    return x


def gather(comm: Any, x: Any) -> Any:
    """Rank 0 gets everyone's x, in rank order."""
    rows = comm.gather(x, root=0)
    return rows


def all_gather(comm: Any, x: Any) -> Any:
    """Everyone gets everyone's x, in rank order."""
    rows = comm.all_gather(x)
    return rows


def scatter(comm: Any, x: Any) -> Any:
    """Rank r gets row r of rank 0's x."""
    row = np.empty(5, np.float32)
    comm.scatter(x, root=0, out=row)
    return row


def reduce_scatter(comm: Any, x: Any) -> Any:
    """Rank r gets the sum of everyone's row r."""
    row = comm.reduce_scatter(x, op="sum")
    return row


def send_recv_chain(comm: Any, x: Any) -> Any:
    """0 sends to 1, which doubles it and sends it on to 2."""
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
    """The same chain; between start and wait each rank works on something else."""
    sent = [comm.isend(x, dest=1)] if comm.rank == 0 else []
    if comm.rank > 0:
        coming = comm.irecv(x, source=comm.rank - 1)
        _ = sum(k * k for k in range(1000))  # anything that leaves x alone
        coming.wait()
    if comm.rank == 1:
        x *= 2
        sent.append(comm.isend(x, dest=2))
    _ = sum(k * k for k in range(1000))  # x may be read, not changed
    for work in sent:
        work.wait()
    return x


def new_group(comm: Any, x: Any) -> Any:
    """Pairs sum among themselves; then everyone learns both sums by a maximum."""
    mine = [0, 1] if comm.rank < 2 else [2, 3]
    pair = comm.new_group(mine)
    pair.all_reduce(x, op="sum")
    both = np.zeros(2, np.float32)
    both[comm.rank // 2] = x[0]
    comm.all_reduce(both, op="max")
    pair.close()
    return x, both


def two_broadcasts(comm: Any, x: Any, y: Any) -> Any:
    """x comes from rank 0, y from rank 1; both are under way at once."""
    first = comm.broadcast(x, root=0, async_op=True)
    second = comm.broadcast(y, root=1, async_op=True)
    first.wait()
    second.wait()
    return x, y


def weighted_sum(comm: Any, x: Any, weights: Any) -> Any:
    """Each element is scaled by its weight before the sum."""
    comm.all_reduce(x, op=premul_sum(weights))
    return x


def distributed_softmax(comm: Any, x: Any) -> Any:
    """Softmax over the ranks, element by element: maximum, exponential, sum, quotient."""
    top = x.copy()
    comm.all_reduce(top, op="max")
    share = np.exp(x - top)
    total = share.copy()
    comm.all_reduce(total, op="sum")
    share /= total
    return share


def l2_normalise(comm: Any, x: Any) -> Any:
    """Each element divided by its 2-norm over the ranks."""
    squares = x * x
    comm.all_reduce(squares, op="sum")
    x /= np.sqrt(squares)
    return x


def barrier_staggered(comm: Any, seconds: float) -> Any:
    """Everyone leaves when the last has come."""
    time.sleep(seconds)
    comm.barrier()
    return seconds


def send_send_deadlock(comm: Any, x: Any, y: Any) -> Any:
    """The exchange, mended: the ranks send and receive in opposite order."""
    if comm.rank == 0:
        comm.send(x, dest=1)
        comm.recv(y, source=1)
    else:
        comm.recv(y, source=0)
        comm.send(x, dest=0)
    return y


def ring_all_reduce_5(comm: Any, x: Any) -> Any:
    """The two phases one by one, then both in one call."""
    part = comm.reduce_scatter(x, op="sum", algorithm="ring")
    rows = comm.all_gather(part, algorithm="ring")
    comm.all_reduce(x, op="sum", algorithm="ring")
    return part, rows.reshape(-1), x
