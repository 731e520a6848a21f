"""Finds the calls of different ranks that belong together: the members of a collective, and both ends of a message.

Collectives are matched by their numbers on the communicator, messages by communicator, ranks and tag in their order. A
receive from any rank is matched with the send that began first. A receive that ended before that send has begun is not
matched, because its own send was not recorded.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import IntArray
from hpccoll.profile.layout import ANY, EntryFlag
from hpccoll.profile.load import JobProfile

ALL_WAIT: Final = frozenset(
    {"all_reduce", "all_gather", "all_to_all", "reduce_scatter", "barrier", "new_group"}
)  # operations whose ranks cannot leave before all have entered
FROM_ROOT: Final = frozenset({"broadcast", "scatter"})
TO_ROOT: Final = frozenset({"reduce", "gather"})
SYNCHRONOUS_SHARE: Final = 0.5  # a send has waited for its receiver if that came after this share of the call


@dataclass(frozen=True, slots=True)
class CallColumns:
    """The calls of all ranks, one rank after the other: entries of the type `layout.ENTRY`, and times in seconds."""

    entries: NDArray[Any]
    rank: IntArray
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Matches:
    """What each call needs, and the number of its collective or message (-1: none).

    `needs` are up to two calls that must have begun. A call with a number in `group` also needs all calls with the same
    number in `enters` to have begun. `instance` has the number of a collective or message for the calls that enter and
    complete it; that of a sendrecv is the received message.
    """

    needs: NDArray[np.int64]  # (calls, 2)
    group: IntArray
    enters: IntArray
    instance: IntArray
    sent: IntArray  # the message that a call sends
    received: IntArray  # the message whose receive a call completes

    @classmethod
    def make_empty(cls, calls: int) -> Matches:
        """Return the matches of calls that need nothing."""
        return cls(np.full((calls, 2), -1), *(np.full(calls, -1) for _ in range(5)))

    def find_senders(self) -> IntArray:
        """Return the call that sends each message, by the message's number; -1 for the numbers of collectives."""
        senders = np.full(int(self.instance.max(initial=-1)) + 1, -1)
        calls = np.flatnonzero(self.sent >= 0)
        senders[self.sent[calls]] = calls
        return senders


@dataclass(slots=True)
class _Operation:
    """A collective or message of one rank: the call that entered it and the call that completed it (-1: none)."""

    entered: int
    completed: int


@dataclass(slots=True)
class _Matcher:
    """The operations of all calls, by what makes them match."""

    profile: JobProfile
    columns: CallColumns
    matches: Matches
    collectives: dict[tuple[int, int, int], dict[int, _Operation]] = field(default_factory=lambda: defaultdict(dict))
    sends: dict[tuple[int, int, int, int], deque[_Operation]] = field(default_factory=lambda: defaultdict(deque))
    receives: list[tuple[tuple[int, int, int, int], _Operation]] = field(default_factory=list)
    instances: int = 0


def match_calls(profile: JobProfile, columns: CallColumns) -> Matches:
    """Return what each call needs of other calls; give calls that start persistent requests the requests' arguments.

    Cost: about 2 us per call.
    """
    matcher = _Matcher(profile, columns, Matches.make_empty(len(columns.rank)))
    _collect_operations(matcher)
    for (comm, _, _), by_rank in matcher.collectives.items():
        _match_collective(matcher, profile.comms[comm] if comm >= 0 else (), by_rank)
    _match_messages(matcher)
    return matcher.matches


def _collect_operations(matcher: _Matcher) -> None:
    """Walk through the calls of each rank, and sort their operations by communicator, ranks and tags."""
    operations = (*matcher.profile.operations, "end")
    rows = zip(*(matcher.columns.entries[name].tolist() for name in ("op", "flags", "request")), strict=True)
    torch_wait = len(operations) - 2  # the last method of `list_methods`
    open_requests: dict[tuple[int, int], _Operation] = {}
    prepared: dict[tuple[int, int], tuple[int, int]] = {}  # the call that made a persistent request, and its starts
    for call, ((op, flags, request), rank) in enumerate(zip(rows, matcher.columns.rank.tolist(), strict=True)):
        name, key = operations[op], (rank, request)
        if flags & EntryFlag.FAILED:
            continue
        if flags & EntryFlag.INIT:
            prepared[key] = call, 0
        elif flags & EntryFlag.COMPLETE:
            if key not in open_requests and op == torch_wait:  # in C++, torch waits for another object of the same work
                key = next((each for each in open_requests if each[0] == rank), key)
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
    """Write the arguments of the call that made a persistent request to the entry of a call that starts it."""
    for name in ("op", "comm", "number", "nbytes", "peer", "tag"):
        entries[name][start] = entries[name][made]
    entries["flags"][start] |= entries["flags"][made] & (EntryFlag.COLLECTIVE | EntryFlag.IN_PLACE)


def _add_operation(matcher: _Matcher, operation: _Operation, starts: int = 0) -> None:
    """Add an operation; `starts` counts the starts of a persistent one, from 1."""
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
    """Add one end of a message; `where` has communicator, rank, peer in the communicator, and tag."""
    comm, rank, peer, tag = where
    if peer >= len(members) or (peer < 0 and (is_send or peer != ANY)):
        return  # no peer
    other = ANY if peer < 0 else members[peer]
    if is_send:
        matcher.sends[comm, rank, other, tag].append(operation)
    else:
        matcher.receives.append(((comm, other, rank, tag), operation))


def _match_collective(matcher: _Matcher, members: tuple[int, ...], by_rank: dict[int, _Operation]) -> None:
    """Fill in what the calls of a collective need; `members` are the ranks of its communicator."""
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
    """Fill in what sends and receives need; receives take sends in the order in which they were posted."""
    tags: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for comm, source, dest, tag in matcher.sends:
        tags[comm, source, dest].append(tag)
    begin_s, end_s = matcher.columns.begin_s, matcher.columns.end_s
    for (comm, source, dest, tag), receive in matcher.receives:
        sources = range(matcher.profile.size) if source == ANY else (source,)
        wanted = [
            sends
            for each in sources
            for known in (tags[comm, each, dest] if tag == ANY else (tag,))
            if (sends := matcher.sends.get((comm, each, dest, known)))
        ]
        if not wanted:
            continue
        sends = min(wanted, key=lambda sends: (begin_s[sends[0].entered], sends[0].entered))
        latest_s = end_s[receive.completed] if receive.completed >= 0 else np.inf
        if begin_s[sends[0].entered] <= latest_s + matcher.profile.clock_error_s:
            _join_message(matcher, sends.popleft(), receive)


def _join_message(matcher: _Matcher, send: _Operation, receive: _Operation) -> None:
    """Let a receive need its send, and a blocking send that has waited for its receiver need the receive."""
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
