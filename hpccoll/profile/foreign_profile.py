"""Builds a profile from the calls of a trace that another tool wrote, such as a GOAL schedule."""

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
    """The calls of one rank of a trace, in the order in which it makes them.

    A call of the operation `wait` completes the operation that a call with the same `request` has started.

    Args:
        rows: for each call, fields of `layout.ENTRY` by name.
        begin_s, end_s: the begin and the end of each call in seconds.
        requests: the number of non-blocking operations in `rows`.
        collectives: the number of collectives in `rows`, by communicator.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    begin_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    requests: int = 0
    collectives: dict[int, int] = field(default_factory=dict)

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
        """Append a blocking call.

        Args:
            operation: one of OPERATIONS.
            begin_s, end_s: the begin and the end of the call in seconds.
            nbytes: the bytes of the rank's buffer.
            peer: the destination, the source or the root; ANY for none, and for a receive from any rank.
            tag: the tag of a message; ANY for a receive with any tag.
            comm: index of the communicator.
        """
        self._append(operation, begin_s, end_s, {"nbytes": nbytes, "peer": peer, "tag": tag, "comm": comm})

    def start(
        self, operation: str, begin_s: float, *, nbytes: int = 0, peer: int = ANY, tag: int = ANY, comm: int = 0
    ) -> int:
        """Append a call at `begin_s` that starts an operation; return the number of its request, from 1.

        The other arguments are those of `add`.
        """
        self.requests += 1
        fields = {"nbytes": nbytes, "peer": peer, "tag": tag, "comm": comm, "request": self.requests}
        self._append(operation, begin_s, begin_s, fields, EntryFlag.START)
        return self.requests

    def complete(self, request: int, begin_s: float, end_s: float) -> None:
        """Append a wait, from `begin_s` to `end_s`, for the operation with the number `request`."""
        self._append("wait", begin_s, end_s, {"request": request, "comm": -1}, EntryFlag.COMPLETE)

    def _append(self, operation: str, begin_s: float, end_s: float, fields: dict[str, int], flags: int = 0) -> None:
        """Append a call, given by the fields and flags of its entry, and number it if it is a collective."""
        if operation in COLLECTIVES:
            flags |= EntryFlag.COLLECTIVE
            fields["number"] = self.collectives.get(fields["comm"], 0)
            self.collectives[fields["comm"]] = fields["number"] + 1
        self.rows.append(fields | {"op": OPERATIONS.index(operation), "flags": flags})
        self.begin_s.append(begin_s)
        self.end_s.append(end_s)

    def make_rank(self, rank: int, end_s: float) -> RecordedRank:
        """Return the calls as those of rank `rank` of a profile, whose program begins at 0 and ends at `end_s`."""
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
        calls: the calls of each rank.
        end_s: the end of each rank's program in seconds.
        comms: the ranks of each communicator; the first one has all ranks.
        notes: sentences about data that the trace lacks, which `hpccoll profile` prints.
    """
    ranks = tuple(each.make_rank(rank, end_s[rank]) for rank, each in enumerate(calls))
    site = CallSite(str(path), 0, "")
    return JobProfile(ranks, (site,), tuple(comms), OPERATIONS, OPERATIONS, (str(path),), 0.0, tuple(notes))
