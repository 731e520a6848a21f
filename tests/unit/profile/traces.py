"""Profiles that tests construct call by call."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hpccoll.profile.layout import ENTRY, EntryFlag
from hpccoll.profile.load import JobProfile, RecordedRank
from hpccoll.records import ProfileSite

OPERATIONS = ("all_reduce", "broadcast", "send", "recv", "wait", "reduce", "sendrecv", "start", "all_gather")


@dataclass
class TraceBuilder:
    """The calls of one rank; times are seconds."""

    rows: list[dict[str, int]] = field(default_factory=list)
    numbers: int = 0

    def add(
        self, op: str, begin: float, end: float, *, peer: int = -1, flags: int = 0, request: int = 0, **more: int
    ) -> TraceBuilder:
        is_collective = op in ("all_reduce", "broadcast", "reduce", "all_gather")
        row = {"op": OPERATIONS.index(op), "begin_ns": round(begin * 1e9), "end_ns": round(end * 1e9), "peer": peer}
        row |= {"flags": flags | EntryFlag.COLLECTIVE * is_collective, "request": request, "site": OPERATIONS.index(op)}
        self.rows.append(row | {"number": self.numbers, "nbytes": 8} | more)
        self.numbers += is_collective
        return self

    def make_rank(self, rank: int, end: float, host: str = "host") -> RecordedRank:
        entries = np.zeros(len(self.rows), ENTRY)
        for index, row in enumerate(self.rows):
            for name, value in row.items():
                entries[name][index] = value
        begin_s, end_s = entries["begin_ns"] * 1e-9, entries["end_ns"] * 1e-9
        return RecordedRank(rank, host, entries, begin_s, end_s, 0.0, end, True)


def make_profile(
    builders: list[TraceBuilder], end: float, comms: tuple[tuple[int, ...], ...] = (), hosts: tuple[str, ...] = ()
) -> JobProfile:
    """Return the profile of ranks whose programs all begin at 0 and end at `end`; `comms` follow the world."""
    hosts = hosts or ("host",) * len(builders)
    ranks = tuple(builder.make_rank(rank, end, hosts[rank]) for rank, builder in enumerate(builders))
    sites = tuple(ProfileSite("solver.py", 10 + index, "step") for index in range(len(OPERATIONS)))
    world = tuple(range(len(builders)))
    return JobProfile(ranks, sites, (world, *comms), OPERATIONS, OPERATIONS, ("solver.py",), 0.0)
