"""The history of a plan: the messages of each round, and the contents of every rank's chunks after the round.

In array shapes, n is the number of ranks and C the number of chunks per rank. A barrier, which has no chunks, is shown
as one chunk per rank, which contains the ranks whose arrival this rank knows of. The history of an incorrect plan shows
the error of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan.messages import PlanMessage, list_fence_groups, list_step_messages
from hpccoll.plan.moves import share_at_fences
from hpccoll.plan.operation import Mask, Operation
from hpccoll.plan.plan import Plan
from hpccoll.plan.step import NO_CHUNK, Fence, IntArray, Step
from hpccoll.units import format_count


@dataclass(frozen=True, slots=True)
class Frame:
    """One round of a plan and the chunk contents after the round; frame 0 has the contents before the first round.

    Attributes:
        number: the round, counted from 1; 0 before the first round.
        phase: the name of an all-reduce's phase, such as "reduce-scatter", or "fence" in a round of fences; else empty.
        counts: `counts[r, c, s]` is how often rank s's contribution is in chunk c of rank r.
        origin: `origin[r, c]` is the chunk number that the data in chunk c of rank r had at the start; -1 if empty.
        changed: marks the chunks that messages (in a barrier, also fences) of this round changed.
        done: marks the output chunks that are complete.
        fences: the groups of ranks that wait for each other in this round.
    """

    number: int
    phase: str
    messages: tuple[PlanMessage, ...]
    counts: NDArray[np.int16]  # (n, C, n)
    origin: IntArray  # (n, C)
    changed: Mask  # (n, C)
    done: Mask  # (n, C)
    fences: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class PlanHistory:
    """The frames of a plan (the start and one per round); `nodes` has the ranks per node, or is empty to hide nodes."""

    plan: Plan
    chunks: int
    frames: tuple[Frame, ...]
    nodes: tuple[int, ...] = ()

    @property
    def accumulates(self) -> bool:
        """Whether chunks collect contributions of several ranks (in a barrier, the arrivals of several ranks)."""
        return self.plan.operation.reduces or self.plan.operation is Operation.BARRIER

    @property
    def subtitle(self) -> str:
        """A description such as `8 ranks, 14 rounds, 8 chunks per rank`, with the root and the nodes if any."""
        operation = self.plan.operation
        parts = [format_count(self.plan.ranks, "rank"), format_count(len(self.frames) - 1, "round")]
        parts += [] if operation is Operation.BARRIER else [f"{format_count(self.chunks, 'chunk')} per rank"]
        parts += [f"root {self.plan.root}"] if operation.has_root else []
        parts += [format_count(len(self.nodes), "node")] if self.nodes else []
        return ", ".join(parts)


def record_history(plan: Plan, nodes: Sequence[int] = ()) -> PlanHistory:
    """Return the history of `plan` without running the plan; `nodes` has the ranks per node, or is empty.

    Cost: O(rounds * ranks * ranks * chunks) time and memory, too much for thousands of ranks.
    """
    rounds, contents = plan.rounds(), _ChunkContents(plan)
    frames = [contents.advance(0, (), ())]
    for number in range(1, rounds.count + 1):
        steps = rounds.at(number - 1)
        messages = tuple(message for step in steps for message in list_step_messages(step, plan.ranks))
        frames.append(contents.advance(number, messages, steps))
    named = zip(frames, _name_phases(plan.operation, frames), strict=True)
    in_phases = tuple(replace(frame, phase=name or "fence" * bool(frame.fences)) for frame, name in named)
    return PlanHistory(plan, rounds.chunks, in_phases, tuple(nodes))


class _ChunkContents:
    """The chunk contents of all ranks between two rounds, as the arrays `counts` and `origin` of `Frame`."""

    def __init__(self, plan: Plan) -> None:
        n, chunks, ranks = plan.ranks, plan.rounds().chunks, np.arange(plan.ranks)
        self.is_barrier = plan.operation is Operation.BARRIER
        if self.is_barrier:
            held, self.wanted = np.ones((n, 1), np.bool_), np.ones((n, 1), np.bool_)
        else:
            masks = plan.operation.input_mask, plan.operation.output_mask
            held, self.wanted = (np.array(mask(ranks, n, chunks, plan.root)) for mask in masks)
        self.counts = np.eye(n, dtype=np.int16)[:, None, :] * held[..., None]
        self.origin = np.where(held, np.arange(held.shape[1]), NO_CHUNK)
        if self.is_barrier:
            self.expected = np.ones_like(self.counts)
        else:
            self.expected = plan.operation.expected_weights(self.counts.astype(np.uint64), n).astype(np.int16)

    def advance(self, number: int, messages: tuple[PlanMessage, ...], steps: Sequence[Step]) -> Frame:
        """Apply round `number` and return its frame; all messages read the contents from before the round.

        `messages` and `steps` are the messages and the steps of the round.
        """
        changed = np.zeros_like(self.wanted)
        counts, origin = self.counts.copy(), self.origin.copy()
        for message in messages:
            send, recv = (0, 0) if self.is_barrier else (list(message.send), list(message.recv))
            target, source = (message.dest, recv), (message.source, send)
            if self.is_barrier:
                counts[target] |= self.counts[source]
            elif message.reduces:
                counts[target] += self.counts[source]
            else:
                counts[target], origin[target] = self.counts[source], self.origin[source]
            changed[target] = True
        if self.is_barrier:
            before = counts[:, 0] > 0
            counts[:, 0] = share_at_fences(before, steps)
            changed[:, 0] |= (counts[:, 0] != before).any(axis=-1)
        self.counts, self.origin = counts, origin
        done = self.wanted & (origin != NO_CHUNK) & (counts == self.expected).all(axis=-1)
        fences = tuple(tuple(g) for step in steps if isinstance(step, Fence) for g in list_fence_groups(step))
        return Frame(number, "", messages, counts, origin, changed, done, fences)


def _name_phases(operation: Operation, frames: Sequence[Frame]) -> list[str]:
    """Return each frame's phase name, which is empty unless the plan is an all-reduce that both reduces and copies."""
    kinds = [frozenset(message.reduces for message in frame.messages) for frame in frames]
    if operation is not Operation.ALL_REDUCE or len(frozenset[bool]().union(*kinds)) < 2:
        return [""] * len(frames)
    first, second = _name_two_phases(kinds, [frame.done for frame in frames])
    names = {frozenset({True}): first, frozenset({False}): second, frozenset({True, False}): f"{first} and {second}"}
    return [names.get(kind, "") for kind in kinds]


def _name_two_phases(kinds: Sequence[frozenset[bool]], done: Sequence[Mask]) -> tuple[str, str]:
    """Return the names of the reducing and the copying phase of an all-reduce.

    The names are reduce-scatter and all-gather if each chunk is first complete on a single rank, more than half of the
    ranks are first for some chunk, and no round both reduces and copies. Otherwise, the names are reduce and broadcast,
    or reduce and copy if some chunk is first complete on several ranks at once. For each frame, `kinds` states whether
    its messages reduce (true), copy (false), or both, and `done` is a mask of the chunks of each rank that are
    complete.
    """
    n, chunks = done[0].shape
    firsts = [next(mask[:, c] for mask in done if mask[:, c].any()) for c in range(chunks)]
    if any(first.sum() != 1 for first in firsts):
        return "reduce", "copy"
    owners = {int(np.argmax(first)) for first in firsts}
    scattered = 2 * len(owners) > n and len(owners) > 1 and not any({True, False} == kind for kind in kinds)
    return ("reduce-scatter", "all-gather") if scattered else ("reduce", "broadcast")
