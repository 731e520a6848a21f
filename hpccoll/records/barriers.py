"""Records of `hpccoll barrier`: kind `barrier`, one per barrier and arrival pattern, and kind `barrier_summary`.

An arrival pattern is a set of delays, one per rank, with which the ranks enter the barrier. All times come from a clock
that the ranks share. A round is one call of a barrier by all ranks.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

from msgspec import Meta, Struct

from hpccoll.records.collective import TimeSummary
from hpccoll.records.record import Amount, Natural, Positive, Record, about


class BarrierKey(NamedTuple):
    """The identity of a measurement: engine, algorithm, arrival pattern and number of ranks.

    `hpccoll barrier --resume` skips every measurement whose `BarrierKey` is in the records of the interrupted run.
    """

    engine: str
    algorithm: str
    pattern: str
    ranks: int


class BarrierRecord(Record, frozen=True, kw_only=True):
    """Statistics of all timed rounds of one barrier with one arrival pattern (`hpccoll barrier`)."""

    kind: ClassVar[str] = "barrier"

    engine: str
    algorithm: Annotated[str, about("Plan of hpccoll, or name of a library's barrier.")]
    pattern: Annotated[str, about("Arrival pattern, such as one_late.")]
    spread_us: Annotated[Amount, about("The largest planned delay of any rank.")]
    ranks: Positive
    nodes: Positive
    rounds: Annotated[Positive, about("Number of timed rounds.")]
    late_rounds: Annotated[Natural, about("Rounds in which a rank entered later than planned, beyond 10 us and 10 %.")]
    planned_us: Annotated[tuple[Amount, ...], about("Median planned delay of each rank.")]
    entry_us: Annotated[tuple[Amount, ...], about("Median entry of each rank, after the first entry of a round.")]
    exit_us: Annotated[tuple[float, ...], about("Median exit of each rank, after the first entry of a round.")]
    wait_us: Annotated[tuple[float, ...], about("Median time of each rank in the barrier.")]
    release_order: Annotated[tuple[Natural, ...], about("Ranks in the order in which they leave.")]
    entry_spread_us: Annotated[TimeSummary, about("Time from the first to the last entry.")]
    completion_us: Annotated[TimeSummary, about("Time from the last entry to the last exit.")]
    exit_skew_us: Annotated[TimeSummary, about("Time from the first to the last exit.")]
    absorbed: Annotated[
        float | None,
        about("Fraction of the entry spread that the barrier hides; null without spread, and if most rounds are late."),
    ]
    unsafe: Annotated[Natural, about("Rounds in which a rank left before the last entry.")]
    clock_error_us: Annotated[Amount, about("Error of the common clock that the count of unsafe rounds allows.")]
    machine: Annotated[str | None, about("Machine model of the prediction; null without a prediction.")]
    predicted_us: Annotated[Amount | None, about("Simulated completion_us; null for barriers that are no plans.")]
    predicted_exit_skew_us: Annotated[Amount | None, about("Simulated exit skew; null like predicted_us.")]
    all_reduce_us: Annotated[
        TimeSummary | None,
        about("An all-reduce of 8 B after this barrier, maximum over ranks; only with pattern none."),
    ] = None
    completion_samples_us: Annotated[tuple[Amount, ...], Meta(min_length=1), about("Completion of each round.")]
    exit_skew_samples_us: Annotated[tuple[Amount, ...], Meta(min_length=1), about("Exit skew of each round.")]

    @property
    def key(self) -> BarrierKey:
        """The fields that identify this measurement, equal in a repeated or resumed run."""
        return BarrierKey(self.engine, self.algorithm, self.pattern, self.ranks)

    @property
    def name(self) -> str:
        """The engine and the algorithm, such as `hpccoll/tree`."""
        return f"{self.engine}/{self.algorithm}"


class RankLateness(Struct, frozen=True):
    """How late one rank enters barriers, and how long it waits in them, compared with the other ranks."""

    rank: Natural
    node: Annotated[str, about("Host name of the rank's node.")]
    last_arrivals: Annotated[Natural, about("Rounds in which the rank entered last, compared with its plan.")]
    excess_us: Annotated[float, about("Median lateness beyond that of the other ranks.")]
    wait_us: Annotated[float, about("Median time in the barrier, without planned waits.")]
    wait_deficit_us: Annotated[float, about("Median time by which the rank waited less than the others.")]
    caused_us: Annotated[Amount, about("Time for which all others waited for this rank alone, per round.")]


class NodeLateness(Struct, frozen=True):
    """How late the ranks of one node enter barriers, and how long they wait in them, compared with other ranks."""

    node: str
    ranks: Positive
    last_arrivals: Annotated[Natural, about("Rounds in which a rank of the node entered last.")]
    excess_us: Annotated[float, about("Median of excess_us over the node's ranks.")]
    wait_deficit_us: Annotated[float, about("Median of wait_deficit_us over the node's ranks.")]


class BarrierCost(Struct, frozen=True):
    """Time and exit skew of a barrier that all ranks enter together, and its effect on a later all-reduce's time."""

    engine: str
    algorithm: str
    completion_us: Annotated[Amount, about("Median time from the last entry to the last exit.")]
    exit_skew_us: Annotated[Amount, about("Median time from the first to the last exit.")]
    absorbed: Annotated[float | None, about("With one late rank, fraction of its delay that the barrier hides.")]
    unsafe: Annotated[Natural, about("Rounds in which a rank left before the last entry, over all patterns.")]
    all_reduce_us: Annotated[Amount | None, about("Median time of an all-reduce of 8 B after this barrier.")]
    bias: Annotated[float | None, about("all_reduce_us over its time after a common start, minus 1.")]


