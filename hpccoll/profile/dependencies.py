"""Computes how long each recorded call waited for other ranks, and how long its transfer took.

A rank enters a call at the time `begin_s`. The call cannot end before the ranks on which it depends have entered it:
all ranks of an all-reduce, the root of a broadcast, the sender of a received message. The time from this rank's entry
to the last entry of the ranks on which the call depends is waiting; the rest of the call is transfer. A rank
enters a non-blocking operation by the call that starts it, and waits in the call that completes it.

Source: the metrics of POP, co-design.pop-coe.eu/metrics; Geisler and Wolf call waiting "wait states" in Scalasca.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import Floats, IntArray
from hpccoll.profile.layout import EntryFlag, read_itemsizes
from hpccoll.profile.load import JobProfile
from hpccoll.profile.matching import CallColumns, Matches, match_calls

END_OPERATION: Final = "end"


@dataclass(frozen=True, slots=True)
class CallGraph:
    """The recorded calls of all ranks of a job, and the calls of other ranks for which each call waited.

    Arrays have one element per call: first all calls of rank 0 in their order, then those of rank 1, and so on. The
    last call of each rank, the operation `end`, stands for the end of its program.

    Args:
        profile: the recordings of all ranks.
        rank: the rank that makes a call.
        begin_s, end_s: the times at which a call begins and ends, in seconds of the job's common clock.
        gap_s: the seconds of computing between the end of the rank's previous call and the begin of this call.
        matches: the needs of each call, which are calls of other ranks that must begin before the call can end.
        wait_s: the seconds from the begin of a call until all of its needs have begun, at least 0.
        transfer_s: the seconds of a call minus `wait_s`; data moves in this time.
        last_needed: of the needs of a call, the index of the call that began last; -1 if a call has no needs.
        site: index of the call's line in the profile's `sites`; -1 for the end of a program.
        op: index of the call's operation in `operations`.
        nbytes: the bytes of the rank's buffer or object; -1 if unknown.
        itemsize: the bytes of an element of the buffer; 0 if unknown.
        comm: index of the communicator in the profile's `comms`; -1 for none.
        dest: the rank, in the world, to which a call sends a message; -1 for none.
        root: the root of a collective, as a rank of its communicator; -1 for none.
        is_blocked: whether the rank had given up its core for most of the gap before the call, as in a read of a file.
        is_more: whether the entry is for a further request of the previous entry's call, such as Waitall.
        operations: the names of operations; several indices may have the same name.
        first: index of the first call of each rank, shape (ranks,).
        start_s: the time at which the program starts on each rank, shape (ranks,).
    """

    profile: JobProfile
    rank: IntArray
    begin_s: Floats
    end_s: Floats
    gap_s: Floats
    matches: Matches
    wait_s: Floats
    transfer_s: Floats
    last_needed: IntArray
    site: IntArray
    op: IntArray
    nbytes: IntArray
    itemsize: IntArray
    comm: IntArray
    dest: IntArray
    root: IntArray
    is_blocked: NDArray[np.bool_]
    is_more: NDArray[np.bool_]
    operations: tuple[str, ...]
    first: IntArray
    start_s: Floats

    @property
    def run_s(self) -> float:
        """The run time of the job in seconds, from the start of the first rank to the end of the last one."""
        return float(self.end_s.max() - self.start_s.min())

    def sum_by_rank(self, values: Floats) -> Floats:
        """Return the sum over the calls of each rank, shape (ranks,), of `values`, which has one element per call."""
        return np.bincount(self.rank, values, len(self.start_s)).astype(np.float64)


def build_graph(profile: JobProfile) -> CallGraph:
    """Return the calls of a recorded job with their dependencies, without calls of which only statistics were kept.

    Cost: about 2 us per call.
    """
    columns = _join_ranks(profile)
    begin, end, entries = columns.begin_s, columns.end_s, columns.entries
    matches = match_calls(profile, columns)
    _drop_late_needs(matches, begin, end)
    last_needed = _find_last_needed(matches, begin)
    _divide_lists(entries, begin, end, last_needed)
    entered = np.where(last_needed < 0, begin, begin[last_needed])
    wait = np.clip(entered - begin, 0.0, end - begin)
    first = np.searchsorted(columns.rank, np.arange(profile.size))
    start = np.array([rank.program_begin_s for rank in profile.ranks])
    previous = np.roll(end, 1)
    previous[first] = start
    is_blocked = (entries["flags"] & EntryFlag.BLOCKED != 0) & (entries["off_core_ns"] * 2e-9 > begin - previous)
    return CallGraph(
        profile, columns.rank, begin, end, np.maximum(begin - previous, 0.0), matches, wait, end - begin - wait,
        last_needed, entries["site"].astype(np.int64), entries["op"].astype(np.int64),
        _count_own_bytes(profile, entries), read_itemsizes(entries["flags"]), entries["comm"].astype(np.int64),
        *_find_ends(profile, entries),
        is_blocked, entries["flags"] & EntryFlag.MORE != 0, (*profile.operations, END_OPERATION), first, start,
    )  # fmt: skip


def _find_ends(profile: JobProfile, entries: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Return two arrays, shape (calls,): the rank to which each call sends, and the root of its collective; -1: none.

    The first array has ranks of the world, the second array ranks of the call's communicator. `entries` are the
    recorded calls, of the type `layout.ENTRY`.
    """
    names = np.array([*profile.operations, END_OPERATION])[entries["op"]]
    peers, is_made = entries["peer"].astype(np.int64), entries["flags"] & EntryFlag.INIT != 0
    is_send, dest = np.isin(names, ("send", "sendrecv")) & ~is_made, np.full(len(entries), -1)
    for comm, members in enumerate(profile.comms):
        at = is_send & (entries["comm"] == comm) & (peers >= 0) & (peers < len(members))
        dest[at] = np.array(members or [-1])[peers[at]]
    return dest, np.where((entries["flags"] & EntryFlag.COLLECTIVE != 0) & ~is_made, peers, -1)


