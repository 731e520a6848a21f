"""When each rank does what: the slices of a run, be it simulated, measured, or told in rounds of equal length.

Shapes: n ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.chunk_bytes import ChunkBytes
from hpccoll.plan.machine import Machine
from hpccoll.plan.plan import Plan
from hpccoll.plan.round_costs import Pricer
from hpccoll.plan.simulate import State, advance
from hpccoll.plan.step import NOBODY, IntArray, Move, Op

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

    frm: int
    to: int
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


def in_rounds(plan: Plan, round_us: float = 1.0) -> Timeline:
    """Return the timeline of `plan` if every round took `round_us`, whatever is sent in it."""
    built = _Built(plan)
    for t in range(built.rounds.count):
        clock = np.full(plan.ranks, t * round_us)
        built.add(t, clock, clock + round_us)
    return built.timeline(f"rounds of {round_us:g} us each")


def simulated(plan: Plan, machine: Machine, count: int, itemsize: int = 4) -> Timeline:
    """Return the timeline that `simulate` predicts; ranks that wait for a message wait within the round's slice.

    Args:
        plan: any plan; all of its ranks are simulated.
        machine: the topology and the cost of its links.
        count: elements a rank: of its vector, or of one block where the message is n blocks.
        itemsize: bytes an element.
    """
    built = _Built(plan)
    chunk_bytes = ChunkBytes(plan.operation.sizes(count, plan.ranks, built.rounds.chunks) * itemsize)
    pricer = Pricer(plan, machine, chunk_bytes, plan.ranks)
    state = State.at_rest(plan.ranks)
    for t in range(built.rounds.count):
        after = advance(state, pricer.price(built.rounds.at(t)))
        built.add(t, state.clocks * 1e6, after.clocks * 1e6)
        state = after
    return built.timeline(f"simulated on {machine.name}")


class _Built:
    """A timeline while its rounds are added."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.rounds = plan, plan.whole()
        self.slices: list[Slice] = []
        self.arrows: list[Arrow] = []

    def add(self, t: int, enters: Clocks, leaves: Clocks) -> None:
        """Add a round which each rank entered and left then; who spent no time in it took no part."""
        does: dict[int, list[str]] = {}
        for move in self.rounds.at(t):
            self.tell(move, does, enters, leaves)
        for rank in sorted(does):
            spent = float(leaves[rank] - enters[rank])
            if spent > 0:
                args: dict[str, Value] = {"round": t + 1, "does": "; ".join(does[rank])}
                self.slices.append(Slice(rank, f"round {t + 1}", float(enters[rank]), spent, args))

    def tell(self, move: Move, does: dict[int, list[str]], enters: Clocks, leaves: Clocks) -> None:
        """Note what a move has each rank do."""
        n = self.plan.ranks
        out, into = move.send.ids(n), move.recv.ids(n)
        ops = np.broadcast_to(np.asarray(move.op), (n,))
        for to in np.nonzero(move.frm != NOBODY)[0].tolist():
            frm = int(move.frm[to])
            sent, taken = _chunks(out[frm]), _chunks(into[to])
            if frm == to:
                does.setdefault(to, []).append(f"copies {sent} to {taken}")
                continue
            verb = "copies" if ops[to] == Op.COPY else "reduces"
            does.setdefault(frm, []).append(f"sends {sent} to {to}" if sent else f"tells {to}")
            does.setdefault(to, []).append(f"{verb} {taken} from {frm}" if taken else f"hears from {frm}")
            if enters[frm] < leaves[to] and enters[to] < leaves[to]:
                self.arrows.append(Arrow(frm, to, float(enters[frm]), float(leaves[to])))

    def timeline(self, clock: str) -> Timeline:
        """Return what was added."""
        name = f"{self.plan.name} on {self.plan.ranks} ranks"
        return Timeline(name, self.plan.ranks, clock, tuple(self.slices), tuple(self.arrows))


def _chunks(ids: IntArray) -> str:
    """Name chunks in short: `chunk 3`, `chunks 4 to 7`, `5 chunks`; nothing for a mere signal."""
    there = ids[ids >= 0]
    if len(there) < 2:
        return f"chunk {there[0]}" if len(there) else ""
    if (np.diff(there) == 1).all():
        return f"chunks {there[0]} to {there[-1]}"
    return f"{len(there)} chunks"
