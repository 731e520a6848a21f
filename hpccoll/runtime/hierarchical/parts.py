"""A collective of two levels cut into parts: elements `low` to `high` of every chunk, and the memories they lie in.

A part of every chunk keeps the chunk's owner and its order of reduction, so all parts together give what the plan gives
for the whole, bit for bit. How many parts there are follows from what all ranks know alike: plan, count and dtype.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpccoll.algorithms.pipelining import MESSAGE_BYTES, choose_segment_count
from hpccoll.errors import UnavailableError
from hpccoll.plan import IntArray
from hpccoll.runtime.arrays import FlatArray
from hpccoll.runtime.hierarchical.lanes import LANE_BYTES, Lane
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange, Program
from hpccoll.runtime.shared_memory.bind import REMOTE_TILE, Ground
from hpccoll.runtime.shared_memory.node import Node
from hpccoll.runtime.shared_memory.symmetric import is_token, parsed
from hpccoll.runtime.shared_memory.task import Task


@dataclass(frozen=True, slots=True)
class Part:
    """Elements `low` to `high` of every chunk, shape (C,) each."""

    low: IntArray
    high: IntArray

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each chunk."""
        return tuple((self.high - self.low).tolist())


def parts_of(task: Task) -> list[Part]:
    """Return the parts of a collective, alike on all ranks.

    Raises:
        UnavailableError: there are more chunks than a lane has room for.
    """
    sizes, itemsize = task.sizes(), task.dtype.itemsize
    room = LANE_BYTES // itemsize - len(sizes)
    if room < len(sizes):
        name, ranks = task.plan.name, task.plan.ranks
        raise UnavailableError(f"{name} on {ranks} ranks has too many chunks for a node's memory; choose another")
    count = max(choose_segment_count(task.plan, sizes, itemsize, MESSAGE_BYTES), -(-int(sizes.sum()) // room))
    return [Part(sizes * part // count, sizes * (part + 1) // count) for part in range(count)]


class _Window:
    """Where parts of chunks, counted without gaps, lie in memory that holds the whole chunks."""

    def __init__(self, mask: IntArray, sizes: IntArray, part: Part) -> None:
        ends, counts = np.cumsum(np.where(mask, sizes, 0)), np.where(mask, part.high - part.low, 0)
        here = np.nonzero(counts)[0]
        self._counted = (np.cumsum(counts) - counts)[here].tolist()
        self._whole = (ends - sizes + part.low)[here].tolist()

    def begin(self, place: MemoryRange) -> int:
        """The element at which a place, which lies within one chunk, begins."""
        if place.start == place.stop:
            return 0
        at = bisect_right(self._counted, place.start) - 1
        return int(self._whole[at]) + place.start - int(self._counted[at])


class PartGround:
    """The memories of one part in one lane: this rank's own, and those of its node.

    Args:
        node: the ranks of the node.
        task: the collective.
        program: what is run, for this part.
        part: of every chunk.
        lane: in which.
        spare: scratch of the lane.
        there: where the inputs and outputs of the other ranks are (a token, or an address), empty where all that others
            touch lies in the lane.
    """

    def __init__(
        self,
        node: Node,
        task: Task,
        program: Program,
        part: Part,
        lane: Lane,
        spare: FlatArray,
        there: Mapping[int, tuple[int, int]],
    ) -> None:
        self._node, self._task, self._lane, self._there = node, task, lane, there
        landing = program.work + program.landing
        self._scratch = {MemoryKind.WORK: spare[: program.work], MemoryKind.LANDING: spare[program.work : landing]}
        bounce = spare[landing : landing + bounce_count(task)] if there else None
        self.ground = Ground(
            self.view, self._address, task.module, task.function, task.dtype.itemsize, node.remote, bounce
        )
        sizes, operation, ranks = task.sizes(), task.plan.operation, node.ranks
        masks = (
            (MemoryKind.SOURCE, operation.input_mask(np.array(ranks), task.plan.ranks, len(sizes), task.plan.root)),
            (MemoryKind.RESULT, operation.output_mask(np.array(ranks), task.plan.ranks, len(sizes), task.plan.root)),
        )
        known = [rank for rank in ranks if rank == node.rank or there]
        self._windows = {
            (memory, OWN if rank == node.rank else rank): _Window(mask[ranks.index(rank)], sizes, part)
            for memory, mask in masks
            for rank in known
        }

    def view(self, place: MemoryRange) -> FlatArray | None:
        """The elements of a place; None where they lie in another process's own memory."""
        if place.memory is MemoryKind.ARENA:
            memory = self._lane.memory(self._node.rank if place.owner == OWN else place.owner)
            itemsize = self._task.dtype.itemsize
            return memory[place.start * itemsize : place.stop * itemsize].view(self._task.dtype.numpy)
        if place.memory in self._scratch:
            return self._scratch[place.memory][place.start : place.stop]
        flat = self._own(place.memory) if place.owner == OWN else self._mapped(place)
        if flat is None:
            return None
        begin = self._windows[place.memory, place.owner].begin(place)
        return flat[begin : begin + place.count]

    def _own(self, memory: MemoryKind) -> FlatArray:
        buffer = self._task.source if memory is MemoryKind.SOURCE else self._task.result
        return buffer.flat if buffer else self._scratch[MemoryKind.WORK][:0]

    def _mapped(self, place: MemoryRange) -> FlatArray | None:
        word = self._there[place.owner][place.memory]
        if not is_token(word):
            return None
        number, offset = parsed(word)
        piece = self._node.symmetric.numbered(number).pieces[place.owner][offset:]
        itemsize = self._task.dtype.itemsize
        return piece[: len(piece) // itemsize * itemsize].view(self._task.dtype.numpy)

    def _address(self, place: MemoryRange) -> int:
        if place.owner == OWN:
            return self._task.module.get_address(self.ground.local(place))
        begin = self._windows[place.memory, place.owner].begin(place)
        return self._there[place.owner][place.memory] + begin * self._task.dtype.itemsize


def bounce_count(task: Task) -> int:
    """Return the elements through which the memory of other processes is read."""
    return 2 * (REMOTE_TILE // task.dtype.itemsize)
