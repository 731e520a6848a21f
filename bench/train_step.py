"""Compare training steps of hpccoll.parallel with those of torch over gloo: data, tensor, pipeline parallelism, ZeRO.

A step is forward, backward and SGD of 8 linear layers of 1448 x 1448 (64 MiB of gradients) on a batch of 32 rows per
group of ranks that hold a model. The sides over gloo are DistributedDataParallel, the tensor parallelism of DTensor
(layers split by output and by input in turns), 1F1B of torch.distributed.pipelining with 4 micro-batches, and for
ZeRO-3 FSDP2 with a unit per layer. The side `without communication` of data parallelism sums no gradients. As in
`hpccoll train`, the C library keeps freed memory instead of returning it to the operating system, for all sides.
Repeated runs of the following command, which take about a minute each, fill one file:

    OMP_NUM_THREADS=1 mpirun -n 2 python bench/train_step.py --stop-after 30 --resume train_step.jsonl
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from compare import Bench, Case, Must, Side
from script import Result, main
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage as TorchStage
from torch.distributed.pipelining import Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_backend import (
    ALONE,
    BATCH,
    GLOO,
    LARGEST,
    LAYERS,
    OWN,
    WIDTH,
    Call,
    make_communication_record,
    make_ddp_step,
    make_fsdp_step,
    make_model,
    make_step,
)

import hpccoll.torch  # noqa: F401 - registers the backend
from hpccoll.parallel.axis_group import AxisGroup, MeshGroups
from hpccoll.parallel.data_parallel import GradientBuckets
from hpccoll.parallel.mesh import Mesh
from hpccoll.parallel.pipeline_parallel import PipelineRank, PipelineStage
from hpccoll.parallel.tensor_parallel import apply_column_parallel, apply_row_parallel
from hpccoll.parallel.zero import ZeroShards
from hpccoll.schedules import get_schedule
from hpccoll.train.trainer import keep_freed_memory

MICROBATCHES = 4
BUCKET_BYTES = 25 * 2**20  # the default of `hpccoll train` and of DistributedDataParallel


def measure(bench: Bench) -> Iterator[Result]:
    """Yield the cases of data, tensor and pipeline parallelism."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    keep_freed_memory()
    dist.init_process_group("hpccoll")
    gloo = dist.new_group(backend="gloo")
    most = Must("at most 0.8 of the time", GLOO, times=1 / 0.8)
    if bench.is_due("DP step", LARGEST):
        dp = MeshGroups.create(bench.own, Mesh(dp=bench.comm.size)).dp
        alone = Side(ALONE, make_step(make_model()), checked=False)
        case = _run(
            bench,
            "DP step",
            [make_ddp_step(gloo), make_dp_step(make_model(), dp, torch.randn(BATCH, WIDTH), BUCKET_BYTES)],
            most,
            alone,
        )
        yield case
        yield make_communication_record(bench, case)
    if bench.is_due("ZeRO-3 step", LARGEST):
        dp = MeshGroups.create(bench.own, Mesh(dp=bench.comm.size)).dp
        yield _run(bench, "ZeRO-3 step", [make_fsdp_step(gloo), make_zero_step(make_model(), dp)], most)
    no_slower = Must("no slower", GLOO)
    if bench.is_due("TP step", LARGEST):
        tp = MeshGroups.create(bench.own, Mesh(tp=bench.comm.size)).tp
        yield _run(bench, "TP step", [make_dtensor_step(gloo), make_tp_step(tp)], no_slower)
    if bench.is_due("PP step", LARGEST):
        pp = MeshGroups.create(bench.own, Mesh(pp=bench.comm.size)).pp
        yield _run(bench, "PP step", [make_torch_pipeline_step(gloo), make_pipeline_step(pp)], no_slower)
    dist.destroy_process_group()


def _run(bench: Bench, name: str, calls: list[Call], must: Must, *more: Side) -> Case:
    """Time a step over gloo, twice, and over hpccoll; return the case."""
    gloo, own = calls
    sides = [Side(GLOO, gloo), Side(f"{GLOO}, again (A/A)", gloo), Side(OWN, own, (must,)), *more]
    return bench.run(Case(name, LARGEST, 1, sides))