class InjectedDelay(Struct, frozen=True):
    """The rank that `hpccoll barrier --inject-delay` makes late to every barrier, and by how many microseconds."""

    rank: Natural
    us: Annotated[Amount, about("Microseconds by which the rank enters later in every round.")]


class BarrierSummaryRecord(Record, frozen=True, kw_only=True):
    """The last record of `hpccoll barrier`: the rank that enters barriers late, if any, and each barrier's cost."""

    kind: ClassVar[str] = "barrier_summary"

    straggler: Annotated[Natural | None, about("The rank that is late; null if the evidence does not suffice.")]
    straggler_node: Annotated[str | None, about("Node of which all ranks are late; null if there is none.")]
    reason: Annotated[str, about("Why this rank, or none, is named.")]
    ranks: Positive
    nodes: Positive
    rounds: Annotated[Natural, about("Rounds of work and barrier that the straggler report is based on.")]
    noise_us: Annotated[Amount, about("Median spread of the ranks' lateness, without constant delays.")]
    threshold_us: Annotated[Amount, about("Excess above which a rank is late.")]
    lateness: Annotated[tuple[RankLateness, ...], about("Evidence per rank.")]
    node_lateness: Annotated[tuple[NodeLateness, ...], about("Evidence per node.")]
    fastest: Annotated[str | None, about("Barrier with the shortest median completion without skew.")]
    most_even: Annotated[str | None, about("Barrier with the smallest median exit skew without skew.")]
    barriers: Annotated[tuple[BarrierCost, ...], about("Cost and exit skew per barrier.")]
    all_reduce_us: Annotated[Amount | None, about("Median time of an all-reduce of 8 B after a common start.")]
    inject_delay: Annotated[InjectedDelay | None, about("The value of --inject-delay; null without it.")]
    noise_rank: Annotated[Natural | None, about("The value of --noise; null without it.")]
    clock: Annotated[str, about("How the clocks were synchronised.")]
    clock_residual_us: Annotated[Amount, about("Largest error of the common clock, measured again after the run.")]
    clock_cost_s: Annotated[Amount, about("Seconds that synchronising the clocks took.")]
    oversubscribed: bool
