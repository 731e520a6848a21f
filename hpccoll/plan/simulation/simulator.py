"""Predicts how long a plan takes on a machine: a clock for each rank, moved on round by round.

Shapes: P ranks that stand for all n, T rounds.

A rank enters a round when it has left the one before, and leaves it when its own sends and receives of the round have
ended; nobody waits for ranks that it exchanges nothing with. In a round a rank sends its messages one after the other
and takes in others' one after the other, in the order of the moves, both at once; a message that comes before its
receiver is ready waits for it there. What is reduced is reduced in that order too. Messages that share a NIC in a
round share its bandwidth. Loads and stores concern their actor alone, and fences those that meet there (see
shared_costs.py). Chunks have the sizes that a run would give them, and messages without a byte are not sent
(a barrier's are: the message is the news).

Where a plan looks alike from every p-th rank, p ranks stand for all (symmetry.py); the result is exactly that of the
full simulation. Cost: O(T P) time; memory O(P) and what tracing needs, never more than a hundred MB.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.plan.plan import Plan
from hpccoll.plan.rounds import Rounds
from hpccoll.plan.simulation.chunk_bytes import ChunkBytes, Floats
from hpccoll.plan.simulation.critical_path import CriticalPath, MoveNumbers, TracedRound, find_critical_path
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.simulation.round_costs import RoundCosts, RoundPricer
from hpccoll.plan.simulation.symmetry import find_period

_TRACED = 2**22  # clocks that are kept at once (32 MiB), and as many marks


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a plan takes on a machine; arrays are over the P ranks that were simulated, which stand for all.

    `clocks_s` is when each rank is done (what the call itself takes is not counted), `within` and `between` are the
    bytes that it sends, loads or stores inside its node and sends to others; `steps` counts rounds in which something
    moves, `messages` loads and stores, too; `nbytes` is nccl-tests' S.
    """

    plan: Plan
    machine: Machine
    nbytes: int
    rounds: int
    steps: int
    messages: int
    clocks_s: Floats
    within: Floats
    between: Floats
    path: CriticalPath | None

    @property
    def seconds(self) -> float:
        """When the last rank is done, and what the call takes before it begins."""
        return self.machine.call_s + float(self.clocks_s.max(initial=0.0))

    @property
    def simulated_ranks(self) -> int:
        """How many ranks stood for all."""
        return len(self.clocks_s)


