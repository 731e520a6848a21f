"""Conversion of the options of `hpccoll train` to the `TrainingSetup` that the formulas of hpccoll/sizing take."""

from __future__ import annotations

from hpccoll.errors import UsageError
from hpccoll.parallel.mesh import Mesh
from hpccoll.parallel.schedule_files import is_schedule_file
from hpccoll.sizing import Precision, TrainingSetup, TransformerShape
from hpccoll.sizing.perceptron_shape import LinearShape, PerceptronShape
from hpccoll.sizing.training_setup import ModelShape, TrainingProgram
from hpccoll.train.options import BYTES, CourseConfig, GptConfig, ModelConfig, TrainOptions

PROGRAM = TrainingProgram(
    frees_gradients=True,
    keeps_outputs=True,
    pools_weights=True,
    defers_gathered=True,
    has_whole_scores=True,
    repeats_last_reduction=False,
)
OPTIMIZER_NAMES = {"adamw": "adam", "sgd": "sgd"}


def make_training_setup(options: TrainOptions, mesh: Mesh) -> TrainingSetup:
    """Return the training step of a run; raise UsageError unless the mesh divides the batch and a GPT evenly."""
    model = options.model
    if is_schedule_file(options.schedule):
        raise UsageError(
            f"--schedule {options.schedule} has no estimate: the formulas are for built-in schedules; "
            "give --schedule 1f1b"
        )
    setup = TrainingSetup(
        make_model_shape(model),
        mesh,
        options.batch,
        model.tokens,
        options.count_microbatches(mesh),
        zero=options.zero,
        recompute="full" if options.recompute else "none",
        sequence_parallel=options.sequence_parallel,
        schedule=options.schedule,
        precision=Precision(options.dtype, OPTIMIZER_NAMES[options.optimizer.name]),
        program=PROGRAM,
    )
    setup.require_fits()
    return setup


def make_model_shape(model: ModelConfig) -> ModelShape:
    """Return the shape of a model of `hpccoll train`."""
    if not isinstance(model, GptConfig):
        shapes = [(*model.weight_shape(layer), model.choose_split(layer)) for layer in range(model.layers)]
        linears = tuple(LinearShape(inputs, outputs, split) for outputs, inputs, split in shapes)
        return PerceptronShape(linears, model.activation == "tanh", has_classes=not isinstance(model, CourseConfig))
    return TransformerShape(
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        feed_forward=model.mlp_width,
        experts=model.experts.count if model.experts else 1,
        active_experts=model.experts.top_k if model.experts else 1,
        vocabulary=BYTES,
        context=model.context,
        qkv_biases=False,
        dropout=False,
        gated=model.is_gated,
        tiled_attention=True,
    )
