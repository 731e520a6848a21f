"""The proof that a plan cannot deadlock and delivers every contribution (input chunk) exactly once.

`check` verifies that each send has its receive in the same round (so there is no deadlock), and that both ends of a
message agree on the number of chunks and, for every given message size, on the number of elements. `check` also
verifies that no chunk is read before it is written, and that no message overwrites another message of the same round.
`check` treats loads and stores as messages; races.py proves that the results of loads and stores do not depend on the
speed of the ranks.

In the final state of all ranks, every output chunk must have every required contribution exactly once (in a barrier,
every rank must have heard from every rank), and all ranks must have reduced a chunk in the same order. In a scan, whose
output differs by rank, every rank must reduce in the order of the ranks. The steps and bytes of the plan must equal the
cost that the algorithm states.

`check` reads and verifies many rounds at once, as arrays (`TransferBlock`). After an error, `check` verifies the plan
again, round by round, so that the error names the first wrong round.

Cost: O(chunks moved) time, O(ranks * chunks) memory. The idea to check a collective against a postcondition is from
MSCCLang (Cowan et al., ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hpccoll.errors import PlanError
from hpccoll.plan.moves import share_at_fences
from hpccoll.plan.operation import Count, Weights
from hpccoll.plan.plan import Cost, Plan
from hpccoll.plan.proof.races import check_races
from hpccoll.plan.proof.reduction_order import find_unordered_rank
from hpccoll.plan.proof.symbolic_state import SymbolicState, check_postcondition, count_contributions, random_weights
from hpccoll.plan.proof.transfers import LOAD, MESSAGE, TransferBlock, TransferReader
from hpccoll.plan.step import Fence, IntArray, Op
from hpccoll.units import format_count

_COPY = int(Op.COPY)  # a plain integer: reading an enum member costs a microsecond
_MOST_ROUNDS = 2**10  # rounds that are read at once, as one block
_MOST_KEPT = 2**20  # most moved chunks that are kept in memory for the race check; larger plans are read twice


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a proof: the plan's cost, number of rounds, and number of messages between different ranks."""

    cost: Cost
    rounds: int
    messages: int


def check(plan: Plan, counts: Sequence[Count] = (0, 1, 7)) -> Proof:
    """Prove that `plan` is correct without running it, and return the proof; raise PlanError if the plan is wrong.

    The error message names round, rank, chunk, and the missing or repeated contributions. The sizes of sent and
    received chunks must match for each number of elements in `counts`.
    """
    walk = _PlanWalk(plan, counts, _MOST_ROUNDS)
    try:
        state = walk.run()
    except PlanError:
        walk = _PlanWalk(plan, counts, 1)
        state = walk.run()
    if walk.uses_shared_memory:
        check_races(plan, walk.chunks, walk.reader.rounds.count, walk.list_blocks())
    name = f"{plan.name} on {format_count(plan.ranks, 'rank')}"
    check_postcondition(state, name, lambda weights: _PlanWalk(plan, (), 1).run(weights))
    unordered = find_unordered_rank(plan) if plan.operation.is_scan else None
    if unordered is not None:
        raise PlanError(f"{name}: the scan of rank {unordered} is not reduced in the order of the ranks")
    proof = walk.make_proof()
    if plan.cost is not None and plan.cost != proof.cost:
        stated, taken = _format_cost(plan.cost), _format_cost(proof.cost)
        raise PlanError(f"{name} states {stated}; the plan takes {taken}")
    return proof


def _format_cost(cost: Cost) -> str:
    """Return a cost as text: steps, and the mean and largest data that ranks move, in multiples of message size S."""
    return f"{cost.steps} steps, {cost.mean} S moved on average and {cost.most} S at most"


