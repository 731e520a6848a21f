"""From a plan's column to a program: one rank's rounds, of messages or of loads and stores, on its memories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpccoll.plan import IntArray, Load, Move, Operation, Plan, Step
from hpccoll.runtime.lowering.chunk_locations import ChunkLocations
from hpccoll.runtime.lowering.message_lowering import MessageLowering, get_own_chunks, get_own_move, get_own_value
from hpccoll.runtime.lowering.program import Instruction, MemoryKind, MemoryRange, Program
from hpccoll.runtime.lowering.shared_memory_lowering import RemoteAccesses, SharedMemoryLowering


def lower_plan(
    plan: Plan,
    rank: int,
    count: int,
    itemsize: int,
    in_place: bool,
    *,
    on_device: bool = False,
    staged: bool = False,
    sizes: IntArray | None = None,
) -> Program:
    """Return the program of `rank`.

    Args:
        plan: a plan that `check` proves; an unproven one may hang or compute nonsense.
        rank: whose column to lower.
        count: elements of the vector, or of one block.
        itemsize: bytes an element.
        in_place: whether input and output share memory where a chunk is both brought and wanted.
        on_device: whether the memory is a device's, which no other rank's core caches.
        staged: whether loads and stores go through the node's arena rather than to the user's own memory.
        sizes: the elements of each chunk where only part of each is run; the chunks are then kept apart.
    """
    column, apart = plan.column(rank), sizes is not None
    rounds = list(column)
    sizes = plan.operation.chunk_sizes(count, plan.ranks, column.chunks) if sizes is None else sizes
    used = _used(rounds, len(sizes))
    steps: list[Instruction] = []
    scratch = _Scratch()
    node: SharedMemoryLowering | None = None
    if any(not isinstance(step, Move) for round_ in rounds for step in round_):
        node = SharedMemoryLowering(plan, rank, sizes, staged, in_place, RemoteAccesses(plan), steps, scratch.take)
    places = ChunkLocations(plan, rank, sizes, used, in_place, node.arena(rank) if node else None, apart=apart)
    news = plan.operation is Operation.BARRIER
    messages = MessageLowering(rank, itemsize, on_device, news, places, steps, scratch.take)
    _walk(rounds, messages, node, places, scratch)
    touched = node.touched() if node else frozenset()
    return Program(tuple(steps), places.work, scratch.most, plan, places.arena, touched)


def _walk(
    rounds: Sequence[Sequence[Step]],
    messages: MessageLowering,
    node: SharedMemoryLowering | None,
    places: ChunkLocations,
    scratch: _Scratch,
) -> None:
    """Lower round after round; in the end copy what the rank wants to where it belongs."""
    if node is not None:
        node.begin(places)
    for t, steps in enumerate(rounds):
        if node is None or not node.deferred:  # what is deferred keeps its scratch
            scratch.cursor = 0
        messages.round([get_own_move(step) for step in steps if isinstance(step, Move)])
        if node is not None:
            node.round(t, [step for step in steps if not isinstance(step, Move)])
    last = places.unsettled()
    places.rehome(last)
    messages.copy_home(last)


def _used(rounds: Sequence[Sequence[Step]], chunks: int) -> NDArray[np.bool_]:
    """Return which chunks this rank holds at any time, shape (C,)."""
    used = np.zeros(chunks, np.bool_)
    for steps in rounds:
        for step in steps:
            if isinstance(step, Move):
                _, _, _, sent, received = get_own_move(step)
                used[sent] = used[received] = True
            elif isinstance(step, Load) and get_own_value(step.source) >= 0:
                used[get_own_chunks(step.local)] = True
    return used


class _Scratch:
    """Gives out places in LANDING, from the beginning again in each round."""

    def __init__(self) -> None:
        self.cursor = self.most = 0

    def take(self, count: int) -> MemoryRange:
        place = MemoryRange(MemoryKind.LANDING, self.cursor, self.cursor + count)
        self.cursor += count
        self.most = max(self.most, self.cursor)
        return place
