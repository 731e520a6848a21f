"""Finds the calls of different ranks that belong together: the members of a collective, and both ends of a message.

Collectives are matched by communicator, in the order in which each rank calls them. Messages are matched by
communicator, source, destination and tag, in the order of the sends. A receive from any rank is matched with the send
that began first. A receive that ended before the first send began is not matched, because the send of its message was
not recorded.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import IntArray
from hpccoll.profile.layout import ANY, ITEMSIZE_BITS, EntryFlag
from hpccoll.profile.load import JobProfile

ALL_WAIT: Final = frozenset(
    {"all_reduce", "all_gather", "all_to_all", "reduce_scatter", "barrier", "new_group"}
)  # operations whose ranks cannot leave before all have entered
FROM_ROOT: Final = frozenset({"broadcast", "scatter"})  # operations whose ranks wait for the root
TO_ROOT: Final = frozenset({"reduce", "gather"})  # operations whose root waits for all ranks
SYNCHRONOUS_SHARE: Final = 0.5  # a send waited for its receiver if the receive began after this share of the send


@dataclass(frozen=True, slots=True)
class CallColumns:
    """The calls of all ranks of a job, one rank after the other, as arrays with one element per call.

    Args:
        entries: the calls, of the type `layout.ENTRY`.
        rank: the rank that makes a call.
        begin_s, end_s: the begin and the end of a call, in seconds of the job's common clock.
    """

    entries: NDArray[Any]
    rank: IntArray
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Matches:
    """The collective or message to which each recorded call belongs, and the calls that must begin before it can end.

    Collectives and messages share one numbering. Arrays have one element per call; -1 stands for none.

    Args:
        needs: up to two calls of other ranks that must begin before the call can end, shape (calls, 2).
        group: the number of the collective that all its ranks must have entered before the call can end.
        enters: the number of the collective that the call enters, if a rank waits in `group` for this entry.
        instance: the number of the collective or message that a call enters or completes; for a sendrecv, that of the
            received message.
        sent: the number of the message that a call sends.
        received: the number of the message whose receive a call completes.
    """

    needs: NDArray[np.int64]
    group: IntArray
    enters: IntArray
    instance: IntArray
    sent: IntArray
    received: IntArray

    @classmethod
    def make_empty(cls, calls: int) -> Matches:
        """Return a `Matches` for `calls` calls, each of which belongs to no collective or message so far."""
        return cls(np.full((calls, 2), -1), *(np.full(calls, -1) for _ in range(5)))

    def find_senders(self) -> IntArray:
        """Return the index of the call that sends each message, by the message's number; -1 at collectives' numbers."""
        senders = np.full(int(self.instance.max(initial=-1)) + 1, -1)
        calls = np.flatnonzero(self.sent >= 0)
        senders[self.sent[calls]] = calls
        return senders


@dataclass(slots=True)
class _Operation:
    """A rank's part in a collective or message: the calls that entered and completed it (-1: none).

    A blocking operation is entered and completed by one call.
    """

    entered: int
    completed: int


@dataclass(slots=True)
class _Matcher:
    """The operations of all ranks, by their communicator, tag and other properties, by which they are matched.

    Args:
        profile: the recorded job.
        columns: the calls of the job.
        matches: the result, which is filled in step by step.
        collectives: for each collective, the operation of each rank. The key of a collective has its communicator, its
            number on this communicator, and, for a persistent request, the number of the start.
        sends: the sends in their order, by communicator, source, destination and tag.
        receives: pairs of (communicator, source, destination, tag) and the receive; source and tag may be ANY.
        instances: the number of collectives and messages so far.
    """

    profile: JobProfile
    columns: CallColumns
    matches: Matches
    collectives: dict[tuple[int, int, int], dict[int, _Operation]] = field(default_factory=lambda: defaultdict(dict))
    sends: dict[tuple[int, int, int, int], deque[_Operation]] = field(default_factory=lambda: defaultdict(deque))
    receives: list[tuple[tuple[int, int, int, int], _Operation]] = field(default_factory=list)
    instances: int = 0


def match_calls(profile: JobProfile, columns: CallColumns) -> Matches:
    """Return the collective or message of each call, and the calls of other ranks that it needs.

    In `columns`, calls that start a persistent request get the arguments with which the request was made. Cost: about 2
    us per call.
    """
    matcher = _Matcher(profile, columns, Matches.make_empty(len(columns.rank)))
    _collect_operations(matcher)
    for (comm, _, _), by_rank in matcher.collectives.items():
        _match_collective(matcher, profile.comms[comm] if comm >= 0 else (), by_rank)
    _match_messages(matcher)
    return matcher.matches


def _collect_operations(matcher: _Matcher) -> None:
    """Add the operations of all calls to the matcher, each with the calls that entered and completed it."""
    operations = (*matcher.profile.operations, "end")
    rows = zip(*(matcher.columns.entries[name].tolist() for name in ("op", "flags", "request")), strict=True)
    torch_wait = len(operations) - 2  # index of the last method of `list_methods`
    open_requests: dict[tuple[int, int], _Operation] = {}
    prepared: dict[tuple[int, int], tuple[int, int]] = {}  # the call that made a request, and its starts
    for call, ((op, flags, request), rank) in enumerate(zip(rows, matcher.columns.rank.tolist(), strict=True)):
        name, key = operations[op], (rank, request)
        if flags & EntryFlag.FAILED:
            continue
        if flags & EntryFlag.INIT:
            prepared[key] = call, 0
        elif flags & EntryFlag.COMPLETE:
            if key not in open_requests and op == torch_wait:  # C++ code of torch waits for a copy of the operation
                key = next((waiting for waiting in open_requests if waiting[0] == rank), key)
            if key in open_requests:
                open_requests.pop(key).completed = call
        elif flags & EntryFlag.START:
            operation = open_requests[key] = _Operation(call, -1)
            if name == "start" and key in prepared:
                made, starts = prepared[key]
                prepared[key] = made, starts + 1
                _copy_arguments(matcher.columns.entries, made, call)
                _add_operation(matcher, operation, starts + 1)
            elif name != "start":
                _add_operation(matcher, operation)
        elif name not in ("wait", "end", "probe", "neighbor"):
            _add_operation(matcher, _Operation(call, call))


def _copy_arguments(entries: NDArray[Any], made: int, start: int) -> None:
    """Copy the arguments of the call `made`, which made a persistent request, to the entry of its start `start`."""
    for name in ("op", "comm", "number", "nbytes", "peer", "tag"):
        entries[name][start] = entries[name][made]
    kept = EntryFlag.COLLECTIVE | EntryFlag.IN_PLACE | ITEMSIZE_BITS
    entries["flags"][start] |= entries["flags"][made] & kept


def _add_operation(matcher: _Matcher, operation: _Operation, starts: int = 0) -> None:
    """Add a rank's operation to the collectives, sends or receives of the matcher.

    `starts` is how many times the persistent request has been started, from 1; 0 for other operations.
    """
    call = operation.entered
    row = matcher.columns.entries[call]
    comm, rank, name = int(row["comm"]), int(matcher.columns.rank[call]), matcher.profile.operations[row["op"]]
    members = matcher.profile.comms[comm] if comm >= 0 else ()
    if row["flags"] & EntryFlag.COLLECTIVE:
        matcher.collectives[comm, int(row["number"]), starts][rank] = operation
    if not members:
        return
    if name in ("send", "sendrecv"):
        _add_message(matcher, members, (comm, rank, int(row["peer"]), int(row["tag"])), operation, is_send=True)
    if name in ("recv", "sendrecv"):
        source = int(row["request"]) if name == "sendrecv" else int(row["peer"])
        tag = ANY if name == "sendrecv" else int(row["tag"])
        _add_message(matcher, members, (comm, rank, source, tag), operation, is_send=False)


def _add_message(
    matcher: _Matcher,
    members: tuple[int, ...],
    where: tuple[int, int, int, int],
    operation: _Operation,
    *,
    is_send: bool,
) -> None:
    """Add a send or a receive of a message; nothing if its peer is no rank, such as MPI.PROC_NULL.

    Args:
        matcher: the operations so far.
        members: the ranks of the communicator in the world.
        where: the communicator, the rank in the world, its peer as a rank of the communicator, and the tag.
        operation: the calls of the send or receive.
        is_send: whether `operation` is a send; otherwise, it is a receive.
    """
    comm, rank, peer, tag = where
    if peer >= len(members) or (peer < 0 and (is_send or peer != ANY)):
        return  # no peer
    other = ANY if peer < 0 else members[peer]
    if is_send:
        matcher.sends[comm, rank, other, tag].append(operation)
    else:
        matcher.receives.append(((comm, other, rank, tag), operation))


def _match_collective(matcher: _Matcher, members: tuple[int, ...], by_rank: dict[int, _Operation]) -> None:
    """Give the calls of one collective their number, and record the calls of other ranks that they need.

    Args:
        matcher: the operations; the function fills in its `matches`.
        members: the ranks of the communicator in the world.
        by_rank: each rank's part in the collective.
    """
    matches, entries = matcher.matches, matcher.columns.entries
    number, matcher.instances = matcher.instances, matcher.instances + 1
    first = next(iter(by_rank.values())).entered
    name = matcher.profile.operations[entries["op"][first]]
    for operation in by_rank.values():
        matches.instance[operation.entered] = number
        if operation.completed >= 0:
            matches.instance[operation.completed] = number
    if len(by_rank) == 1:
        return
    if name in ALL_WAIT:
        for operation in by_rank.values():
            matches.enters[operation.entered] = number
            if operation.completed >= 0:
                matches.group[operation.completed] = number
        return
    root_in_comm = int(entries["peer"][first])
    root = by_rank.get(members[root_in_comm]) if 0 <= root_in_comm < len(members) else None
    if root is None:
        return
    others = [operation for operation in by_rank.values() if operation is not root]
    if name in FROM_ROOT:
        for operation in others:
            if operation.completed >= 0:
                matches.needs[operation.completed, 0] = root.entered
    elif name in TO_ROOT and root.completed >= 0:
        for operation in (*others, root):
            matches.enters[operation.entered] = number
        matches.group[root.completed] = number


def _match_messages(matcher: _Matcher) -> None:
    """Find the send of each receive; sends of equal ranks and tag are taken in their order, as in MPI."""
    tags: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for comm, source, dest, tag in matcher.sends:
        tags[comm, source, dest].append(tag)
    begin_s, end_s = matcher.columns.begin_s, matcher.columns.end_s
    for (comm, source, dest, tag), receive in matcher.receives:
        sources = range(matcher.profile.size) if source == ANY else (source,)
        wanted = [
            sends
            for sender in sources
            for known in (tags[comm, sender, dest] if tag == ANY else (tag,))
            if (sends := matcher.sends.get((comm, sender, dest, known)))
        ]
        if not wanted:
            continue
        sends = min(wanted, key=lambda sends: (begin_s[sends[0].entered], sends[0].entered))
        latest_s = end_s[receive.completed] if receive.completed >= 0 else np.inf
        if begin_s[sends[0].entered] <= latest_s + matcher.profile.clock_error_s:
            _join_message(matcher, sends.popleft(), receive)


def _join_message(matcher: _Matcher, send: _Operation, receive: _Operation) -> None:
    """Give a send and its receive the number of a new message, and record that the receive needs the send.

    A blocking send also needs the receive if the receive began in the second half of the send's time.
    """
    if receive.completed < 0:
        return
    matches, columns = matcher.matches, matcher.columns
    number, matcher.instances = matcher.instances, matcher.instances + 1
    if matches.received[send.entered] < 0:
        matches.instance[send.entered] = number
    matches.instance[receive.entered] = matches.instance[receive.completed] = number
    matches.sent[send.entered] = matches.received[receive.completed] = number
    matches.needs[receive.completed, 0] = send.entered
    if send.completed == send.entered:
        begin, end = columns.begin_s[send.entered], columns.end_s[send.entered]
        if begin + SYNCHRONOUS_SHARE * (end - begin) < columns.begin_s[receive.entered] < end:
            matches.needs[send.completed, 1] = receive.entered