class _PlanWalk:
    """One pass over the rounds of a plan, which checks every transfer and updates the symbolic state.

    Args:
        counts: numbers of elements of a message; sent and received chunks must have equal sizes for each of these
            numbers.
        most_rounds: the number of rounds to read at once.
    """

    def __init__(self, plan: Plan, counts: Sequence[Count], most_rounds: int) -> None:
        self.plan, self.n, self.most_rounds = plan, plan.ranks, most_rounds
        self.reader = TransferReader(plan, counts)
        self.chunks = self.reader.chunks

    def run(self, weights: Weights | None = None) -> SymbolicState:
        """Execute all rounds symbolically and return the final state; if `weights` is None, weights are random."""
        weights = random_weights(self.n, self.chunks) if weights is None else weights
        self.state = SymbolicState(self.plan.operation, self.n, self.chunks, self.plan.root, weights)
        self.moved = np.zeros(self.n, np.int64)
        self.steps = self.messages = kept = 0
        self.uses_shared_memory = False
        self.kept: list[TransferBlock] = []
        for block in self.reader.read_blocks(self.most_rounds):
            kept += len(block.out)
            if kept <= _MOST_KEPT:
                self.kept.append(block)
            self.uses_shared_memory |= bool(block.fences) or bool((block.kind != MESSAGE).any())
            self.count_messages(block)
            self.move_chunks(block)
            if self.state.heard is not None:
                self.state.heard = _update_heard(block, self.state.heard)
        return self.state

    def list_blocks(self) -> Iterator[TransferBlock]:
        """Return the transfers of all rounds in blocks of rounds; `run` must have been called before."""
        is_complete = self.kept and self.kept[-1].stop == self.reader.rounds.count
        return iter(self.kept) if is_complete else self.reader.read_blocks(self.most_rounds)

    def count_messages(self, block: TransferBlock) -> None:
        """Add the transfers of `block` between different ranks to the counts of messages, steps and moved chunks."""
        crossing = np.nonzero(block.source != block.target)[0]
        actor = np.where(block.kind == LOAD, block.target, block.source)[crossing]
        self.moved += np.bincount(actor, block.size[crossing], self.n).astype(np.int64)
        self.messages += len(crossing)
        self.steps += len(set(block.round[crossing].tolist()))

    def error(self, block: TransferBlock, ranks: IntArray, why: str) -> PlanError:
        """Return an unraised error with the text `why` about the first of `ranks` in the first round of `block`."""
        self.reader.round = block.first
        return self.reader.error(ranks, why)

    def move_chunks(self, block: TransferBlock) -> None:
        """Apply the transfers of `block` to the symbolic state; raise PlanError for chunks that were never written."""
        op, out, into, rounds, phase = self.sort_by_phase(block)
        read = np.empty((len(block.out), self.state.contents.shape[1]), np.uint64)
        before = np.ones(len(block.out))
        for begin, end, round_end, ops in _list_phases(rounds, phase, op):
            if round_end:
                self.state.contents.take(out[begin:round_end], axis=0, out=read[begin:round_end], mode="clip")
            held = self.state.receive(op[begin:end] if ops is None else ops, into[begin:end], read[begin:end])
            if len(held):
                before[begin:end] = held
        unread = np.nonzero(count_contributions(read) == 0)[0]
        if len(unread):
            chunk, ranks = out[unread[0]] % self.chunks, out[unread] // self.chunks
            raise self.error(block, ranks, f"sends chunk {chunk} before it was written")
        unwritten = np.nonzero(before == 0)[0]
        if len(unwritten):
            chunk, ranks = into[unwritten[0]] % self.chunks, into[unwritten] // self.chunks
            raise self.error(block, ranks, f"reduces into chunk {chunk}, which was never written")

    def sort_by_phase(self, block: TransferBlock) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        """Return an array for each property of the chunks that `block` moves, sorted by phase.

        The properties are the op, the chunk `out` of the sender, the chunk `into` of the receiver, round and phase.
        A phase is a part of a round that writes no chunk twice. Raises PlanError if a message overwrites another one.
        """
        rounds = block.round[block.transfer] - block.first
        op, out, into = block.op[block.transfer], block.out, block.into
        key = rounds * (self.n * self.chunks) + into
        in_order = np.sort(key)
        phase = rounds
        if (in_order[1:] == in_order[:-1]).any():
            turn = self.count_earlier(block, key, op)
            phase = rounds * (turn.max() + 1) + turn
            order = np.argsort(phase, kind="stable")
            phase, rounds, op, out, into = phase[order], rounds[order], op[order], out[order], into[order]
        return op, out, into, rounds, phase

    def count_earlier(self, block: TransferBlock, key: IntArray, op: IntArray) -> IntArray:
        """Return, for each moved chunk, how many earlier moves of the same round go to the same chunk.

        `key` has one number per moved chunk, equal for chunks with the same round, receiving rank and receiving chunk.
        `op` has the operation (copy or reduce) of each moved chunk. Raises PlanError if a message has a chunk twice, or
        if a round copies a second message to a chunk.
        """
        index = np.argsort(key, kind="stable")
        again = np.concatenate([[False], np.diff(key[index]) == 0])
        position = np.arange(len(key))
        turn = np.empty(len(key), np.int64)
        turn[index] = position - np.maximum.accumulate(np.where(again, 0, position))
        transfer = block.transfer[index]
        for wrong, why in (
            (again & (np.diff(transfer, prepend=-1) == 0), "twice in one message"),
            (again & (op[index] == _COPY), "from two messages of which the later overwrites"),
        ):
            if wrong.any():
                rank, chunk = divmod(int(block.into[index][wrong][0]), self.chunks)
                raise self.error(block, np.array([rank]), f"receives chunk {chunk} {why}")
        return turn

    def make_proof(self) -> Proof:
        """Return the proof after `run`: the cost in fractions of the message size, counts of rounds and messages."""
        message = max(self.plan.operation.message_chunks(self.n, self.chunks), 1)
        mean = Fraction(int(self.moved.sum()), self.n * message)
        most = Fraction(int(self.moved.max(initial=0)), message)
        return Proof(Cost(self.steps, mean, most), self.reader.rounds.count, self.messages)


