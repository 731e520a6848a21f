"""The examples of `hpccoll demo` in calls of torch.distributed; the command prints their bodies, and tests run them.

Each function takes the module torch, the module torch.distributed (as `dist`, with an initialized default group) and
this rank's tensors, and returns this rank's resulting values, as the function of the same name in in_hpccoll.py does.
"""

from __future__ import annotations

import time
from typing import Any


def broadcast(torch: Any, dist: Any, x: Any) -> Any:  # noqa: ARG001 - every example takes both modules
    """Overwrite x on every rank with rank 0's x, and return x."""
    dist.broadcast(x, src=0)
    return x


def reduce(torch: Any, dist: Any, x: Any) -> Any:  # noqa: ARG001
    """Overwrite x on rank 0 with the sum of every rank's x, and on other ranks with undefined values; return x."""
    dist.reduce(x, dst=0, op=dist.ReduceOp.SUM)
    return x


def all_reduce(torch: Any, dist: Any, x: Any) -> Any:  # noqa: ARG001
    """Overwrite x on every rank with the sum of every rank's x, and return x."""
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    return x


def gather(torch: Any, dist: Any, x: Any) -> Any:
    """On rank 0, return a list whose element r is rank r's x; on other ranks, return None."""
    rows = [torch.empty_like(x) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(x, rows, dst=0)
    return rows


def all_gather(torch: Any, dist: Any, x: Any) -> Any:
    """On every rank, return a list whose element r is rank r's x."""
    rows = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, x)
    return rows


def scatter(torch: Any, dist: Any, x: Any) -> Any:
    """On rank r, return row r of the matrix x of rank 0."""
    row = torch.empty(5)
    dist.scatter(row, list(x) if dist.get_rank() == 0 else None, src=0)
    return row


def reduce_scatter(torch: Any, dist: Any, x: Any) -> Any:
    """On rank r, return row r of the sum of all ranks' matrices x."""
    row = torch.empty_like(x[0])
    dist.reduce_scatter(row, list(x), op=dist.ReduceOp.SUM)
    return row


def send_recv_chain(torch: Any, dist: Any, x: Any) -> Any:  # noqa: ARG001
    """Send x from rank 0 to rank 1, which doubles x and sends it to rank 2, by blocking calls; return x."""
    rank = dist.get_rank()
    if rank == 0:
        dist.send(x, dst=1)
    elif rank == 1:
        dist.recv(x, src=0)
        x *= 2
        dist.send(x, dst=2)
    else:
        dist.recv(x, src=1)
    return x


def send_recv_chain_async(torch: Any, dist: Any, x: Any) -> Any:  # noqa: ARG001
    """Send x along ranks 0, 1 and 2 (rank 1 doubles x), by isend and irecv with a computation before each wait."""
    rank = dist.get_rank()
    sent = [dist.isend(x, dst=1)] if rank == 0 else []
    if rank > 0:
        coming = dist.irecv(x, src=rank - 1)
        _ = sum(k * k for k in range(1000))  # any work that does not use x
        coming.wait()
    if rank == 1:
        x *= 2
        sent.append(dist.isend(x, dst=2))
    _ = sum(k * k for k in range(1000))  # any work that does not change x
    for work in sent:
        work.wait()
    return x


def new_group(torch: Any, dist: Any, x: Any) -> Any:
    """Sum x in place over ranks {0, 1} and over {2, 3}; return this rank's sum, and element 0 of both sums."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # every rank makes both
    dist.all_reduce(x, op=dist.ReduceOp.SUM, group=pairs[rank // 2])
    both = torch.zeros(2)
    both[rank // 2] = x[0]
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return x, both


def two_broadcasts(torch: Any, dist: Any, x: Any, y: Any) -> Any:  # noqa: ARG001
    """Broadcast x from rank 0 and y from rank 1, with both in flight at the same time; return x and y."""
    first = dist.broadcast(x, src=0, async_op=True)
    second = dist.broadcast(y, src=1, async_op=True)
    first.wait()
    second.wait()
    return x, y


def weighted_sum(torch: Any, dist: Any, x: Any, weights: Any) -> Any:  # noqa: ARG001
    """Multiply x elementwise by `weights`, then overwrite x on every rank with the sum of every rank's x; return x."""
    x *= weights
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    return x


def distributed_softmax(torch: Any, dist: Any, x: Any) -> Any:
    """Return the softmax over ranks of each element: exp(x) divided by the sum of every rank's exp(x)."""
    top = x.clone()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    share = torch.exp(x - top)
    total = share.clone()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    share /= total
    return share


def l2_normalise(torch: Any, dist: Any, x: Any) -> Any:
    """Divide each element of x, in place, by the 2-norm of this element over all ranks; return x."""
    squares = x * x
    dist.all_reduce(squares, op=dist.ReduceOp.SUM)
    x /= torch.sqrt(squares)
    return x


