"""Decides why a job hung or crashed, and which ranks caused it, from the evidence about all its ranks.

The rules, in order:

1. Ranks made different calls. Later symptoms may follow from the first different call, so it is the cause.
2. A process ended before the others. A process that ended is not the cause if ranks had already waited for more than a
   second for a living rank that was in no call.
3. A process is stopped, as by SIGSTOP or a debugger.
4. Waiting ranks wait, directly or through others, for ranks that are in no call. After the end of the job, waits of
   less than a second are no evidence, because every rank is late at times.
5. Ranks wait for each other in a cycle: they made calls in different orders.
6. All ranks have arrived in the same collective. A rank that has completed fewer rounds of the plan than all others is
   named; if there is no such rank, no rank is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from hpccoll.crash.disagreement import Disagreement, find_first_disagreement
from hpccoll.crash.evidence import CallRecord, CommunicatorId, JobEvidence, ProcessState
from hpccoll.crash.wait_graph import WaitGraph, build_wait_graph

LONG_WAIT_S: Final = 1.0  # launchers end the other ranks of a crashed job in less time


class Reason(Enum):
    """Names the kind of cause by which an MPI job hung or crashed."""

    MISMATCH = "mismatch"  # ranks made different calls of one collective
    DEAD = "dead"  # a process ended before the others
    STOPPED = "stopped"  # a process is stopped, as by SIGSTOP
    ABSENT = "absent"  # ranks wait for ranks that are in no call
    CYCLE = "cycle"  # ranks wait for each other
    INSIDE = "inside"  # all ranks are in the same collective, which does not end
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CrashAnalysis:
    """The cause of an MPI job's hang or crash, and the ranks that caused it.

    Attributes:
        reason: the kind of cause.
        guilty: the ranks that caused the hang or crash; empty if the recordings do not show them.
        suspects: ranks of which one is guilty, if the recordings do not show which (a tie).
        disagreement: the first collective in which ranks made different calls; None if there is none.
        call: the collective or message that ranks wait in; None if no recorded call is unfinished.
        arrived: the ranks that have begun `call`, if it is a collective.
        absent: the ranks of the communicator that have not begun `call`, if it is a collective.
    """

    reason: Reason
    guilty: tuple[int, ...] = ()
    suspects: tuple[int, ...] = ()
    disagreement: Disagreement | None = None
    call: CallRecord | None = None
    arrived: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()


def analyze(job: JobEvidence) -> CrashAnalysis:
    """Return the cause of an MPI job's hang or crash, the guilty ranks, and the call in which other ranks wait."""
    graph = build_wait_graph(job)
    disagreement = find_first_disagreement(job)
    reason, guilty, suspects = _decide(job, graph, disagreement)
    call = _choose_call(job, guilty)
    if call is None:
        return CrashAnalysis(reason, guilty, suspects, disagreement)
    if call.is_message:
        return CrashAnalysis(reason, guilty, suspects, disagreement, call)
    members = job.list_members(call.communicator)
    arrived = tuple(rank for rank in members if _has_arrived(job, rank, call))
    absent = tuple(rank for rank in members if rank not in arrived)
    return CrashAnalysis(reason, guilty, suspects, disagreement, call, arrived, absent)


def _decide(
    job: JobEvidence, graph: WaitGraph, disagreement: Disagreement | None
) -> tuple[Reason, tuple[int, ...], tuple[int, ...]]:
    """Return the reason of a hang or crash, the guilty ranks, and the suspects if it is unclear who is guilty.

    Args:
        job: the recordings of the job's ranks.
        graph: the ranks for which each rank waits.
        disagreement: the first collective in which ranks made different calls; None if there is none.
    """
    if disagreement is not None:
        everybody = tuple(sorted(rank for ranks, _ in disagreement.groups for rank in ranks))
        return Reason.MISMATCH, disagreement.guilty, () if disagreement.guilty else everybody
    dead = _find_dead(job)
    if dead and not _waits_for_others(job, graph, dead):
        return Reason.DEAD, dead, ()
    stopped = tuple(rank for rank, own in sorted(job.ranks.items()) if own.process is ProcessState.STOPPED)
    if stopped:
        return Reason.STOPPED, stopped, ()
    if graph.outside:
        is_short = job.has_ended and _find_longest_wait(job, graph, graph.outside, job.end) < LONG_WAIT_S
        return (Reason.UNKNOWN, (), graph.outside) if is_short else (Reason.ABSENT, graph.outside, ())
    if graph.cycle:
        guilty = _find_other_order(job, graph.cycle)
        return Reason.CYCLE, guilty, () if guilty else graph.cycle
    if graph.inside:
        return Reason.INSIDE, _find_least_advanced(job, graph.inside), ()
    return Reason.UNKNOWN, (), ()


