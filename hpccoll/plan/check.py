"""The proof of a plan, for all ranks at once: it meets, it ends, and each contribution arrives exactly once.

Proven of every round: each send meets a receive of the same round (which is the deadlock proof: no round can wait on
a later one), the chunks and the elements of both ends agree for every layout given, no chunk is read before it was
written, no chunk is copied over by two messages at once. Proven of the whole: every wanted chunk holds every required
contribution exactly once (a barrier: every rank has heard of every rank, at least once), all ranks reduced it in the
same order, and steps and bytes are those that the algorithm states.

Cost: O(chunks moved) time, O(ranks * chunks) memory. Source: the representation is this project's; for the idea of
checking a collective against a postcondition see MSCCLang (Cowan et al., ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError
from hpccoll.plan.ledger import Ledger, random_weights
from hpccoll.plan.operation import Operation, Weights
from hpccoll.plan.plan import Cost, Plan
from hpccoll.plan.step import IntArray, Move, Op


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found while proving: the cost in chunks as fractions of S, and how many messages crossed."""

    cost: Cost
    rounds: int
    messages: int


@dataclass(frozen=True, slots=True)
class _Arrival:
    op: IntArray
    rank: IntArray
    chunk: IntArray
    weight: Weights
    order: NDArray[np.uint64]


def check(plan: Plan, counts: Sequence[int] = (0, 1, 7)) -> Proof:
    """Prove `plan`, or raise PlanError that names round, rank, chunk and what is missing or doubled.

    Args:
        plan: the plan; its stated cost is held against the found one where there is one.
        counts: element counts (of the vector, or of a block) whose layouts both ends must agree on.
    """
    walk = _Walk(plan, counts, random_weights(plan.ranks, plan.whole().chunks))
    walk.run()
    walk.prove_goal()
    if plan.operation.reduces:
        walk.prove_order()
    proof = walk.proof()
    if plan.cost is not None and plan.cost != proof.cost:
        raise PlanError(f"{plan.name} on {plan.ranks} ranks states {_say(plan.cost)}; the plan takes {_say(proof.cost)}")
    return proof


def _say(cost: Cost) -> str:
    return f"{cost.steps} steps, {cost.mean} S sent on average and {cost.most} S at most"


