"""Builds a profile from the calls of a trace that another tool wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from hpccoll.profile.layout import ANY, ENTRY, EntryFlag
from hpccoll.profile.load import CallSite, JobProfile, RecordedRank

COLLECTIVES: Final = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter", "barrier",
)  # fmt: skip
OPERATIONS: Final = (*COLLECTIVES, "send", "recv", "wait")


@dataclass(slots=True)
class RankCalls:
    """The calls of one rank in the order in which it makes them; times are seconds.

    A call of the operation `wait` completes the operation that a call with the same `request` has started.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    begin_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    requests: int = 0
    collectives: dict[int, int] = field(default_factory=dict)  # the number of calls so far, by communicator

    def add(
        self,
        operation: str,
        begin_s: float,
        end_s: float,
        *,
        nbytes: int = 0,
        peer: int = ANY,
        tag: int = ANY,
        comm: int = 0,
    ) -> None:
        """Append a blocking call; `peer` is the destination, the source or the root."""
        self._append(operation, begin_s, end_s, {"nbytes": nbytes, "peer": peer, "tag": tag, "comm": comm})

    def start(
        self, operation: str, begin_s: float, *, nbytes: int = 0, peer: int = ANY, tag: int = ANY, comm: int = 0
    ) -> int:
        """Append a call that starts an operation and returns at once; return the number of its request."""
        self.requests += 1
        fields = {"nbytes": nbytes, "peer": peer, "tag": tag, "comm": comm, "request": self.requests}
        self._append(operation, begin_s, begin_s, fields, EntryFlag.START)
        return self.requests

    def complete(self, request: int, begin_s: float, end_s: float) -> None:
        """Append a wait for an operation that was started."""
        self._append("wait", begin_s, end_s, {"request": request, "comm": -1}, EntryFlag.COMPLETE)

    def _append(self, operation: str, begin_s: float, end_s: float, fields: dict[str, int], flags: int = 0) -> None:
        """Append a call."""
        if operation in COLLECTIVES:
            flags |= EntryFlag.COLLECTIVE
            fields["number"] = self.collectives.get(fields["comm"], 0)
            self.collectives[fields["comm"]] = fields["number"] + 1
        self.rows.append(fields | {"op": OPERATIONS.index(operation), "flags": flags})
        self.begin_s.append(begin_s)
        self.end_s.append(end_s)

    def make_rank(self, rank: int, end_s: float) -> RecordedRank:
        """Return the rank, whose program begins at 0 and ends at `end_s`."""
        entries, begin_s, end = np.zeros(len(self.rows), ENTRY), np.array(self.begin_s), np.array(self.end_s)
        entries["off_core_ns"] = -1
        for name in ("op", "flags", "nbytes", "request", "number", "comm", "peer", "tag"):
            entries[name] = [row.get(name, 0) for row in self.rows]
        entries["begin_ns"], entries["end_ns"] = np.round(1e9 * begin_s), np.round(1e9 * end)
        return RecordedRank(rank, "unknown host", entries, begin_s, end, 0.0, end_s, True)


def make_foreign_profile(
    path: Path,
    calls: Sequence[RankCalls],
    end_s: Sequence[float],
    comms: Sequence[tuple[int, ...]],
    notes: Sequence[str],
) -> JobProfile:
    """Return the profile of a trace; all its calls have the file `path` as their call site.

    Args:
        path: the file, or one of the files, of the trace.
        calls, end_s: the calls of each rank, and the end of its program in seconds.
        comms: the ranks of each communicator; the first one has all ranks.
        notes: the data that the trace does not have, in sentences.
    """
    ranks = tuple(each.make_rank(rank, end_s[rank]) for rank, each in enumerate(calls))
    site = CallSite(str(path), 0, "")
    return JobProfile(ranks, (site,), tuple(comms), OPERATIONS, OPERATIONS, (str(path),), 0.0, tuple(notes))
