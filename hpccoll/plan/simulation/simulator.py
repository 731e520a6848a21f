"""The simulation of a plan on a machine model, which predicts the plan's time with a clock per rank, round by round.

In array shapes, P is the number of simulated ranks, which represent all n ranks.

A rank enters a round when it has left the previous round, and leaves the round when its own sends and receives of the
round have completed. In a round, a rank sends its messages one after the other, in the order of the plan's steps, and
at the same time receives messages one after the other, in the same order. A message may arrive before its receiver
enters the round. A rank reduces the received messages in the order of the plan's steps. Messages that share a NIC in a
round share its bandwidth. A load or store delays only the rank that performs it, and a fence delays only the ranks that
take part in it. Chunks have the same sizes as at run time, and empty messages are sent only in barriers.

If rank r + p does the same as rank r for all ranks of a plan, only p ranks are simulated (see symmetry.py), and the
result equals that of simulating all ranks. Cost: O(rounds * simulated ranks) time; O(simulated ranks) memory plus at
most a hundred MB for tracing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.plan.operation import Count, Operation
from hpccoll.plan.plan import Plan
from hpccoll.plan.rounds import Rounds
from hpccoll.plan.simulation.chunk_bytes import ChunkBytes
from hpccoll.plan.simulation.critical_path import CriticalPath, MoveNumbers, TracedRound, find_critical_path
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.simulation.repeated_rounds import (
    FIRST_BLOCK,
    LEAST_ROUNDS,
    MOST_RANKS,
    find_run_end,
    list_strides,
    make_cost_signature,
)
from hpccoll.plan.simulation.round_costs import MoveCosts, RoundCosts, RoundPricer
from hpccoll.plan.simulation.symmetry import find_period
from hpccoll.plan.step import Floats, IntArray

_TRACED = 2**22  # most entries (ranks times rounds) of the clocks of a traced segment: 32 MiB


@dataclass(frozen=True, slots=True)
class Simulation:
    """The predicted execution of a plan; arrays have one entry for each simulated rank.

    `clocks_s` has the time in seconds at which each rank finishes, without the overhead of the call. `within` has the
    bytes that each rank sends, loads or stores inside its node, and `between` the bytes that the rank sends to other
    nodes. `busiest_shared` has the bytes on the busiest link between switches, divided by its bandwidth in NICs; it is
    0 if nodes share no links. `steps` counts the rounds that contain messages, loads or stores; `messages` includes
    loads and stores; `nbytes` is the message size S, as nccl-tests defines it. `path` is the critical path; None if it
    was not traced.
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
    busiest_shared: float = 0.0

    @property
    def seconds(self) -> float:
        """The predicted seconds until the last rank finishes, including the overhead of the call."""
        return self.machine.call_s + float(self.clocks_s.max(initial=0.0))

    @property
    def simulated_ranks(self) -> int:
        """The number of simulated ranks, which represent all ranks of the plan."""
        return len(self.clocks_s)


