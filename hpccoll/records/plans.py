"""Records of plans: kind `plan` of `hpccoll simulate` and `hpccoll verify`, and kind `demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from hpccoll.plan import Operation
from hpccoll.records.record import Amount, Count, Positive, Record, about

if TYPE_CHECKING:
    PlanOperationName: TypeAlias = str
else:
    PlanOperationName = Literal[tuple(operation.value for operation in Operation)]


class WaitEntry(Struct, frozen=True):
    """`rank` waited for a message of `source`."""

    round: Count
    rank: Count
    source: Count
    nbytes: Count
    between: Annotated[bool, about("Whether the message crossed nodes.")]
    entered_us: Amount


class CriticalPathEntry(Struct, frozen=True):
    """What the last rank was held up by."""

    last_rank: Count
    waits: Count
    waits_between: Count
    ends: Annotated[tuple[WaitEntry, ...], about("First and last.")]


class FitErrors(Struct, frozen=True):
    """Median errors of --machine fit:FILE."""

    fitted: Amount
    left_out: Amount


class SimulatedPlanRecord(Record, frozen=True):
    """What was predicted of one algorithm on one number of ranks (`hpccoll simulate`)."""

    kind: ClassVar[str] = "plan"

    command: Literal["simulate"]
    op: PlanOperationName
    algorithm: str
    ranks: Positive
    nodes: Positive
    machine: str
    nbytes: Annotated[Count, about("nccl-tests' S.")]
    chunks: Positive
    root: Annotated[Count | None, about("null where there is none.")]
    simulated_ranks: Annotated[Positive, about("How many ranks stood for all.")]
    rounds: Count
    steps: Count
    messages: Count
    time_us: Amount
    latency_bound_us: Amount
    bandwidth_bound_us: Amount
    sent_mean: Annotated[Amount, about("Bytes that a rank sends, on average.")]
    sent_most: Annotated[Amount, about("Bytes that the busiest rank sends.")]
    within: Annotated[Amount, about("Bytes sent inside nodes, by all ranks.")]
    between: Annotated[Amount, about("Bytes sent across nodes, by all ranks.")]
    critical_path: CriticalPathEntry | None
    fit: FitErrors | None


class ProvenPlanRecord(Record, frozen=True):
    """What was proven of one algorithm on one number of ranks (`hpccoll verify`)."""

    kind: ClassVar[str] = "plan"

    command: Literal["verify"]
    op: PlanOperationName
    algorithm: str
    ranks: Positive
    plans: Annotated[Positive, about("Variants: roots times chunk counts.")]
    proven: bool
    failures: Annotated[tuple[str, ...], about("One message per variant that is not proven.")]
    rounds: Count | None
    steps: Count | None
    messages: Count | None
    sent_mean: Annotated[Amount | None, about("What a rank sends, in multiples of S, on average over ranks.")]
    sent_most: Annotated[Amount | None, about("What the busiest rank sends, in multiples of S.")]
    seconds: Amount


class DemoRecord(Record, frozen=True):
    """What the ranks of an example held (`hpccoll demo`)."""

    kind: ClassVar[str] = "demo"

    name: str
    ranks: Positive
    op: Annotated[str | None, about("null where several calls play together.")]
    algorithm: str | None
    before: dict[str, Annotated[list[Any], about("By rank.")]]
    after: dict[str, Annotated[list[Any], about("By rank.")]]
