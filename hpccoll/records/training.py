"""Records of `hpccoll train`: kind `train`, one per step, and kind `train_summary`, the last of a run."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from hpccoll.records.record import Amount, Count, Positive, Record, about


class MeshRecord(Record, frozen=True):
    """The mesh of ranks that trains."""

    strategy: Annotated[str, about("The mesh: its axes of more than one rank, such as dp=2,tp=2.")]
    ranks: Positive
    dp: Annotated[Positive, about("Ranks along the axis of data parallelism.")]
    tp: Annotated[Positive, about("Of tensor parallelism.")]
    pp: Annotated[Positive, about("Stages of the pipeline.")]


class TrainStepRecord(MeshRecord, frozen=True):
    """One step (`hpccoll train`). A run that was requeued may hold a step twice: the last one counts."""

    kind: ClassVar[str] = "train"

    step: Annotated[Positive, about("Steps done, this one included.")]
    loss: Annotated[float, about("Mean over the samples of the batch, before the step.")]
    step_s: Annotated[Amount, about("The largest over ranks; without checkpoint and record.")]
    tokens_per_s: Annotated[Amount, about("Samples per second: a token of this model is a sample.")]
    comm_s: Annotated[Amount, about("Seconds inside communicator calls, waiting included; the most of any rank.")]
    exposed_comm_s: Annotated[Amount, about("Of comm_s, what no computation hid: all of it while nothing overlaps.")]
    bubble: Annotated[
        Amount | None,
        about(
            "Share of the step in messages with neighbouring stages, nearly all of it waiting for them; the mean over "
            "ranks. null without a pipeline."
        ),
    ]
    peak_bytes: Annotated[
        Count, about("The most memory of any rank since it began: resident on the CPU, torch's on a GPU.")
    ]
    grad_norm: Annotated[Amount, about("Euclidean norm of the gradient of all parameters.")]


class TrainSummaryRecord(MeshRecord, frozen=True):
    """What a training run came to; its last record."""

    kind: ClassVar[str] = "train_summary"

    model: str
    width: Annotated[Positive, about("Features between layers.")]
    layers: Positive
    activation: str
    parameters: Annotated[Positive, about("Numbers that are trained.")]
    dtype: str
    device: str
    seed: Count
    batch: Annotated[Positive, about("Samples per step, over all ranks.")]
    schedule: str
    lr: Amount
    microbatches: Annotated[Positive, about("Parts of a data-parallel rank's share of the batch.")]
    steps: Annotated[Count, about("Done in all, those before a resumption included.")]
    resumed_at: Annotated[Count | None, about("Steps of the checkpoint; null where the run began anew.")]
    stop: Literal["complete", "stop_file"]
    loss: Annotated[float | None, about("Of the last step; null where no step was taken.")]
    accuracy: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None, about("On the held-out tenth; null where the run was stopped.")
    ]
    median_step_s: Annotated[Amount | None, about("Over the steps of this run.")]
    wrong: Annotated[
        Count | None, about("Elements of gradients, and of shared parameters, found wrong; null unchecked.")
    ]
    max_error: Annotated[
        Amount | None, about("Largest difference over the largest gradient of its parameter; null unchecked.")
    ]
    checkpoint: Annotated[str | None, about("The file that was written last.")]
