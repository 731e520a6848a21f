"""The proof of a plan, for all ranks at once: it meets, it ends, and each contribution arrives exactly once.

Proven of every round: each send meets a receive of the same round (which is the deadlock proof: no round can wait on
a later one), the chunks and the elements of both ends agree for every layout given, no chunk is read before it was
written, no message overwrites what another brought in the same round. Loads and stores are read as messages, and
races.py proves beside it that ranks which run on in their own time compute the same. Proven of the whole: every wanted
chunk holds every required contribution exactly once (a barrier: every rank has heard of every rank, at least once), all
ranks reduced it in the same order, and steps and bytes are those that the algorithm states.

Cost: O(chunks moved) time, O(ranks * chunks) memory. Source: the representation is this project's; for the idea of
checking a collective against a postcondition see MSCCLang (Cowan et al., ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError
from hpccoll.plan.moves import TransferKind, share_at_fences, to_moves, transfer_kind
from hpccoll.plan.operation import Weights
from hpccoll.plan.plan import Cost, Plan
from hpccoll.plan.proof.postcondition import check_postcondition
from hpccoll.plan.proof.races import check_races
from hpccoll.plan.proof.symbolic_state import SymbolicState, SymbolicValues, random_weights
from hpccoll.plan.step import NO_PEER, Fence, IntArray, Ints, Load, Move, Op, Step, Store

_COPY, _LAST_OP = int(Op.COPY), int(max(Op))  # plain numbers: reading an enum's member costs a microsecond


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found while proving: the cost in chunks as fractions of S, and how many messages crossed."""

    cost: Cost
    rounds: int
    messages: int


@dataclass(frozen=True, slots=True)
class _Arrival:
    op: Ints
    rank: IntArray
    chunk: IntArray
    values: SymbolicValues


def check(plan: Plan, counts: Sequence[int] = (0, 1, 7)) -> Proof:
    """Prove `plan`, or raise PlanError that names round, rank, chunk and what is missing or doubled.

    Args:
        plan: the plan; its stated cost is held against the found one where there is one.
        counts: element counts (of the vector, or of a block) whose layouts both ends must agree on.
    """
    walk = _Walk(plan, counts)
    ledger = walk.run()
    if walk.shared:
        check_races(plan)
    check_postcondition(ledger, f"{plan.name} on {plan.ranks} ranks", _Walk(plan, ()).run)
    proof = walk.proof()
    if plan.cost is not None and plan.cost != proof.cost:
        stated, found = _say(plan.cost), _say(proof.cost)
        raise PlanError(f"{plan.name} on {plan.ranks} ranks states {stated}; the plan takes {found}")
    return proof


def _say(cost: Cost) -> str:
    return f"{cost.steps} steps, {cost.mean} S moved on average and {cost.most} S at most"


