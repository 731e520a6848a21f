"""The calls of all ranks as one graph: how long a call waited for other ranks, and how long its transfer took.

A rank enters a call at the time `begin_s`. The call cannot end before the ranks on which it depends have entered it:
all ranks of an all-reduce, the root of a broadcast, the sender of a received message. The time from this rank's
entry to the last of those entries is waiting; the rest of the call is transfer. A non-blocking operation depends on the
entries of its starting calls, and its waiting is in the call that completes it.

Source: the metrics of POP, co-design.pop-coe.eu/metrics; Geisler and Wolf call the same "wait states" in Scalasca.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import Floats, IntArray
from hpccoll.profile.layout import EntryFlag
from hpccoll.profile.load import JobProfile
from hpccoll.profile.matching import CallColumns, Matches, match_calls

END_OPERATION: Final = "end"


@dataclass(frozen=True, slots=True)
class CallGraph:
    """The calls of a job, rank by rank; the last call of each rank is the end of its program.

    Arrays have one element per call. `gap_s` is the time since the previous call of the rank, in which it computes.
    `matches` says which entries of other calls a call needs, `last_needed` which of these entered last (-1: none).
    `wait_s` is the time to that entry, `transfer_s` the rest of the call.
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
    op: IntArray  # an index of `operations`
    nbytes: IntArray
    comm: IntArray
    dest: IntArray  # the rank to which a call sends; -1: none
    root: IntArray  # of a collective, in its communicator; -1: none
    is_blocked: NDArray[np.bool_]  # the rank had given up its core for most of the gap before the call
    operations: tuple[str, ...]
    first: IntArray  # (ranks,), the first call of each rank
    start_s: Floats  # (ranks,)

    @property
    def run_s(self) -> float:
        """The time from the first start of a rank to the last end."""
        return float(self.end_s.max() - self.start_s.min())

    def sum_by_rank(self, values: Floats) -> Floats:
        """Return the sums of values of calls, shape (ranks,)."""
        return np.bincount(self.rank, values, len(self.start_s)).astype(np.float64)


def build_graph(profile: JobProfile) -> CallGraph:
    """Return the graph of the recorded calls; calls that were folded are not in it.

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
        _count_own_bytes(profile, entries), entries["comm"].astype(np.int64), *_find_ends(profile, entries),
        is_blocked, (*profile.operations, END_OPERATION), first, start,
    )  # fmt: skip


def _find_ends(profile: JobProfile, entries: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Return the rank in the world to which each call sends, and the root of its collective; -1 for none."""
    names = np.array([*profile.operations, END_OPERATION])[entries["op"]]
    peers, is_made = entries["peer"].astype(np.int64), entries["flags"] & EntryFlag.INIT != 0
    is_send, dest = np.isin(names, ("send", "sendrecv")) & ~is_made, np.full(len(entries), -1)
    for comm, members in enumerate(profile.comms):
        at = is_send & (entries["comm"] == comm) & (peers >= 0) & (peers < len(members))
        dest[at] = np.array(members or [-1])[peers[at]]
    return dest, np.where((entries["flags"] & EntryFlag.COLLECTIVE != 0) & ~is_made, peers, -1)


def _count_own_bytes(profile: JobProfile, entries: NDArray[Any]) -> IntArray:
    """Return the bytes of each call: of one block for a gather in place, whose buffer has the blocks of all ranks."""
    names = np.array([*profile.operations, END_OPERATION])[entries["op"]]
    members = np.array([*map(len, profile.comms), 1])[entries["comm"]]  # the last one for no communicator
    is_whole = np.isin(names, ("all_gather", "gather")) & (entries["flags"] & EntryFlag.IN_PLACE != 0)
    nbytes = entries["nbytes"].astype(np.int64)
    return np.where(is_whole & (nbytes > 0), nbytes // np.maximum(members, 1), nbytes)


def _join_ranks(profile: JobProfile) -> CallColumns:
    """Return all calls, with the end of the program as the last call of each rank."""
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
    """Divide the time of a call on several requests among its entries, which wait for their needs in turn."""
    for call in np.flatnonzero(entries["flags"] & EntryFlag.MORE).tolist():
        needed = last_needed[call - 1]
        entered = begin[needed] if needed >= 0 else begin[call - 1]
        end[call - 1] = begin[call] = min(max(entered, begin[call - 1]), end[call])


def _drop_late_needs(matches: Matches, begin: Floats, end: Floats) -> None:
    """Remove needs for which a call evidently did not wait, because it ended before them."""
    needs, group = matches.needs, matches.group
    for column in range(needs.shape[1]):
        used = needs[:, column] >= 0
        needs[used & (begin[needs[:, column]] >= end), column] = -1
    latest = np.full(max(group.max(initial=0), matches.enters.max(initial=0)) + 1, -np.inf)
    entering = matches.enters >= 0
    np.maximum.at(latest, matches.enters[entering], begin[entering])
    group[(group >= 0) & (latest[group] >= end)] = -1


def _find_last_needed(matches: Matches, begin: Floats) -> IntArray:
    """Return the call that entered last of those that each call needs; -1 for none."""
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