def _count_own_bytes(profile: JobProfile, entries: NDArray[Any]) -> IntArray:
    """Return the bytes of each recorded call's buffer, or of one block of the buffer if the call gathers in place.

    `entries` are the recorded calls, of the type `layout.ENTRY`.
    """
    names = np.array([*profile.operations, END_OPERATION])[entries["op"]]
    members = np.array([*map(len, profile.comms), 1])[entries["comm"]]  # 1 for calls without a communicator
    is_whole = np.isin(names, ("all_gather", "gather")) & (entries["flags"] & EntryFlag.IN_PLACE != 0)
    nbytes = entries["nbytes"].astype(np.int64)
    return np.where(is_whole & (nbytes > 0), nbytes // np.maximum(members, 1), nbytes)


def _join_ranks(profile: JobProfile) -> CallColumns:
    """Return the calls of all ranks one after the other; the last call of each rank is the end of its program."""
    parts: list[tuple[NDArray[Any], Floats, Floats]] = []
    for rank in profile.ranks:
        end = np.zeros(1, rank.entries.dtype)
        end["op"], end["site"], end["comm"], end["peer"] = len(profile.operations), -1, -1, -1
        last = max(rank.program_end_s, float(rank.end_s.max(initial=rank.program_begin_s)))
        times = (np.append(rank.begin_s, last), np.append(rank.end_s, last))
        parts.append((np.concatenate([rank.entries, end]), *times))
    ranks = np.repeat(np.arange(profile.size), [len(part[0]) for part in parts])
    joined = [np.concatenate([part[i] for part in parts]) for i in range(3)]
    return CallColumns(joined[0], ranks, joined[1], joined[2])


def _divide_lists(entries: NDArray[Any], begin: Floats, end: Floats, last_needed: IntArray) -> None:
    """Divide the time of a call that completes several requests, such as Waitall, among its entries, one per request.

    An entry ends when all calls that this entry needs have begun; the next entry begins at the same time. The function
    changes `begin` and `end`, the times in seconds of all calls. `last_needed` has, for each call, the index of the
    needed call that began last; -1 if no call is needed.
    """
    for call in np.flatnonzero(entries["flags"] & EntryFlag.MORE).tolist():
        needed = last_needed[call - 1]
        entered = begin[needed] if needed >= 0 else begin[call - 1]
        end[call - 1] = begin[call] = min(max(entered, begin[call - 1]), end[call])


def _drop_late_needs(matches: Matches, begin: Floats, end: Floats) -> None:
    """Remove from `matches` the needed calls that began only after the end of the call that needs them."""
    needs, group = matches.needs, matches.group
    for column in range(needs.shape[1]):
        used = needs[:, column] >= 0
        needs[used & (begin[needs[:, column]] >= end), column] = -1
    latest = np.full(max(group.max(initial=0), matches.enters.max(initial=0)) + 1, -np.inf)
    entering = matches.enters >= 0
    np.maximum.at(latest, matches.enters[entering], begin[entering])
    group[(group >= 0) & (latest[group] >= end)] = -1


def _find_last_needed(matches: Matches, begin: Floats) -> IntArray:
    """Return, for each call, the index of the needed call that began last; -1 if no call is needed."""
    call, time = np.full(len(begin), -1), np.full(len(begin), -np.inf)
    entering = np.flatnonzero(matches.enters >= 0)
    if len(entering):
        order = entering[np.lexsort((begin[entering], matches.enters[entering]))]
        numbers = matches.enters[order]
        is_last = np.append(numbers[1:] != numbers[:-1], True)
        latest = np.full(numbers.max() + 1, -1)
        latest[numbers[is_last]] = order[is_last]
        members = np.flatnonzero(matches.group >= 0)
        call[members] = latest[matches.group[members]]
        time[members] = begin[call[members]]
    for column in range(matches.needs.shape[1]):
        needs = matches.needs[:, column]
        entry = np.where(needs >= 0, begin[needs], -np.inf)
        call, time = np.where(entry > time, needs, call), np.maximum(time, entry)
    return call
