"""Count the parameters of a model, the parameters that a token uses, and the parameters of one rank."""

from __future__ import annotations

from hpccoll.parallel.mesh import Mesh
from hpccoll.sizing.model_part import ParameterCount
from hpccoll.sizing.rank_parts import list_rank_parts
from hpccoll.sizing.training_setup import ModelShape, TrainingSetup


def count_parameters(model: ModelShape) -> ParameterCount:
    """Return the numbers of dense parameters and of experts' parameters of the model."""
    return count_rank_parameters(TrainingSetup(model, Mesh(), 1, 1, 1), 0)


def count_active_parameters(model: ModelShape) -> int:
    """Return the number of parameters that a token uses, with `active_experts` of the experts of each layer."""
    counted = count_parameters(model)
    return counted.dense + counted.expert * model.active_experts // model.experts


def count_rank_parameters(setup: TrainingSetup, rank: int) -> ParameterCount:
    """Return the numbers of dense parameters and of experts' parameters of a rank with the index `rank` along pp."""
    dense = expert = 0
    for part in list_rank_parts(setup, rank):
        of_experts = sum(unit.elements for unit in part.units if unit.kind == "expert")
        dense, expert = dense + part.count * (part.elements - of_experts), expert + part.count * of_experts
    return ParameterCount(dense, expert)
