"""Holds what the ranks computed against one process: every gradient of every rank, element by element.

Loss curves and adaptive optimisers hide gradients that are wrong by a factor; so the raw gradients are compared, before
anything is done with them, and the parameters that several ranks share must be equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hpccoll.parallel.mesh import Mesh
from hpccoll.train.model import pieces, reference
from hpccoll.train.settings import Mlp

# Of the largest gradient of a parameter: what another order of the same sums changes, and far below any real mistake.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found.

    Args:
        wrong: elements outside the tolerance, over all ranks.
        error: the largest difference found, over the largest gradient of its parameter.
        first: where the first wrong one is, or None.
    """

    wrong: int
    error: float
    first: str | None


def expected(model: Mlp, full: Mapping[str, Any], images: Any, labels: Any) -> dict[str, Any]:
    """Return the gradient of the mean loss over a batch, of every whole parameter, as one process gets it."""
    leaves = {name: each.detach().clone().requires_grad_() for name, each in full.items()}
    torch.nn.functional.cross_entropy(reference(model, leaves, images), labels).backward()
    return {name: each.grad for name, each in leaves.items()}


def compare(
    model: Mlp, mesh: Mesh, gradients: Sequence[Sequence[Any]], wanted: Mapping[str, Any], tolerance: float
) -> Verdict:
    """Compare every rank's gradients, as `state.collect` gathered them, with those of one process."""
    wrong, worst, first = 0, 0.0, None
    for rank, found in enumerate(gradients):
        for piece, gradient in zip(pieces(model, mesh, rank), found, strict=True):
            scale = float(wanted[piece.name].abs().max())
            apart = (gradient - wanted[piece.name][piece.index]).abs()
            count = int((~(apart <= tolerance * scale)).sum())  # also what is no number
            worst = max(worst, float(apart.max()) / scale if scale else 0.0)
            if count and first is None:
                first = f"{piece.name} on rank {rank}"
            wrong += count
    return Verdict(wrong, worst, first)


def replicas_apart(model: Mlp, mesh: Mesh, parameters: Sequence[Sequence[Any]], full: Mapping[str, Any]) -> int:
    """Return how many elements of ranks' parameters differ, in any bit, from those that were assembled of them."""
    return sum(
        int((_bits(part) != _bits(full[piece.name][piece.index])).sum())
        for rank, mine in enumerate(parameters)
        for piece, part in zip(pieces(model, mesh, rank), mine, strict=True)
    )


def _bits(x: Any) -> Any:
    return x.view(torch.int32 if x.element_size() == 4 else torch.int64)  # of the floats: -0 is not 0


def with_replicas(verdict: Verdict, apart: int) -> Verdict:
    """Count parameters that differ between ranks which should share them as wrong, too."""
    first = verdict.first or ("parameters that ranks share" if apart else None)
    return Verdict(verdict.wrong + apart, verdict.error, first)
