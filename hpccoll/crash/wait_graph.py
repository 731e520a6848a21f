"""Finds the ranks for which, directly or through other ranks, all waiting ranks wait.

A rank in a collective waits for the ranks that have not begun this collective. A rank that sends or receives a message
waits for the rank at the other end. A chain of waits ends at a rank that waits for no other rank, or in a
cycle of ranks that wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpccoll.crash.evidence import CallRecord, JobEvidence, RankEvidence


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """The ranks for which each rank of a job waits, and the ranks at which these chains of waits end.

    Attributes:
        waits: for each rank in a call, the ranks for which it waits.
        outside: ranks for which others wait, and which are in no call; in descending order of the number of waiting
            ranks.
        inside: ranks in a call that has not ended although all its ranks have begun it; they wait for no other rank.
        cycle: ranks that wait for each other and for no rank outside of the cycle.
    """

    waits: Mapping[int, frozenset[int]]
    outside: tuple[int, ...]
    inside: tuple[int, ...]
    cycle: tuple[int, ...]


def build_wait_graph(job: JobEvidence) -> WaitGraph:
    """Return the ranks for which each rank of a job waits, and the ranks or the cycle at which chains of waits end."""
    waits = {
        rank: frozenset(peer for call in evidence.awaited_calls for peer in list_awaited(job, evidence, call))
        for rank, evidence in job.ranks.items()
        if evidence.awaited_calls
    }
    reached = {rank: _list_reached(waits, rank) for rank in waits}
    awaited = {peer for peers in reached.values() for peer in peers}
    waiting = {rank: sum(rank in peers for peers in reached.values()) for rank in awaited}
    outside = sorted((rank for rank in awaited if rank not in waits), key=lambda rank: (-waiting[rank], rank))
    inside = sorted(rank for rank, peers in waits.items() if not peers)
    cycle = next((members for rank in sorted(waits) if (members := _find_cycle(reached, rank))), ())
    return WaitGraph(waits, tuple(outside), tuple(inside), cycle)


def list_awaited(job: JobEvidence, own: RankEvidence, call: CallRecord) -> frozenset[int]:
    """Return the ranks for which the rank `own` waits in a call; empty if all needed ranks have begun the call."""
    if not call.is_message:
        return frozenset(job.list_members(call.communicator)) - list_arrived(job, call) - {own.rank}
    if call.peer is None:
        return frozenset(job.list_members(call.communicator)) - {own.rank}
    peer = job.ranks.get(call.peer)
    if peer is not None and any(_answers(awaited_call, own.rank, call) for awaited_call in peer.awaited_calls):
        return frozenset()
    return frozenset({call.peer})


def list_arrived(job: JobEvidence, call: CallRecord) -> frozenset[int]:
    """Return the ranks that have begun the collective `call`."""
    communicator = call.communicator
    return frozenset(rank for rank, own in job.ranks.items() if own.progress.get(communicator, 0) >= call.number)


def _answers(other: CallRecord, rank: int, call: CallRecord) -> bool:
    """Whether `other`, a call of the peer, is the other end of the message that `rank` sends or receives in `call`."""
    is_pair = {other.operation, call.operation} == {"send", "recv"}
    return is_pair and other.communicator == call.communicator and other.peer in (rank, None)


def _list_reached(waits: Mapping[int, frozenset[int]], start: int) -> frozenset[int]:
    """Return the ranks for which rank `start` waits, directly or through other ranks.

    `waits` has the ranks for which each rank waits directly. The result contains `start` only if it is in a cycle.
    """
    reached: set[int] = set()
    pending = list(waits[start])
    while pending:
        rank = pending.pop()
        if rank not in reached:
            reached.add(rank)
            pending += waits.get(rank, ())
    return frozenset(reached)


def _find_cycle(reached: Mapping[int, frozenset[int]], rank: int) -> tuple[int, ...]:
    """Return the ranks that wait for each other in a cycle with `rank`, and for no other rank; empty without a cycle.

    `reached` has the ranks for which each rank waits, directly or through other ranks.
    """
    members = reached[rank]
    if rank in members and all(reached.get(member) == members for member in members):
        return tuple(sorted(members))
    return ()
