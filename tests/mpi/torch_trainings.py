"""Trains with DDP, FSDP and others, in parallel and in one process; see `torch_consumers`.

All ranks draw the same data. A consumer trains for `STEPS` steps and returns its parameters and its last gradients,
whole on every rank.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, WIDTH = 20, 6, 10
Tensors = dict[str, torch.Tensor]
Consumer = Callable[[], Tensors]


class Model(nn.Module):  # type: ignore[misc]
    """Three layers and two heads, of which a caller may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.heads = nn.ModuleList([nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3)])

    def forward(self, x: torch.Tensor, heads: tuple[int, ...] = (0, 1)) -> torch.Tensor:
        """Return the sum of the chosen heads."""
        hidden = self.second(torch.tanh(self.first(x)))
        return sum(self.heads[at](hidden) for at in heads)


def make_model() -> Model:
    """Return the same model of float64 on every rank."""
    torch.manual_seed(0)
    model: Model = Model().double()
    return model


def make_inputs() -> torch.Tensor:
    """Return the inputs of all steps and ranks: (step, rank, example, feature)."""
    shape = (STEPS, dist.get_world_size(), BATCH, WIDTH)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def compute_loss(output: torch.Tensor) -> torch.Tensor:
    """Return a loss whose mean over equal parts of a batch is that of the batch."""
    return (output - 1).square().mean()


def make_sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of most consumers."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def collect(model: nn.Module) -> Tensors:
    """Return parameters and gradients by name, the shards of DTensors joined."""
    found = {}
    for name, parameter in model.named_parameters():
        for kind, x in (("", parameter.detach()), ("gradient of ", parameter.grad)):
            if x is not None:
                whole = x.full_tensor() if hasattr(x, "full_tensor") else x
                found[kind + name.removeprefix("_orig_mod.").removeprefix("module.")] = whole.double().clone()
    return found


def train(model: nn.Module, optimizer: Any = None, inputs: torch.Tensor | None = None) -> Tensors:
    """Train on `inputs`, by default this rank's part of the data, with a step for each element of the first dim."""
    optimizer = optimizer or make_sgd(model)
    for x in make_inputs()[:, dist.get_rank()] if inputs is None else inputs:
        optimizer.zero_grad()
        compute_loss(model(x)).backward()
        optimizer.step()
    return collect(model)


def train_alone() -> Tensors:
    """Train in one process on the data of all ranks."""
    return train(make_model(), inputs=make_inputs())


def make_ddp(model: nn.Module | None = None, **options: Any) -> DistributedDataParallel:
    """Return a DistributedDataParallel with a bucket per parameter unless other options are given."""
    return DistributedDataParallel(model or make_model(), **({"bucket_cap_mb": 1e-4} | options))


def train_without_sync() -> Tensors:
    """Accumulate the gradients of three parts of each batch, two of them without communication."""
    model = make_ddp(gradient_as_bucket_view=True)
    optimizer = make_sgd(model)
    for batch in make_inputs()[:, dist.get_rank()]:
        optimizer.zero_grad()
        for at, x in enumerate(batch.chunk(3)):
            with model.no_sync() if at < 2 else nullcontext():
                (compute_loss(model(x)) / 3).backward()
        optimizer.step()
    return collect(model)


def train_unused(parallel: bool) -> Tensors:
    """Use another head on each rank, and on even steps none but the first."""
    model = make_ddp(find_unused_parameters=True) if parallel else make_model()
    optimizer = make_sgd(model)
    for step, inputs in enumerate(make_inputs()):
        optimizer.zero_grad()
        ranks = [dist.get_rank()] if parallel else range(dist.get_world_size())
        outputs = [model(inputs[rank], ((rank % 2) * (step % 2),)) for rank in ranks]
        compute_loss(torch.stack(outputs)).backward()
        optimizer.step()
    return collect(model)


def train_hooked(hook: Callable[..., Any], state: Any = None, **options: Any) -> Tensors:
    """Train by one of torch's communication hooks."""
    model = make_ddp(**options)
    model.register_comm_hook(state, hook)
    return train(model)