def _find_dead(job: JobEvidence) -> tuple[int, ...]:
    """Return the rank whose death another rank noticed first, as a tuple of one, or else all ranks that are dead now.

    If no rank noticed a death and no process is known to be alive, the result is empty: the whole job has ended, which
    is no evidence. Ranks whose program ended by itself are not among the dead.
    """
    seen = [(own.seen_dead, rank) for rank, own in job.ranks.items() if own.seen_dead is not None]
    if seen:
        return (min(seen)[1],)
    dead = [rank for rank, own in job.ranks.items() if own.process is ProcessState.DEAD and not own.ending]
    lives = any(own.process in (ProcessState.ALIVE, ProcessState.STOPPED) for own in job.ranks.values())
    return tuple(sorted(dead)) if lives else ()


def _waits_for_others(job: JobEvidence, graph: WaitGraph, dead: Sequence[int]) -> bool:
    """Whether, before the ranks `dead` died, others waited more than LONG_WAIT_S for a living rank in no call."""
    others = [rank for rank in graph.outside if rank not in dead]
    times = [own.seen_dead for rank in dead if (own := job.ranks.get(rank)) is not None]
    died = min((time for time in times if time is not None), default=job.end)
    return _find_longest_wait(job, graph, others, died) > LONG_WAIT_S


def _find_longest_wait(job: JobEvidence, graph: WaitGraph, awaited: Sequence[int], now: float) -> float:
    """Return for how many seconds, at the time `now`, some rank had been waiting for a rank in `awaited`.

    Of several waiting ranks, the rank whose call began first counts. Without a waiting rank, the result is 0.
    """
    began = [
        call.began
        for rank, peers in graph.waits.items()
        for call in job.ranks[rank].awaited_calls
        if not peers.isdisjoint(awaited)
    ]
    return now - min(began, default=now)


def _find_other_order(job: JobEvidence, cycle: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of a cycle of waits that wait on another communicator than most ranks of the cycle.

    The result is empty if no communicator has a majority, or a rank waits for a message.
    """
    by_communicator: dict[CommunicatorId, list[int]] = {}
    for rank in cycle:
        call = job.ranks[rank].last_call
        if call is None or call.is_message:
            return ()
        by_communicator.setdefault(call.communicator, []).append(rank)
    groups = sorted(by_communicator.values(), key=len, reverse=True)
    if len(groups) < 2 or len(groups[0]) == len(groups[1]):
        return ()
    return tuple(sorted(rank for ranks in groups[1:] for rank in ranks))


def _find_least_advanced(job: JobEvidence, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return a tuple of the one rank that has completed fewer rounds of its collective than all others of `ranks`.

    The tuple is empty for a tie, or if the rounds of a rank are unknown.
    """
    calls = {rank: job.ranks[rank].last_call for rank in ranks}
    rounds = {rank: call.round for rank, call in calls.items() if call is not None and call.round is not None}
    least = [rank for rank, completed in rounds.items() if completed == min(rounds.values())]
    return tuple(least) if len(least) == 1 < len(rounds) == len(calls) else ()


def _choose_call(job: JobEvidence, guilty: Sequence[int]) -> CallRecord | None:
    """Return the unfinished call that began first, preferably a collective that a guilty rank has not begun.

    If the guilty ranks have begun all collectives, an unfinished collective takes precedence over messages. The result
    is None if no call is unfinished.
    """
    calls = [call for own in job.ranks.values() for call in own.awaited_calls]
    ordered = sorted(calls, key=lambda call: (call.is_message, call.began))
    missed = [call for call in ordered if not call.is_message and any(_is_absent(job, rank, call) for rank in guilty)]
    return next(iter(missed or ordered), None)


def _has_arrived(job: JobEvidence, rank: int, call: CallRecord) -> bool:
    """Whether a rank has begun the collective `call`, and not called another operation instead."""
    own = job.ranks.get(rank)
    if own is None or own.progress.get(call.communicator, 0) < call.number:
        return False
    return own.collectives.get(call.key, call).operation == call.operation


def _is_absent(job: JobEvidence, rank: int, call: CallRecord) -> bool:
    """Whether a rank belongs to the communicator of the collective `call`, but has not begun this collective."""
    return rank in job.list_members(call.communicator) and not _has_arrived(job, rank, call)
