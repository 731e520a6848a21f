"""The costs of a round: the seconds for which each message occupies ports, is in flight, and is being reduced.

In array shapes, P is the number of simulated ranks, which represent all n ranks (see links.py).

A load or store takes the transfer time of its bytes on the link within the node, without alpha, and occupies only the
rank that performs it. A reduction adds gamma seconds per byte, and a load from the rank itself costs only gamma per
byte. Ranks leave a fence `fence_s` seconds (or alpha of the link within the node) after the last rank has entered it.

Many rounds of a plan have equal costs, so results are cached. Links are cached by the identity of the peer arrays. The
costs of whole rounds are cached by message sizes, if there are so few ranks that comparing sizes takes less time than
computing the costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.plan.operation import Mask, Operation
from hpccoll.plan.plan import Plan
from hpccoll.plan.simulation.chunk_bytes import ByteCounts, ChunkBytes
from hpccoll.plan.simulation.links import NEVER, LinkTable, PeerLinks, Shares
from hpccoll.plan.simulation.machine import Machine
from hpccoll.plan.step import NO_PEER, Fence, Floats, IntArray, Load, Move, Op, Step, Store
from hpccoll.units import format_count

_MOST_COMPARED = 512  # most ranks for which comparing message sizes is cheaper than computing costs
_MOST_CACHED = 2**18  # most cached costs: simulated ranks times rounds


@dataclass(frozen=True, slots=True)
class MoveCosts:
    """The costs of the messages of one step, in which each simulated rank sends and receives at most one.

    Arrays have one entry per simulated rank; times are in seconds. Each rank sends `nbytes`, which keeps its own port
    busy for `busy`. Each rank receives a message from `source` (simulated by rank `source_index`), which is in flight
    for `flight` (NEVER without a message), keeps the port of the rank busy for `receiving`, and is then reduced for
    `reducing`.

    If `receivers` is given, the arrays but for `source` and `nbytes` have one entry per message, from rank
    `source_index` to rank `receivers`.
    """

    source_index: IntArray
    source: IntArray
    busy: Floats
    flight: Floats
    receiving: Floats
    reducing: Floats | None
    nbytes: Floats
    receivers: IntArray | None = None


@dataclass(frozen=True, slots=True)
class FenceCosts:
    """The seconds that a round's fences take, and each rank's leader: equal for ranks of one fence, -1 for no fence."""

    leader: IntArray
    alpha_s: float

    def leave(self, clocks: Floats) -> tuple[Floats, IntArray]:
        """Return, for each rank, the time at which it leaves its fence, and the last rank for which it waited.

        Ranks enter at `clocks` (seconds). A rank that takes part in no fence leaves at once. If a rank did not wait,
        the second array has the number of this rank itself.
        """
        members = np.nonzero(self.leader != NO_PEER)[0]
        group = self.leader[members]
        latest, last = np.full(len(clocks), -np.inf), np.arange(len(clocks))
        np.maximum.at(latest, group, clocks[members])
        comes_last = members[clocks[members] == latest[group]][::-1]
        last_of = np.zeros(len(clocks), np.int64)
        last_of[self.leader[comes_last]] = comes_last  # the lowest rank if several enter last at the same time
        after = clocks.copy()
        after[members] = latest[group] + self.alpha_s
        waits = members[clocks[members] < latest[group]]
        last[waits] = last_of[self.leader[waits]]
        return after, last


@dataclass(slots=True)
class RoundCosts:
    """The costs of one round; arrays have one entry per simulated rank, except those of `shared`.

    `moves` has the costs of each step of messages, `copying` the seconds of copies within a rank (None: no copies),
    `within` and `between` the bytes sent inside nodes and to other nodes, and `messages` the number of messages. A
    round of loads and stores has `accessing` (the seconds of each rank); a round of fences has `fences`. `uses`
    counts the rounds that share this object and whose bytes have not been added to the totals yet. `shared` has the
    bytes on each link between switches, one array per kind of links.
    """

    moves: tuple[MoveCosts, ...]
    copying: Floats | None
    within: Floats
    between: Floats
    messages: int
    uses: int = 0
    accessing: Floats | None = None
    fences: FenceCosts | None = None
    shared: tuple[Floats, ...] = ()


class RoundPricer:
    """Computes the costs of a plan's rounds on a machine model, for the simulated ranks; sums bytes and messages."""

    def __init__(self, plan: Plan, machine: Machine, chunk_bytes: ChunkBytes, represented: int) -> None:
        self.machine, self.chunks, self.size = machine, chunk_bytes, represented
        self.signals = plan.operation is Operation.BARRIER
        self.links = LinkTable(machine, plan.ranks, represented)
        self._shared = SharedMemoryPricer(plan, machine, chunk_bytes, self.links)
        self.messages = 0
        self._sums = (np.zeros(represented), np.zeros(represented))
        self._shared_sums: tuple[Floats, ...] = ()
        self._rounds: dict[tuple[object, ...], tuple[list[Move], RoundCosts]] = {}

    def price(self, steps: Sequence[Step]) -> RoundCosts:
        """Return the costs of the round with the given steps of all simulated ranks; add its bytes to the totals."""
        moves = [step for step in steps if isinstance(step, Move)]
        if len(moves) < len(steps):
            return self._price_shared_memory(steps)
        sent = [self.chunks.region_bytes(move.send) for move in moves]
        key = self._cache_key(moves, sent)
        if key is None:
            costs = self._compute_costs(moves, sent)
            costs.uses = 1
            self._add_bytes(costs)
            return costs
        priced = self._rounds.get(key)
        if priced is None:
            if len(self._rounds) * self.size >= _MOST_CACHED:
                self._add_up_cached()
            # The cache holds the peer arrays too: a new array could get the identity (the key) of a freed array.
            priced = self._rounds[key] = (moves, self._compute_costs(moves, sent))
        priced[1].uses += 1
        return priced[1]

    def _price_shared_memory(self, steps: Sequence[Step]) -> RoundCosts:
        """Return the costs of a round of fences, or of loads and stores."""
        fences = [step for step in steps if isinstance(step, Fence)]
        if fences:
            none = np.zeros(self.size)
            return RoundCosts((), None, none, none, 0, fences=self._shared.price_fences(fences))
        costs = self._shared.price_accesses(steps)
        self._add_bytes(costs)
        return costs

    def sent(self) -> tuple[Floats, Floats]:
        """Return two arrays: the bytes that each simulated rank has sent within its node, and to other nodes."""
        self._add_up_cached()
        return self._sums

    def find_busiest_shared(self) -> float:
        """Return the bytes on the busiest link between switches, divided by its bandwidth in NICs.

        The result is 0 if nodes share no links.
        """
        self._add_up_cached()
        most = max((float(links.max(initial=0.0)) for links in self._shared_sums), default=0.0)
        return most / self.machine.fabric.capacity if self.machine.fabric else 0.0

    def _add_up_cached(self) -> None:
        """Add the bytes and messages of all cached rounds to the totals and empty the cache."""
        for _, costs in self._rounds.values():
            self._add_bytes(costs)
        self._rounds.clear()

    def add_repeated(self, costs: RoundCosts, times: int) -> None:
        """Add the bytes and messages of `times` further rounds with the given costs to the totals."""
        within, between = self._sums
        within += costs.within if times == 1 else costs.within * times
        between += costs.between if times == 1 else costs.between * times
        self.messages += costs.messages * times
        if costs.shared and not self._shared_sums:
            self._shared_sums = tuple(np.zeros(len(links)) for links in costs.shared)
        for total, links in zip(self._shared_sums, costs.shared, strict=False):  # none in rounds without messages
            np.add(total, links * times, out=total)

    def _add_bytes(self, costs: RoundCosts) -> None:
        """Add the bytes and messages of all rounds with the given costs to the totals."""
        self.add_repeated(costs, costs.uses)

    def _cache_key(self, moves: Sequence[Move], sent: Sequence[ByteCounts]) -> tuple[object, ...] | None:
        """Return a key that is equal for rounds of equal costs; None if computing the costs again is cheaper.

        `moves` are the steps of the round, and `sent` has the bytes that each rank sends in each step.
        """
        parts: list[object] = []
        for move, nbytes in zip(moves, sent, strict=True):
            if isinstance(nbytes, int):
                held: object = nbytes
            elif self.size > _MOST_COMPARED:
                return None
            else:
                held = nbytes.tobytes()
            parts += (id(move.dest), id(move.source), held, int(move.op) if isinstance(move.op, int) else id(move.op))
        return tuple(parts)

    def _compute_costs(self, moves: Sequence[Move], sent: Sequence[ByteCounts]) -> RoundCosts:
        """Return the costs of a round of moves; `sent` has the bytes that each rank sends in each move."""
        peers = [self.links.peer_links(move) for move in moves]
        by_rank = [np.broadcast_to(np.asarray(move_bytes, np.float64), (self.size,)) for move_bytes in sent]
        nbytes = [b[ends.source_index] if ends.is_sparse else b for ends, b in zip(peers, by_rank, strict=True)]
        sent_masks = [self._sent_mask(ends, b) for ends, b in zip(peers, nbytes, strict=True)]
        shares = self.links.count_sharers(peers, sent_masks)
        move_costs: list[MoveCosts] = []
        copying: Floats | None = None
        within, between = np.zeros(self.size), np.zeros(self.size)
        for k, (move, ends, b) in enumerate(zip(moves, peers, nbytes, strict=True)):
            move_costs.append(self._price_move(move, ends, b, by_rank[k], sent_masks[k], shares[k]))
            if ends.local is not None:
                copies = np.where(ends.local, b * self.machine.gamma_s_per_byte, 0.0)
                copying = copies if copying is None else copying + copies
            senders = ends.source_index if ends.is_sparse else slice(None)
            crossing = b if ends.all_send else b * ends.sends
            within[senders] += crossing
            if ends.far is not None:
                between[senders] += crossing * ends.far
        within -= between
        messages = sum(int(np.count_nonzero(goes)) for goes in sent_masks)
        shared = self.links.sum_shared_bytes(peers, by_rank)
        return RoundCosts(tuple(move_costs), copying, within, between, messages, shared=shared)

    def _sent_mask(self, peers: PeerLinks, nbytes: Floats) -> Mask:
        """Return a mask of the ranks that send a message; messages without data are sent only in barriers."""
        return peers.sends if self.signals or nbytes.min(initial=1) > 0 else peers.sends & (nbytes > 0)

    def _price_move(
        self, move: Move, peers: PeerLinks, nbytes: Floats, by_rank: Floats, goes: Mask, share: Shares | None
    ) -> MoveCosts:
        """Return the costs of one step of messages.

        Args:
            nbytes: the bytes of each rank's message, or of each message if `peers` is sparse.
            by_rank: the bytes that each rank sends.
            goes: a mask of the messages that are sent.
            share: the factor by which each message takes longer because of shared links; None if no link is shared.
        """
        busy = peers.transfer_s(nbytes, share)
        busy += peers.overhead
        flight, comes = peers.flight, peers.receives
        if goes is not peers.sends:
            busy *= goes
            comes = goes if peers.is_sparse else comes & goes[peers.source_index]
            flight = np.where(comes, flight, NEVER)
        reducing = self._reducing_seconds(move, peers, nbytes, comes)
        if peers.is_sparse:
            return MoveCosts(peers.source_index, peers.source, busy, flight, busy, reducing, by_rank, peers.dest_index)
        receiving = busy[peers.source_index]
        if not peers.all_receive:
            receiving *= peers.receives
        return MoveCosts(peers.source_index, peers.source, busy, flight, receiving, reducing, nbytes)

    def _reducing_seconds(self, move: Move, peers: PeerLinks, nbytes: Floats, comes: Mask) -> Floats | None:
        """Return the seconds in which each rank reduces its received data in a step; None if the step only copies.

        `nbytes` has the bytes of each message, and `comes` marks the ranks that receive one.
        """
        gamma = self.machine.gamma_s_per_byte
        if not gamma or (isinstance(move.op, int) and move.op == Op.COPY):
            return None
        reducing = nbytes.copy() if peers.is_sparse else nbytes[peers.source_index]
        reducing *= gamma
        if isinstance(move.op, np.ndarray):
            reducing *= (move.op[peers.dest_index] if peers.is_sparse else move.op) != Op.COPY
        return reducing if peers.all_receive and comes is peers.receives else reducing * comes


