"""Compare torch.distributed over hpccoll with torch.distributed over gloo: operations, and training steps.

Both backends work on the same tensors in the same job. `fresh` operations make a new tensor in every call. A training
step is forward, backward and SGD of 8 linear layers of 1448 x 1448 (64 MiB of gradients) on a batch of 32 rows; the
side `without communication` reduces no gradients. The option --sizes sets the message sizes of the operations; the
training steps are timed if a size is at least 64 MiB.

    OMP_NUM_THREADS=1 mpirun -n 2 python bench/torch_backend.py --json torch_backend.jsonl
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from compare import Bench, Case, Must, Side
from script import Result, main
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import hpccoll.torch  # noqa: F401 - registers the backend

GLOO, OWN, ALONE = "gloo", "hpccoll", "without communication"
LAYERS, WIDTH, BATCH = 8, 1448, 32
TRAINED_BYTES = 64 * 2**20
Call = Callable[[], object]


def measure(bench: Bench) -> Iterator[Result]:
    """Yield the cases of all sizes, then those of the training steps."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("hpccoll")
    groups = {GLOO: dist.new_group(backend="gloo"), OWN: dist.group.WORLD}
    for nbytes in bench.sizes:
        batch = 100 if nbytes < 2**14 else 20 if nbytes < 2**20 else 1
        for name, calls in make_operations(nbytes, groups, bench.comm.size).items():
            times = find_required_speed(name, nbytes)
            musts = (
                (Must(f"{times} times as fast", GLOO, times=times),) if times else (Must("at most 10 %", GLOO, 0.1),)
            )
            sides = [Side(GLOO, calls[GLOO]), Side(f"{GLOO}, again (A/A)", calls[GLOO]), Side(OWN, calls[OWN], musts)]
            yield bench.run(Case(name, nbytes, batch, sides))
    if max(bench.sizes) >= TRAINED_BYTES:
        yield bench.run(make_training_case("DDP step", make_ddp_step, groups, 0.8))
        yield bench.run(make_training_case("FSDP2 step", make_fsdp_step, groups, 0.75))
    dist.destroy_process_group()


def find_required_speed(name: str, nbytes: int) -> float:
    """Return how many times as fast as gloo an operation must be; 0 if it must only be no slower."""
    if name == "all_reduce" and (nbytes == 8 or nbytes >= 2**20):
        return 3.0 if nbytes == 8 else 4.0
    return 2.0 if name == "all_reduce, fresh" and nbytes >= 2**20 else 0.0


def make_operations(nbytes: int, groups: dict[str, Any], n: int) -> dict[str, dict[str, Call]]:
    """Return the calls of each operation by backend; `nbytes` are those of the larger tensor of a rank."""
    count = max(nbytes // 4, 1)
    x, block = torch.zeros(count), torch.zeros(max(count // n, 1))
    whole, out = torch.zeros(n * len(block)), torch.zeros(n * len(block))
    operations: dict[str, Callable[[Any], object]] = {
        "all_reduce": lambda group: dist.all_reduce(x, group=group),
        "all_reduce, fresh": lambda group: dist.all_reduce(torch.zeros(count), group=group),
        "all_reduce, async": lambda group: dist.all_reduce(x, group=group, async_op=True).wait(),
        "broadcast": lambda group: dist.broadcast(x, 0, group=group),
        "all_gather": lambda group: dist.all_gather_into_tensor(out, block, group=group),
        "reduce_scatter": lambda group: dist.reduce_scatter_tensor(block, whole, group=group),
        "all_to_all": lambda group: dist.all_to_all_single(out, whole, group=group),
        "barrier": dist.barrier,
    }
    if nbytes > 8:
        del operations["barrier"]
    return {
        name: {backend: partial(run, group) for backend, group in groups.items()} for name, run in operations.items()
    }


def make_training_case(name: str, make: Callable[[Any], Call], groups: dict[str, Any], most: float) -> Case:
    """Return the case of a training step, which must take at most `most` of the time over gloo."""
    gloo = make(groups[GLOO])
    must = Must(f"at most {most} of the time", GLOO, times=1 / most)
    sides = [
        Side(GLOO, gloo),
        Side(f"{GLOO}, again (A/A)", gloo),
        Side(OWN, make(groups[OWN]), (must,)),
        Side(ALONE, make_step(make_model()), checked=False),
    ]
    return Case(name, TRAINED_BYTES, 1, sides)


def make_model() -> nn.Sequential:
    """Return the model, with the same parameters on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def make_step(model: nn.Module) -> Call:
    """Return a function that trains a model for one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def make_ddp_step(group: Any) -> Call:
    """Return a training step of DistributedDataParallel."""
    return make_step(nn.parallel.DistributedDataParallel(make_model(), process_group=group))


def make_fsdp_step(group: Any) -> Call:
    """Return a training step of FSDP2, with each layer sharded by itself."""
    model, mesh = make_model(), DeviceMesh.from_group(group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return make_step(model)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(__doc__ or "", "8,1K,16K,64K,256K,1M,4M,16M,64M", measure))
