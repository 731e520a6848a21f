"""The parts of any model on a rank."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain

from hpccoll.sizing.model_part import ModelPart
from hpccoll.sizing.perceptron import PerceptronShape, list_perceptron_parts
from hpccoll.sizing.training_setup import TrainingSetup
from hpccoll.sizing.transformer import list_transformer_parts


@lru_cache(maxsize=256)
def list_stage_parts(setup: TrainingSetup, stage: int) -> tuple[ModelPart, ...]:
    """Return the parts of a pipeline stage, in the order of the forward pass."""
    model = setup.model
    if isinstance(model, PerceptronShape):
        return tuple(list_perceptron_parts(model, setup, stage))
    return tuple(list_transformer_parts(model, setup, stage))


def list_rank_parts(setup: TrainingSetup, rank: int) -> list[ModelPart]:
    """Return the parts of all pipeline stages of a rank with the index `rank` along pp."""
    placed = setup.family.place_stages(setup.shape)
    return list(chain.from_iterable(list_stage_parts(setup, at) for at, own in enumerate(placed) if own == rank))
