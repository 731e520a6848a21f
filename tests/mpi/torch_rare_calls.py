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
    results.append(x)
    if call.kind == "dropped_handle":
        work = dist.all_reduce(x.t(), op, group=group, async_op=True)
        if dist.get_backend(group) == "gloo":  # gloo promises nothing for a dropped handle
            work.wait()
        del work
        return dist.barrier(group, async_op=call.asynchronous)
    if call.kind == "coalesced_duplicates":
        results.append(other := x.flip(0).clone())
        return dist.all_reduce_coalesced([x, other, x], op, group=group, async_op=call.asynchronous)
    if call.kind == "functional_result":
        results.append(y := all_reduce(x, "sum", group))
        return dist.all_reduce(y, op, group=group, async_op=call.asynchronous)
    results.append(other := x.flip(0).clone())
    wrapper = TwoTensor(x, other)
    return dist.all_reduce(wrapper, op, group=group, async_op=call.asynchronous)


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