class SharedMemoryPricer:
    """Computes the costs of rounds of loads and stores, and of rounds of fences."""

    def __init__(self, plan: Plan, machine: Machine, chunk_bytes: ChunkBytes, links: LinkTable) -> None:
        self.plan, self.machine, self.chunks, self.links = plan, machine, chunk_bytes, links

    def price_fences(self, fences: Sequence[Fence]) -> FenceCosts:
        """Return the costs of a round's fences, at most one for each rank; raise UsageError if a fence spans nodes."""
        leader = np.full(self.links.size, NO_PEER)
        for fence in fences:
            self._check_same_node(fence.leader, "waits for")
            leader = np.where(fence.leader != NO_PEER, fence.leader % self.links.size, leader)
        fence_s = self.machine.fence_s
        return FenceCosts(leader, self.machine.within.alpha_s if fence_s is None else fence_s)

    def price_accesses(self, steps: Sequence[Step]) -> RoundCosts:
        """Return the costs of a round's loads and stores; raise UsageError if a rank accesses another node's memory."""
        size, gamma, link = self.links.size, self.machine.gamma_s_per_byte, self.machine.within
        seconds, nbytes, transfers = np.zeros(size), np.zeros(size), 0
        for step in steps:
            if not isinstance(step, Load | Store):
                continue
            loads = isinstance(step, Load)
            peers, region = (step.source, step.local) if isinstance(step, Load) else (step.dest, step.local)
            self._check_same_node(peers, "loads from" if loads else "stores to")
            moved = np.where(peers != NO_PEER, self.chunks.region_bytes(region), 0.0)
            local = peers == self.links.rank
            crossing = np.where(local, 0.0, moved)
            seconds += link.transfer_s(crossing)
            reduces = np.asarray(step.op if isinstance(step, Load) else Op.COPY) != Op.COPY
            seconds += np.where(local | reduces, moved, 0.0) * gamma
            nbytes += crossing
            transfers += int(np.count_nonzero(crossing))
        return RoundCosts((), None, nbytes, np.zeros(size), transfers, uses=1, accessing=seconds)

    def _check_same_node(self, peers: IntArray, does: str) -> None:
        """Raise UsageError if a rank's peer is on another node, whose memory it cannot access.

        `does` is the verb for the access in the error message, such as `loads from`.
        """
        links, q = self.links, self.machine.ranks_per_node
        far = np.nonzero((peers != NO_PEER) & (links.node[peers] != links.own_node))[0]
        if len(far):
            pair = f"rank {far[0]} {does} rank {peers[far[0]]}, which is on another node of {self.machine.name}"
            raise UsageError(
                f"{self.plan.name} on {format_count(self.plan.ranks, 'rank')}: {pair} "
                f"({format_count(q, 'rank')} per node) and shares no memory with it; "
                f"ask for --ranks {q} at most, or for --nodes 1"
            )
