"""When each rank does what: the slices of a run, be it simulated, measured, or told in rounds of equal length.

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
    """What `rank` did from `start_us` on, for `duration_us`."""

    rank: int
    name: str
    start_us: float
    duration_us: float
    args: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message: left `frm` no earlier than `sent_us`, and was all there at `to` by `taken_us`."""

    source: int
    dest: int
    sent_us: float
    taken_us: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run: its slices and messages in the order of rounds, and what clock they were read from."""

    name: str
    ranks: int
    clock: str
    slices: tuple[Slice, ...]
    arrows: tuple[Arrow, ...] = ()

    @property
    def duration_us(self) -> float:
        """When the last slice ends."""
        return max((each.start_us + each.duration_us for each in self.slices), default=0.0)


def build_round_timeline(plan: Plan, round_us: float = 1.0) -> Timeline:
    """Return the timeline of `plan` if every round took `round_us`, whatever is sent in it."""
    built = _Built(plan)
    for t in range(built.rounds.count):
        clock = np.full(plan.ranks, t * round_us)
        built.add(t, clock, clock + round_us)
    return built.timeline(f"rounds of {round_us:g} us each")


def build_simulated_timeline(plan: Plan, machine: Machine, count: int, itemsize: int = 4) -> Timeline:
    """Return the timeline that `simulate` predicts; ranks that wait for a message wait within the round's slice.

    Args:
        plan: any plan; all of its ranks are simulated.
        machine: the topology and the cost of its links.
        count: elements a rank: of its vector, or of one block where the message is n blocks.
        itemsize: bytes an element.
    """
    built = _Built(plan)
    chunk_bytes = ChunkBytes(plan.operation.chunk_sizes(count, plan.ranks, built.rounds.chunks) * itemsize)
    pricer = RoundPricer(plan, machine, chunk_bytes, plan.ranks)
    state = ClockState.at_rest(plan.ranks)
    for t in range(built.rounds.count):
        after = advance_clocks(state, pricer.price(built.rounds.at(t)))
        built.add(t, state.clocks * 1e6, after.clocks * 1e6)
        state = after
    return built.timeline(f"simulated on {machine.name}")


class _Built:
    """A timeline while its rounds are added."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.rounds = plan, plan.rounds()
        self.slices: list[Slice] = []
        self.arrows: list[Arrow] = []

    def add(self, t: int, enters: Clocks, leaves: Clocks) -> None:
        """Add a round which each rank entered and left then; who spent no time in it took no part."""
        does: dict[int, list[str]] = {}
        for step in self.rounds.at(t):
            for move in to_moves(step, self.plan.ranks):
                self.tell(move, transfer_kind(step), does, enters, leaves)
            if isinstance(step, Fence):
                for rank in np.nonzero(step.leader != NO_PEER)[0].tolist():
                    does.setdefault(rank, []).append("waits at a fence")
        for rank in sorted(does):
            spent = float(leaves[rank] - enters[rank])
            if spent > 0:
                args: dict[str, Value] = {"round": t + 1, "does": "; ".join(does[rank])}
                self.slices.append(Slice(rank, f"round {t + 1}", float(enters[rank]), spent, args))

    def tell(self, move: Move, by: TransferKind, does: dict[int, list[str]], enters: Clocks, leaves: Clocks) -> None:
        """Note what a move has each rank do."""
        n = self.plan.ranks
        out, into = move.send.ids(n), move.recv.ids(n)
        ops = np.broadcast_to(np.asarray(move.op), (n,))
        for to in np.nonzero(move.source != NO_PEER)[0].tolist():
            frm = int(move.source[to])
            sent, taken = _chunks(out[frm]), _chunks(into[to])
            if frm == to:
                does.setdefault(to, []).append(f"copies {sent} to {taken}")
                continue
            one, other = _words(by, bool(ops[to] != Op.COPY), sent, taken)
            does.setdefault(frm, []).append(one.format(to))
            does.setdefault(to, []).append(other.format(frm))
            # An arrow starts and ends in a slice; who only lends its memory may have none.
            there = by is TransferKind.MESSAGE or (enters[frm] < leaves[frm] and enters[to] < leaves[to])
            if there and enters[frm] < leaves[to] and enters[to] < leaves[to]:
                self.arrows.append(Arrow(frm, to, float(enters[frm]), float(leaves[to])))

    def timeline(self, clock: str) -> Timeline:
        """Return what was added."""
        name = f"{self.plan.name} on {self.plan.ranks} ranks"
        return Timeline(name, self.plan.ranks, clock, tuple(self.slices), tuple(self.arrows))


def _words(by: TransferKind, reduces: bool, sent: str, taken: str) -> tuple[str, str]:
    """Return what each end of a transfer does, with room for the other's rank."""
    if by is TransferKind.LOAD:
        return f"lends {sent} to {{}}", f"{'reduces' if reduces else 'loads'} {taken} from {{}}"
    if by is TransferKind.STORE:
        return f"stores {sent} to {{}}", f"is given {taken} by {{}}"
    verb = "reduces" if reduces else "copies"
    return (f"sends {sent} to {{}}" if sent else "tells {}"), (
        f"{verb} {taken} from {{}}" if taken else "hears from {}"
    )


def _chunks(ids: IntArray) -> str:
    """Name chunks in short: `chunk 3`, `chunks 4 to 7`, `5 chunks`; nothing for a mere signal."""
    there = ids[ids >= 0]
    if len(there) < 2:
        return f"chunk {there[0]}" if len(there) else ""
    if (np.diff(there) == 1).all():
        return f"chunks {there[0]} to {there[-1]}"
    return f"{len(there)} chunks"
