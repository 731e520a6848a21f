"""The proof of a plan for many ranks by its symmetry under rotation of ranks and chunks together.

Let n ranks have n chunks, and let a plan do the same at rank r + p as at rank r, with all peers and all chunks
increased by p (modulo n). The execution of a plan of period p is unchanged if ranks and chunks are rotated by p: chunk
c + p of rank r + p has the contributions of chunk c of rank r, with all ranks increased by p. The required result of an
all_gather, a reduce_scatter and an all_reduce is unchanged by this rotation, too. So if chunks 0 to p - 1 are right at
all ranks, all chunks are. The proof covers all ranks, not a sample: `prove_by_symmetry` checks, in every round, that
every rank obeys the symmetry, that each send meets its receive, and that both ends have the same number of chunks.

For n ranks and the period p, the proof keeps n * p chunks instead of n * n, so its memory is O(n p), and its time
O(n p) per round. The proof by symmetry needs regions that are cyclic intervals (`Span`), and messages that leave chunks
in place; other plans cannot be proven by symmetry.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from hpccoll.errors import PlanError
from hpccoll.plan.operation import Mask, Operation, Weights
from hpccoll.plan.plan import Cost, Plan
from hpccoll.plan.proof.checker import Proof
from hpccoll.plan.step import NO_PEER, IntArray, Ints, Move, Op, Region, Span, Step
from hpccoll.units import format_count

OPERATIONS = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.ALL_REDUCE)
_MIX = np.uint64(0x9E3779B97F4A7C15)


def can_prove_by_symmetry(plan: Plan) -> bool:
    """Whether `prove_by_symmetry` applies: the plan states a period, and its messages are cyclic intervals of chunks.

    The plan must also be an all_gather, reduce_scatter or all_reduce with n > 1 chunks on each of its n ranks, and the
    period must divide n. Only the first round is examined; `prove_by_symmetry` raises PlanError if later rounds differ.
    """
    n = plan.ranks
    if plan.operation not in OPERATIONS or plan.period is None or n % plan.period:
        return False
    rounds = plan.column(0)
    return rounds.chunks == n > 1 and len(rounds) > 0 and all(_is_span_move(step) for step in rounds.at(0))


def _is_span_move(step: Step) -> bool:
    """Whether a step consists of messages whose chunks are cyclic intervals on both ends."""
    return isinstance(step, Move) and isinstance(step.send, Span) and isinstance(step.recv, Span)


def prove_by_symmetry(plan: Plan) -> Proof:
    """Return the proof of a plan by its symmetry under rotation of ranks and chunks, with less memory than `check`.

    `can_prove_by_symmetry` must hold for the plan. Raises PlanError if the plan is wrong.
    """
    return _SymmetricProof(plan).prove()


class _SymmetricProof:
    """Proves a plan of period p: tracks chunks 0 to p - 1 of all ranks as sums of random weights and counts."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.n, self.period = plan, plan.ranks, plan.period or plan.ranks
        self.rank = np.arange(self.n)
        self.weight = np.random.default_rng(1).integers(1, 2**64, (self.n, 2), dtype=np.uint64)
        self.round = 0
        self.moved = np.zeros(self.n, np.int64)
        self.messages = self.steps = 0
        shape = (self.period, self.n)
        self.count = np.zeros(shape, np.int64)
        self.sums = np.zeros((*shape, 2), np.uint64)
        self.order = np.zeros(shape, np.uint64)
        for chunk in range(self.period):
            holders = self.rank == chunk if plan.operation is Operation.ALL_GATHER else np.full(self.n, fill_value=True)
            self.count[chunk, holders] = 1
            self.sums[chunk, holders] = self.weight[holders]
            self.order[chunk, holders] = self.weight[holders, 0]

    def prove(self) -> Proof:
        """Execute all rounds symbolically, compare the result with the operation's promise, and return the proof."""
        rounds = self.plan.rounds()
        for t in range(len(rounds)):
            self.round = t
            self.run_round(rounds.at(t))
        self.check_end()
        cost = Cost(self.steps, Fraction(int(self.moved.sum()), self.n**2), Fraction(int(self.moved.max()), self.n))
        if self.plan.cost is not None and self.plan.cost != cost:
            raise PlanError(f"{self.plan.name} on {format_count(self.n, 'rank')} states a cost of {self.plan.cost}; "
                            f"the plan takes {cost}")  # fmt: skip
        return Proof(cost, len(rounds), self.messages)

    def error(self, rank: int, why: str) -> PlanError:
        """Return an unraised error with the text `why` about a rank in the current round."""
        return PlanError(f"{self.plan.name} on {format_count(self.n, 'rank')}, round {self.round}: rank {rank} {why}")

    def run_round(self, steps: Sequence[Step]) -> None:
        """Check the steps of a round, and apply them to the contents at the start of the round."""
        before = self.count.copy(), self.sums.copy(), self.order.copy()
        written = np.zeros(self.count.shape, np.bool_)
        crossed = 0
        for step in steps:
            if not isinstance(step, Move) or not isinstance(step.send, Span) or not isinstance(step.recv, Span):
                raise self.error(0, "has no message of a cyclic interval; prove fewer ranks without symmetry")
            sends, receives = step.dest != NO_PEER, step.source != NO_PEER
            self.check_rotation(step, sends, receives)
            self.check_ends(step, sends, receives)
            sizes = np.broadcast_to(np.asarray(step.send.size), self.n)
            away = sends & (step.dest != self.rank)
            self.moved += np.where(away, sizes, 0)
            crossed += int(np.count_nonzero(away))
            for chunk in range(self.period):
                self.move_chunk(step, (step.send, step.recv), chunk, before, written)
        self.messages += crossed
        self.steps += crossed > 0

    def check_rotation(self, step: Move, sends: Mask, receives: Mask) -> None:
        """Raise PlanError unless rank r + p does what rank r does in a step, with peers and chunks increased by p.

        p is the period that the plan states. `sends` and `receives` are masks of the ranks that send and receive in the
        step.
        """
        for what, values, active, turns in (
            ("destination", step.dest, sends, self.n), ("source", step.source, receives, self.n),
            ("operation", step.op, receives, 0),
            ("number of chunks", step.send.size, sends, 0), ("number of chunks", step.recv.size, receives, 0),
            ("first chunk", _first_chunk(step.send), sends, self.n),
            ("first chunk", _first_chunk(step.recv), receives, self.n),
        ):  # fmt: skip
            row = np.broadcast_to(np.asarray(values, np.int64), (self.n,))
            turned = np.roll(row, -self.period)  # entry r is the value of rank r + p
            wanted = (row + self.period) % turns if turns else row
            differ = active & ((turned % turns if turns else turned) != wanted)
            wrong = np.nonzero(differ | (np.roll(active, -self.period) != active))[0]
            if len(wrong):
                raise self.error(int(wrong[0]), f"and rank {(int(wrong[0]) + self.period) % self.n} differ in their "
                                                f"{what} by more than the period {self.period}")  # fmt: skip

    def check_ends(self, step: Move, sends: Mask, receives: Mask) -> None:
        """Raise PlanError unless the sends of a step match its receives one to one, with equal numbers of chunks.

        `sends` and `receives` are masks of the ranks that send and receive.
        """
        alone = np.nonzero(sends & (step.source[np.where(sends, step.dest, 0)] != self.rank))[0]
        if len(alone):
            raise self.error(int(alone[0]), f"sends to rank {step.dest[alone[0]]}, which does not receive from it")
        alone = np.nonzero(receives & (step.dest[np.where(receives, step.source, 0)] != self.rank))[0]
        if len(alone):
            raise self.error(int(alone[0]), f"receives from rank {step.source[alone[0]]}, which does not send to it")
        sent = np.broadcast_to(np.asarray(step.send.size), self.n)[np.where(receives, step.source, 0)]
        uneven = np.nonzero(receives & (sent != np.broadcast_to(np.asarray(step.recv.size), self.n)))[0]
        if len(uneven):
            raise self.error(int(uneven[0]), "expects another number of chunks than its sender sends")

    def move_chunk(
        self, step: Move, spans: tuple[Span, Span], chunk: int, before: tuple[IntArray, Weights, Weights], written: Mask
    ) -> None:
        """Copy or reduce one chunk at the ranks that receive it in a step.

        Args:
            spans: the step's sent and received intervals of chunks.
            chunk: the chunk, from 0 to p - 1, where p is the plan's period.
            before: the counts, sums of weights, and order hashes at the start of the round.
            written: a mask, shape (p, ranks), of the chunks written in this round, which this method updates.
        """
        send, recv = spans
        sends = np.nonzero((step.dest != NO_PEER) & _holds(send, chunk, self.rank))[0]
        into = step.dest[sends]
        if (_chunk_at(recv, _place(send, chunk, sends), into) != chunk).any():
            why = f"receives chunk {chunk} into another chunk; prove fewer ranks without symmetry"
            raise self.error(int(into[0]), why)
        counts, sums, order = (kept[chunk, sends] for kept in before)
        unread = np.nonzero(counts == 0)[0]
        if len(unread):
            raise self.error(int(sends[unread[0]]), f"sends chunk {chunk} before it was written")
        op = np.broadcast_to(np.asarray(step.op, np.int64), (self.n,))[into]
        copies = op == Op.COPY
        if (copies & written[chunk, into]).any():
            raise self.error(int(into[0]), f"receives chunk {chunk} from two messages of which the later overwrites")
        own = self.order[chunk, into]
        left, right = np.where(op == Op.OWN_FIRST, own, order), np.where(op == Op.OWN_FIRST, order, own)
        mixed = left * _MIX ^ (right + _MIX) * (_MIX | np.uint64(2))
        self.order[chunk, into] = np.where(copies, order, mixed ^ (mixed >> np.uint64(29)))
        self.count[chunk, into] = counts + np.where(copies, 0, self.count[chunk, into])
        self.sums[chunk, into] = sums + np.where(copies[:, None], np.uint64(0), self.sums[chunk, into])
        written[chunk, into] = True

    def check_end(self) -> None:
        """Raise PlanError unless chunks 0 to p - 1 have every contribution once, wherever they are output.

        p is the period that the plan states.
        """
        for chunk in range(self.period):
            gathers = self.plan.operation is Operation.ALL_GATHER
            count = 1 if gathers else self.n
            total = self.weight[chunk] if gathers else self.weight.sum(axis=0, dtype=np.uint64)
            outputs = self.rank == chunk if self.plan.operation is Operation.REDUCE_SCATTER else self.rank >= 0
            right = (self.count[chunk] == count) & (self.sums[chunk] == total).all(axis=1)
            wrong = np.nonzero(outputs & ~right)[0]
            where = f"{self.plan.name} on {format_count(self.n, 'rank')}"
            if len(wrong):
                raise PlanError(f"{where}: in the end rank {wrong[0]} chunk {chunk} is wrong: it has "
                                f"{self.count[chunk, wrong[0]]} contributions; need {count}, each once")  # fmt: skip
            if len(np.unique(self.order[chunk, outputs])) > 1:
                raise PlanError(f"{where}: ranks reduce chunk {chunk} in different orders")


