"""Trains small models by data, sharded and tensor parallelism over Gloo, and prints digests of the parameters.

Arguments: the TCP port at which the ranks meet, and `compiled` to train compiled models only. RANK and WORLD_SIZE are
in the environment. Rank 1 sleeps before each of its backward passes of the model "plain".
"""

import gc
import os
import sys
import time
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS, SLEEP_S = 4, 0.05
WIDTHS = (8, 64, 64, 3)


class Branches(nn.Module):  # type: ignore[misc]
    """A model with a parameter that takes part in every other step only."""

    def __init__(self):
        super().__init__()
        self.used, self.unused, self.step = nn.Linear(8, 3), nn.Linear(3, 3), 0

    def forward(self, x):
        self.step += 1
        return self.unused(self.used(x)) if self.step % 2 else self.used(x)


class Table(nn.Module):  # type: ignore[misc]
    """A table of vectors, whose gradient is sparse."""

    def __init__(self):
        super().__init__()
        self.vectors = nn.Embedding(4, 3, sparse=True)

    def forward(self, x):
        return self.vectors((x[:, 0] > 0).long())


def make_model():
    torch.manual_seed(0)
    layers = [nn.Linear(*widths) for widths in pairwise(WIDTHS)]
    return nn.Sequential(layers[0], nn.BatchNorm1d(WIDTHS[1]), *layers[1:])


def train(name, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        torch.manual_seed(rank + 10 * step)
        loss = model(torch.randn(5, 8)).square().mean()
        if name == "plain" and rank == 1:
            time.sleep(SLEEP_S)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print_digest(name, [getattr(p, "to_local", lambda p=p: p)().detach().double().sum() for p in model.parameters()])


def print_digest(name, values):
    os.write(1, f"digest {rank} {name} {[float(value).hex() for value in values]}\n".encode())


def train_compiled():
    train("inner", DistributedDataParallel(torch.compile(make_model(), backend="eager")))
    train("outer", torch.compile(DistributedDataParallel(make_model()), backend="eager"))

    @torch.compile(backend="eager", fullgraph=True)
    def reduce(x):
        return functional.all_reduce(x, "sum", dist.group.WORLD) * 2

    print_digest("functional", [reduce(torch.tensor([0.1 + rank]))])


def train_all():
    train("plain", DistributedDataParallel(make_model(), bucket_cap_mb=0.01))
    train("unused", DistributedDataParallel(Branches(), find_unused_parameters=True))
    train("sparse", DistributedDataParallel(Table()))
    hooked = DistributedDataParallel(make_model())
    hooked.register_comm_hook(None, allreduce_hook)
    train("hooked", hooked)
    sharded = make_model()
    fully_shard(sharded)
    train("sharded", sharded)
    torch.manual_seed(0)
    parallel = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 3))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    train("parallel", parallelize_module(parallel, init_device_mesh("cpu", (dist.get_world_size(),)), plan))


rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo", init_method=f"tcp://127.0.0.1:{sys.argv[1]}", rank=rank, world_size=int(os.environ["WORLD_SIZE"])
)

train_compiled() if "compiled" in sys.argv[2:] else train_all()
gc.collect()  # models in cycles keep the threads of Gloo
dist.destroy_process_group()
