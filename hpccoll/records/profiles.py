"""Records of `hpccoll profile RECORDING`: kinds `profile`, `profile_finding`, `profile_site` and `profile_prediction`.

Times are seconds of the recorded run. A share is a part of its run time, from 0 to 1.
"""

from __future__ import annotations

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
    line: Annotated[Natural, about("Number of the line, from 1.")]
    function: Annotated[str, about("Qualified name of the function.")]


class ProfileFindingRecord(Record, frozen=True, kw_only=True):
    """One cause of lost time and the seconds that its removal would save (`hpccoll profile RECORDING`).

    The records of a job are in descending order of the time saved.
    """

    kind: ClassVar[str] = "profile_finding"

    cause: Annotated[Literal["late_rank", "late_node", "slow_link", "calls_in_a_row"], about("Kind of the cause.")]
    found: str
    saved_s: Annotated[Amount, about("Recorded run time minus the run time of a replay without the cause.")]
    share: Annotated[Amount, about("saved_s / run_s of the job.")]
    rank: Annotated[Natural | None, about("The late rank, or the rank that sends on a slow link.")] = None
    node: Annotated[str | None, about("Host name of the late or slowly linked node, or of the node of `rank`.")] = None
    node_ranks: Annotated[tuple[Natural, ...] | None, about("The ranks of the late or slowly linked node.")] = None
    lateness: Annotated[
        Literal["imbalance", "outside", "noise"] | None,
        about("Likely kind: more work or a slow core; waits outside of communication, as for files; or noise."),
    ] = None
    last_share: Annotated[Amount | None, about("Share of `calls` into which a late rank comes last.")] = None
    dest: Annotated[Natural | None, about("The rank that receives on a slow link.")] = None
    dest_node: Annotated[str | None, about("Host name of the node of `dest`.")] = None
    op: Annotated[str | None, about("Operation of the calls; null for a slow link.")] = None
    site: Annotated[ProfileSite | None, about("Line at which others wait the most, or of the calls in a row.")] = None
    calls: Annotated[Natural | None, about("Calls of `op` at `site`, or messages of the slow link.")] = None
    nbytes: Annotated[int | None, about("Median bytes of these calls or messages; -1: unknown.")] = None


class ProfileSiteRecord(Record, frozen=True, kw_only=True):
    """The calls of one operation from one line of the recorded program, and their time (`hpccoll profile RECORDING`).

    The records of a job are in descending order of the time spent in the calls.
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
    predicted_s: Annotated[Amount, about("Run time with the change.")]
    recorded_s: Annotated[Amount, about("Run time of the recorded job.")]
    saving: Annotated[float, about("1 - predicted_s / recorded_s; negative if the change makes the job slower.")]
    replay_error: Annotated[Amount, about("Relative error of a replay without a change.")]
    assumption: Annotated[str, about("What the prediction assumes; empty if nothing beyond the recorded times.")]
