"""The record of a job that hung or crashed: kind `crash` (`hpccoll report --crash`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from hpccoll.records.record import Amount, Natural, Positive, Record, about


class RecordedOperation(Struct, frozen=True):
    """One call of a communication operation that a rank's flight recorder kept, with its arguments."""

    communicator: Annotated[str, about("Name of the communicator, equal on all of its ranks.")]
    number: Annotated[Natural, about("Number of the collective on its communicator; 0 for a send or receive.")]
    operation: Annotated[str, about("Name of the operation, such as all_reduce.")]
    arguments: Annotated[dict[str, str], about("Algorithm, count, dtype, reduction, root and form, where they apply.")]
    finished: Annotated[bool, about("Whether the call had ended on this rank.")]


class RankState(Struct, frozen=True):
    """The state of one rank's process when the job hung or crashed, and the last operation that it called."""

    rank: Annotated[Natural, about("Rank in MPI.COMM_WORLD.")]
    host: Annotated[str, about("Name of the host.")]
    pid: Annotated[Natural, about("Number of the process.")]
    process: Annotated[Literal["unknown", "alive", "stopped", "dead"], about("State of the process, if known.")]
    ending: Annotated[str, about("How the program ended; empty if it did not.")]
    location: Annotated[str, about("Line of the program that the rank executed; empty if unknown.")]
    last: Annotated[RecordedOperation | None, about("The last operation; null if there was none.")]
    since_s: Annotated[Amount, about("Time since the last operation began, or ended if it is finished.")]


class CallGroup(Struct, frozen=True):
    """A group of ranks that called one collective with the same operation and arguments, and this call."""

    ranks: Annotated[tuple[Natural, ...], about("Ranks in MPI.COMM_WORLD.")]
    call: Annotated[RecordedOperation, about("Their call.")]


class FirstDisagreement(Struct, frozen=True):
    """The first collective in which ranks made different calls: the differing arguments, and each group of ranks."""

    communicator: Annotated[str, about("Name of the communicator, equal on all of its ranks.")]
    number: Annotated[Positive, about("Number of the collective on its communicator.")]
    differing: Annotated[tuple[str, ...], about("`operation`, or the arguments that differ.")]
    groups: Annotated[tuple[CallGroup, ...], Meta(min_length=2), about("The largest group of ranks first.")]


class CrashRecord(Record, frozen=True):
    """Why a job hung or crashed, and which ranks caused it (`hpccoll report --crash`)."""

    kind: ClassVar[str] = "crash"

    ranks: Annotated[Positive, about("Number of ranks of the job.")]
    missing: Annotated[tuple[Natural, ...], about("Ranks without a recording.")]
    reason: Annotated[
        Literal["mismatch", "dead", "stopped", "absent", "cycle", "inside", "unknown"],
        about("Different calls, a dead or stopped process, ranks in no call, waits in a cycle, all ranks in one call."),
    ]
    guilty: Annotated[tuple[Natural, ...], about("The ranks that caused the failure; empty if they are not known.")]
    suspects: Annotated[tuple[Natural, ...], about("If it is a tie, the ranks of which one caused the failure.")]
    call: Annotated[RecordedOperation | None, about("The call that ranks wait in; null if there is none.")]
    arrived: Annotated[tuple[Natural, ...], about("Ranks that have begun this call.")]
    absent: Annotated[tuple[Natural, ...], about("Ranks that have not begun this call.")]
    disagreement: Annotated[FirstDisagreement | None, about("Null if all recorded calls agree.")]
    states: Annotated[tuple[RankState, ...], about("The ranks with a recording.")]
    problems: Annotated[tuple[str, ...], about("Files that could not be read or belong to other jobs.")]