def train_powersgd(bucket_mb: float) -> Tensors:
    """Train by PowerSGD, which sends low-rank approximations of gradients from the third step on."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
    return train_hooked(powerSGD_hook, state, bucket_cap_mb=bucket_mb)


def train_powersgd_in_buckets() -> tuple[Tensors, Tensors]:
    """Train by PowerSGD with a bucket per parameter, at which gloo hangs; return the results of this rank and rank 0.

    The continuations of a bucket start collectives while the program starts those of the next bucket.
    """
    found = train_powersgd(1e-4)
    of_rank_0 = {name: x.clone() for name, x in found.items()}
    for x in of_rank_0.values():
        dist.broadcast(x, 0)
    return found, of_rank_0


def train_local_sgd() -> Tensors:
    """Average gradients at the first steps, and parameters at every fourth step afterwards."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = make_ddp()
    model.register_comm_hook(PostLocalSGDState(None, None, 4, post_local_gradient_allreduce=False), post_localSGD_hook)
    return train(model, PostLocalSGDOptimizer(make_sgd(model), PeriodicModelAverager(period=4, warmup_steps=4)))


def make_hooked() -> dict[str, Consumer]:
    """Return trainings by hooks that change gradients other than by rounding: they are compared with gloo only."""
    return {
        "DDP with hook PowerSGD": lambda: train_powersgd(25),
        "DDP with local SGD": train_local_sgd,
    }


def make_rounded() -> dict[str, Consumer]:
    """Return trainings that round gradients, in which the order of summation matters."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return {
        "DDP in float32": lambda: train(
            make_ddp(make_model().float()), inputs=make_inputs()[:, dist.get_rank()].float()
        ),
        "DDP with hook fp16_compress": lambda: train_hooked(default_hooks.fp16_compress_hook),
    }


def train_chained_hook() -> Tensors:
    """Train by a hook of the user: an asynchronous reduction whose future has two continuations."""

    def hook(_: object, bucket: Any) -> Any:
        half = dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / 2)
        return half.then(lambda done: done.value() * 2 / dist.get_world_size())

    hook.__annotations__.clear()  # torch accepts no annotations that are strings
    model = make_ddp()
    model.register_comm_hook(None, hook)
    return train(model)


def train_zero_redundancy() -> Tensors:
    """Shard the optimizer's state over the ranks."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = make_ddp()
    return train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9))


