"""Compare the gradients of every rank, element by element, with the gradients that a single process computes.

Loss curves and adaptive optimizers hide gradients that are wrong by a factor, so the raw gradients are compared before
they are applied. Copies of a parameter on several ranks must be equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hpccoll.parallel.mesh import Mesh
from hpccoll.train.rank_layers import TrainedModel

# These tolerances, relative to a parameter's largest gradient, exceed rounding errors but not the effect of a mistake.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """Result of comparing gradients with a reference: number of wrong elements, largest error, first wrong element."""

    wrong: int  # elements outside the tolerance, over all ranks
    error: float  # largest difference, relative to the largest gradient of its parameter
    first: str | None  # parameter and rank of the first wrong element


def compute_reference_gradients(
    model: TrainedModel[Any], full: Mapping[str, Any], inputs: Any, targets: Any, groups: Sequence[slice], cp: int
) -> dict[str, Any]:
    """Return the gradient of the mean loss over a batch for each full parameter, computed in this process alone.

    A mixture of experts routes the tokens in the same groups as on the mesh: one group per micro-batch and
    context-parallel rank. `groups` has the micro-batches of all ranks, as slices of the batch; the positions of a
    sample are split over `cp` ranks.
    """
    leaves = {name: parameter.detach().clone().requires_grad_() for name, parameter in full.items()}
    for group in groups:
        (model.sum_single_process_loss(leaves, inputs[group], targets[group], cp) / len(targets)).backward()
    return {name: leaf.grad for name, leaf in leaves.items()}


def compare_gradients(
    model: TrainedModel[Any],
    mesh: Mesh,
    gradients: Sequence[Sequence[Any]],
    reference: Mapping[str, Any],
    tolerance: float,
) -> GradientCheck:
    """Compare all ranks' gradients, as `gather_shards` returns them, with a reference; return a `GradientCheck`.

    Local. `reference` has full gradients by parameter name. An element is wrong if it differs by more than `tolerance`
    times the largest gradient of its parameter.
    """
    wrong, worst, first = 0, 0.0, None
    for rank, own_gradients in enumerate(gradients):
        for shard, gradient in zip(model.list_shards(mesh, rank), own_gradients, strict=True):
            scale = float(reference[shard.name].abs().max())
            difference = (gradient - reference[shard.name][shard.slices]).abs()
            count = int((~(difference <= tolerance * scale)).sum())  # negated so that NaN counts as wrong
            worst = max(worst, float(difference.max()) / scale if scale else 0.0)
            if count and first is None:
                first = f"{shard.name} on rank {rank}"
            wrong += count
    return GradientCheck(wrong, worst, first)


def count_replica_differences(
    model: TrainedModel[Any], mesh: Mesh, parameters: Sequence[Sequence[Any]], full: Mapping[str, Any]
) -> int:
    """Return the number of elements of all ranks' shards that differ in any bit from the full parameters; local.

    `parameters` are the shards of all ranks, as `gather_shards` returns them, and `full` the parameters by name.
    """
    return sum(
        int((_view_bits(parameter) != _view_bits(full[shard.name][shard.slices])).sum())
        for rank, own_parameters in enumerate(parameters)
        for shard, parameter in zip(model.list_shards(mesh, rank), own_parameters, strict=True)
    )


def _view_bits(x: Any) -> Any:
    """Return a view of a float tensor as integers, so that -0 and 0 differ, and equal NaNs are equal."""
    return x.view(torch.int32 if x.element_size() == 4 else torch.int64)
