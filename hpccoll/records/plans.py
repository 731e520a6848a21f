"""Records of plans and schedules: kinds `plan`, `published_schedule`, `schedule`, `demo` and `selection`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from hpccoll.plan import Operation
from hpccoll.records.record import Amount, Natural, Positive, Record, about

if TYPE_CHECKING:
    PlanOperationName: TypeAlias = str
else:
    PlanOperationName = Literal[tuple(operation.value for operation in Operation)]


class WaitEntry(Struct, frozen=True):
    """A wait of `rank` for a message from `source` on the critical path of a simulated collective."""

    round: Natural
    rank: Natural
    source: Natural
    nbytes: Natural
    between: Annotated[bool, about("Whether the message crossed nodes.")]
    entered_us: Amount


class CriticalPathEntry(Struct, frozen=True):
    """The critical path of a simulated collective: the waits that delayed the rank that finishes last."""

    last_rank: Natural
    waits: Natural
    waits_between: Natural
    ends: Annotated[tuple[WaitEntry, ...], about("The first and the last waits.")]


class FitErrors(Struct, frozen=True):
    """Median relative errors of times predicted by a fitted machine model, at the fit's message sizes and at others."""

    fitted: Amount
    left_out: Amount


class SimulatedPlanRecord(Record, frozen=True):
    """The simulated time and traffic of one algorithm on one number of ranks (`hpccoll simulate`)."""

    kind: ClassVar[str] = "plan"

    command: Literal["simulate"]
    op: PlanOperationName
    algorithm: str
    ranks: Positive
    nodes: Positive
    machine: str
    nbytes: Annotated[Natural, about("nccl-tests' S.")]
    chunks: Positive
    root: Annotated[Natural | None, about("null if the operation has no root.")]
    simulated_ranks: Annotated[Positive, about("Ranks that were simulated to represent all.")]
    rounds: Natural
    steps: Natural
    messages: Natural
    time_us: Amount
    latency_bound_us: Amount
    bandwidth_bound_us: Amount
    sent_mean: Annotated[Amount, about("Bytes that a rank sends, on average.")]
    sent_most: Annotated[Amount, about("Bytes that the busiest rank sends.")]
    within: Annotated[Amount, about("Bytes sent inside nodes, by all ranks.")]
    between: Annotated[Amount, about("Bytes sent across nodes, by all ranks.")]
    critical_path: CriticalPathEntry | None
    fit: FitErrors | None
    binding: Annotated[str | None, about("Links that cause bandwidth_bound_us; null if unknown.")] = None


class ProvenPlanRecord(Record, frozen=True):
    """Whether one algorithm is proven correct on one number of ranks, and the data that it sends (`hpccoll verify`)."""

    kind: ClassVar[str] = "plan"

    command: Literal["verify"]
    op: PlanOperationName
    algorithm: str
    ranks: Positive
    plans: Annotated[Positive, about("Number of variants: roots times chunk counts times node layouts.")]
    proven: bool
    failures: Annotated[tuple[str, ...], about("One message per variant that is not proven.")]
    rounds: Natural | None
    steps: Natural | None
    messages: Natural | None
    sent_mean: Annotated[Amount | None, about("Bytes that a rank sends, divided by S; mean over ranks.")]
    sent_most: Annotated[Amount | None, about("Bytes that the busiest rank sends, divided by S.")]
    seconds: Amount
    deaths: Annotated[
        Natural | None, about("With --survive: deaths (a rank, a round, before or after its messages) of all variants.")
    ] = None
    split_deaths: Annotated[
        Natural | None, about("With --survive: deaths after which some survivors have a result, and others raise.")
    ] = None