def simulate(
    plan: Plan,
    machine: Machine,
    count: Count,
    itemsize: int = 4,
    *,
    full: bool = False,
    trace: bool = True,
    entered_s: Floats | None = None,
) -> Simulation:
    """Return the predicted execution of `plan` on the machine model `machine`.

    Args:
        plan: the plan to simulate, which this function does not prove.
        count: elements of `itemsize` bytes each, as in `Operation.sizes_by_rank`.
        full: simulate every rank, even if fewer ranks could represent all.
        trace: find the critical path; most rounds are then simulated twice if ranks times rounds exceed 4 million.
        entered_s: the time at which each rank enters the call, shape (n,), at least 0; None if all enter at time 0.
            If `entered_s` is given, every rank is simulated, as with `full`.

    Raises:
        UsageError: the count is negative, the item size below 1, or ranks of different nodes share memory.
        PlanError: the algorithm states a period (rank r + period acts like rank r) that its plan does not have.
    """
    if min(count if isinstance(count, tuple) else (count,)) < 0 or itemsize < 1:
        raise UsageError(f"cannot simulate {count} elements of {itemsize} bytes: need a count >= 0 and whole bytes")
    rounds = plan.column(0)
    chunk_bytes = ChunkBytes(_list_sizes(plan, count, rounds.chunks) * itemsize)
    represented = plan.ranks if full or entered_s is not None else find_period(plan, machine, chunk_bytes)
    run = _Run(plan, machine, chunk_bytes, represented, trace, entered_s)
    clocks = run.forward()
    path = run.path(clocks) if trace else None
    within, between = run.pricer.sent()
    nbytes = plan.operation.message_bytes(count, itemsize, plan.ranks)
    messages = run.pricer.messages * (plan.ranks // represented)
    busiest = run.pricer.find_busiest_shared()
    return Simulation(plan, machine, nbytes, len(rounds), run.steps, messages, clocks, within, between, path, busiest)


def _list_sizes(plan: Plan, count: Count, chunks: int) -> IntArray:
    """Return the elements of each chunk, shape (chunks,), or of each chunk of each rank, shape (ranks, chunks).

    The sizes depend on the rank in an all_to_all with blocks of different sizes.
    """
    differ = plan.operation is Operation.ALL_TO_ALL and isinstance(count, tuple)
    return (plan.operation.sizes_by_rank if differ else plan.operation.chunk_sizes)(count, plan.ranks, chunks)


@dataclass(frozen=True, slots=True)
class ClockState:
    """The clocks of the simulated ranks between two rounds: the times, in seconds, at which each rank goes on.

    A second array has the time at which each rank's port for receiving is free.
    """

    clocks: Floats
    port: Floats


class _Run:
    """One simulation of a plan. Rounds are divided into segments, so that a trace of all rounds need not fit in memory.

    The trace of a round records for which message each rank waited, and gives the critical path.
    """

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        chunk_bytes: ChunkBytes,
        represented: int,
        trace: bool,
        entered_s: Floats | None = None,
    ) -> None:
        self.plan, self.trace = plan, trace
        self.entered_s = np.zeros(represented) if entered_s is None else np.array(entered_s, np.float64)
        self.pricer = RoundPricer(plan, machine, chunk_bytes, represented)
        self.rounds: Rounds = plan.make(self.pricer.links.rank)
        self.segment = max(_TRACED // represented, 1)
        self.segment_starts: list[ClockState] = []
        self.last_traced: list[TracedRound] = []
        self.steps = 0

    def forward(self) -> Floats:
        """Simulate all rounds; return the time at which each rank finishes, in seconds. To be called once.

        Adds the number of rounds with messages to `steps`. With `trace`, keeps what `path` needs: in `segment_starts`
        the clocks at the start of each segment of rounds, from which `path` simulates the segment again, and in
        `last_traced` the trace of the last segment. Without `trace`, rounds that repeat may be skipped.
        """
        state = ClockState(self.entered_s, np.zeros(self.pricer.size))
        if not self.trace and len(self.rounds) >= LEAST_ROUNDS and self.pricer.size <= MOST_RANKS:
            return self.advance_repeated(state).clocks
        for first in range(0, len(self.rounds), self.segment):
            self.segment_starts.append(state)
            stop = min(first + self.segment, len(self.rounds))
            traced = self.trace and stop == len(self.rounds)
            for t in range(first, stop):
                costs = self.pricer.price(self.rounds.at(t))
                self.steps += costs.messages > 0
                state = self.advance_traced(t, costs, state) if traced else advance_clocks(state, costs)
        return state.clocks

    def advance_repeated(self, state: ClockState) -> ClockState:
        """Return the state after all rounds; of rounds whose costs repeat, only the first cycles are simulated."""
        probe = RoundPricer(self.plan, self.pricer.machine, self.pricer.chunks, self.pricer.size)

        def sign(at: int) -> bytes:
            """Return the signature of the costs of round `at`, equal for rounds with equal costs."""
            return make_cost_signature(probe.price(self.rounds.at(at)))

        strides = list_strides(self.pricer.chunks, self.pricer.size)
        t, stop, block = 0, len(self.rounds), FIRST_BLOCK
        while t < stop:
            ends = {length: find_run_end(sign, t, stop, length) for length in strides}
            stride = max(ends, key=lambda length: (ends[length], length), default=stop)
            end = ends.get(stride, t)
            if end == t:  # no run begins here: simulate a block of rounds before the next attempt
                end, block, stride = min(t + block, stop), 2 * block, stop
            while end - t >= 2 * stride:
                state, t = self.advance_cycle(state, t, end, stride)
            for at in range(t, end):
                state = self.advance(at, state, [])
            t = end
        return state

    def advance_cycle(self, state: ClockState, t: int, end: int, stride: int) -> tuple[ClockState, int]:
        """Simulate a cycle of `stride` rounds from round t on; return the state and the next round to simulate.

        If all clocks gain the same time in the cycle, all cycles before round `end` are added at once.
        """
        before, cycle = state, list[RoundCosts]()
        for at in range(t, t + stride):
            state = self.advance(at, state, cycle)
        t += stride
        gains = np.concatenate([state.clocks - before.clocks, state.port - before.port])
        if not np.allclose(gains, gains[0], rtol=1e-9, atol=0):
            return state, t
        cycles = (end - t) // stride
        for costs in cycle:
            self.pricer.add_repeated(costs, cycles)
            self.steps += cycles * (costs.messages > 0)
        later = cycles * gains[0]
        return ClockState(state.clocks + later, state.port + later), t + cycles * stride

    def advance(self, t: int, state: ClockState, priced: list[RoundCosts]) -> ClockState:
        """Return the state after round t, and append the round's costs to `priced`."""
        costs = self.pricer.price(self.rounds.at(t))
        self.steps += costs.messages > 0
        priced.append(costs)
        return advance_clocks(state, costs)

    def advance_traced(self, t: int, costs: RoundCosts, state: ClockState) -> ClockState:
        """Return the state after round t; record in `last_traced` for which message each rank waited."""
        waited_for = np.zeros(len(state.clocks), np.int32)
        after = advance_clocks(state, costs, waited_for)
        messages = [(move.source, move.nbytes) for move in costs.moves]
        if costs.fences is not None:
            messages = [(costs.fences.leave(state.clocks)[1], np.zeros(len(waited_for)))]
        self.last_traced.append(TracedRound(t, messages, state.clocks, waited_for))
        return after

    def path(self, clocks: Floats) -> CriticalPath:
        """Return the critical path; all segments of rounds but the last are simulated again for the trace.

        `clocks` has the time at which each rank finishes.
        """
        pricer = self.pricer
        # The second pass has its own RoundPricer, which keeps the message counts of the first pass unchanged.
        second_pricer = RoundPricer(self.plan, pricer.machine, pricer.chunks, pricer.size)

        def trace_segment(number: int) -> list[TracedRound]:
            """Return the trace of segment `number`: simulate it again, unless it is the last segment, which is kept."""
            if number < len(self.segment_starts) - 1:
                state = self.segment_starts[number]
                for t in range(number * self.segment, (number + 1) * self.segment):
                    state = self.advance_traced(t, second_pricer.price(self.rounds.at(t)), state)
            traced, self.last_traced = self.last_traced, []
            return traced

        segments = (trace_segment(number) for number in range(len(self.segment_starts) - 1, -1, -1))
        return find_critical_path(segments, clocks, self.plan.ranks, pricer.machine)


def advance_clocks(state: ClockState, costs: RoundCosts, waited_for: MoveNumbers | None = None) -> ClockState:
    """Return the clocks of all simulated ranks after a round with the given costs; `state` is not changed.

    If given, `waited_for` is filled with the number (from 1) of the step whose message each rank waited for, or 0 if
    the rank did not wait. In a round of fences, `waited_for` is 1 for the ranks that waited.
    """
    if costs.accessing is not None:
        return ClockState(state.clocks + costs.accessing, state.port)
    if costs.fences is not None:
        clocks, last = costs.fences.leave(state.clocks)
        if waited_for is not None:
            waited_for[last != np.arange(len(last))] = 1
        return ClockState(clocks, state.port)
    if not costs.moves:
        return state
    out, done, port = state.clocks, state.clocks, state.port
    if any(move.receivers is not None for move in costs.moves):
        out, done, port = out.copy(), done.copy(), port.copy()
    for number, move in enumerate(costs.moves, 1):
        if move.receivers is not None:
            _carry_messages(out, done, port, move, move.receivers, waited_for, number)
            continue
        begin = out[move.source_index]
        begin += move.flight
        free = None if waited_for is None else begin >= port  # false where the port is busy with an earlier message
        np.maximum(begin, port, out=begin)
        begin += move.receiving
        port = begin
        if waited_for is not None and free is not None:
            waited_for[free & (port > done)] = number
        done = np.maximum(done, port)
        if move.reducing is not None:
            done += move.reducing
        out = out + move.busy
    if costs.copying is not None:
        done = done + costs.copying
    if waited_for is not None:
        waited_for[out > done] = 0
    return ClockState(np.maximum(done, out), port)


def _carry_messages(
    out: Floats,
    done: Floats,
    port: Floats,
    move: MoveCosts,
    receivers: IntArray,
    waited_for: MoveNumbers | None,
    number: int,
) -> None:
    """Advance, in place, the clocks of the ranks that send and receive the messages of a step in which few ranks send.

    Args:
        out: the time at which each rank has sent all.
        done: the time at which each rank has received and reduced all.
        port: the time at which each rank's port for receiving is free.
        move: the costs of the step's messages.
        receivers: the rank that receives each message.
        waited_for: filled with `number` for each rank that waits for its message; None to leave that out.
        number: the number of the step, from 1.
    """
    begin, busy_until = out[move.source_index] + move.flight, port[receivers]
    free = begin >= busy_until
    arrived = np.maximum(begin, busy_until) + move.receiving
    port[receivers] = arrived
    if waited_for is not None:
        waited_for[receivers[free & (arrived > done[receivers])]] = number
    done[receivers] = np.maximum(done[receivers], arrived)
    if move.reducing is not None:
        done[receivers] += move.reducing
    out[move.source_index] += move.busy