def _list_phases(rounds: IntArray, phase: IntArray, op: IntArray) -> Iterator[tuple[int, int, int, int | None]]:
    """Yield (begin, end, round_end, op) for each phase, a part of a round that writes no chunk twice.

    The moved chunks of a phase are entries `begin` to `end` - 1 of the arrays. In a round's first phase, `round_end` is
    the index after the round's last moved chunk; in other phases, `round_end` is 0. `op` is the operation of all chunks
    of the phase, or None if their operations differ.

    Args:
        rounds: the round of each moved chunk.
        phase: the phase of each moved chunk, in ascending order.
        op: the `Op` (copy or reduce) of each moved chunk, as an integer.
    """
    if not len(phase):
        return
    begins = np.nonzero(np.diff(phase, prepend=-1))[0]
    ends = np.append(begins[1:], len(phase))
    low, high = np.minimum.reduceat(op, begins), np.maximum.reduceat(op, begins)
    ops = [one if one == other else None for one, other in zip(low.tolist(), high.tolist(), strict=True)]
    round_ends = np.searchsorted(rounds, rounds[begins], side="right")
    round_ends[1:][np.diff(rounds[begins]) == 0] = 0
    yield from zip(begins.tolist(), ends.tolist(), round_ends.tolist(), ops, strict=True)


def _update_heard(block: TransferBlock, heard: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask `heard` of a barrier after the transfers of `block`.

    `heard[a, b]`, shape (ranks, ranks), is whether rank a knows that rank b has entered the barrier.
    """
    bounds = np.searchsorted(block.round, np.arange(block.first, block.stop + 1))
    for t, begin, end in zip(range(block.first, block.stop), bounds[:-1], bounds[1:], strict=True):
        before, heard = heard, heard.copy()
        messages = begin + np.nonzero(block.kind[begin:end] == MESSAGE)[0]
        for step in np.unique(block.step[messages]):
            one = messages[block.step[messages] == step]
            heard[block.target[one]] |= before[block.source[one]]
        heard = share_at_fences(heard, [Fence(leader) for at, leader in block.fences if at == t])
    return heard