class _Walk:
    """One pass over the rounds of a plan."""

    def __init__(self, plan: Plan, counts: Sequence[int], weights: Weights) -> None:
        self.plan, self.n = plan, plan.ranks
        self.rounds = plan.whole()
        self.chunks = self.rounds.chunks
        plan.operation.validate(self.n, self.chunks)
        self.ledger = Ledger(plan.operation, self.n, self.chunks, plan.root, weights)
        self.layouts = np.array([plan.operation.sizes(count, self.n, self.chunks) for count in counts])
        self.heard = np.eye(self.n, dtype=np.bool_) if plan.operation is Operation.BARRIER else None
        self.sent = np.zeros(self.n, np.int64)
        self.steps = self.messages = 0
        self.round = -1

    def run(self) -> None:
        for self.round, moves in enumerate(self.rounds):
            before = self.messages
            heard = None if self.heard is None else self.heard.copy()
            arrivals = [arrival for move in moves if (arrival := self.meet(move, heard)) is not None]
            self.heard = heard
            self.steps += self.messages > before
            self.refuse_overwrites(arrivals)
            for arrival in arrivals:
                self.apply(arrival)

    def fail(self, ranks: IntArray, why: str) -> PlanError:
        who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:4]))}"
        where = f"{self.plan.name} on {self.n} ranks, round {self.round}"
        return PlanError(f"{where}: {who} {why}")

    def meet(self, move: Move, heard: NDArray[np.bool_] | None) -> _Arrival | None:
        """Hold both ends of every message of a move against each other; return what arrives."""
        to, frm = self.peers(move.to), self.peers(move.frm)
        senders, receivers = np.nonzero(to >= 0)[0], np.nonzero(frm >= 0)[0]
        lost = senders[frm[to[senders]] != senders]
        if len(lost):
            raise self.fail(lost, f"sends to {to[lost[0]]}, who receives from {frm[to[lost[0]]]} (-1 = nobody)")
        vain = receivers[to[frm[receivers]] != receivers]
        if len(vain):
            raise self.fail(vain, f"receives from {frm[vain[0]]}, who sends to {to[frm[vain[0]]]} (-1 = nobody)")
        crossing = to[senders] != senders
        self.messages += int(crossing.sum())
        if heard is not None and self.heard is not None:
            heard[receivers] |= self.heard[frm[receivers]]
        if not len(receivers) or (np.ndim(move.send.size) == 0 and not move.send.size and not move.recv.size):
            return None
        return self.carry(move, frm[receivers], receivers, senders[crossing])

    def peers(self, peers: IntArray) -> IntArray:
        array = np.broadcast_to(np.asarray(peers), (self.n,))
        wild = np.nonzero((array < -1) | (array >= self.n))[0]
        if len(wild):
            raise self.fail(wild, f"names peer {array[wild[0]]}, which is no rank")
        return array

    def carry(self, move: Move, source: IntArray, target: IntArray, crossing: IntArray) -> _Arrival | None:
        """Check sizes and validity of what a move carries; count it; return it."""
        sizes = np.broadcast_to(np.asarray(move.send.size), (self.n,))
        takes = np.broadcast_to(np.asarray(move.recv.size), (self.n,))
        uneven = target[sizes[source] != takes[target]]
        if len(uneven):
            at = source[np.searchsorted(target, uneven[0])]
            raise self.fail(uneven, f"expects {takes[uneven[0]]} chunks from rank {at}, who sends {sizes[at]}")
        self.sent[crossing] += sizes[crossing]
        out, into = move.send.ids(self.n)[source], move.recv.ids(self.n)[target]
        source, out = self.flat(source, out)
        target, into = self.flat(target, into)
        if not len(out):
            return None
        self.agree(source, out, target, into)
        ops = np.broadcast_to(np.asarray(move.op), (self.n,))[target]
        unwritten = target[(ops != Op.COPY) & ~self.ledger.valid[target, into]]
        if len(unwritten):
            raise self.fail(unwritten, "reduces into a chunk that was never written")
        return _Arrival(ops, target, into, *self.ledger.read(source, out))

    def flat(self, rank: IntArray, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Return aligned lists of ranks and chunks, without the -1 that end short rows."""
        there = ids >= 0
        if ids.max(initial=0) >= self.chunks:
            raise self.fail(rank, f"names chunk {ids.max()}, but there are {self.chunks} chunks")
        return np.broadcast_to(rank[:, None], ids.shape)[there], ids[there]

    def agree(self, source: IntArray, out: IntArray, target: IntArray, into: IntArray) -> None:
        unread = ~self.ledger.valid[source, out]
        if unread.any():
            raise self.fail(source[unread], f"sends chunk {out[unread][0]} before it was written")
        if out is into or np.array_equal(out, into):
            return
        differ = (self.layouts[:, out] != self.layouts[:, into]).any(axis=0)
        if differ.any():
            at = int(np.argmax(differ))
            pair = f"chunk {out[at]} of rank {source[at]} into its chunk {into[at]}"
            raise self.fail(target[differ], f"receives {pair}, which differ in elements for some counts")

    def refuse_overwrites(self, arrivals: list[_Arrival]) -> None:
        """A chunk may be copied over once a round, or reduced into any number of times, in the order of the moves."""
        for arrival in arrivals:
            twice = self.ledger.repeated(arrival.rank, arrival.chunk)
            if len(twice):
                raise self.fail(arrival.rank[twice], f"receives chunk {arrival.chunk[twice[0]]} twice in one message")
        if len(arrivals) < 2:
            return
        rank, chunk, op = (
            np.concatenate([getattr(a, name) for a in arrivals]) for name in ("rank", "chunk", "op")
        )
        key = rank * self.chunks + chunk
        copied = np.isin(key, key[op == Op.COPY])
        places, count = np.unique(key[copied], return_counts=True)
        if (count > 1).any():
            place = int(places[count > 1][0])
            at = np.array([place // self.chunks])
            raise self.fail(at, f"receives chunk {place % self.chunks} from two messages of which one overwrites")

    def apply(self, arrival: _Arrival) -> None:
        self.ledger.land(arrival.op, arrival.rank, arrival.chunk, arrival.weight, arrival.order)

    def wrong(self) -> tuple[IntArray, IntArray]:
        """Return ranks and chunks that do not hold what they must."""
        operation, ledger = self.plan.operation, self.ledger
        wanted = operation.wanted(np.arange(self.n), self.n, self.chunks, self.plan.root)
        expected = operation.expected(ledger.brought, self.n, self.plan.root)
        right = ledger.valid & (ledger.weight == expected).all(axis=-1)
        rank, chunk = np.nonzero(wanted & ~right)
        return rank, chunk

    def prove_goal(self) -> None:
        if self.heard is not None and not self.heard.all():
            rank, other = (int(found[0]) for found in np.nonzero(~self.heard))
            raise PlanError(f"{self.plan.name} on {self.n} ranks: rank {rank} may leave before rank {other} arrived")
        rank, chunk = self.wrong()
        if len(rank):
            place = f"rank {rank[0]} chunk {chunk[0]}"
            found = _recount(self.plan, int(rank[0]), int(chunk[0]))
            raise PlanError(f"{self.plan.name} on {self.n} ranks: in the end {place} is wrong: {found}")

    def prove_order(self) -> None:
        wanted = self.plan.operation.wanted(np.arange(self.n), self.n, self.chunks, self.plan.root)
        first = np.argmax(wanted, axis=0)
        same = self.ledger.order == self.ledger.order[first, np.arange(self.chunks)]
        rank, chunk = np.nonzero(wanted & ~same)
        if len(rank):
            pair = f"ranks {first[chunk[0]]} and {rank[0]} reduce chunk {chunk[0]} in different orders"
            raise PlanError(f"{self.plan.name} on {self.n} ranks: {pair}, so their last bits may differ")

    def proof(self) -> Proof:
        message = max(self.plan.operation.message_chunks(self.n, self.chunks), 1)
        mean = Fraction(int(self.sent.sum()), self.n * message)
        most = Fraction(int(self.sent.max(initial=0)), message)
        return Proof(Cost(self.steps, mean, most), self.round + 1, self.messages)


def _recount(plan: Plan, rank: int, chunk: int) -> str:
    """Say whose contributions a place lacks or has too often: the plan once more, one lane for each rank."""
    n, chunks = plan.ranks, plan.whole().chunks
    if n * n * chunks > 2**25:
        return "its contributions are not those required (check fewer ranks to see which)"
    one_hot = np.broadcast_to(np.eye(n, dtype=np.uint64)[:, None, :], (n, chunks, n))
    walk = _Walk(plan, (), one_hot)
    walk.run()
    if not walk.ledger.valid[rank, chunk]:
        return "it was never written"
    have = walk.ledger.weight[rank, chunk].astype(np.int64)
    need = plan.operation.expected(walk.ledger.brought, n, plan.root)[rank, chunk].astype(np.int64)
    less, more = np.nonzero(have < need)[0].tolist(), np.nonzero(have > need)[0].tolist()
    if not less and not more:
        return "it holds another chunk's contributions"
    parts = [f"the contribution of ranks {less} is missing"] if less else []
    return "; ".join(parts + ([f"the contribution of ranks {more} is doubled or misplaced"] if more else []))
