"""Records of `hpccoll train`: kind `train`, one per step, and kind `train_summary`, the last record of a run.

Records of kind `train_account` are written with `--account`, those of kind `train_compare` with `--compare`, and those
of kind `train_recovery` with `--survive`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from hpccoll.records.record import Amount, Natural, Positive, Record, about

SentBytes = dict[str, dict[str, Amount]]  # by axis and operation


class AllocatedBytes(Struct, frozen=True):
    """Bytes of one rank's tensors in a training step: weights, gradients, optimizer state, and so on."""

    weights: Annotated[Natural, about("Parameters of the rank.")]
    gradients: Annotated[Natural, about("Gradients that the rank keeps until the optimizer has used them.")]
    optimizer: Annotated[Natural, about("State of the optimizer.")]
    buffers: Annotated[Natural, about("Buffers for gathered parameters, and for gradients that are not reduced yet.")]
    activations: Annotated[Natural, about("Peak of all other tensors: activations and intermediate results.")]
    total: Annotated[Natural, about("Peak of all tensors together, at most the sum of the other fields.")]
    copies: Annotated[Natural, about("Copies of the state after the last two steps, with --survive.")] = 0


class MeshRecord(Record, frozen=True, kw_only=True):
    """The fields that all records of `hpccoll train` share: the mesh of ranks, ZeRO and sequence parallelism."""

    strategy: Annotated[str, about("Axes of the mesh with more than one rank, such as dp=2,tp=2.")]
    ranks: Positive
    dp: Annotated[Positive, about("Ranks along the data-parallel axis.")]
    tp: Annotated[Positive, about("Ranks along the tensor-parallel axis.")]
    pp: Annotated[Positive, about("Pipeline stages.")]
    cp: Annotated[Positive, about("Ranks along the axis that splits sequences.")] = 1
    ep: Annotated[Positive, about("Ranks along the axis that splits experts.")] = 1
    zero: Annotated[Natural, about("Level of ZeRO; 0 without ZeRO.")] = 0
    sequence_parallel: Annotated[bool, about("Whether tp also splits tokens outside tensor-parallel layers.")] = False


class TrainStepRecord(MeshRecord, frozen=True, kw_only=True):
    """Loss, time, memory and traffic of one training step on all ranks (`hpccoll train`).

    The file of a requeued run may contain a step twice; the last record of a step is valid.
    """

    kind: ClassVar[str] = "train"

    step: Annotated[Positive, about("Number of this step, from 1.")]
    loss: Annotated[float, about("Mean over the samples of the batch, before the step.")]
    step_s: Annotated[Amount, about("Maximum over ranks, without the time to write the checkpoint and the record.")]
    tokens_per_s: Annotated[Amount, about("Bytes of text per second of a GPT; of other models, samples per second.")]
    comm_s: Annotated[Amount, about("Seconds with communication in flight, including waits; maximum over ranks.")]
    exposed_comm_s: Annotated[Amount, about("The part of comm_s that no computation hides; maximum over ranks.")]
    bubble: Annotated[
        Amount | None,
        about("Fraction of the step spent sending to and waiting for other stages, mean over ranks; null if pp is 1."),
    ]
    peak_bytes: Annotated[Natural, about("Peak memory, maximum over ranks: resident on a CPU, torch's on a GPU.")]
    grad_norm: Annotated[Amount, about("Euclidean norm of the gradient of all parameters.")]
    sent_bytes: Annotated[
        SentBytes | None,
        about(
            "Bytes by axis and operation, maximum over ranks, if collectives send as little as possible: 2 (n-1)/n of "
            "an all_reduce's message, (n-1)/n of the whole message of an all_gather or reduce_scatter."
        ),
    ] = None


class TrainRecoveryRecord(MeshRecord, frozen=True, kw_only=True):
    """The death of ranks in a run of `hpccoll train --survive`, and the mesh of the ranks that continue.

    The records after a recovery record belong to the training steps after step number `steps`. If the death of a rank
    interrupted a step, the step is repeated.
    """

    kind: ClassVar[str] = "train_recovery"

    steps: Annotated[Natural, about("Steps done before the death; training continues from the state after them.")]
    lost_ranks: Annotated[tuple[Natural, ...], about("The dead ranks, numbered as in the mesh before.")]
    lost_hosts: Annotated[tuple[str, ...], about("Host names of the dead ranks.")]
    source: Annotated[
        Literal["memory", "checkpoint"], about("Whether the state is from copies in memory or from the checkpoint.")
    ]
    recovery_s: Annotated[
        Amount, about("Seconds from the error on a surviving rank until the next step begins; maximum over ranks.")
    ]