class PublishedScheduleRecord(Record, frozen=True):
    """Whether a schedule in a file of MSCCL, MSCCL++, TE-CCL or TACCL is proven correct (`hpccoll verify FILE`)."""

    kind: ClassVar[str] = "published_schedule"

    command: Literal["verify"]
    file: Annotated[str, about("Path of the schedule's file.")]
    proven: bool
    failure: Annotated[str | None, about("Rank, step and reason; null if the schedule is proven.")]
    tool: Annotated[str | None, about("The format: MSCCL, MSCCL++, TE-CCL or TACCL; null if the file is refused.")]
    op: PlanOperationName | None
    ranks: Positive | None
    chunks: Annotated[Positive | None, about("Chunks of the collective's data.")]
    buffered: Annotated[Positive | None, about("Least number of buffered messages per link without a deadlock.")]
    transfers: Annotated[Natural | None, about("Chunks that move between ranks.")]
    redundant: Annotated[Natural | None, about("Chunks moved to a receiver that has them already or never uses them.")]
    rounds: Annotated[Natural | None, about("Rounds of the plan; null if there is none.")]
    sent_most: Annotated[Amount | None, about("Bytes that the busiest rank sends in the plan, divided by S.")]
    no_plan: Annotated[str | None, about("Why a right schedule has no plan.")]
    seconds: Amount
    optimum_share: Annotated[
        Amount | None,
        about("Optimal time of long messages on the network of --machine, divided by the time of the busiest link."),
    ] = None


class ScheduleRecord(Record, frozen=True):
    """Whether one pipeline schedule is correct, and its predicted times (`hpccoll verify` and `hpccoll simulate`)."""

    kind: ClassVar[str] = "schedule"

    command: Literal["verify", "simulate"]
    schedule: Annotated[str, about("Name of a built-in schedule, or a CSV file.")]
    proven: bool
    failure: Annotated[str | None, about("Rank, action and reason; null if the schedule is proven.")] = None
    stages: Annotated[Positive | None, about("Stages of the model, over all ranks.")] = None
    ranks: Annotated[Positive | None, about("Ranks of the pipeline.")] = None
    microbatches: Annotated[Positive | None, about("Micro-batches per training step.")] = None
    messages: Natural | None = None
    activations: Annotated[tuple[Natural, ...] | None, about("Most live micro-batches of each stage.")] = None
    rank_activations: Annotated[tuple[Natural, ...] | None, about("Most live activations on each rank.")] = None
    time: Annotated[Amount | None, about("Predicted time of a training step, in the unit of --pass-times.")] = None
    idle_time: Annotated[Amount | None, about("Longest idle time of a rank.")] = None
    published_idle_time: Annotated[Amount | None, about("Idle time by the schedule's publication.")] = None
    bubble: Annotated[Amount | None, about("Idle fraction of the time, over all ranks.")] = None


class DemoRecord(Record, frozen=True):
    """The values of each rank before and after one example of a collective (`hpccoll demo`)."""

    kind: ClassVar[str] = "demo"

    name: str
    ranks: Positive
    op: Annotated[str | None, about("null if the example makes several calls.")]
    algorithm: str | None
    before: dict[str, Annotated[list[Any], about("One entry per rank.")]]
    after: dict[str, Annotated[list[Any], about("One entry per rank.")]]


class SelectionRecord(Record, frozen=True):
    """The algorithm that `algorithm="auto"` selects for one call, and why (`hpccoll which`)."""

    kind: ClassVar[str] = "selection"

    op: PlanOperationName
    nbytes: Annotated[Natural, about("nccl-tests' S.")]
    ranks: Positive
    nodes: Positive
    dtype: str
    redop: Annotated[str | None, about("null if the operation does not reduce.")]
    buffer: str
    algorithm: Annotated[str, about("`mpi` is the MPI library's own collective.")]
    chunks: Positive
    source: Annotated[
        Literal["table", "links", "rules", "model"],
        about("The table of `hpccoll tune`, measured rates of links, the fixed rules, or the cost model."),
    ]
    why: Annotated[str, about("The reason in words, such as the measured times.")]
