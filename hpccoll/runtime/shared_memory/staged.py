"""A collective through the arena: part after part of every chunk, so that each chunk keeps its owner and its order.

The arena has two halves. While ranks copy one part of their results out of one half, others may already fill the other
with the next; only two parts later is a half used again, and by then all have met in between.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from hpccoll.plan import IntArray
from hpccoll.runtime.arrays import BoundCall, FlatArray
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange, Program
from hpccoll.runtime.shared_memory.bind import Ground, bound
from hpccoll.runtime.shared_memory.node import HALF, Node
from hpccoll.runtime.shared_memory.task import Task, local


def staged_steps(node: Node, task: Task, half: int, enter: BoundCall) -> tuple[list[BoundCall], int]:
    """Return the calls that carry a collective through the arena, and the half of it that comes next."""
    sizes = task.sizes()
    most = HALF // task.dtype.itemsize - len(sizes)  # parts of a chunk differ by an element
    parts = max(-(-int(sizes.sum()) // most), 1)
    steps: list[BoundCall] = []
    first: BoundCall | None = enter
    for part in range(parts):
        low, high = sizes * part // parts, sizes * (part + 1) // parts
        program = task.lowered(tuple((high - low).tolist()))
        ground = staged_ground(node, task, program, half, low, high)
        steps += bound(local(program), ground, node.gate.fence, first)
        first, half = None, 1 - half
    return steps, half


class _Window:
    """Where parts of chunks, counted without gaps, lie in memory that holds the whole chunks."""

    def __init__(self, flat: FlatArray, mask: IntArray, sizes: IntArray, low: IntArray, high: IntArray) -> None:
        ends = np.cumsum(np.where(mask, sizes, 0))
        parts = np.where(mask, high - low, 0)
        here = np.nonzero(parts)[0]
        self._flat = flat
        self._counted = (np.cumsum(parts) - parts)[here].tolist()
        self._whole = (ends - sizes + low)[here].tolist()

    def view(self, place: MemoryRange) -> FlatArray:
        """The elements of a place, which lies within one chunk."""
        at = bisect_right(self._counted, place.start) - 1
        begin = self._whole[at] + place.start - self._counted[at]
        return self._flat[begin : begin + place.count]


def staged_ground(node: Node, task: Task, program: Program, half: int, low: IntArray, high: IntArray) -> Ground:
    """Return the memories of a program for elements `low` to `high` of every chunk, shape (C,) each."""
    itemsize, numpy = task.dtype.itemsize, task.dtype.numpy
    spare = task.scratch(program.work + program.landing)
    own = {MemoryKind.WORK: spare[: program.work], MemoryKind.LANDING: spare[program.work :]}
    sizes, operation, n = task.sizes(), task.plan.operation, task.plan.ranks
    of = (np.array([node.rank]), n, len(sizes), task.plan.root)
    users = {
        memory: _Window(buffer.flat, mask[0], sizes, low, high)
        for memory, buffer, mask in (
            (MemoryKind.SOURCE, task.source, operation.input_mask(*of)),
            (MemoryKind.RESULT, task.result, operation.output_mask(*of)),
        )
        if buffer is not None
    }
    arenas = {rank: node.arena(rank, half)[: HALF // itemsize * itemsize].view(numpy) for rank in node.ranks}

    def view(place: MemoryRange) -> FlatArray:
        if place.memory is MemoryKind.ARENA:
            return arenas[node.rank if place.owner == OWN else place.owner][place.start : place.stop]
        if place.memory in users:
            return users[place.memory].view(place)
        return own[place.memory][place.start : place.stop]

    return Ground(view, lambda _: 0, task.module, task.function, itemsize, None, None)
