"""The parts of any model on a rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from itertools import chain
from typing import TypeAlias

from hpccoll.sizing.model_part import ModelPart
from hpccoll.sizing.perceptron_parts import list_perceptron_parts
from hpccoll.sizing.perceptron_shape import PerceptronShape
from hpccoll.sizing.training_setup import TrainingSetup
from hpccoll.sizing.transformer_parts import list_transformer_parts

ListParts: TypeAlias = Callable[[TrainingSetup, int], tuple[ModelPart, ...]]


def _cache_parts(list_parts: ListParts) -> ListParts:
    """Return `list_parts` with a cache that serves all levels of ZeRO, because parts do not depend on the level."""
    cached = lru_cache(maxsize=256)(list_parts)

    @wraps(list_parts)
    def find(setup: TrainingSetup, index: int) -> tuple[ModelPart, ...]:
        """Return the result of `list_parts` for a stage or rank `index`, from the cache if it is there."""
        return cached(setup.unsharded, index)

    return find


@_cache_parts
def list_stage_parts(setup: TrainingSetup, stage: int) -> tuple[ModelPart, ...]:
    """Return the parts (such as layers) of pipeline stage `stage`, in the order of the forward pass."""
    model = setup.model
    if isinstance(model, PerceptronShape):
        return tuple(list_perceptron_parts(model, setup, stage))
    return tuple(list_transformer_parts(model, setup, stage))


@_cache_parts
def list_rank_parts(setup: TrainingSetup, rank: int) -> tuple[ModelPart, ...]:
    """Return the parts (such as layers) of all pipeline stages of a rank with the index `rank` along pp."""
    stages = (stage for stage, own in enumerate(setup.stage_ranks) if own == rank)
    return tuple(chain.from_iterable(list_stage_parts(setup, stage) for stage in stages))
