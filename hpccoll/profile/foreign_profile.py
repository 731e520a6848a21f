"""Builds a profile from the calls of a trace that another tool wrote, such as a GOAL schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from hpccoll.profile.layout import ANY, ENTRY, EntryFlag
from hpccoll.profile.load import JobProfile, RecordedRank
from hpccoll.records import ProfileSite

COLLECTIVES: Final = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter", "barrier",
    "scan", "exscan", "new_group",
)  # fmt: skip
OPERATIONS: Final = (*COLLECTIVES, "send", "recv", "sendrecv", "wait")
_DEFAULTS: Final = {"nbytes": 0, "peer": ANY, "tag": ANY, "comm": 0}


@dataclass(slots=True)
class RankCalls:
    """The calls of one rank of a trace, in the order in which it makes them.

    A call of the operation `wait` completes the operation that a call with the same `request` has started.

    Args:
        rows: for each call, fields of `layout.ENTRY` by name.
        begin_s, end_s: the begin and the end of each call in seconds.
        requests: the number of calls in `rows` that start a non-blocking operation.
        collectives: the number of collectives in `rows`, by communicator.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    begin_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    requests: int = 0
    collectives: dict[int, int] = field(default_factory=dict)

    def add(self, operation: str, begin_s: float, end_s: float, **fields: int) -> None:
        """Append a blocking call.

        Args:
            operation: one of OPERATIONS.
            begin_s, end_s: the begin and the end of the call in seconds.
            fields: fields of `layout.ENTRY`; by default, `nbytes` and `comm` are 0, and `peer` and `tag` are ANY.
        """
        self._append(operation, begin_s, end_s, _DEFAULTS | fields)

    def start(self, operation: str, begin_s: float, end_s: float | None = None, **fields: int) -> int:
        """Append a call that starts an operation; return the number of its request, from 1.

        The arguments are those of `RankCalls.add`; a call without `end_s` ends when it begins.
        """
        self.requests += 1
        fields = _DEFAULTS | fields | {"request": self.requests}
        self._append(operation, begin_s, begin_s if end_s is None else end_s, fields, EntryFlag.START)
        return self.requests

    def complete(self, request: int, begin_s: float, end_s: float, *, is_more: bool = False) -> None:
        """Append a wait, from `begin_s` to `end_s`, for the operation with the number `request`.

        `is_more` states that the program waited by the same call as in the previous entry.
        """
        flags = EntryFlag.COMPLETE | (EntryFlag.MORE if is_more else 0)
        self._append("wait", begin_s, end_s, {"request": request, "comm": -1}, flags)

    def _append(self, operation: str, begin_s: float, end_s: float, fields: dict[str, int], flags: int = 0) -> None:
        """Append a call, given by the fields and flags of its entry, and number it if it is a collective."""
        if operation in COLLECTIVES:
            flags |= EntryFlag.COLLECTIVE
            fields["number"] = self.collectives.get(fields["comm"], 0)
            self.collectives[fields["comm"]] = fields["number"] + 1
        self.rows.append(fields | {"op": OPERATIONS.index(operation), "flags": flags | fields.get("flags", 0)})
        self.begin_s.append(begin_s)
        self.end_s.append(end_s)

    def make_rank(self, rank: int, end_s: float, host: str) -> RecordedRank:
        """Return the calls as rank `rank` of a profile, whose program runs on a host from 0 to `end_s`."""
        entries, begin_s, end = np.zeros(len(self.rows), ENTRY), np.array(self.begin_s), np.array(self.end_s)
        entries["off_core_ns"] = -1
        for name in ("op", "flags", "nbytes", "request", "number", "comm", "peer", "tag"):
            entries[name] = [row.get(name, 0) for row in self.rows]
        entries["begin_ns"], entries["end_ns"] = np.round(1e9 * begin_s), np.round(1e9 * end)
        return RecordedRank(rank, host, entries, begin_s, end, 0.0, end_s, True)


def make_foreign_profile(
    path: Path,
    calls: Sequence[RankCalls],
    end_s: Sequence[float],
    comms: Sequence[tuple[int, ...]],
    notes: Sequence[str],
    hosts: Sequence[str] = (),
    clock_error_s: float = 0.0,
) -> JobProfile:
    """Return the profile of a trace; all its calls have the file `path` as their call site.

    Args:
        path: the file, or one of the files, of the trace.
        calls: the calls of each rank.
        end_s: the end of each rank's program in seconds.
        comms: the ranks of each communicator; the first one has all ranks.
        notes: sentences about data that the trace lacks, which `hpccoll profile` prints.
        hosts: the host name of each rank's node; empty for unknown names.
        clock_error_s: the largest possible error, in seconds, of a time difference between two ranks.
    """
    names = hosts or ["unknown host"] * len(calls)
    ranks = tuple(of_rank.make_rank(rank, end_s[rank], names[rank]) for rank, of_rank in enumerate(calls))
    site = ProfileSite(str(path), 0, "")
    return JobProfile(ranks, (site,), tuple(comms), OPERATIONS, OPERATIONS, (str(path),), clock_error_s, tuple(notes))