def make_dp_step(model: nn.Module, dp: AxisGroup, x: Any, bucket_bytes: int, *, overlaps: bool = True) -> Call:
    """Return a data-parallel step on inputs `x` (b, width).

    The sums of gradients over the ranks start during the backward pass, or after it if `overlaps` is false.
    """
    buckets = GradientBuckets(list(model.parameters()), dp, bucket_bytes)
    # GradientBuckets starts a sum once the expected number of backward passes is done; 2 is never reached.
    passes = dict.fromkeys(buckets.parameters, 1 if overlaps else 2)
    optimizer = torch.optim.SGD(buckets.parameters, lr=1e-3)

    def step() -> None:
        buckets.begin(passes)
        model(x).square().mean().div(dp.size).backward()
        buckets.finish()
        optimizer.step()

    return step


def make_zero_step(model: nn.Module, dp: AxisGroup) -> Call:
    """Return a step of ZeRO-3 with a unit per layer."""
    layers = list(model)
    groups = dict.fromkeys(model.parameters(), dp)
    zero = ZeroShards({0: [list(layer.parameters()) for layer in layers]}, groups, level=3)
    optimizer, x = torch.optim.SGD(zero.shards, lr=1e-3), torch.randn(BATCH, WIDTH)

    def step() -> None:
        zero.begin(dict.fromkeys(groups, 1))
        y = x
        for number, layer in enumerate(layers):
            y = zero.run(0, number, layer, y)
        y.square().mean().div(dp.size).backward()
        zero.finish()
        optimizer.step()

    return step


def make_dtensor_step(group: Any) -> Call:
    """Return a step of DTensor's tensor parallelism, with layers split by output and by input in turns."""
    plan = {str(layer): RowwiseParallel() if layer % 2 else ColwiseParallel() for layer in range(LAYERS)}
    return make_step(parallelize_module(make_model(), DeviceMesh.from_group(group, "cpu"), plan))


class TensorParallelModel(nn.Module):  # type: ignore[misc] # torch has no types here
    """The model with layers split by output and by input in turns, by hpccoll.parallel."""

    def __init__(self, tp: AxisGroup) -> None:
        super().__init__()
        self.tp, self.shards = tp, nn.ParameterList()
        for at, layer in enumerate(make_model()):
            weight = layer.weight.detach().chunk(tp.size, dim=at % 2)[tp.index].clone()
            bias = layer.bias.detach() if at % 2 else layer.bias.detach().chunk(tp.size)[tp.index]
            self.shards.extend([nn.Parameter(weight), nn.Parameter(bias.clone())])

    def forward(self, x: Any) -> Any:
        """Return the output of all layers: x (b, width) -> (b, width); collective over tp."""
        for at in range(LAYERS):
            shards = *self.shards[2 * at : 2 * at + 2], self.tp
            x = apply_row_parallel(x, *shards) if at % 2 else apply_column_parallel(x, *shards)
        return x


def make_tp_step(tp: AxisGroup) -> Call:
    """Return a step of hpccoll's tensor parallelism."""
    return make_step(TensorParallelModel(tp))


def _make_stage_model(index: int, stages: int) -> nn.Sequential:
    """Return the consecutive layers of a pipeline stage."""
    layers = list(make_model())
    return nn.Sequential(*layers[index * LAYERS // stages : (index + 1) * LAYERS // stages])


def _mean_square(y: Any, _: Any) -> Any:
    """Return the loss of a micro-batch."""
    return y.square().mean() / MICROBATCHES


def make_torch_pipeline_step(group: Any) -> Call:
    """Return a step of 1F1B by torch.distributed.pipelining."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    model = _make_stage_model(rank, size)
    optimizer, x = torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(BATCH, WIDTH)
    stage = TorchStage(model, rank, size, torch.device("cpu"), group=group)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=_mean_square, scale_grads=False)
    run = partial(schedule.step, x) if rank == 0 else schedule.step
    options = {"target": x} if rank == size - 1 else {}

    def step() -> None:
        optimizer.zero_grad()
        run(**options)
        optimizer.step()

    return step


def make_pipeline_step(pp: AxisGroup) -> Call:
    """Return a step of 1F1B by hpccoll."""
    model = _make_stage_model(pp.index, pp.size)
    parameters = list(model.parameters())
    optimizer, parts = torch.optim.SGD(parameters, lr=1e-3), torch.randn(BATCH, WIDTH).chunk(MICROBATCHES)
    schedule = get_schedule("1f1b").plan(pp.size, MICROBATCHES)
    stages = {pp.index: PipelineStage(model, (WIDTH,), parameters)}
    pipeline = PipelineRank(schedule, stages, _mean_square, pp, torch.zeros(()))

    def step() -> None:
        optimizer.zero_grad()
        pipeline.run_step(parts)
        optimizer.step()

    return step


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(__doc__ or "", "64M", measure))
