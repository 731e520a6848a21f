"""Timelines of the activities of each rank, with simulated times, measured times, or rounds of equal length.

In array shapes, n is the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpccoll.plan.messages import PlanMessage, list_step_messages
from hpccoll.plan.moves import TransferKind
from hpccoll.plan.plan import Plan
from hpccoll.plan.simulation.chunk_bytes import ChunkBytes
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.simulation.round_costs import RoundPricer
from hpccoll.plan.simulation.simulator import ClockState, advance_clocks
from hpccoll.plan.step import NO_PEER, Fence, Floats
from hpccoll.units import format_count


@dataclass(frozen=True, slots=True)
class Slice:
    """An activity of `rank` in a timeline, which starts at `start_us` and takes `duration_us` (microseconds)."""

    rank: int
    name: str
    start_us: float
    duration_us: float
    args: Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class TimelineMessage:
    """A message in a timeline: it leaves `source` no earlier than `sent_us` and is at `dest` by `received_us`.

    The times `sent_us` and `received_us` are in microseconds.
    """

    source: int
    dest: int
    sent_us: float
    received_us: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The activities (slices) and messages of all ranks in a run of a plan; `clock` names the source of the times."""

    name: str
    ranks: int
    clock: str
    slices: tuple[Slice, ...]
    messages: tuple[TimelineMessage, ...] = ()

    @property
    def duration_us(self) -> float:
        """The time at which the last slice (activity) ends, in microseconds."""
        return max((shown.start_us + shown.duration_us for shown in self.slices), default=0.0)


def build_round_timeline(plan: Plan) -> Timeline:
    """Return a timeline of `plan` that shows the order of its rounds: every round takes a microsecond."""
    builder = _TimelineBuilder(plan)
    for t in range(builder.rounds.count):
        clock = np.full(plan.ranks, float(t))
        builder.add(t, clock, clock + 1.0)
    return builder.timeline("rounds of 1 us each")


def build_simulated_timeline(plan: Plan, machine: Machine, count: int, itemsize: int = 4) -> Timeline:
    """Return the timeline that `simulate` predicts for a plan on a machine model; the slices of ranks include waits.

    `count` is the number of elements per vector or block, and `itemsize` the bytes of an element.
    """
    builder = _TimelineBuilder(plan)
    chunk_bytes = ChunkBytes(plan.operation.chunk_sizes(count, plan.ranks, builder.rounds.chunks) * itemsize)
    pricer = RoundPricer(plan, machine, chunk_bytes, plan.ranks)
    state = ClockState(np.zeros(plan.ranks), np.zeros(plan.ranks))
    for t in range(builder.rounds.count):
        after = advance_clocks(state, pricer.price(builder.rounds.at(t)))
        builder.add(t, state.clocks * 1e6, after.clocks * 1e6)
        state = after
    return builder.timeline(f"simulated on {machine.name}")


class _TimelineBuilder:
    """Collects the slices (activities) and messages of a timeline, round by round."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.rounds = plan, plan.rounds()
        self.slices: list[Slice] = []
        self.messages: list[TimelineMessage] = []

    def add(self, t: int, enters: Floats, leaves: Floats) -> None:
        """Add round t, which ranks enter and leave at the given times in microseconds.

        Ranks that do nothing get no slice.
        """
        does: dict[int, list[str]] = {}
        for step in self.rounds.at(t):
            for message in list_step_messages(step, self.plan.ranks):
                self.add_message(message, does, enters, leaves)
            if isinstance(step, Fence):
                for rank in np.nonzero(step.leader != NO_PEER)[0].tolist():
                    does.setdefault(rank, []).append("waits at a fence")
        for rank in sorted(does):
            spent = float(leaves[rank] - enters[rank])
            if spent > 0:
                args: dict[str, int | str] = {"round": t + 1, "does": "; ".join(does[rank])}
                self.slices.append(Slice(rank, f"round {t + 1}", float(enters[rank]), spent, args))

    def add_message(self, message: PlanMessage, does: dict[int, list[str]], enters: Floats, leaves: Floats) -> None:
        """Add a message, and append a description of what each end does to the list `does[rank]`.

        `enters` and `leaves` have the times, in microseconds, at which each rank enters and leaves the round.
        """
        source, dest = message.source, message.dest
        sent, taken = _format_chunks(message.send), _format_chunks(message.recv)
        if source == dest:
            does.setdefault(dest, []).append(f"copies {sent} to {taken}")
            return
        at_source, at_dest = _describe_ends(message, sent, taken)
        does.setdefault(source, []).append(at_source)
        does.setdefault(dest, []).append(at_dest)
        # Trace viewers draw an arrow only between two ranks that both have an activity longer than zero.
        has_slices = message.via is TransferKind.MESSAGE or enters[source] < leaves[source]
        if has_slices and enters[source] < leaves[dest] and enters[dest] < leaves[dest]:
            self.messages.append(TimelineMessage(source, dest, float(enters[source]), float(leaves[dest])))

    def timeline(self, clock: str) -> Timeline:
        """Return the timeline of all rounds added so far; `clock` names the source of the times."""
        name = f"{self.plan.name} on {format_count(self.plan.ranks, 'rank')}"
        return Timeline(name, self.plan.ranks, clock, tuple(self.slices), tuple(self.messages))


def _describe_ends(message: PlanMessage, sent: str, taken: str) -> tuple[str, str]:
    """Return what source and destination of a message do, as two texts; `sent` and `taken` describe the chunks."""
    source, dest, reduces = message.source, message.dest, message.reduces
    if message.via is TransferKind.LOAD:
        return f"lends {sent} to {dest}", f"{'reduces' if reduces else 'loads'} {taken} from {source}"
    if message.via is TransferKind.STORE:
        return f"stores {sent} to {dest}", f"is given {taken} by {source}"
    if not sent:
        return f"tells {dest}", f"hears from {source}"
    return f"sends {sent} to {dest}", f"{'reduces' if reduces else 'copies'} {taken} from {source}"


def _format_chunks(chunks: Sequence[int]) -> str:
    """Return a description of chunks such as `chunk 3`, `chunks 4 to 7` or `5 chunks`; empty for no chunks."""
    if len(chunks) < 2:
        return f"chunk {chunks[0]}" if chunks else ""
    if (np.diff(chunks) == 1).all():
        return f"chunks {chunks[0]} to {chunks[-1]}"
    return f"{len(chunks)} chunks"
