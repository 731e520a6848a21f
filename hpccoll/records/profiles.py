"""Records of `hpccoll profile RECORDING`: kinds `profile`, `profile_finding`, `profile_site` and `profile_prediction`.

Times are in seconds. A share is a fraction of the recorded job's run time, from 0 to 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Struct

from hpccoll.records.record import Amount, Natural, Positive, Record, about


class RankTimes(Struct, frozen=True):
    """The seconds that one rank of a recorded job spent outside of communication, in waits and in transfers."""

    rank: Annotated[Natural, about("Rank in the job.")]
    node: str
    useful_s: Annotated[Amount, about("Time outside of communication.")]
    wait_s: Annotated[Amount, about("Time in calls until the last needed rank has entered.")]
    transfer_s: Annotated[Amount, about("Rest of the time in calls.")]
    calls: Annotated[Natural, about("Recorded calls, without the older ones of which only statistics are kept.")]
    has_ended: Annotated[bool, about("Whether the program ended normally on this rank.")]


class ProfileRecord(Record, frozen=True, kw_only=True):
    """The parallel efficiency of a recorded job, its factors, and the ranks' times (`hpccoll profile RECORDING`)."""

    kind: ClassVar[str] = "profile"

    program: Annotated[tuple[str, ...], about("Command line of the recorded program.")]
    ranks: Positive
    nodes: Positive
    calls: Annotated[Natural, about("Recorded calls of all ranks, without those that folded_calls counts.")]
    folded_calls: Annotated[Natural, about("Older calls of all ranks, of which only statistics were kept.")]
    run_s: Annotated[Amount, about("Time from the first start of a rank to the last end.")]
    ideal_s: Annotated[Amount, about("Simulated run time on a network on which messages take no time.")]
    parallel_efficiency: Annotated[Amount, about("load_balance * serialisation * transfer; above 0.8 is good.")]
    load_balance: Annotated[Amount, about("Mean of the ranks' useful times / the largest one.")]
    serialisation: Annotated[Amount, about("Largest useful time / ideal_s.")]
    transfer: Annotated[Amount, about("ideal_s / run_s.")]
    rank_times: Annotated[tuple[RankTimes, ...], about("One element per rank.")]
    clock_error_us: Annotated[Amount, about("Largest possible error of the difference of two ranks' times.")]
    problems: Annotated[tuple[str, ...], about("What the recording lacks, such as the ends of killed ranks.")]


class ProfileSite(Struct, frozen=True):
    """A line of the profiled program that calls a communication operation."""

    file: Annotated[str, about("Path of the file.")]
    line: Annotated[Natural, about("Number of the line, from 1; 0 for a trace of another tool, without lines.")]
    function: Annotated[str, about("Qualified name of the function.")]

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}" if self.line else Path(self.file).name


class ProfileFindingRecord(Record, frozen=True, kw_only=True):
    """One cause of lost time and the seconds that its removal would save (`hpccoll profile RECORDING`).

    The records of one job are sorted by the saved seconds, the largest first. A cause that costs less than 1 % of the
    run time has no record.
    """

    kind: ClassVar[str] = "profile_finding"

    cause: Annotated[Literal["late_rank", "late_node", "slow_link", "calls_in_a_row"], about("Kind of the cause.")]
    found: Annotated[str, about("The cause and its cost as a sentence.")]
    saved_s: Annotated[Amount, about("Run time of a replay of the recorded job, minus that without the cause.")]
    share: Annotated[Amount, about("saved_s / run_s of the job.")]
    rank: Annotated[Natural | None, about("The late rank, or the rank that sends on a slow link.")] = None
    node: Annotated[
        str | None, about("Host name of the late node, of the node whose links are slow, or of the node of `rank`.")
    ] = None
    node_ranks: Annotated[
        tuple[Natural, ...] | None, about("The ranks of the late node, or of the node whose links are slow.")
    ] = None
    lateness: Annotated[
        Literal["imbalance", "outside", "noise"] | None,
        about("Likely kind: more work or a slow core; waits outside of communication, as for files; or noise."),
    ] = None
    last_share: Annotated[
        Amount | None, about("Share of `calls` into which the late rank, or a rank of the late node, comes last.")
    ] = None
    dest: Annotated[Natural | None, about("The rank that receives on a slow link between two ranks.")] = None
    dest_node: Annotated[str | None, about("Host name of the node of `dest`.")] = None
    op: Annotated[
        str | None, about("Operation of the calls in a row, or of the calls in which others wait the most; else null.")
    ] = None
    site: Annotated[
        ProfileSite | None, about("Line of the calls of `op`; null for slow links and at the end of the program.")
    ] = None
    calls: Annotated[
        Natural | None,
        about(
            "Of calls in a row: the calls of one rank. Of a late rank or node: collectives of `op` at `site`, each "
            "counted once, and receives there that depend on it. Of a slow link: the slow messages."
        ),
    ] = None
    nbytes: Annotated[
        int | None, about("Median bytes of the calls in a row, -1 if unknown, or bytes of a slow message; else null.")
    ] = None


class ProfileSiteRecord(Record, frozen=True, kw_only=True):
    """The calls of one operation from one line of the recorded program, and their time (`hpccoll profile RECORDING`).

    The records of one job are sorted by the time spent in the calls, the longest first.
    """

    kind: ClassVar[str] = "profile_site"

    site: Annotated[ProfileSite, about("The line of the program.")]
    op: str
    calls: Annotated[Natural, about("Calls of all ranks.")]
    nbytes: Annotated[int, about("Median size of a call in bytes; -1 if it is unknown.")]
    wait_s: Annotated[Amount, about("Time of waits for other ranks, mean over the ranks.")]
    transfer_s: Annotated[Amount, about("Rest of the time in the calls, mean over the ranks.")]


class ProfilePredictionRecord(Record, frozen=True, kw_only=True):
    """The predicted run time of a recorded job after one change, by `hpccoll profile RECORDING --what-if`."""

    kind: ClassVar[str] = "profile_prediction"

    change: Annotated[str, about("The change, as given to --what-if.")]
    description: Annotated[str, about("The change in words.")]
    predicted_s: Annotated[Amount | None, about("Run time with the change; null if it is not known closely.")]
    recorded_s: Annotated[Amount, about("Run time of the recorded job.")]
    saving: Annotated[
        float | None, about("1 - predicted_s / recorded_s; negative if the job becomes slower; null if unknown.")
    ]
    replay_error: Annotated[Amount, about("Relative error of a replay without a change.")]
    saving_low: Annotated[
        float | None, about("Least saving that the recording admits; null if the saving is exact or nothing is known.")
    ] = None
    saving_high: Annotated[
        float | None, about("Largest saving that the recording admits; null where `saving_low` is null.")
    ] = None
    assumption: Annotated[str, about("What the prediction assumes; empty if nothing beyond the recorded times.")]
