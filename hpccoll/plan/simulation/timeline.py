"""Timelines of the activities of each rank, with simulated times, measured times, or rounds of equal length.

Shapes: n ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.moves import TransferKind, to_moves, transfer_kind
from hpccoll.plan.plan import Plan
from hpccoll.plan.simulation.chunk_bytes import ChunkBytes
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.simulation.round_costs import RoundPricer
from hpccoll.plan.simulation.simulator import ClockState, advance_clocks
from hpccoll.plan.step import NO_PEER, Fence, IntArray, Move, Op

Clocks = NDArray[np.float64]  # microseconds, shape (n,)
Value = int | float | str


@dataclass(frozen=True, slots=True)
class Slice:
    """An activity of `rank` that starts at `start_us` and takes `duration_us`."""

    rank: int
    name: str
    start_us: float
    duration_us: float
    args: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class TimelineMessage:
    """A message that leaves `source` no earlier than `sent_us` and has arrived at `dest` by `received_us`."""

    source: int
    dest: int
    sent_us: float
    received_us: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The slices (activities) and messages of a run in the order of rounds; `clock` names the source of the times."""

    name: str
    ranks: int
    clock: str
    slices: tuple[Slice, ...]
    messages: tuple[TimelineMessage, ...] = ()

    @property
    def duration_us(self) -> float:
        """The time at which the last slice (activity) ends, in microseconds."""
        return max((each.start_us + each.duration_us for each in self.slices), default=0.0)


def build_round_timeline(plan: Plan, round_us: float = 1.0) -> Timeline:
    """Return a timeline of `plan` in which every round takes `round_us` microseconds."""
    builder = _TimelineBuilder(plan)
    for t in range(builder.rounds.count):
        clock = np.full(plan.ranks, t * round_us)
        builder.add(t, clock, clock + round_us)
    return builder.timeline(f"rounds of {round_us:g} us each")


def build_simulated_timeline(plan: Plan, machine: Machine, count: int, itemsize: int = 4) -> Timeline:
    """Return the timeline of all ranks that `simulate` predicts; a slice includes the rank's waits for messages.

    `count` is the number of elements per vector, or per block where the operation has blocks.
    """
    builder = _TimelineBuilder(plan)
    chunk_bytes = ChunkBytes(plan.operation.chunk_sizes(count, plan.ranks, builder.rounds.chunks) * itemsize)
    pricer = RoundPricer(plan, machine, chunk_bytes, plan.ranks)
    state = ClockState.at_rest(plan.ranks)
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

    def add(self, t: int, enters: Clocks, leaves: Clocks) -> None:
        """Add round t, which each rank entered and left at the given times; ranks that spent no time get no slice."""
        does: dict[int, list[str]] = {}
        for step in self.rounds.at(t):
            for move in to_moves(step, self.plan.ranks):
                self.add_move(move, transfer_kind(step), does, enters, leaves)
            if isinstance(step, Fence):
                for rank in np.nonzero(step.leader != NO_PEER)[0].tolist():
                    does.setdefault(rank, []).append("waits at a fence")
        for rank in sorted(does):
            spent = float(leaves[rank] - enters[rank])
            if spent > 0:
                args: dict[str, Value] = {"round": t + 1, "does": "; ".join(does[rank])}
                self.slices.append(Slice(rank, f"round {t + 1}", float(enters[rank]), spent, args))

    def add_move(
        self, move: Move, kind: TransferKind, does: dict[int, list[str]], enters: Clocks, leaves: Clocks
    ) -> None:
        """Add the messages of one step, and append a text for each rank's activity to the list `does[rank]`."""
        n = self.plan.ranks
        out, into = move.send.ids(n), move.recv.ids(n)
        ops = np.broadcast_to(np.asarray(move.op), (n,))
        for dest in np.nonzero(move.source != NO_PEER)[0].tolist():
            source = int(move.source[dest])
            sent, taken = _format_chunks(out[source]), _format_chunks(into[dest])
            if source == dest:
                does.setdefault(dest, []).append(f"copies {sent} to {taken}")
                continue
            at_source, at_dest = _describe_ends(kind, bool(ops[dest] != Op.COPY), sent, taken)
            does.setdefault(source, []).append(at_source.format(dest))
            does.setdefault(dest, []).append(at_dest.format(source))
            # Trace viewers draw an arrow only between two ranks that both have an activity longer than zero.
            has_slices = kind is TransferKind.MESSAGE or enters[source] < leaves[source]
            if has_slices and enters[source] < leaves[dest] and enters[dest] < leaves[dest]:
                self.messages.append(TimelineMessage(source, dest, float(enters[source]), float(leaves[dest])))

    def timeline(self, clock: str) -> Timeline:
        """Return the timeline of all rounds added so far."""
        name = f"{self.plan.name} on {self.plan.ranks} ranks"
        return Timeline(name, self.plan.ranks, clock, tuple(self.slices), tuple(self.messages))


def _describe_ends(kind: TransferKind, reduces: bool, sent: str, taken: str) -> tuple[str, str]:
    """Return the activities of source and destination as text, with {} as the placeholder of the peer's rank."""
    if kind is TransferKind.LOAD:
        return f"lends {sent} to {{}}", f"{'reduces' if reduces else 'loads'} {taken} from {{}}"
    if kind is TransferKind.STORE:
        return f"stores {sent} to {{}}", f"is given {taken} by {{}}"
    verb = "reduces" if reduces else "copies"
    return (f"sends {sent} to {{}}" if sent else "tells {}"), (
        f"{verb} {taken} from {{}}" if taken else "hears from {}"
    )


def _format_chunks(ids: IntArray) -> str:
    """Return a description of chunks such as `chunk 3`, `chunks 4 to 7` or `5 chunks`; empty for no chunks."""
    listed = ids[ids >= 0]
    if len(listed) < 2:
        return f"chunk {listed[0]}" if len(listed) else ""
    if (np.diff(listed) == 1).all():
        return f"chunks {listed[0]} to {listed[-1]}"
    return f"{len(listed)} chunks"