def train_sampled(parallel: bool) -> Tensors:
    """Read a data set through DistributedSampler, shuffled differently in every epoch."""
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    data = TensorDataset(make_inputs()[0].reshape(-1, WIDTH)[:11])
    ranks = [dist.get_rank()] if parallel else range(dist.get_world_size())
    # Ranks of the job are asked of torch.distributed, as in users' scripts.
    samplers = [DistributedSampler(data)] if parallel else [DistributedSampler(data, rank=rank) for rank in ranks]
    model: nn.Module = make_ddp() if parallel else make_model()
    optimizer = make_sgd(model)
    for epoch in range(STEPS // 3):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        loaders = [DataLoader(data, batch_size=2, sampler=each) for each in samplers]
        for batches in zip(*loaders, strict=True):
            optimizer.zero_grad()
            compute_loss(model(torch.cat([x for (x,) in batches]))).backward()
            optimizer.step()
    return collect(model)


def train_fsdp1(strategy: str) -> Tensors:
    """Shard parameters with FullyShardedDataParallel."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    model = make_model()
    policy = {"sharding_strategy": ShardingStrategy[strategy], "use_orig_params": True}
    policy["device_id"] = torch.device("cpu")
    model.second = FullyShardedDataParallel(model.second, **policy)
    whole = FullyShardedDataParallel(model, **policy)
    train(whole)
    with FullyShardedDataParallel.summon_full_params(whole, with_grads=True):
        found = collect(whole)
    return {name.replace("_fsdp_wrapped_module.", ""): x for name, x in found.items()}


def shard(model: Model, **options: Any) -> Model:
    """Apply fully_shard to two layers and to the model."""
    from torch.distributed.fsdp import fully_shard

    for each in (model.first, model.second, model):
        fully_shard(each, **options)
    return model


def train_fsdp2(**options: Any) -> Tensors:
    """Shard parameters with fully_shard."""
    return train(shard(make_model(), **options))


def train_fsdp2_in_groups() -> Tensors:
    """Shard parameters over half of the ranks, and replicate the shards (hybrid sharding)."""
    size = dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicas", "shards"))
    return train(shard(make_model(), mesh=mesh))


def split(model: Model, mesh: Any) -> Model:
    """Split two layers over the ranks of a mesh by columns and by rows."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    found: Model = parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    return found


def train_tensor_parallel() -> Tensors:
    """Split layers over all ranks, which work on the same data."""
    model = split(make_model(), dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    return train(model, inputs=make_inputs())


def train_in_two_dimensions() -> Tensors:
    """Split layers over pairs of ranks, and shard parameters over the others."""
    size = dist.get_world_size()
    mesh = dist.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    model = shard(split(make_model(), mesh["tensor"]), mesh=mesh["data"])
    return train(model, inputs=make_inputs().chunk(size // 2, dim=1)[mesh["data"].get_local_rank()])


def train_with_checkpoint() -> Tensors:
    """Save a sharded model halfway, load it into a new one, and go on."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, 0)
    inputs, found = make_inputs()[:, dist.get_rank()], {}
    for first, last in ((0, STEPS // 2), (STEPS // 2, STEPS)):
        model = shard(make_model())
        optimizer = make_sgd(model)
        if first:
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            dcp.load(state, checkpoint_id=folder[0])
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        found = train(model, optimizer, inputs[first:last])
        if not first:
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            dcp.save(state, checkpoint_id=folder[0])
    return found


def combine(x: torch.Tensor) -> torch.Tensor:
    """Return a sum over the ranks that passes through four functional collectives."""
    import torch.distributed._functional_collectives as functional

    group, size = dist.group.WORLD, dist.get_world_size()
    total = functional.all_reduce(x * 2, "sum", group) / 2
    parts = functional.reduce_scatter_tensor(total.repeat(size, 1), "sum", 0, group) / size
    moved = functional.all_to_all_single(parts.repeat(size, 1), None, None, group)
    return functional.all_gather_tensor(moved[: len(x)], 0, group)[: len(x)] + 1


def compile_collectives(backend: str) -> Tensors:
    """Run functional collectives in a compiled function."""
    x = make_inputs()[0, dist.get_rank()]
    return {"sum": torch.compile(combine, backend=backend)(x)}


def join_uneven() -> Tensors:
    """Train by DDP with more batches on rank 0 than elsewhere."""
    from torch.distributed.algorithms.join import Join

    model = make_ddp()
    with Join([model]):
        return train(model, inputs=make_inputs()[: 5 if dist.get_rank() else 8, dist.get_rank()])


def make_consumers() -> dict[str, Consumer]:
    """Return the consumers by name, of which some need an even number of ranks, or four ranks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    found: dict[str, Consumer] = {
        "DDP": lambda: train(make_ddp()),
        "DDP with buckets of 25 MB": lambda: train(make_ddp(bucket_cap_mb=25)),
        "DDP with gradient_as_bucket_view": lambda: train(make_ddp(gradient_as_bucket_view=True)),
        "DDP with static_graph": lambda: train(make_ddp(static_graph=True)),
        "DDP with no_sync": train_without_sync,
        "DDP with hook allreduce": lambda: train_hooked(default_hooks.allreduce_hook),
        "DDP with a hook of the user": train_chained_hook,
        "compiled DDP": lambda: train(torch.compile(make_ddp(bucket_cap_mb=25), backend="aot_eager")),
        "ZeroRedundancyOptimizer": train_zero_redundancy,
        "FSDP1": lambda: train_fsdp1("FULL_SHARD"),
        "FSDP1 with SHARD_GRAD_OP": lambda: train_fsdp1("SHARD_GRAD_OP"),
        "FSDP2": train_fsdp2,
        "FSDP2 without resharding": lambda: train_fsdp2(reshard_after_forward=False),
        "checkpoint": train_with_checkpoint,
    }
    if dist.get_world_size() % 2 == 0:  # DTensor splits layers only into equal parts
        found["tensor parallel"] = train_tensor_parallel
    if dist.get_world_size() == 4:
        found |= {"FSDP2 in groups": train_fsdp2_in_groups, "tensor parallel and FSDP2": train_in_two_dimensions}
    return found


def make_others() -> dict[str, tuple[Consumer, Consumer | None]]:
    """Return consumers with other results than `train_alone`, each with its training in one process, if any."""
    return {
        "DDP with unused parameters": (lambda: train_unused(True), lambda: train_unused(False)),
        "DistributedSampler": (lambda: train_sampled(True), lambda: train_sampled(False)),
        "compiled collectives": (
            lambda: compile_collectives("aot_eager"),
            lambda: {"sum": make_inputs()[0].sum(0) + 1},
        ),
        "DDP with Join": (join_uneven, None),
        **{name: (hooked, None) for name, hooked in make_hooked().items()},
    }