class TrainSummaryRecord(MeshRecord, frozen=True, kw_only=True):
    """The configuration and results of one run of `hpccoll train`; the last record of the run."""

    kind: ClassVar[str] = "train_summary"

    model: str
    width: Annotated[Positive, about("Features between layers.")]
    layers: Positive
    activation: str
    parameters: Annotated[Positive, about("Number of trained values.")]
    dtype: str
    device: str
    seed: Natural
    batch: Annotated[Positive, about("Samples per step, over all ranks.")]
    schedule: str
    lr: Amount
    microbatches: Annotated[Positive, about("Microbatches per step and data-parallel rank.")]
    steps: Annotated[Natural, about("Total steps, including those before the run was resumed.")]
    resumed_at: Annotated[Natural | None, about("Steps in the checkpoint; null if the run was not resumed.")]
    stop: Literal["complete", "stop_file"]
    loss: Annotated[float | None, about("Loss of the last step; null if there was no step.")]
    accuracy: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        about("Fraction of right answers on the 10 % of the digits held out; null for other data, or a stopped run."),
    ]
    median_step_s: Annotated[Amount | None, about("Over the steps since the start or resumption.")]
    wrong: Annotated[Natural | None, about("Wrong elements of gradients and shared parameters; null if unchecked.")]
    max_error: Annotated[
        Amount | None, about("Largest error relative to the largest gradient of its parameter; null if unchecked.")
    ]
    checkpoint: Annotated[str | None, about("The last checkpoint file; null if none was written.")]
    heads: Annotated[Positive | None, about("Heads of attention; null unless the model is a GPT.")]
    context: Annotated[Positive | None, about("Bytes of a sample; null unless the model is a GPT.")]
    optimizer: Annotated[str, about("sgd or adamw.")]
    held_out_loss: Annotated[float | None, about("Mean over held-out samples; null if the run was stopped.")]
    sent_bytes: Annotated[
        SentBytes | None, about("Bytes sent in the last step, by axis and operation; null without a step.")
    ] = None
    allocated_bytes: Annotated[
        AllocatedBytes | None,
        about("Of the rank with the largest total, in the first step; null without a step, and on a GPU."),
    ] = None


class AccountEntry(Struct, frozen=True):
    """The measured and predicted values of one quantity of a training step, such as its seconds or its peak memory.

    The name `quantity` ends with the unit: `bytes`, `s` (seconds), or `share` (a fraction of the step). The quantity
    `bubble` is a fraction of the step, too.
    """

    quantity: Annotated[str, about("Such as `all_reduce bytes`, `exposed share` or `peak bytes`.")]
    measured: Annotated[Amount, about("Measured in the run.")]
    simulated: Annotated[Amount, about("Simulated from hpccoll's plans.")]
    estimated: Annotated[Amount, about("By the formulas of `hpccoll estimate`.")]
    even: Annotated[Amount | None, about("The estimate if tokens choose experts evenly; null if it is the same.")] = (
        None
    )


class TrainAccountRecord(MeshRecord, frozen=True, kw_only=True):
    """Quantities of the training steps of a mesh, measured and predicted (`hpccoll train --account`).

    Times are medians over the steps; bytes are those of the rank that sends or allocates most.
    """

    kind: ClassVar[str] = "train_account"

    label: Annotated[str, about("The strategy as given, such as zero3 or tp=2,sp.")]
    model: str
    batch: Annotated[Positive, about("Samples per step, over all ranks.")]
    microbatches: Annotated[Positive, about("Micro-batches per step of each pipeline.")]
    peak_flop_per_s: Annotated[Amount, about("Measured rate of a rank that trains alone while all ranks do.")]
    alpha_s: Annotated[Amount, about("Measured cost of a message.")]
    beta_s_per_byte: Annotated[Amount, about("Measured cost of a byte in an all_reduce.")]
    entries: Annotated[tuple[AccountEntry, ...], about("The quantities, one entry each.")]


class TrainCompareRecord(MeshRecord, frozen=True, kw_only=True):
    """Median step times of the same training with hpccoll and with torch, run in turns (`hpccoll train --compare`)."""

    kind: ClassVar[str] = "train_compare"

    model: str
    torch: Annotated[str, about("Torch's parallelism and backend, such as `DistributedDataParallel over gloo`.")]
    steps: Annotated[Positive, about("Timed steps of each side, without warm-up.")]
    step_s: Annotated[Amount, about("Median step of hpccoll; a step is the maximum over ranks.")]
    step_low_s: Annotated[Amount, about("Lower end of the 95 % interval.")]
    step_high_s: Annotated[Amount, about("Upper end of the 95 % interval.")]
    torch_step_s: Annotated[Amount, about("Median step of torch.")]
    torch_step_low_s: Annotated[Amount, about("Lower end of the 95 % interval.")]
    torch_step_high_s: Annotated[Amount, about("Upper end of the 95 % interval.")]
    ratio: Annotated[Amount, about("Median of hpccoll divided by that of torch.")]
    ratio_low: Annotated[Amount, about("Lower end of the 95 % interval.")]
    ratio_high: Annotated[Amount, about("Upper end of the 95 % interval.")]
    loss_difference: Annotated[Amount, about("Largest difference of the losses in a step, relative to torch's loss.")]
    gradient_difference: Annotated[
        Amount | None,
        about("Largest difference in the first step, relative to the parameter's largest gradient; null if unchecked."),
    ] = None
