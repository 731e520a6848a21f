"""The parts of a perceptron on a rank: linear layers, activation functions between them, and a loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpccoll.parallel.mesh import split_evenly
from hpccoll.sizing.model_part import ModelPart, ParameterUnit, PartMoment, PartTraffic, make_stage_end
from hpccoll.sizing.perceptron_shape import PerceptronShape
from hpccoll.sizing.training_setup import TrainingSetup


def list_perceptron_parts(model: PerceptronShape, setup: TrainingSetup, stage: int) -> list[ModelPart]:
    """Return the parts of pipeline stage `stage`: layers (with recomputation, pairs), and the loss or the output."""
    own = split_evenly(model.layers, setup.pipeline.stages)[stage]
    indices, size = range(own.start, own.stop), 2 if setup.recompute == "full" else 1
    parts = [_make_part(model, setup, indices[at : at + size], indices) for at in range(0, len(indices), size)]
    features, shares_output = setup.tokens * setup.precision.element_bytes, model.keeps_outputs and size == 1
    if stage == setup.pipeline.stages - 1:
        parts.append(_make_loss(model, features * model.linears[-1].outputs))
    else:
        parts.append(make_stage_end(parts[-1].output, kept=0.0 if shares_output else parts[-1].output))
    return parts


def _make_loss(model: PerceptronShape, nbytes: int) -> ModelPart:
    """Return the loss as a part of the model, for an output of `nbytes` bytes.

    The cross entropy keeps the logarithms of the softmax; its backward pass has the gradients of these logarithms and
    of the output. The square error keeps output minus target; its backward pass has four tensors of the output's size.
    """
    return ModelPart((), nbytes, [PartMoment(nbytes, nbytes * (2 if model.has_classes else 4))], 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _LayerBytes:
    """The bytes of a layer's tensors on a rank for a micro-batch.

    `inputs` is 0 for the model's first layer, whose input needs no gradient.
    """

    split: str
    inputs: float
    outputs: float  # of the matrix product
    results: float  # of the layer
    parameters: int  # number of them
    is_last: bool  # of the model
    ends_stage: bool

    @property
    def deferred(self) -> float:
        """The bytes that wait for a separate backward pass of the weights; 0 for the model's first layer."""
        return self.inputs + self.outputs if self.inputs else 0.0

    def list_moments(self, alive: float, freed: float) -> Iterator[PartMoment]:
        """Yield the moments of the linear layer's backward pass that may be its memory peak.

        The moments are: the reduce_scatter of output gradients (split `gathered`), the matrix product, and the sum over
        tp of the input's gradient (split `column`). `alive` are the bytes of activations up to the input of the layer,
        of which the matrix product frees `freed`.
        """
        if self.split == "gathered":
            yield PartMoment(alive, self.outputs + (1 if self.is_last else 2) * self.results)
        yield PartMoment(alive, self.outputs + self.inputs, self.parameters)
        if self.split == "column":
            waiting = freed + self.outputs if freed else 0.0
            yield PartMoment(
                alive - freed, 2 * self.inputs, finished=(ParameterUnit(self.parameters),), deferred=waiting
            )

    def make_recomputation(self, alive: float, gradient: float) -> PartMoment:
        """Return the moment when the layer's output is recomputed.

        A sum over tp has two tensors at a time: the addend and the sum, then the sum and the sum with biases. `alive`
        are the bytes of activations, and `gradient` those of the gradient of the part's output.
        """
        summed = {"row": 2 * self.outputs, "gathered": self.outputs + 2 * self.results}
        return PartMoment(alive, gradient + summed.get(self.split, 0.0))


def _measure_layer(model: PerceptronShape, setup: TrainingSetup, index: int, stage: Sequence[int]) -> _LayerBytes:
    """Return the bytes of the tensors of layer number `index` on a rank.

    `stage` has the numbers of all layers in the layer's stage.
    """
    layer, e = model.linears[index], setup.precision.element_bytes
    inputs, outputs, results = (setup.tokens * e * features for features in layer.count_features(setup.mesh.tp))
    is_last = index == model.layers - 1
    parameters = layer.count_parameters(setup.mesh.tp)
    ends_stage = index == stage[-1] and not is_last
    return _LayerBytes(layer.split, inputs * bool(index), outputs, results, parameters, is_last, ends_stage)


def _trace_backward(
    model: PerceptronShape, layers: Sequence[_LayerBytes], alive: float, *, is_recomputed: bool, begins_stage: bool
) -> tuple[list[PartMoment], float]:
    """Return the moments of a part's backward pass that may be its memory peak, and the bytes of its activations.

    The output of tanh counts once, although it is also the input of the next layer. The output of a stage and its
    gradient are counted by `make_stage_end`. `layers` has the bytes of each layer of the part, and `alive` is the
    number of bytes of the part's input.
    """
    moments: list[PartMoment] = []
    shares = model.keeps_outputs and not is_recomputed
    for number, layer in enumerate(layers):
        alive += 0 if model.keeps_outputs or number == 0 else layer.inputs
        finished = ParameterUnit(sum(later.parameters for later in layers[number + 1 :]))
        waiting = sum(later.deferred for later in layers[number + 1 :])
        is_held = model.keeps_outputs or (begins_stage and number == 0)
        of_layer = list(layer.list_moments(alive, 0.0 if is_held else layer.inputs))
        if is_recomputed and not layer.is_last:
            of_layer.append(layer.make_recomputation(alive, 0 if layers[-1].ends_stage else layers[-1].results))
        if not layer.is_last:
            kept = 0 if layer.ends_stage and shares else layer.results
            of_layer.append(PartMoment(alive + kept, layer.results * (1 if layer.ends_stage else 2)))
            alive += layer.results
        moments += [
            moment._replace(finished=(*moment.finished, finished), deferred=moment.deferred + waiting)
            for moment in of_layer
        ]
    return moments, alive


def _make_part(model: PerceptronShape, setup: TrainingSetup, indices: Sequence[int], stage: Sequence[int]) -> ModelPart:
    """Return the layers with the numbers `indices` as a part of a stage; `stage` has the numbers of all its layers.

    The activations of the layers are recomputed if the setup says so.
    """
    own = [model.linears[index] for index in indices]
    tp, is_recomputed, begins_stage = setup.mesh.tp, setup.recompute == "full", indices[0] == stage[0]
    layers = [_measure_layer(model, setup, index, stage) for index in indices]
    # Samples, and inputs that the layer before keeps as its output, are counted elsewhere.
    kept = 0.0 if model.keeps_outputs and not is_recomputed and not begins_stage else layers[0].inputs
    moments, alive = _trace_backward(model, layers, kept, is_recomputed=is_recomputed, begins_stage=begins_stage)
    flops = 2.0 * setup.tokens * sum(linear.count_weights(tp) for linear in own)
    features, traffic = setup.tokens * setup.precision.element_bytes, list[PartTraffic]()
    for index, layer in zip(indices, own, strict=True):
        traffic += layer.list_traffic(features, is_recomputed, index == 0, index == model.layers - 1)
    return ModelPart(
        (ParameterUnit(sum(linear.count_parameters(tp) for linear in own)),),
        kept if is_recomputed else alive,
        moments,
        forward_flops=flops,
        output=layers[-1].results,
        recomputed_flops=flops * is_recomputed,
        traffic=traffic if tp > 1 else (),
        deferred=sum(layer.deferred for layer in layers),
    )
