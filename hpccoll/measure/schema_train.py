"""JSON Schema of the records of `hpccoll train`: one a step, and one at the end."""

from __future__ import annotations

from hpccoll.measure.schema_parts import TEXT, TEXT_OR_NULL, TIME, TIME_OR_NULL, Schema, record, whole


def kinds_of_training() -> dict[str, Schema]:
    """Return the schemas by kind of record."""
    return {"train": _step(), "train_summary": _summary()}


def _mesh() -> dict[str, Schema]:
    return {
        "strategy": TEXT | {"description": "The mesh: its axes of more than one rank, such as dp=2,tp=2."},
        "ranks": whole(1),
        "dp": whole(1, "Ranks along the axis of data parallelism."),
        "tp": whole(1, "Of tensor parallelism."),
        "pp": whole(1, "Stages of the pipeline."),
    }


def _step() -> Schema:
    return record(
        "One step (`hpccoll train`). A run that was requeued may hold a step twice: the last one counts.",
        {
            **_mesh(),
            "step": whole(1, "Steps done, this one included."),
            "loss": {"type": "number", "description": "Mean over the samples of the batch, before the step."},
            "step_s": TIME | {"description": "The largest over ranks; without checkpoint and record."},
            "tokens_per_s": TIME | {"description": "Samples a second: a token of this model is a sample."},
            "comm_s": TIME
            | {"description": "Seconds inside communicator calls, waiting included; the most of any rank."},
            "exposed_comm_s": TIME
            | {"description": "Of comm_s, what no computation hid: all of it while nothing overlaps."},
            "bubble": TIME_OR_NULL
            | {
                "description": "Share of the step in messages with neighbouring stages, nearly all of it waiting for "
                "them; the mean over ranks. null without a pipeline."
            },
            "peak_bytes": whole(
                0, "The most memory of any rank since it began: resident on the CPU, torch's on a GPU."
            ),
            "grad_norm": TIME | {"description": "Euclidean norm of the gradient of all parameters."},
        },
    )


def _summary() -> Schema:
    return record(
        "What a training run came to; its last record.",
        {
            **_mesh(),
            "model": TEXT,
            "width": whole(1, "Features between layers."),
            "layers": whole(1),
            "activation": TEXT,
            "parameters": whole(1, "Numbers that are trained."),
            "dtype": TEXT,
            "device": TEXT,
            "seed": whole(),
            "batch": whole(1, "Samples a step, over all ranks."),
            "microbatches": whole(1, "Parts of a data-parallel rank's share of the batch."),
            "schedule": TEXT,
            "lr": TIME,
            "steps": whole(0, "Done in all, those before a resumption included."),
            "resumed_at": whole(0, "Steps of the checkpoint; null where the run began anew.", null=True),
            "stop": {"enum": ["complete", "stop_file"]},
            "loss": {"type": ["number", "null"], "description": "Of the last step; null where no step was taken."},
            "accuracy": TIME_OR_NULL | {"maximum": 1, "description": "On the held-out tenth; null where stopped."},
            "median_step_s": TIME_OR_NULL | {"description": "Over the steps of this run."},
            "wrong": whole(
                0, "Elements of gradients, and of shared parameters, found wrong; null unchecked.", null=True
            ),
            "max_error": TIME_OR_NULL
            | {"description": "Largest difference over the largest gradient of its parameter; null unchecked."},
            "checkpoint": TEXT_OR_NULL | {"description": "The file that was written last."},
        },
    )
