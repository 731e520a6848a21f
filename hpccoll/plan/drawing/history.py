"""The history of a plan: in each round who sends which chunks to whom, and what every rank holds afterwards.

Shapes: n ranks, C chunks a rank (a barrier has none and is told as one chunk: the news of who has arrived).

Every kind of picture is drawn from this one history, so that text, SVG, PNG and GIF cannot differ in what they say.
A plan is told as it is; `check` is what proves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.drawing.phases import phases
from hpccoll.plan.moves import TransferKind, share_at_fences, to_moves, transfer_kind
from hpccoll.plan.operation import Mask, Operation
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import NO_PEER, Fence, IntArray, Op, Step

ContributionCounts = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Message:
    """`frm` sends its chunks `out`, which arrive at `to` as its chunks `into` (none of them: a mere signal)."""

    source: int
    dest: int
    out: tuple[int, ...]
    into: tuple[int, ...]
    reduces: bool
    via: TransferKind = TransferKind.MESSAGE


@dataclass(frozen=True, slots=True)
class Frame:
    """One round and what it leaves behind; frame 0 is the start.

    `counts[r, c, s]` is how often rank s's contribution is in chunk c of rank r, `source[r, c]` the chunk from which
    its content was copied first (-1: nothing there yet), `changed` what arrived in this round, `done` what is wanted
    there and complete.
    """

    number: int
    phase: str
    messages: tuple[Message, ...]
    counts: ContributionCounts  # (n, C, n)
    origin: IntArray  # (n, C)
    changed: Mask  # (n, C)
    done: Mask  # (n, C)
    fences: tuple[tuple[int, ...], ...] = ()  # groups of ranks that wait for each other in this round


@dataclass(frozen=True, slots=True)
class PlanHistory:
    """A plan's frames, one more than it has rounds."""

    operation: Operation
    algorithm: str
    ranks: int
    root: int
    chunks: int
    frames: tuple[Frame, ...]
    nodes: tuple[int, ...] = ()  # ranks on each node, in rank order; empty where nothing is said of nodes

    @property
    def name(self) -> str:
        """`operation/algorithm`, as the command line writes it."""
        return f"{self.operation.value}/{self.algorithm}"

    @property
    def accumulates(self) -> bool:
        """Whether a chunk gathers the contributions of several ranks (a barrier: their news)."""
        return self.operation.reduces or self.operation is Operation.BARRIER

    @property
    def subtitle(self) -> str:
        """Ranks, rounds and chunks, as a subtitle."""
        parts = [_many(self.ranks, "rank"), _many(len(self.frames) - 1, "round")]
        parts += [] if self.operation is Operation.BARRIER else [f"{_many(self.chunks, 'chunk')} a rank"]
        parts += [f"root {self.root}"] if self.operation.has_root else []
        parts += [f"{_many(len(self.nodes), 'node')}"] if self.nodes else []
        return ", ".join(parts)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def record_history(plan: Plan, nodes: Sequence[int] = ()) -> PlanHistory:
    """Return the history of `plan`.

    Args:
        plan: what to tell.
        nodes: how many ranks each node has, in rank order, where nodes are to be shown.

    Cost: O(rounds * n * C * n) time and memory: for pictures, not for 24,576 ranks.
    """
    rounds, state = plan.rounds(), _State(plan)
    frames = [state.frame(0, (), ())]
    for number in range(1, rounds.count + 1):
        steps = rounds.at(number - 1)
        messages = tuple(message for step in steps for message in _messages(step, plan.ranks))
        frames.append(state.frame(number, messages, steps))
    names = phases(plan.operation, [_kinds(f.messages) for f in frames], [f.done for f in frames])
    named = zip(frames, names, strict=True)
    in_phases = tuple(replace(frame, phase=name or "fence" * bool(frame.fences)) for frame, name in named)
    return PlanHistory(plan.operation, plan.algorithm, plan.ranks, plan.root, rounds.chunks, in_phases, tuple(nodes))


def _kinds(messages: tuple[Message, ...]) -> tuple[bool, bool]:
    """Whether some of the messages reduce, and whether some copy."""
    return any(m.reduces for m in messages), any(not m.reduces for m in messages)


def _messages(step: Step, n: int) -> list[Message]:
    found = []
    for move in to_moves(step, n):
        out, into = move.send.ids(n), move.recv.ids(n)
        ops = np.broadcast_to(np.asarray(move.op), (n,))
        for to in np.nonzero(move.source != NO_PEER)[0].tolist():
            frm = int(move.source[to])
            sent, taken = (tuple(ids[ids >= 0].tolist()) for ids in (out[frm], into[to]))
            found.append(Message(frm, to, sent, taken, bool(ops[to] != Op.COPY), transfer_kind(step)))
    return found


def _groups(steps: Sequence[Step]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each fence, group by group."""
    leaders = [step.leader for step in steps if isinstance(step, Fence)]
    return tuple(
        tuple(np.nonzero(leader == first)[0].tolist()) for leader in leaders for first in np.unique(leader[leader >= 0])
    )


class _State:
    """What every rank holds, as the rounds go by."""

    def __init__(self, plan: Plan) -> None:
        n, chunks, ranks = plan.ranks, plan.moves().chunks, np.arange(plan.ranks)
        self.barrier = plan.operation is Operation.BARRIER
        if self.barrier:
            held, self.wanted = np.ones((n, 1), np.bool_), np.ones((n, 1), np.bool_)
        else:
            held, self.wanted = (
                np.array(mask(ranks, n, chunks, plan.root))
                for mask in (plan.operation.input_mask, plan.operation.output_mask)
            )
        self.counts = np.eye(n, dtype=np.int16)[:, None, :] * held[..., None]
        self.source = np.where(held, np.arange(held.shape[1]), NO_PEER)
        if self.barrier:
            self.expected = np.ones_like(self.counts)
        else:
            self.expected = plan.operation.expected_weights(self.counts.astype(np.uint64), n).astype(np.int16)

    def frame(self, number: int, messages: tuple[Message, ...], steps: Sequence[Step]) -> Frame:
        """Let the messages of a round arrive, all of them read before any of them lands."""
        changed = np.zeros_like(self.wanted)
        counts, source = self.counts.copy(), self.source.copy()
        for message in messages:
            out, into = (0, 0) if self.barrier else (list(message.out), list(message.into))
            place, origin = (message.dest, into), (message.source, out)
            if self.barrier:
                counts[place] |= self.counts[origin]
            elif message.reduces:
                counts[place] += self.counts[origin]
            else:
                counts[place], source[place] = self.counts[origin], self.source[origin]
            changed[place] = True
        if self.barrier:
            before = counts[:, 0] > 0
            counts[:, 0] = share_at_fences(before, steps)
            changed[:, 0] |= (counts[:, 0] != before).any(axis=-1)
        self.counts, self.source = counts, source
        done = self.wanted & (source != NO_PEER) & (counts == self.expected).all(axis=-1)
        return Frame(number, "", messages, counts, source, changed, done, _groups(steps))
