"""A run's whole parameters, gathered from the pieces that ranks have: for checkpoints and for the check.

Rank 0 knows every rank's pieces from the mesh, so a rank sends one message of numbers and nothing about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from hpccoll.parallel.mesh import Mesh
from hpccoll.train.model import pieces, whole
from hpccoll.train.settings import Mlp

if TYPE_CHECKING:
    from hpccoll.communicator import Communicator

TAG = 3


def collect(comm: Communicator, mesh: Mesh, model: Mlp, mine: Sequence[Any]) -> list[list[Any]] | None:
    """Gather a tensor for every piece of every rank on rank 0; every rank calls it.

    Args:
        mine: this rank's tensors, of the shapes of its pieces and of one dtype.

    Returns:
        By rank, the tensors of its pieces on the CPU; None on other ranks.
    """
    flat = torch.cat([each.detach().reshape(-1) for each in mine]).cpu()
    if comm.rank != 0:
        comm.send(flat, 0, TAG)
        return None
    by_rank = []
    for rank in range(comm.size):
        parts = pieces(model, mesh, rank)
        numbers = flat if rank == 0 else flat.new_empty(sum(part.count for part in parts))
        if rank != 0:
            comm.recv(numbers, rank, TAG)
        cut = numbers.split([part.count for part in parts])
        by_rank.append([each.view(part.part) for each, part in zip(cut, parts, strict=True)])
    return by_rank


def assembled(mesh: Mesh, model: Mlp, by_rank: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the whole parameters of what `collect` gathered; where several ranks have a part, the first one's."""
    full = {piece.name: torch.empty(piece.shape, dtype=by_rank[0][0].dtype) for piece in whole(model)}
    for rank in reversed(range(mesh.ranks)):
        for piece, part in zip(pieces(model, mesh, rank), by_rank[rank], strict=True):
            full[piece.name][piece.index] = part
    return full


def spread(comm: Communicator, model: Mlp, full: dict[str, Any] | None, dtype: Any) -> dict[str, Any]:
    """Give rank 0's whole parameters to every rank; every rank calls it. A file is read once, whoever can see it."""
    parts = whole(model)
    flat = (
        torch.empty(model.parameters, dtype=dtype)
        if full is None
        else torch.cat([full[part.name].reshape(-1) for part in parts])
    )
    comm.broadcast(flat)
    cut = flat.split([part.count for part in parts])
    return {part.name: each.view(part.shape) for part, each in zip(parts, cut, strict=True)}
