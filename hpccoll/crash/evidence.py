"""The input of the analysis: the recorded calls and the process state of each rank of a job.

Ranks are ranks of MPI.COMM_WORLD. Times are seconds on one clock for all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TypeAlias

CommunicatorId: TypeAlias = str


class ProcessState(Enum):
    """Names the state that a rank's process had when the evidence was collected."""

    UNKNOWN = "unknown"
    ALIVE = "alive"
    STOPPED = "stopped"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One communication call of a rank, as its flight recorder kept it. Times are in seconds.

    Attributes:
        communicator: the communicator's name, the same on all of its ranks.
        number: the number of this collective among the rank's collectives on the communicator, from 1; 0 for messages.
        operation: the name of the operation, such as `all_reduce` or `recv`.
        details: names and values of the arguments that all ranks must pass alike, such as algorithm, count, dtype and
            root. An argument that the recorded call lacks is not compared with those of other ranks.
        began: when the call began.
        ended: when the call ended; None if it had not ended.
        peer: the rank at the other end of a message; None for a collective, or a receive from any rank.
        round: the number of rounds of the algorithm that this rank had completed; None if unknown.
        rounds: the number of rounds of the algorithm; None if unknown.
        is_awaited: whether the rank's program waits for the call, unlike an asynchronous call that it has only begun.
    """

    communicator: CommunicatorId
    number: int
    operation: str
    details: tuple[tuple[str, str], ...] = ()
    began: float = 0.0
    ended: float | None = None
    peer: int | None = None
    round: int | None = None
    rounds: int | None = None
    is_awaited: bool = True

    @property
    def is_message(self) -> bool:
        """Whether this call is a send or a receive."""
        return self.number == 0

    @property
    def key(self) -> tuple[CommunicatorId, int]:
        """The communicator and the number, which identify a collective on all its ranks."""
        return self.communicator, self.number


@dataclass(frozen=True)
class RankEvidence:
    """The recording of one rank's communication calls, and observations of its process.

    Attributes:
        rank: the rank in MPI.COMM_WORLD.
        host: the name of the rank's host.
        pid: the rank's process ID.
        calls: the most recent calls, in the order in which they began.
        process: the state of the process.
        ending: how the rank's program ended, such as `by sys.exit(0)`; empty if it has not ended.
        location: the line of the program that the rank executes, if known.
        seen_dead: the time at which another rank noticed the end of this rank's process; None if no rank did.
    """

    rank: int
    host: str = ""
    pid: int = 0
    calls: tuple[CallRecord, ...] = ()
    process: ProcessState = ProcessState.UNKNOWN
    ending: str = ""
    location: str = ""
    seen_dead: float | None = None

    @cached_property
    def collectives(self) -> Mapping[tuple[CommunicatorId, int], CallRecord]:
        """The recorded collectives of the rank by communicator and number."""
        return {call.key: call for call in self.calls if not call.is_message}

    @cached_property
    def progress(self) -> Mapping[CommunicatorId, int]:
        """The number, from 1, of the last collective that this rank began on each communicator, by communicator."""
        last: dict[CommunicatorId, int] = {}
        for communicator, number in self.collectives:
            last[communicator] = max(number, last.get(communicator, 0))
        return last

    @cached_property
    def awaited_calls(self) -> tuple[CallRecord, ...]:
        """The rank's unfinished calls for which its program waits, in the order in which they began."""
        return tuple(call for call in self.calls if call.ended is None and call.is_awaited)

    @property
    def last_call(self) -> CallRecord | None:
        """The call that the rank's program waits for, or else the call that began last; None without calls."""
        return next(reversed(self.awaited_calls or self.calls), None)


@dataclass(frozen=True)
class JobEvidence:
    """All evidence of why an MPI job hung or crashed: the recordings of its ranks and the states of their processes.

    Attributes:
        size: the number of ranks of the job.
        ranks: the ranks with a recording, by rank.
        members: the ranks of each communicator.
        now: the time at which the evidence was collected, on the clock of the calls; None if unknown.
        has_ended: whether the job had ended before the evidence was collected.
    """

    size: int
    ranks: Mapping[int, RankEvidence]
    members: Mapping[CommunicatorId, tuple[int, ...]] = field(default_factory=dict)
    now: float | None = None
    has_ended: bool = False

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks without a recording."""
        return tuple(rank for rank in range(self.size) if rank not in self.ranks)

    @cached_property
    def end(self) -> float:
        """The time up to which waits are counted: `now`, or the latest time in the recordings if `now` is unknown."""
        if self.now is not None:
            return self.now
        times = [call.ended or call.began for rank in self.ranks.values() for call in rank.calls]
        return max(times, default=0.0)

    def list_members(self, communicator: CommunicatorId) -> tuple[int, ...]:
        """Return the ranks of a communicator; if they are unknown, the ranks that have called collectives on it."""
        known = self.members.get(communicator)
        return known or tuple(rank for rank, own in sorted(self.ranks.items()) if communicator in own.progress)

    def find_age(self, own: RankEvidence) -> float:
        """Return the seconds since a rank's last call ended, or began if it is unfinished; 0 without a call."""
        call = own.last_call
        if call is None:
            return 0.0
        return max(self.end - (call.began if call.ended is None else call.ended), 0.0)
