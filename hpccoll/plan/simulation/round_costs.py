"""What a round costs: for each move of it, how long its messages keep ports busy, fly, and are reduced.

Shapes: P ranks that stand for all n (see peers.py).

Rounds repeat. What does not depend on bytes is kept by the identity of the peers' arrays; whole rounds are kept by
their bytes, where P is small enough that comparing them costs less than working them out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpccoll.plan.operation import Operation
from hpccoll.plan.plan import Plan
from hpccoll.plan.simulation.chunk_bytes import Bytes, ChunkBytes, Floats
from hpccoll.plan.simulation.links import NEVER, LinkTable, Mask, PeerLinks
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.simulation.shared_memory_costs import FenceCosts, SharedMemoryPricer
from hpccoll.plan.step import Fence, IntArray, Move, Op, Step

_FEW = 512  # ranks whose bytes are worth comparing
_KEPT = 2**18  # ranks times rounds


@dataclass(frozen=True, slots=True)
class MoveCosts:
    """The messages of one move, arrays of shape (P,): what each rank sends, and what it receives from `source_index`.

    `busy` is how long its message keeps the sender's port, `taking` how long the incoming one keeps its own after
    `flight` (NEVER where nothing comes), `joining` what reducing it takes. `nbytes` is what is sent, `source` whose
    message comes, before it is represented.
    """

    source_index: IntArray
    source: IntArray
    busy: Floats
    flight: Floats
    taking: Floats
    joining: Floats | None
    nbytes: Floats


@dataclass(slots=True)
class RoundCosts:
    """The legs of a round, what copies within a rank take, and the bytes sent, shape (P,) each; `uses` counts.

    A round of loads and stores has no legs but `acting`, what they take each rank, and one of fences has a `meeting`.
    """

    legs: tuple[MoveCosts, ...]
    copying: Floats | None
    within: Floats
    between: Floats
    messages: int
    uses: int = 0
    acting: Floats | None = None
    meeting: FenceCosts | None = None


class RoundPricer:
    """Prices rounds of one plan on one machine, for the ranks 0 to P - 1."""

    def __init__(self, plan: Plan, machine: Machine, chunk_bytes: ChunkBytes, represented: int) -> None:
        self.machine, self.chunks, self.size = machine, chunk_bytes, represented
        self.signals = plan.operation is Operation.BARRIER
        self.directory = LinkTable(machine, plan.ranks, represented)
        self._shared = SharedMemoryPricer(plan, machine, chunk_bytes, self.directory)
        self.messages = 0
        self._sums = (np.zeros(represented), np.zeros(represented))
        self._rounds: dict[tuple[object, ...], tuple[list[Move], RoundCosts]] = {}

    def price(self, steps: Sequence[Step]) -> RoundCosts:
        """Return what a round costs, and count that it was run."""
        moves = [step for step in steps if isinstance(step, Move)]
        if len(moves) < len(steps):
            return self._shared_round(steps)
        sent = [self.chunks.of(move.send) for move in moves]
        key = self._key(moves, sent)
        if key is None:
            costs = self._worked_out(moves, sent)
            costs.uses = 1
            self._count(costs)
            return costs
        found = self._rounds.get(key)
        if found is None:
            if len(self._rounds) * self.size >= _KEPT:
                self._settle()
            # The moves are kept too: an array that is gone could leave its identity to another.
            found = self._rounds[key] = (moves, self._worked_out(moves, sent))
        found[1].uses += 1
        return found[1]

    def _shared_round(self, steps: Sequence[Step]) -> RoundCosts:
        none = np.zeros(self.size)
        fences = [step for step in steps if isinstance(step, Fence)]
        if fences:
            return RoundCosts((), None, none, none, 0, meeting=self._shared.meeting(fences))
        acting = self._shared.acting(steps)
        costs = RoundCosts((), None, acting.nbytes, none, acting.transfers, uses=1, acting=acting.seconds)
        self._count(costs)
        return costs

    def sent(self) -> tuple[Floats, Floats]:
        """Return the bytes that each rank has moved within its node and to others, shape (P,) each."""
        self._settle()
        return self._sums

    def _settle(self) -> None:
        for _, costs in self._rounds.values():
            self._count(costs)
        self._rounds.clear()

    def _count(self, costs: RoundCosts) -> None:
        within, between = self._sums
        within += costs.within if costs.uses == 1 else costs.within * costs.uses
        between += costs.between if costs.uses == 1 else costs.between * costs.uses
        self.messages += costs.messages * costs.uses

    def _key(self, moves: Sequence[Move], sent: Sequence[Bytes]) -> tuple[object, ...] | None:
        parts: list[object] = []
        for move, nbytes in zip(moves, sent, strict=True):
            if isinstance(nbytes, int):
                held: object = nbytes
            elif self.size > _FEW:
                return None
            else:
                held = nbytes.tobytes()
            parts += (id(move.dest), id(move.source), held, int(move.op) if isinstance(move.op, int) else id(move.op))
        return tuple(parts)

    def _worked_out(self, moves: Sequence[Move], sent: Sequence[Bytes]) -> RoundCosts:
        peers = [self.directory.of(move) for move in moves]
        nbytes = [np.broadcast_to(np.asarray(each, np.float64), (self.size,)) for each in sent]
        going = [self._going(each, b) for each, b in zip(peers, nbytes, strict=True)]
        shares = self.directory.shares(peers, going)
        legs: list[MoveCosts] = []
        copying: Floats | None = None
        within, between = np.zeros(self.size), np.zeros(self.size)
        for move, each, b, goes, share in zip(moves, peers, nbytes, going, shares, strict=True):
            legs.append(self._leg(move, each, b, goes, share))
            if each.local is not None:
                copies = np.where(each.local, b * self.machine.gamma_s_per_byte, 0.0)
                copying = copies if copying is None else copying + copies
            crossing = b if each.all_send else b * each.sends
            within += crossing
            if each.far is not None:
                between += crossing * each.far
        within -= between
        messages = sum(int(np.count_nonzero(goes)) for goes in going)
        return RoundCosts(tuple(legs), copying, within, between, messages)

    def _going(self, peers: PeerLinks, nbytes: Floats) -> Mask:
        """Return whose messages are sent: without a byte, only a barrier's are."""
        return peers.sends if self.signals or nbytes.min(initial=1) > 0 else peers.sends & (nbytes > 0)

    def _leg(self, move: Move, peers: PeerLinks, nbytes: Floats, goes: Mask, share: IntArray | None) -> MoveCosts:
        busy = peers.transfer_s(nbytes, share)
        busy += peers.overhead
        flight, comes = peers.flight, peers.receives
        if goes is not peers.sends:
            busy *= goes
            comes = comes & goes[peers.source_index]
            flight = np.where(comes, flight, NEVER)
        taking = busy[peers.source_index]
        if not peers.all_receive:
            taking *= peers.receives
        return MoveCosts(
            peers.source_index, peers.source, busy, flight, taking, self._joining(move, peers, nbytes, comes), nbytes
        )

    def _joining(self, move: Move, peers: PeerLinks, nbytes: Floats, comes: Mask) -> Floats | None:
        gamma = self.machine.gamma_s_per_byte
        if not gamma or (isinstance(move.op, int) and move.op == Op.COPY):
            return None
        joining = nbytes[peers.source_index]
        joining *= gamma
        if isinstance(move.op, np.ndarray):
            joining *= move.op != Op.COPY
        return joining if peers.all_receive and comes is peers.receives else joining * comes