class _Walk:
    """One pass over the rounds of a plan."""

    def __init__(self, plan: Plan, counts: Sequence[int]) -> None:
        self.plan, self.n = plan, plan.ranks
        self.rounds, self.reduces, self.shared = plan.rounds(), plan.operation.reduces, False
        self.chunks = self.rounds.chunks
        plan.operation.validate_chunks(self.n, self.chunks)
        self.alike = plan.operation.layout_classes(counts, self.n, self.chunks)

    def run(self, weights: Weights | None = None) -> SymbolicState:
        """Walk through all rounds and return the state at the end."""
        weights = random_weights(self.n, self.chunks) if weights is None else weights
        self.ledger = SymbolicState(self.plan.operation, self.n, self.chunks, self.plan.root, weights)
        self.moved = np.zeros(self.n, np.int64)
        self.steps = self.messages = 0
        for t in range(self.rounds.count):
            self.round, before = t, self.messages
            heard = None if self.ledger.heard is None else self.ledger.heard.copy()
            arrivals = []
            for step in self.rounds.at(t):
                met = [self.meet(move, transfer_kind(step), heard) for move in self.moves(step)]
                arrivals += [arrival for arrival in met if arrival is not None]
                if heard is not None and isinstance(step, Fence):
                    heard |= share_at_fences(heard, [step])
            self.ledger.heard = heard
            self.steps += self.messages > before
            self.refuse_overwrites(arrivals)
            for arrival in arrivals:
                self.ledger.land(arrival.op, arrival.rank, arrival.chunk, arrival.values)
        return self.ledger

    def fail(self, ranks: IntArray, why: str) -> PlanError:
        others = len(set(ranks.tolist())) - 1
        who = f"rank {ranks[0]} (and {others} more)" if others else f"rank {ranks[0]}"
        where = f"{self.plan.name} on {self.n} ranks, round {self.round}"
        return PlanError(f"{where}: {who} {why}")

    def moves(self, step: Step) -> list[Move]:
        """Return what moves in a step; its peers must be ranks."""
        self.shared |= not isinstance(step, Move)
        if isinstance(step, Load):
            step = replace(step, source=self.peers(step.source))
        elif isinstance(step, Store):
            step = replace(step, dest=self.peers(step.dest))
        elif isinstance(step, Fence):
            step = replace(step, leader=self.peers(step.leader))
        return to_moves(step, self.n)

    def meet(self, move: Move, by: TransferKind, heard: NDArray[np.bool_] | None) -> _Arrival | None:
        """Hold both ends of every message of a move against each other; return what arrives."""
        to, frm = self.peers(move.dest), self.peers(move.source)
        senders, receivers = np.nonzero(to != NO_PEER)[0], np.nonzero(frm != NO_PEER)[0]
        targets, sources = to[senders], frm[receivers]
        lost = senders[frm[targets] != senders]
        if len(lost):
            raise self.fail(lost, f"sends to {to[lost[0]]}, who receives from {frm[to[lost[0]]]} (-1 = nobody)")
        vain = receivers[to[sources] != receivers]
        if len(vain):
            raise self.fail(vain, f"receives from {frm[vain[0]]}, who sends to {to[frm[vain[0]]]} (-1 = nobody)")
        crossing = senders[targets != senders] if by is not TransferKind.LOAD else receivers[sources != receivers]
        self.messages += len(crossing)
        if heard is not None and self.ledger.heard is not None and by is TransferKind.MESSAGE:
            heard[receivers] |= self.ledger.heard[sources]
        if not len(receivers):
            return None
        arrival = self.carry(move, sources, receivers)
        size = move.send.size if by is not TransferKind.LOAD else move.recv.size
        self.moved[crossing] += size[crossing] if isinstance(size, np.ndarray) else size
        return arrival

    def spread(self, value: Ints, what: str) -> IntArray:
        """Return `value` with one entry a rank."""
        if isinstance(value, np.ndarray) and value.shape == (self.n,):
            return value
        if not np.ndim(value):
            return np.full(self.n, value, np.int64)
        raise self.fail(np.arange(self.n), f"has {what} of shape {np.shape(value)}; need one entry a rank")

    def peers(self, peers: IntArray) -> IntArray:
        array = self.spread(peers, "peers")
        if array.min() < NO_PEER or array.max() >= self.n:
            wild = np.nonzero((array < NO_PEER) | (array >= self.n))[0]
            raise self.fail(wild, f"names peer {array[wild[0]]}, which is no rank")
        return array

    def carry(self, move: Move, source: IntArray, target: IntArray) -> _Arrival | None:
        """Check sizes and validity of what a move carries; return it."""
        sizes = self.sizes(move, source, target)
        if not sizes.any():
            return None
        out, into = move.send.ids(self.n)[source], move.recv.ids(self.n)[target]
        messages = len(target)
        source, out = self.flat(source, out, sizes)
        target, into = self.flat(target, into, sizes)
        if len(into) > messages and len(twice := self.ledger.repeated(target, into)):
            raise self.fail(target[twice[:1]], f"receives chunk {into[twice[0]]} twice in one message")
        op = self.op(move.op, target)
        self.agree(source, out, target, into)
        if isinstance(op, np.ndarray) or op != _COPY:
            unwritten = np.asarray(op != _COPY) & ~self.ledger.valid[target, into]
            if unwritten.any():
                chunk = into[unwritten][0]
                raise self.fail(target[unwritten], f"reduces into chunk {chunk}, which was never written")
        return _Arrival(op, target, into, self.ledger.read(source, out))

    def sizes(self, move: Move, source: IntArray, target: IntArray) -> IntArray:
        """Return how many chunks each message carries; both ends must say the same."""
        if type(move.send.size) is type(move.recv.size) is int and 0 <= move.send.size == move.recv.size:
            return np.full(len(target), move.send.size)
        sends, takes = self.spread(move.send.size, "sizes")[source], self.spread(move.recv.size, "sizes")[target]
        uneven = (sends != takes) | (sends < 0)
        if uneven.any():
            at = int(np.argmax(uneven))
            expected = f"expects {takes[at]} chunks from rank {source[at]}, who sends {sends[at]}"
            raise self.fail(target[uneven], expected)
        return sends

    def op(self, op: Ints, target: IntArray) -> Ints:
        """Return what arriving chunks do to those that are there: one for all, or one a chunk."""
        if isinstance(op, int):
            low = high = int(op)
        else:
            op = self.spread(op, "ops")[target]
            low, high = op.min(), op.max()
        if low < _COPY or high > _LAST_OP:
            known = ", ".join(f"{known.value} = {known.name}" for known in Op)
            raise self.fail(target, f"receives by op {high if high > _LAST_OP else low}; there are {known}")
        if high != _COPY and not self.reduces:
            raise self.fail(target[np.broadcast_to(op != _COPY, target.shape)], "reduces, but may only copy")
        return op

    def flat(self, rank: IntArray, ids: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray]:
        """Return aligned lists of ranks and chunks, without the -1 that end short rows."""
        low, high = ids.min(), ids.max()
        if low < NO_PEER or high >= self.chunks:
            wild = ((ids < NO_PEER) | (ids >= self.chunks)).any(axis=1)
            named = high if high >= self.chunks else low
            raise self.fail(rank[wild], f"names chunk {named}, but there are {self.chunks} chunks")
        there = ids >= 0
        wrong = there.sum(axis=1) != sizes if low < 0 else sizes != ids.shape[1]
        if wrong.any():
            at = int(np.argmax(wrong))
            raise self.fail(rank[wrong], f"names {there[at].sum()} chunks in a region of {sizes[at]}")
        alone = low >= 0 and ids.shape[1] == 1
        return (rank, ids[:, 0]) if alone else (np.repeat(rank, sizes), ids[there])

    def agree(self, source: IntArray, out: IntArray, target: IntArray, into: IntArray) -> None:
        """Refuse reads of what was never written, and chunks whose elements differ at both ends."""
        unread = ~self.ledger.valid[source, out]
        if unread.any():
            raise self.fail(source[unread], f"sends chunk {out[unread][0]} before it was written")
        differ = self.alike[out] != self.alike[into]
        if differ.any():
            at = int(np.argmax(differ))
            pair = f"chunk {out[at]} of rank {source[at]} into its chunk {into[at]}"
            raise self.fail(target[differ], f"receives {pair}, which differ in elements for some counts")

    def refuse_overwrites(self, arrivals: list[_Arrival]) -> None:
        """Messages for one chunk land in the order of the moves; the first may be copied, all others are reduced."""
        if len(arrivals) < 2:
            return
        rank, chunk = (np.concatenate([getattr(a, name) for a in arrivals]) for name in ("rank", "chunk"))
        later = len(rank) - 1 - self.ledger.repeated(rank[::-1], chunk[::-1])
        if not len(later):
            return
        copied = np.concatenate([np.broadcast_to(a.op == _COPY, a.rank.shape) for a in arrivals])
        clash = later[copied[later]]
        if len(clash):
            at = clash[-1]
            why = f"receives chunk {chunk[at]} from two messages of which the later overwrites"
            raise self.fail(rank[at : at + 1], why)

    def proof(self) -> Proof:
        message = max(self.plan.operation.message_chunks(self.n, self.chunks), 1)
        mean = Fraction(int(self.moved.sum()), self.n * message)
        most = Fraction(int(self.moved.max(initial=0)), message)
        return Proof(Cost(self.steps, mean, most), self.rounds.count, self.messages)
