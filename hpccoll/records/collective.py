"""The record of kind `collective`: one case of `hpccoll bench` or `hpccoll tune`, and its samples.

A case is an operation, message size, data type, kind of memory, engine and algorithm on a number of ranks. A sample is
the time of one iteration, the maximum over the ranks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, NamedTuple, TypeAlias

from msgspec import Meta, Struct, field

from hpccoll.plan import Operation
from hpccoll.records.record import Amount, Natural, Positive, Record, about
from hpccoll.units import format_size

SEND_RECV: Final = "send_recv"  # an operation that is not a collective, but timed and recorded like a collective
FEWEST_FOR_P99: Final = 100  # with fewer samples, the 99th percentile is the maximum
if TYPE_CHECKING:
    OperationName: TypeAlias = str
else:
    OperationName = Literal[(*(operation.value for operation in Operation), SEND_RECV)]
Staging: TypeAlias = Literal["direct", "pinned"] | None  # None: host memory


class StopReason(StrEnum):
    """Why the measurement of a case ended: its median converged, its time was spent, or its iterations were done.

    A case is an operation, size, dtype, kind of buffer, engine and algorithm.
    """

    CONVERGED = "converged"  # the interval of the median is tight enough
    BUDGET = "budget"  # the time budget of the case is spent
    ITERATIONS = "iterations"  # the requested or maximum number of iterations was measured


class StartMethod(StrEnum):
    """How the ranks start each timed iteration together: at a time of a global clock (window), or after a barrier."""

    WINDOW = "window"  # at a time of a global clock; rounds in which a rank was late are discarded
    BARRIER = "barrier"  # after a barrier, whose skew the samples contain


class TimeSummary(Struct, frozen=True):
    """Minimum, maximum and percentiles of the times of a record's iterations, in microseconds.

    p50_low and p50_high are the ends of the median's 95 % confidence interval. Below 6 iterations, p50_low and p50_high
    are the smallest and the largest time, which enclose the median with probability 1 - 2**(1 - iterations). p95 and
    p99 are measured times, not interpolated; p99 is None below 100 iterations.
    """

    min: Amount
    p50: Amount
    p50_low: Amount
    p50_high: Amount
    p95: Amount
    p99: Annotated[Amount | None, about(f"null below {FEWEST_FOR_P99} iterations.")]
    max: Amount

    @property
    def uncertainty(self) -> float:
        """Half the width of the median's 95 % interval, divided by the median; infinity if the median is 0."""
        return (self.p50_high - self.p50_low) / 2 / self.p50 if self.p50 else float("inf")


class CaseKey(NamedTuple):
    """The identity of a benchmark case: operation, engine, algorithm, kind of buffer, size, dtype, ranks and others.

    `hpccoll bench --resume` skips every case whose `CaseKey` is in the records of the interrupted run, and `hpccoll
    compare` compares two records if their keys are equal.
    """

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
    nodes: int

    @property
    def name(self) -> str:
        """The case's operation, size, engine and algorithm, such as `all_reduce 64 KiB hpccoll/ring`."""
        engine = f"{self.engine}/{self.algorithm}" if self.algorithm else self.engine
        place = "" if self.in_place else " out of place"
        return f"{self.op} {format_size(self.nbytes)}{place} {engine}"


class CollectiveCase(Record, frozen=True):
    """The fields of a `CollectiveRecord` that are known before the measurement, such as operation, size and engine.

    Result files contain records of the subclass `CollectiveRecord`, never of this class.
    """

    op: OperationName
    engine: str
    algorithm: Annotated[str | None, about("null if the engine does not name it.")]
    buffer: str
    in_place: bool
    nbytes: Annotated[Natural, about("nccl-tests' S.")]
    count: Annotated[Natural, about("Elements of a rank's vector, or of one block if the message has n blocks.")]
    dtype: str
    redop: Annotated[str | None, about("null if the operation does not reduce.")]
    root: Annotated[Natural | None, about("null if the operation has no root.")]
    ranks: Positive
    nodes: Positive

    @property
    def key(self) -> CaseKey:
        """The fields that identify this case, equal in all runs that measure it."""
        return CaseKey(*(getattr(self, name) for name in CaseKey._fields))


class CollectiveRecord(CollectiveCase, frozen=True):
    """A case that `hpccoll bench` or `hpccoll tune` measured, with its times."""

    kind: ClassVar[str] = "collective"

    iterations: Positive
    stop: StopReason
    time_us: TimeSummary
    algbw: Annotated[Amount, about("nbytes over the median time.")] = field(name="algbw_GBps")
    busbw: Annotated[Amount, about("algbw_GBps times nccl-tests' factor of the operation.")] = field(name="busbw_GBps")
    wrong: Annotated[Natural | None, about("Number of wrong elements; null if the results were not checked.")]
    bound_us: Annotated[Amount | None, about("Optimum of the network of the ranks; null if it is unknown.")]
    samples_us: Annotated[
        tuple[Amount, ...], Meta(min_length=1), about("Time of each iteration, maximum over ranks, in order.")
    ]
    staging: Annotated[Staging, about("Whether MPI got device memory directly or by pinned copies; null: host.")] = None
    stream_us: Annotated[
        tuple[Amount, ...], about("Like samples_us, but timed by CUDA events; empty for host memory.")
    ] = ()
    selected: Annotated[
        str | None, about("What auto selected: an algorithm, or mpi for the MPI library's own collective; else null.")
    ] = None
    start: Annotated[
        StartMethod | None, about("Whether iterations started at a time of a global clock or after a barrier.")
    ] = None
    discarded: Annotated[Natural | None, about("Iterations dropped because a rank missed their start.")] = None
    clock_residual_us: Annotated[
        Amount | None, about("Largest measured error of any rank's clock after the iterations; null without a clock.")
    ] = None
    binding: Annotated[str | None, about("Links that cause bound_us.")] = None


class BenchSummaryRecord(Record, frozen=True, kw_only=True):
    """The last record of a run of `hpccoll bench`: duration, peak memory, left-out sizes and load by other programs."""

    kind: ClassVar[str] = "bench_summary"

    seconds: Annotated[Amount, about("Time since rank 0's process started.")]
    sync_s: Annotated[Amount, about("Seconds of the run that synchronizing clocks took on rank 0.")]
    peak_bytes: Annotated[Natural, about("Largest resident memory of any rank, including Python and libraries.")]
    left_out_sizes: Annotated[tuple[Natural, ...], about("Message sizes in bytes that did not fit into memory.")] = ()
    stopped: Annotated[bool, about("Whether --stop-file ended the run early.")] = False
    busy_cores: Annotated[
        Amount | None, about("Mean number of cores that other programs kept busy; null if unknown.")
    ] = None