def barrier_staggered(torch: Any, dist: Any, seconds: float) -> Any:  # noqa: ARG001
    """Sleep for `seconds`, then wait in a barrier until all ranks have entered it; return `seconds`."""
    time.sleep(seconds)
    dist.barrier()
    return seconds


def send_send_deadlock(torch: Any, dist: Any, x: Any, y: Any) -> Any:  # noqa: ARG001
    """Exchange x between two ranks, into y, without deadlock: rank 0 sends first, rank 1 receives first; return y."""
    if dist.get_rank() == 0:
        dist.send(x, dst=1)
        dist.recv(y, src=1)
    else:
        dist.recv(y, src=0)
        dist.send(x, dst=0)
    return y


def ring_all_reduce_5(torch: Any, dist: Any, x: Any) -> Any:
    """Sum x over the ranks by reduce_scatter and then all_gather, and by all_reduce; return the three results."""
    part, whole = torch.empty(1), torch.empty(5)
    dist.reduce_scatter(part, list(x.split(1)), op=dist.ReduceOp.SUM)
    dist.all_gather(list(whole.split(1)), part)
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    return part, whole, x


def data_parallel(torch: Any, dist: Any, w: Any, x: Any, y: Any) -> Any:  # noqa: ARG001
    """Take a training step of a linear model with weights w: each rank has b samples x (b, 2) and targets y of its own.

    Gradients are averaged over the ranks.
    """
    gradient = (x @ w - y) @ x / (len(x) * dist.get_world_size())
    dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
    w -= gradient / 2
    return gradient, w


def tensor_parallel(torch: Any, dist: Any, x: Any, first: Any, second: Any) -> Any:
    """Apply an MLP that is split over the ranks (tensor parallelism) to the b samples x (b, in)."""
    hidden = torch.relu(x @ first)  # (b, hidden / ranks)
    y = hidden @ second  # (b, out), an addend
    dist.all_reduce(y, op=dist.ReduceOp.SUM)
    return hidden, y


def sequence_parallel(torch: Any, dist: Any, x: Any, first: Any, second: Any) -> Any:
    """Apply the MLP of `tensor_parallel` to tokens that are split over the ranks; x (1, in) is this rank's token."""
    tokens, own = torch.empty(dist.get_world_size(), x.shape[1]), torch.empty_like(x)
    dist.all_gather_into_tensor(tokens, x)
    y = torch.relu(tokens @ first) @ second  # (tokens, out), an addend
    dist.reduce_scatter_tensor(own, y, op=dist.ReduceOp.SUM)
    return tokens, own


def pipeline(torch: Any, dist: Any, x: Any, w: Any) -> Any:
    """Run samples forward and backward through a pipeline, in which each rank has one layer, y = w x."""
    gradient, rank, last = torch.zeros(1), dist.get_rank(), dist.get_world_size() - 1
    for i in range(len(x)):
        if rank > 0:
            dist.recv(x[i : i + 1], src=rank - 1)
        if rank < last:
            dist.send(w * x[i : i + 1], dst=rank + 1)
    for i in range(len(x)):
        back = torch.ones(1)
        if rank < last:
            dist.recv(back, src=rank + 1)
        gradient += back * x[i]
        if rank > 0:
            dist.send(w * back, dst=rank - 1)
    return x, gradient


def expert_parallel(torch: Any, dist: Any, x: Any, w: Any) -> Any:
    """Send token i of every rank to the expert of rank i, which multiplies it by w, and send the result back."""
    tokens, y = torch.empty_like(x), torch.empty_like(x)
    dist.all_to_all_single(tokens, x)
    tokens *= w
    dist.all_to_all_single(y, tokens)
    return tokens, y


def zero(torch: Any, dist: Any, w: Any, x: Any, y: Any) -> Any:
    """Take the training step of `data_parallel`, where each rank updates only its part of the weights w (ZeRO)."""
    size = dist.get_world_size()
    gradient = (x @ w - y) @ x / (len(x) * size)
    own = torch.empty(len(w) // size)
    dist.reduce_scatter_tensor(own, gradient, op=dist.ReduceOp.SUM)
    part = w.view(size, -1)[dist.get_rank()] - own / 2
    dist.all_gather_into_tensor(w, part)
    return own, w


def context_parallel(torch: Any, dist: Any, q: Any, k: Any, v: Any) -> Any:
    """Return the attention of this rank's queries q to the keys k and values v of all ranks (ring attention)."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total, weight, block = torch.zeros_like(v), torch.zeros_like(q), torch.cat([k, v], 1)
    for _ in range(size):
        score = torch.exp(q @ block[:, :1].T)
        total += score @ block[:, 1:]
        weight += score.sum(1, keepdim=True)
        sent, coming = dist.isend(block.clone(), (rank + 1) % size), torch.empty_like(block)
        dist.recv(coming, (rank - 1) % size)
        sent.wait()
        block = coming
    return total / weight