def simulate(
    plan: Plan, machine: Machine, count: int, itemsize: int = 4, *, full: bool = False, trace: bool = True
) -> Simulation:
    """Return what `plan` takes on `machine`.

    Args:
        plan: any plan.
        machine: the topology and the cost of its links.
        count: elements a rank: of its vector, or of one block where the message is n blocks.
        itemsize: bytes an element.
        full: simulate every rank, also where a period would do.
        trace: find the critical path; where ranks times rounds are many, the rounds are run twice for it.

    Raises:
        UsageError: a negative count, an item size below 1, or ranks that share memory across nodes.
        PlanError: the period that the algorithm states is none.
    """
    if count < 0 or itemsize < 1:
        raise UsageError(f"cannot simulate {count} elements of {itemsize} bytes: need a count >= 0 and whole bytes")
    rounds = plan.column(0)
    chunk_bytes = ChunkBytes(plan.operation.chunk_sizes(count, plan.ranks, rounds.chunks) * itemsize)
    represented = plan.ranks if full else find_period(plan, machine, chunk_bytes)
    run = _Run(plan, machine, chunk_bytes, represented, trace)
    clocks = run.forward()
    path = run.path(clocks) if trace else None
    within, between = run.pricer.sent()
    return Simulation(
        plan=plan,
        machine=machine,
        nbytes=plan.operation.message_bytes(count, itemsize, plan.ranks),
        rounds=len(rounds),
        steps=run.steps,
        messages=run.pricer.messages * (plan.ranks // represented),
        clocks_s=clocks,
        within=within,
        between=between,
        path=path,
    )


@dataclass(frozen=True, slots=True)
class ClockState:
    """Where the ranks are between two rounds, each shape (P,): their clocks, and until when their ports take in."""

    clocks: Floats
    port: Floats

    @classmethod
    def at_rest(cls, ranks: int) -> ClockState:
        """Return the state before the first round."""
        return cls(np.zeros(ranks), np.zeros(ranks))


class _Run:
    """One simulation; the rounds are cut into spells that can be traced one at a time."""

    def __init__(self, plan: Plan, machine: Machine, chunk_bytes: ChunkBytes, represented: int, trace: bool) -> None:
        self.plan, self.trace = plan, trace
        self.pricer = RoundPricer(plan, machine, chunk_bytes, represented)
        self.rounds: Rounds = plan.make(self.pricer.directory.rank)
        self.spell = max(_TRACED // represented, 1)
        self.starts: list[ClockState] = []
        self.last: list[TracedRound] = []
        self.steps = 0

    def forward(self) -> Floats:
        """Run all rounds; keep the state at the start of every spell, and the trace of the last."""
        state = ClockState.at_rest(self.pricer.size)
        for first in range(0, len(self.rounds), self.spell):
            self.starts.append(state)
            stop = min(first + self.spell, len(self.rounds))
            traced = self.trace and stop == len(self.rounds)
            for t in range(first, stop):
                costs = self.pricer.price(self.rounds.at(t))
                self.steps += costs.messages > 0
                state = self.traced(t, costs, state) if traced else advance_clocks(state, costs)
        return state.clocks

    def traced(self, t: int, costs: RoundCosts, state: ClockState) -> ClockState:
        """Move the clocks on, and keep what they were and which message each rank waited for."""
        came = np.zeros(len(state.clocks), np.int8)
        after = advance_clocks(state, costs, came)
        messages = [(leg.source, leg.nbytes) for leg in costs.legs]
        if costs.meeting is not None:
            messages = [(costs.meeting.leave(state.clocks)[1], np.zeros(len(came)))]
        self.last.append(TracedRound(t, messages, state.clocks, came))
        return after

    def path(self, clocks: Floats) -> CriticalPath:
        """Follow the waits back from the rank that is done last; earlier spells are run again for their trace."""
        pricer = self.pricer
        again = RoundPricer(self.plan, pricer.machine, pricer.chunks, pricer.size)  # so that nothing is counted twice

        def spell(number: int) -> list[TracedRound]:
            if number < len(self.starts) - 1:
                state = self.starts[number]
                for t in range(number * self.spell, (number + 1) * self.spell):
                    state = self.traced(t, again.price(self.rounds.at(t)), state)
            found, self.last = self.last, []
            return found

        spells = (spell(number) for number in range(len(self.starts) - 1, -1, -1))
        return find_critical_path(spells, clocks, self.plan.ranks, pricer.machine)


def advance_clocks(state: ClockState, costs: RoundCosts, came: MoveNumbers | None = None) -> ClockState:
    """Return the state after a round.

    Args:
        state: when each rank enters the round.
        costs: of the round.
        came: filled in, where given: the number (from 1) of the move whose message a rank waited for, 0 for none; at
            a fence 1 where it waited for another rank.
    """
    if costs.acting is not None:
        return ClockState(state.clocks + costs.acting, state.port)
    if costs.meeting is not None:
        clocks, last = costs.meeting.leave(state.clocks)
        if came is not None:
            came[last != np.arange(len(last))] = 1
        return ClockState(clocks, state.port)
    if not costs.legs:
        return state
    out = done = state.clocks
    port = state.port
    for number, leg in enumerate(costs.legs, 1):
        begin = out[leg.source_index]
        begin += leg.flight
        free = None if came is None else begin >= port  # else it waits for messages that came before
        np.maximum(begin, port, out=begin)
        begin += leg.taking
        port = begin
        if came is not None and free is not None:
            came[free & (port > done)] = number
        done = np.maximum(done, port)
        if leg.joining is not None:
            done += leg.joining
        out = out + leg.busy
    if costs.copying is not None:
        done = done + costs.copying
    if came is not None:
        came[out > done] = 0
    return ClockState(np.maximum(done, out), port)
