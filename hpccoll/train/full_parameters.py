"""Gather full parameters from the ranks' shards for checkpoints and the gradient check, or broadcast them from rank 0.

Rank 0 derives the shapes of every rank's shards from the mesh, so each rank sends a single message without metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from hpccoll.parallel.mesh import Mesh
from hpccoll.train.rank_layers import TrainedModel

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

GATHER_TAG = 3


def gather_shards(
    comm: Communicator, mesh: Mesh, model: TrainedModel[Any], own: Sequence[Any]
) -> list[list[Any]] | None:
    """Gather the tensors of every rank's shards on rank 0; blocking, collective over `comm`, all ranks of the mesh.

    `own` has this rank's tensors (parameters or gradients) in the order of `list_shards`, all of one dtype. Returns, on
    rank 0, one list per rank, with the tensors of that rank's shards on the CPU; None on other ranks.
    """
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in own]).cpu()
    if comm.rank != 0:
        comm.send(flat, 0, GATHER_TAG)
        return None
    by_rank = []
    for rank in range(comm.size):
        shards = model.list_shards(mesh, rank)
        numbers = flat if rank == 0 else flat.new_empty(sum(shard.count for shard in shards))
        if rank != 0:
            comm.recv(numbers, rank, GATHER_TAG)
        split = numbers.split([shard.count for shard in shards])
        by_rank.append([tensor.view(shard.shape) for tensor, shard in zip(split, shards, strict=True)])
    return by_rank


def assemble_parameters(mesh: Mesh, model: TrainedModel[Any], by_rank: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the full parameters by name, assembled from all ranks' shards (`by_rank`, from `gather_shards`).

    If several ranks have the same shard, the lowest rank's is used.
    """
    full = {
        shard.name: torch.empty(shard.full_shape, dtype=by_rank[0][0].dtype) for shard in model.list_full_parameters()
    }
    for rank in reversed(range(mesh.ranks)):
        for shard, tensor in zip(model.list_shards(mesh, rank), by_rank[rank], strict=True):
            full[shard.name][shard.slices] = tensor
    return full


def join_name(prefix: str, name: str) -> str:
    """Return the name that a checkpoint gives to a parameter or to one of its optimizer states: `prefix/name`.

    `name` is the parameter's name. `prefix` is the name of the optimizer state, or empty for the parameter itself.
    """
    return f"{prefix}/{name}" if prefix else name


def broadcast_parameters(
    comm: Communicator, model: TrainedModel[Any], full: Mapping[str, Any] | None, dtype: Any, prefix: str = ""
) -> dict[str, Any]:
    """Return rank 0's full tensors on every rank, by the name of their parameter; collective over `comm`.

    `full` has, on rank 0, all tensors by the names that `join_name` returns; None on other ranks. `prefix` is empty for
    the parameters, or the name of a state of the optimizer.
    """
    shards = model.list_full_parameters()
    flat = (
        torch.empty(model.config.parameter_count, dtype=dtype)
        if full is None
        else torch.cat([full[join_name(prefix, shard.name)].reshape(-1) for shard in shards])
    )
    comm.broadcast(flat)
    split = flat.split([shard.count for shard in shards])
    return {shard.name: tensor.view(shard.full_shape) for shard, tensor in zip(shards, split, strict=True)}
