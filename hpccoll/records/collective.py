"""The record of kind `collective`: one case of `hpccoll bench` or `hpccoll tune`, and its samples.

A case is an operation, a size, a type, a buffer, an engine and an algorithm on some ranks. A sample is the time of one
iteration, the maximum over the ranks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct, field

from hpccoll.plan import Operation
from hpccoll.records.record import Amount, Count, Positive, Record, about

SEND_RECV: Final = "send_recv"  # timed like the collectives
FEWEST_FOR_P99: Final = 100  # of fewer samples the 99th percentile is the maximum
if TYPE_CHECKING:
    OperationName: TypeAlias = str
else:
    OperationName = Literal[(*(operation.value for operation in Operation), SEND_RECV)]
Staging: TypeAlias = Literal["direct", "pinned"] | None  # None: host memory


class StopReason(StrEnum):
    """Why a case was not measured further."""

    CONVERGED = "converged"  # the interval of the median is tight enough
    BUDGET = "budget"  # the seconds for the case are spent
    ITERATIONS = "iterations"  # the number of iterations that was asked for


class TimeSummary(Struct, frozen=True):
    """Of samples_us, in microseconds.

    p50_low and p50_high enclose the median with 95 %; below 6 iterations no interval does, and they are the smallest
    and the largest sample, which do with 1 - 2**(1 - iterations). p95 and p99 are samples (nearest rank).
    """

    min: Amount
    p50: Amount
    p50_low: Amount
    p50_high: Amount
    p95: Amount
    p99: Annotated[Amount | None, about(f"null below {FEWEST_FOR_P99} iterations.")]
    max: Amount


class CaseKey(NamedTuple):
    """What identifies a case when a run is resumed, whatever the run."""

    op: str
    engine: str
    algorithm: str | None
    buffer: str
    in_place: bool
    nbytes: int
    dtype: str
    redop: str | None
    root: int | None
    ranks: int


class CollectiveCase(Record, frozen=True):
    """What is measured."""

    op: OperationName
    engine: str
    algorithm: Annotated[str | None, about("null where the engine does not say.")]
    buffer: str
    in_place: bool
    nbytes: Annotated[Count, about("nccl-tests' S.")]
    count: Annotated[Count, about("Elements per rank: of its vector, or of one block where the message is n blocks.")]
    dtype: str
    redop: Annotated[str | None, about("null where nothing is reduced.")]
    root: Annotated[Count | None, about("null where there is none.")]
    ranks: Positive
    nodes: Positive

    @property
    def key(self) -> CaseKey:
        """The fields by which the same case of another run is recognised."""
        return CaseKey(*(getattr(self, name) for name in CaseKey._fields))


class CollectiveRecord(CollectiveCase, frozen=True):
    """One measured case."""

    kind: ClassVar[str] = "collective"

    iterations: Positive
    stop: StopReason
    time_us: TimeSummary
    algbw: Annotated[Amount, about("nbytes over the median time.")] = field(name="algbw_GBps")
    busbw: Annotated[Amount, about("algbw_GBps times nccl-tests' factor of the operation.")] = field(name="busbw_GBps")
    wrong: Annotated[Count | None, about("Elements found wrong; null where the results were not checked.")]
    bound_us: Annotated[Amount | None, about("The model's lower bound.")]
    samples_us: Annotated[
        tuple[Amount, ...], Meta(min_length=1), about("Each iteration's maximum over ranks, in the order measured.")
    ]
    staging: Annotated[Staging, about("How device memory reached MPI.")] = None
    stream_us: Annotated[
        tuple[Amount, ...], about("As samples_us, by CUDA events on the current stream; empty for host memory.")
    ] = ()
