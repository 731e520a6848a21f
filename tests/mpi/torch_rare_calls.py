"""Less common calls of torch.distributed, which `torch_programs` draws: dropped handles, duplicates, wrappers, Join."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.testing._internal.two_tensor import TwoTensor

if TYPE_CHECKING:
    from tests.mpi.torch_programs import Call

KINDS = ("dropped_handle", "coalesced_duplicates", "functional_result", "two_tensor", "join")


def start_rare(call: Call, group: Any, results: list[Any], x: torch.Tensor, op: Any) -> Any:
    """Start an operation of `KINDS`; append its results, and return its work if it is asynchronous.

    Args:
        x: this rank's tensor.
        op: the reduction of the call.
    """
    if call.kind == "join":
        train_unevenly(call, group, results)
        return None
    if call.kind == "dropped_handle":
        return drop_handles(call, group, results, x, op)
    results.append(x)
    if call.kind == "coalesced_duplicates":
        results.append(other := x.flip(0).clone())
        return dist.all_reduce_coalesced([x, other, x], op, group=group, async_op=call.asynchronous)
    if call.kind == "functional_result":
        results.append(y := all_reduce(x, "sum", group))
        return dist.all_reduce(y, op, group=group, async_op=call.asynchronous)
    results.append(other := x.flip(0).clone())
    wrapper = TwoTensor(x, other)
    if call.sizes[0] > 1:
        return dist.broadcast(wrapper, dist.get_global_rank(group, call.root), group=group, async_op=call.asynchronous)
    return dist.all_reduce(wrapper, op, group=group, async_op=call.asynchronous)


def drop_handles(call: Call, group: Any, results: list[Any], x: torch.Tensor, op: Any) -> Any:
    """Start operations whose handles are dropped, and a barrier, which waits for them; append the results."""
    is_gloo = dist.get_backend(group) == "gloo"
    columns = x.repeat(2, 1).t()  # hpccoll copies such a result to its place when the operation is complete
    columns = columns.contiguous() if is_gloo else columns
    gathered = torch.zeros(len(dist.get_process_group_ranks(group)) * len(x), dtype=x.dtype)
    results += [x, columns, gathered]
    works = [
        dist.all_gather_into_tensor(gathered, x.clone(), group=group, async_op=True),
        dist.all_reduce(x.t(), op, group=group, async_op=True),
        dist.broadcast(columns, dist.get_global_rank(group, call.root), group=group, async_op=True),
    ]
    if is_gloo:  # gloo promises nothing for a dropped handle
        for work in works:
            work.wait()
    del works
    return dist.barrier(group, async_op=call.asynchronous)


def train_unevenly(call: Call, group: Any, results: list[Any]) -> None:
    """Append the gradients of a training under Join, in which ranks make different numbers of steps.

    Gradients are rounded, because their sum depends on its order if three or more ranks divide before they add.
    """
    me = dist.get_rank(group)
    torch.manual_seed(call.number)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).double(), process_group=group)
    with net.join(divide_by_initial_world_size=call.asynchronous):
        for step in range(1 + call.sizes[me] % 3):
            net(torch.full((2, 3), 1.0 + me + step, dtype=torch.float64)).sum().backward()
    results += [each.grad.mul(2**20).round() for each in net.parameters() if each.grad is not None]
