"""Maps the class of a model's shape, such as `GptConfig`, to the class of the trained model."""

from __future__ import annotations

from typing import Any

from hpccoll.train.gpt import GptModel
from hpccoll.train.options import CourseConfig, GptConfig, MlpConfig, ModelConfig
from hpccoll.train.perceptron import CourseModel, MlpModel
from hpccoll.train.rank_layers import TrainedModel

_MODELS: dict[type[ModelConfig], type[TrainedModel[Any]]] = {
    MlpConfig: MlpModel,
    CourseConfig: CourseModel,
    GptConfig: GptModel,
}


def make_model(config: ModelConfig) -> TrainedModel[Any]:
    """Return the model (samples, parameters, loss) that has the shape `config`."""
    return _MODELS[type(config)](config)
