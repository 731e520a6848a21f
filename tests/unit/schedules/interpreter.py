"""An interpreter of pipeline schedules, written from the rules of NCCL and torch without hpccoll's classes.

A schedule is a list of cells in torch's notation per rank. The ranks run side by side. A send or receive is appended to
the stream of its pair of ranks and does not block its rank; the first send and the first receive of a pair's two
streams are matched and transfer a value. A pass blocks until its inputs are there, and a wait for a send blocks until
the send is matched. The result is a string that states the first fault, or None.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from typing import Any

CELL = re.compile(r"(\d+)([A-Z_]+?)(\d*)$")


class Wrong(Exception):
    """The schedule does something that no schedule may do."""


def split_cell(cell):
    """Return the (stage, kind, micro-batch) of a cell's actions."""
    inner = cell[1 : cell.index(")")].split(";") if cell.startswith("(") else [cell]
    return [
        (int(stage), kind, int(microbatch) if microbatch else None)
        for part in inner
        for stage, kind, microbatch in CELL.findall(part)
    ]


class Interpreter:
    """Runs a schedule; `stated` has the most live micro-batches of each stage."""

    def __init__(self, rows, stage_ranks, microbatches, stated=None, has_messages=True):
        self.rows = [[split_cell(cell) for cell in row] for row in rows]
        self.place, self.m, self.stated, self.has_messages = stage_ranks, microbatches, stated, has_messages
        self.last = len(stage_ranks) - 1
        self.values: list[dict[Any, bool]] = [
            {} for _ in rows
        ]  # of each rank: ("F" or "G", stage, microbatch) -> where it was computed
        self.streams: dict[tuple[int, int], deque[Any]] = {}
        self.posted: set[Any] = set()
        self.gradients: Counter[Any] = Counter()
        self.passes: Counter[Any] = Counter()
        self.live: Counter[int] = Counter()
        self.reduced: Counter[int] = Counter()
        kinds = [action for row in self.rows for actions in row for action in actions]
        shards = any(kind in ("UNSHARD", "RESHARD") for _, kind, _ in kinds)
        self.sharding = dict.fromkeys(range(len(stage_ranks)), False) if shards else {}
        self.awaited = {kind.removeprefix("WAIT_") for _, kind, _ in kinds if kind.startswith("WAIT_")}
        self.pending: list[set[Any]] = [set() for _ in rows]  # of each rank: actions whose wait is still to come

    def run(self):
        """Run the schedule; return the first fault, or None."""
        at = [0] * len(self.rows)
        moved = True
        try:
            while moved:
                moved = False
                for rank, row in enumerate(self.rows):
                    while at[rank] < len(row) and all(self.ready(rank, action) for action in row[at[rank]]):
                        self.perform_step(rank, row[at[rank]])
                        at[rank] += 1
                        moved = True
            self.finish(at)
        except Wrong as error:
            return str(error)
        return None

    def ready(self, rank, action):
        """Whether the inputs of an action are there."""
        stage, kind, microbatch = action
        if kind == "F" and stage > 0:
            return self.has(rank, "F", stage - 1, microbatch)
        if kind in ("B", "I"):
            own = ("forward", stage, microbatch) in self.values[rank]
            return own and (stage == self.last or self.has(rank, "G", stage + 1, microbatch))
        if kind == "W":
            return ("inputs", stage, microbatch) in self.values[rank]
        if kind in ("WAIT_SEND_F", "WAIT_SEND_B"):
            sent = ("send", ("F" if kind.endswith("F") else "G", stage, microbatch))
            return not any(sent in stream for pair, stream in self.streams.items() if pair[0] == rank)
        return True

    def has(self, rank, kind, source, microbatch):
        """Whether a rank has the output (F) or gradient (G) of a stage for a micro-batch."""
        if self.has_messages:
            return (kind, source, microbatch) in self.values[rank]
        return any((kind, source, microbatch) in values for values in self.values)

    def perform_step(self, rank, step):
        """Carry out the actions of a cell."""
        if len(step) > 1 and any(kind not in ("F", "B", "I", "W") for _, kind, _ in step):
            raise Wrong("overlaps what is no pass")
        for action in step:
            self.perform(rank, *action)

    def perform(self, rank, stage, kind, microbatch):
        """Carry out an action; raise Wrong if it is not allowed."""
        if not 0 <= stage <= self.last or self.place[stage] != rank:
            raise Wrong("the rank has no such stage")
        if microbatch is not None and microbatch >= self.m:
            raise Wrong("no such micro-batch")
        if kind in ("UNSHARD", "RESHARD"):
            if self.sharding.get(stage, False) == (kind == "UNSHARD"):
                raise Wrong("sharding out of turn")
            self.sharding[stage] = kind == "UNSHARD"
        elif kind.startswith("WAIT_"):
            self.end_wait(rank, stage, kind.removeprefix("WAIT_"), microbatch)
        elif kind == "REDUCE_GRAD":
            self.begin_wait(rank, stage, kind, microbatch)
            self.reduced[stage] += 1
            if any(self.gradients[stage, each] != 1 for each in range(self.m)):
                raise Wrong("reduces an incomplete gradient")
        elif kind in ("SEND_F", "RECV_F", "SEND_B", "RECV_B"):
            self.begin_wait(rank, stage, kind, microbatch)
            self.post(rank, stage, kind, microbatch)
        else:
            self.compute(rank, stage, kind, microbatch)

    def begin_wait(self, rank, stage, kind, microbatch):
        """Record that an action must be waited for later, if the schedule has waits of this kind."""
        if kind in self.awaited:
            if kind == "REDUCE_GRAD" and any(other == kind for _, other, _ in self.pending[rank]):
                raise Wrong("two reductions at a time")
            self.pending[rank].add((stage, kind, microbatch))

    def end_wait(self, rank, stage, kind, microbatch):
        """Carry out a wait."""
        if (stage, kind, microbatch) not in self.pending[rank]:
            raise Wrong("waits for nothing")
        self.pending[rank].remove((stage, kind, microbatch))

    def compute(self, rank, stage, kind, microbatch):
        """Carry out a pass."""
        if self.sharding.get(stage, True) is False:
            raise Wrong("computes with sharded weights")
        self.passes[stage, kind, microbatch] += 1
        if self.passes[stage, kind, microbatch] > 1:
            raise Wrong("repeats a pass")
        if kind == "F":
            self.values[rank]["F", stage, microbatch] = self.values[rank]["forward", stage, microbatch] = True
            self.live[stage] += 1
            if self.stated and self.live[stage] > self.stated[stage]:
                raise Wrong("keeps more activations than stated")
        if kind in ("B", "I"):
            self.values[rank]["G", stage, microbatch] = True
        if kind == "I":
            self.values[rank]["inputs", stage, microbatch] = True
        if kind in ("B", "W"):
            self.gradients[stage, microbatch] += 1
            self.live[stage] -= 1

    def post(self, rank, stage, kind, microbatch):
        """Append a send or receive to its stream, and match it if possible."""
        up = kind in ("SEND_F", "RECV_B")
        peer_stage = stage + 1 if up else stage - 1
        if not self.has_messages or not 0 <= peer_stage <= self.last or self.place[peer_stage] == rank:
            raise Wrong("a message to nobody")
        peer = self.place[peer_stage]
        what = "F" if kind.endswith("F") else "G"
        if kind.startswith("SEND"):
            if (what, stage, microbatch) not in self.values[rank]:
                raise Wrong("sends what it does not have")
            entry = ("send", (what, stage, microbatch))
        else:
            entry = ("recv", (what, peer_stage, microbatch))
        if (rank, entry) in self.posted:
            raise Wrong("repeats a message")
        self.posted.add((rank, entry))
        mine = self.streams.setdefault((rank, peer), deque())
        theirs = self.streams.setdefault((peer, rank), deque())
        mine.append(entry)
        while mine and theirs and mine[0][0] != theirs[0][0]:
            receiver = rank if mine[0][0] == "recv" else peer
            (_, one), (_, other) = mine.popleft(), theirs.popleft()
            if one != other:
                raise Wrong("receives another value than it expects")
            self.values[receiver][one] = True

    def finish(self, at):
        """Raise Wrong if something is incomplete after the last action."""
        if any(index < len(row) for index, row in zip(at, self.rows, strict=True)):
            raise Wrong("deadlock")
        if any(self.streams.values()):
            raise Wrong("messages are left over")
        for stage in range(self.last + 1):
            for microbatch in range(self.m):
                if self.passes[stage, "F", microbatch] != 1 or self.gradients[stage, microbatch] != 1:
                    raise Wrong("a gradient is not computed once")
                if self.passes[stage, "B", microbatch] + self.passes[stage, "I", microbatch] != 1:
                    raise Wrong("an input's gradient is not computed once")
            if self.reduced and self.reduced[stage] != 1:
                raise Wrong("a gradient is not reduced once")
        if any(self.pending):
            raise Wrong("something is never waited for")
        if any(self.sharding.values()):
            raise Wrong("weights stay gathered")
