"""The proof that a plan cannot deadlock and delivers every contribution (input chunk) exactly once.

`check` verifies that each send has its receive in the same round (so there is no deadlock), and that both ends agree on
the number of chunks and, for every given message size, of elements. `check` also verifies that no chunk is read before
it is written, and that no message overwrites another message of the same round. `check` treats loads and stores as
messages; races.py proves that the results of loads and stores do not depend on the speed of the ranks.

In the final state of all ranks, every output chunk must have every required contribution exactly once (in a barrier,
every rank must have heard from every rank), and all ranks must have reduced a chunk in the same order. The steps and
bytes of the plan must equal the cost that the algorithm states.

Cost: O(chunks moved) time, O(ranks * chunks) memory. The idea to check a collective against a postcondition is from
MSCCLang (Cowan et al., ASPLOS 2023).
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
from hpccoll.plan.proof.races import check_races
from hpccoll.plan.proof.symbolic_state import SymbolicState, SymbolicValues, check_postcondition, random_weights
from hpccoll.plan.step import NO_PEER, Fence, IntArray, Ints, Load, Move, Op, Step, Store

_COPY, _LAST_OP = int(Op.COPY), int(max(Op))  # plain integers: reading an enum member costs a microsecond


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a proof: the cost, the number of rounds, and the number of messages between different ranks."""

    cost: Cost
    rounds: int
    messages: int


@dataclass(frozen=True, slots=True)
class _ReceivedChunks:
    """The M chunks that a step delivers: ops (copy or reduce), receiving ranks, chunk numbers, symbolic values."""

    op: Ints
    rank: IntArray
    chunk: IntArray
    values: SymbolicValues


def check(plan: Plan, counts: Sequence[int] = (0, 1, 7)) -> Proof:
    """Prove that `plan` is correct without running it, and return the proof; raise PlanError if the plan is wrong.

    The error message names round, rank, chunk, and the missing or repeated contributions. A cost stated by the
    algorithm must equal the real cost, and the sizes of sent and received chunks must match for each number of elements
    in `counts`.
    """
    walk = _PlanWalk(plan, counts)
    state = walk.run()
    if walk.uses_shared_memory:
        check_races(plan)
    check_postcondition(state, f"{plan.name} on {plan.ranks} ranks", _PlanWalk(plan, ()).run)
    proof = walk.make_proof()
    if plan.cost is not None and plan.cost != proof.cost:
        stated, found = _format_cost(plan.cost), _format_cost(proof.cost)
        raise PlanError(f"{plan.name} on {plan.ranks} ranks states {stated}; the plan takes {found}")
    return proof


def _format_cost(cost: Cost) -> str:
    return f"{cost.steps} steps, {cost.mean} S moved on average and {cost.most} S at most"


