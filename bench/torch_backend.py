"""Compare torch.distributed over hpccoll with torch.distributed over gloo: operations, and training steps.

Both backends work on the same tensors in the same job. `all_reduce, fresh` makes new tensors before every sample;
`all_reduce, bucket` has a tensor in memory that all ranks map, as gradient buckets of DistributedDataParallel. A
training step is forward, backward and SGD of 8 linear layers of 1448 x 1448 (64 MiB of gradients) on a batch of 32
rows; the side `without communication` reduces no gradients. The option --sizes sets the message sizes of the
operations. At 64 MiB, only all_reduce and the training steps are timed. Repeated runs of the following command, which
take about a minute each, fill one file:

    OMP_NUM_THREADS=1 mpirun -n 2 python bench/torch_backend.py --stop-after 50 --resume torch_backend.jsonl
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from compare import Bench, Case, Must, Side
from script import Result, main
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch_operations import FRESH, list_operations

import hpccoll.torch  # noqa: F401 - registers the backend
from hpccoll.records import SCHEMA
from hpccoll.statistics import ratio_of_medians
from hpccoll.torch.bucket_memory import LEAST_BYTES, move

GLOO, OWN, ALONE = "gloo", "hpccoll", "without communication"
MAPPED = "all_reduce, bucket"
LAYERS, WIDTH, BATCH = 8, 1448, 32
LARGEST = 64 * 2**20  # of gradients, and of all_reduces
Call = Callable[[], object]


def measure(bench: Bench) -> Iterator[Result]:
    """Yield the cases of all sizes, then those of the training steps."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    dist.init_process_group("hpccoll")
    groups = {GLOO: dist.new_group(backend="gloo"), OWN: dist.group.WORLD}
    for nbytes in bench.sizes:
        yield from _measure_operations(bench, nbytes, groups)
    if max(bench.sizes) >= LARGEST:
        if bench.is_due("DDP step", LARGEST):
            case = bench.run(make_training_case("DDP step", make_ddp_step, groups, 0.8))
            yield case
            yield make_communication_record(bench, case)
        if bench.is_due("FSDP2 step", LARGEST):
            yield bench.run(make_training_case("FSDP2 step", make_fsdp_step, groups, 0.75))
    dist.destroy_process_group()


def _measure_operations(bench: Bench, nbytes: int, groups: dict[str, Any]) -> Iterator[Case]:
    """Yield the case of each operation at a size."""
    batch = 20 if nbytes < 2**20 else 1
    operations = list_operations(nbytes, bench.comm.rank, bench.comm.size)
    bucket = torch.zeros(max(nbytes // 4, 1))
    if nbytes >= LEAST_BYTES:
        move(bucket.untyped_storage())
        operations[MAPPED] = lambda group: dist.all_reduce(bucket, group=group)
    for name in (FRESH, *operations):
        is_large = nbytes >= LARGEST and name not in ("all_reduce", FRESH, MAPPED)
        if is_large or not bench.is_due(name, nbytes):
            continue
        times = find_required_speed(name, nbytes)
        must = Must(f"{times:g} times as fast", GLOO, times=times) if times else Must("at most 10 % slower", GLOO, 0.1)
        sides = []
        for side, backend in ((GLOO, GLOO), (f"{GLOO}, again (A/A)", GLOO), (OWN, OWN)):
            group = groups[backend]
            musts = (must,) if side == OWN else ()
            if name == FRESH:
                timer = partial(_time_fresh, bench, group, nbytes, batch)
                sides.append(Side(side, timer, musts, seconds=timer))
            else:
                sides.append(Side(side, partial(operations[name], group), musts))
        yield bench.run(Case(name, nbytes, batch, sides))


def _time_fresh(bench: Bench, group: Any, nbytes: int, batch: int) -> float:
    """Return this rank's seconds of an all_reduce, over `batch` calls on tensors that no call has seen before."""
    tensors = [torch.zeros(max(nbytes // 4, 1)) for _ in range(batch)]
    bench.comm.Barrier()
    begin = time.perf_counter()
    for x in tensors:
        dist.all_reduce(x, group=group)
    return (time.perf_counter() - begin) / batch


def find_required_speed(name: str, nbytes: int) -> float:
    """Return how many times as fast as gloo an operation must be; 0 if it must only be no slower."""
    if name in ("all_reduce", MAPPED) and (nbytes == 8 or nbytes >= 2**20):
        return 3.0 if nbytes == 8 else 4.0
    return 2.0 if name == FRESH and nbytes >= 2**20 else 0.0


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
    return Case(name, LARGEST, 1, sides)


def make_communication_record(bench: Bench, case: Case, most: float = 0.5) -> dict[str, Any]:
    """Return the record of the time that a step takes beyond the step without communication of the same round."""
    alone = np.array(case.side(ALONE).samples_us)
    # A difference of less than 1 us counts as 1 us, so that the ratio is finite.
    added = {name: np.maximum(np.array(case.side(name).samples_us) - alone, 1.0) for name in (GLOO, OWN)}
    gloo_us, own_us = (float(np.median(added[name])) for name in (GLOO, OWN))
    ratio = ratio_of_medians(added[GLOO], added[OWN])
    must = {
        "text": f"communication at most {most} of the time",
        "ratio": asdict(ratio),
        "holds": ratio.value >= 1 / most,
    }
    return {
        "schema": SCHEMA,
        "kind": "communication",
        "script": bench.script,
        "case": case.name,
        "ranks": bench.comm.size,
        "nbytes": case.nbytes,
        "gloo_us": gloo_us,
        "hpccoll_us": own_us,
        "musts": [must],
        "line": f"{case.name}: communication takes {gloo_us:.0f} us of the step over gloo and {own_us:.0f} us over "
        f"hpccoll ({1 / ratio.value:.2f} of the time; at most {most}: {'holds' if must['holds'] else 'MISSED'})",
    }


def make_model(layers: int = LAYERS) -> nn.Sequential:
    """Return the model, with the same parameters on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))


def make_step(model: nn.Module) -> Call:
    """Return a function that trains a model for one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def make_ddp_step(group: Any, layers: int = LAYERS) -> Call:
    """Return a training step of DistributedDataParallel."""
    return make_step(nn.parallel.DistributedDataParallel(make_model(layers), process_group=group))


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