def _first_chunk(span: Region) -> Ints:
    """Return the first chunk of each rank's interval `span`: one number, or an array with one entry per rank."""
    if not isinstance(span, Span):
        raise PlanError("a list of chunks has no first chunk; prove fewer ranks without symmetry")
    first: Ints = span.base + span.unit * (span.first % max(span.mod, 1))
    return first


def _at(value: Ints, ranks: IntArray) -> IntArray:
    """Return an array with the value of each of `ranks`; `value` is one number for all, or an array by rank."""
    return np.full(len(ranks), value) if isinstance(value, int) else np.asarray(value)[ranks]


def _place(span: Span, chunk: int, ranks: IntArray) -> IntArray:
    """Return the position of `chunk` in the interval of each of `ranks`.

    A position past the end of the interval means that the interval lacks the chunk.
    """
    distance = chunk - _at(span.base, ranks)
    unit = (distance // span.unit - _at(span.first, ranks)) % max(span.mod, 1)
    return unit * span.unit + distance % span.unit


def _holds(span: Span, chunk: int, ranks: IntArray) -> Mask:
    """Return a mask of the entries of `ranks`: true for ranks whose interval `span` includes `chunk`."""
    distance = chunk - _at(span.base, ranks)
    inside = (distance >= 0) & (distance < span.mod * span.unit)
    return inside & (_place(span, chunk, ranks) < _at(span.size, ranks))


def _chunk_at(span: Span, place: IntArray, ranks: IntArray) -> IntArray:
    """Return the chunk at position `place` in the interval of each of `ranks`."""
    unit = (_at(span.first, ranks) + place // span.unit) % max(span.mod, 1)
    return _at(span.base, ranks) + unit * span.unit + place % span.unit