class _PlanWalk:
    """One pass over the rounds of a plan, which checks every message and updates the symbolic state."""

    def __init__(self, plan: Plan, counts: Sequence[int]) -> None:
        self.plan, self.n = plan, plan.ranks
        self.rounds, self.reduces, self.uses_shared_memory = plan.rounds(), plan.operation.reduces, False
        self.chunks = self.rounds.chunks
        plan.operation.validate_chunks(self.n, self.chunks)
        self.layout_class = plan.operation.layout_classes(counts, self.n, self.chunks)

    def run(self, weights: Weights | None = None) -> SymbolicState:
        """Execute all rounds symbolically and return the final state; `weights` defaults to random weights."""
        weights = random_weights(self.n, self.chunks) if weights is None else weights
        self.state = SymbolicState(self.plan.operation, self.n, self.chunks, self.plan.root, weights)
        self.moved = np.zeros(self.n, np.int64)
        self.steps = self.messages = 0
        for t in range(self.rounds.count):
            self.round, before = t, self.messages
            heard = None if self.state.heard is None else self.state.heard.copy()
            arrivals = []
            for step in self.rounds.at(t):
                received = [self.transfer(move, transfer_kind(step), heard) for move in self.to_checked_moves(step)]
                arrivals += [arrival for arrival in received if arrival is not None]
                if heard is not None and isinstance(step, Fence):
                    heard |= share_at_fences(heard, [step])
            self.state.heard = heard
            self.steps += self.messages > before
            self.check_overwrites(arrivals)
            for arrival in arrivals:
                self.state.receive(arrival.op, arrival.rank, arrival.chunk, arrival.values)
        return self.state

    def error(self, ranks: IntArray, why: str) -> PlanError:
        """Return (not raise) the error that names the plan, the current round and the first of `ranks`."""
        others = len(set(ranks.tolist())) - 1
        who = f"rank {ranks[0]} (and {others} more)" if others else f"rank {ranks[0]}"
        where = f"{self.plan.name} on {self.n} ranks, round {self.round}"
        return PlanError(f"{where}: {who} {why}")

    def to_checked_moves(self, step: Step) -> list[Move]:
        """Return `step` as moves; raise PlanError if a peer in a load, store or fence is not a rank."""
        self.uses_shared_memory |= not isinstance(step, Move)
        if isinstance(step, Load):
            step = replace(step, source=self.checked_peers(step.source))
        elif isinstance(step, Store):
            step = replace(step, dest=self.checked_peers(step.dest))
        elif isinstance(step, Fence):
            step = replace(step, leader=self.checked_peers(step.leader))
        return to_moves(step, self.n)

    def transfer(self, move: Move, kind: TransferKind, heard: NDArray[np.bool_] | None) -> _ReceivedChunks | None:
        """Check the messages of a move, count messages and chunks, and return the chunks that arrive, or None.

        Raises PlanError if the two ends of a message do not match. In a barrier, `heard` is updated with the ranks
        whose arrival the messages report.
        """
        dest, source = self.checked_peers(move.dest), self.checked_peers(move.source)
        senders, receivers = np.nonzero(dest != NO_PEER)[0], np.nonzero(source != NO_PEER)[0]
        dests, sources = dest[senders], source[receivers]
        lost = senders[source[dests] != senders]
        if len(lost):
            to = dest[lost[0]]
            raise self.error(lost, f"sends to {to}, which receives from {source[to]} (-1 = no peer)")
        unanswered = receivers[dest[sources] != receivers]
        if len(unanswered):
            peer = source[unanswered[0]]
            raise self.error(unanswered, f"receives from {peer}, which sends to {dest[peer]} (-1 = no peer)")
        crossing = senders[dests != senders] if kind is not TransferKind.LOAD else receivers[sources != receivers]
        self.messages += len(crossing)
        if heard is not None and self.state.heard is not None and kind is TransferKind.MESSAGE:
            heard[receivers] |= self.state.heard[sources]
        if not len(receivers):
            return None
        arrival = self.read_chunks(move, sources, receivers)
        size = move.send.size if kind is not TransferKind.LOAD else move.recv.size
        self.moved[crossing] += size[crossing] if isinstance(size, np.ndarray) else size
        return arrival

    def spread(self, value: Ints, what: str) -> IntArray:
        """Return `value` as an array with one entry per rank; raise PlanError if it has another shape."""
        if isinstance(value, np.ndarray) and value.shape == (self.n,):
            return value
        if not np.ndim(value):
            return np.full(self.n, value, np.int64)
        raise self.error(np.arange(self.n), f"has {what} of shape {np.shape(value)}; need one entry per rank")

    def checked_peers(self, peers: IntArray) -> IntArray:
        """Return the peers with one entry per rank; raise PlanError unless each is a rank or -1."""
        array = self.spread(peers, "peers")
        if array.min() < NO_PEER or array.max() >= self.n:
            invalid = np.nonzero((array < NO_PEER) | (array >= self.n))[0]
            raise self.error(invalid, f"names peer {array[invalid[0]]}, but ranks are 0 to {self.n - 1}")
        return array

    def read_chunks(self, move: Move, source: IntArray, target: IntArray) -> _ReceivedChunks | None:
        """Return the chunks that messages from ranks `source` deliver to ranks `target`, or None for empty messages."""
        sizes = self.message_sizes(move, source, target)
        if not sizes.any():
            return None
        out, into = move.send.ids(self.n)[source], move.recv.ids(self.n)[target]
        messages = len(target)
        source, out = self.flatten(source, out, sizes)
        target, into = self.flatten(target, into, sizes)
        if len(into) > messages and len(twice := self.state.find_repeated(target, into)):
            raise self.error(target[twice[:1]], f"receives chunk {into[twice[0]]} twice in one message")
        op = self.checked_op(move.op, target)
        self.check_contents(source, out, target, into)
        if isinstance(op, np.ndarray) or op != _COPY:
            unwritten = np.asarray(op != _COPY) & ~self.state.valid[target, into]
            if unwritten.any():
                chunk = into[unwritten][0]
                raise self.error(target[unwritten], f"reduces into chunk {chunk}, which was never written")
        return _ReceivedChunks(op, target, into, self.state.read(source, out))

    def message_sizes(self, move: Move, source: IntArray, target: IntArray) -> IntArray:
        """Return the number of chunks of each message; raise PlanError unless both ends have the same number."""
        if type(move.send.size) is type(move.recv.size) is int and 0 <= move.send.size == move.recv.size:
            return np.full(len(target), move.send.size)
        sends, takes = self.spread(move.send.size, "sizes")[source], self.spread(move.recv.size, "sizes")[target]
        uneven = (sends != takes) | (sends < 0)
        if uneven.any():
            at = int(np.argmax(uneven))
            expected = f"expects {takes[at]} chunks from rank {source[at]}, which sends {sends[at]}"
            raise self.error(target[uneven], expected)
        return sends

    def checked_op(self, op: Ints, target: IntArray) -> Ints:
        """Return the ops (copy or reduce) of arriving chunks, one for all or one each; raise PlanError if invalid."""
        if isinstance(op, int):
            low = high = int(op)
        else:
            op = self.spread(op, "ops")[target]
            low, high = op.min(), op.max()
        if low < _COPY or high > _LAST_OP:
            known = ", ".join(f"{known.value} = {known.name}" for known in Op)
            raise self.error(target, f"receives by op {high if high > _LAST_OP else low}; there are {known}")
        if high != _COPY and not self.reduces:
            raise self.error(target[np.broadcast_to(op != _COPY, target.shape)], "reduces, but may only copy")
        return op

    def flatten(self, rank: IntArray, ids: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray]:
        """Return the ranks and the numbers of all chunks in `ids`, without padding; raise PlanError if invalid."""
        low, high = ids.min(), ids.max()
        if low < NO_PEER or high >= self.chunks:
            invalid = ((ids < NO_PEER) | (ids >= self.chunks)).any(axis=1)
            named = high if high >= self.chunks else low
            raise self.error(rank[invalid], f"names chunk {named}, but there are {self.chunks} chunks")
        present = ids >= 0
        wrong = present.sum(axis=1) != sizes if low < 0 else sizes != ids.shape[1]
        if wrong.any():
            at = int(np.argmax(wrong))
            raise self.error(rank[wrong], f"names {present[at].sum()} chunks in a region of {sizes[at]}")
        one_each = low >= 0 and ids.shape[1] == 1
        return (rank, ids[:, 0]) if one_each else (np.repeat(rank, sizes), ids[present])

    def check_contents(self, source: IntArray, out: IntArray, target: IntArray, into: IntArray) -> None:
        """Raise PlanError if a sent chunk was never written, or a sent and its received chunk differ in size."""
        unread = ~self.state.valid[source, out]
        if unread.any():
            raise self.error(source[unread], f"sends chunk {out[unread][0]} before it was written")
        differ = self.layout_class[out] != self.layout_class[into]
        if differ.any():
            at = int(np.argmax(differ))
            pair = f"chunk {out[at]} of rank {source[at]} into its chunk {into[at]}"
            raise self.error(target[differ], f"receives {pair}, which differ in elements for some counts")

    def check_overwrites(self, arrivals: list[_ReceivedChunks]) -> None:
        """Raise PlanError if two messages of a round arrive at one chunk and the later one is copied, not reduced."""
        if len(arrivals) < 2:
            return
        rank, chunk = (np.concatenate([getattr(a, name) for a in arrivals]) for name in ("rank", "chunk"))
        later = len(rank) - 1 - self.state.find_repeated(rank[::-1], chunk[::-1])
        if not len(later):
            return
        copied = np.concatenate([np.broadcast_to(a.op == _COPY, a.rank.shape) for a in arrivals])
        clash = later[copied[later]]
        if len(clash):
            at = clash[-1]
            why = f"receives chunk {chunk[at]} from two messages of which the later overwrites"
            raise self.error(rank[at : at + 1], why)

    def make_proof(self) -> Proof:
        """Return the proof: the cost as fractions of the message size, and the numbers of rounds and messages."""
        message = max(self.plan.operation.message_chunks(self.n, self.chunks), 1)
        mean = Fraction(int(self.moved.sum()), self.n * message)
        most = Fraction(int(self.moved.max(initial=0)), message)
        return Proof(Cost(self.steps, mean, most), self.rounds.count, self.messages)
