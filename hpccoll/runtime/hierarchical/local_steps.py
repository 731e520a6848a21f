"""The local work of a pipeline task: reduces and copies, cut into steps of one tile that the extension executes.

A task returns after a few steps, so that the messages of other tasks make progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from hpccoll.native import REMOTE_TILE_BYTES, MemoryTable, Program
from hpccoll.runtime.address_space import USER_MEMORY, AddressSpace
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.arrays.host_reducers import make_reducer
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.instructions import (
    FENCE_ROW,
    FIRST_SHARED,
    RESULT,
    SCRATCH,
    SOURCE,
    TILE_BYTES,
    Row,
    as_words,
    make_group,
)
from hpccoll.runtime.lowering import OWN, Copy, MemoryKind, MemoryRange, Reduce
from hpccoll.runtime.lowering import Program as LoweredProgram
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.node_memory.pipeline_slot import PipelineSlot
from hpccoll.runtime.shared_memory.access import count_elements, locate_peers
from hpccoll.runtime.shared_memory.staged import get_address

REMOTE_COPY_BYTES = 2**20  # each tile of another process's memory costs a system call


class LocalSteps:
    """Collects the local work of one segment by `add`; `bind` then returns the call of each step.

    Args:
        call: the collective.
        program: the instructions of the segment.
        space: locates the ranges of the segment in whole chunks.
        scratch: this rank's scratch, with room for the bounce buffer behind WORK and LANDING if there are locations.
        slot: the slot of the segment.
        locations: the locations of the other ranks' buffers; empty if the segment goes through the slot.
    """

    def __init__(
        self,
        call: CollectiveCall,
        node: NodeMemory,
        program: LoweredProgram,
        space: AddressSpace,
        scratch: np.ndarray[tuple[int], np.dtype[np.uint8]],
        slot: PipelineSlot,
        locations: Sequence[int],
    ) -> None:
        self._call, self._node, self._program, self._space = call, node, program, space
        self._scratch, self._slot = scratch, slot
        self._has_peers = bool(locations)
        peers, processes, keep = locate_peers(node, locations) if locations else ([], [], [])
        slots = [get_address(slot.memory[rank]) for rank in node.ranks]
        self._remote = {rank for rank, process in zip(np.repeat(node.others, 2), processes, strict=False) if process}
        owners = [0] * (FIRST_SHARED + len(slots)) + processes
        addresses = [0, 0, get_address(scratch), *slots, *peers]
        self._memories = MemoryTable(addresses, owners if any(processes) else [], (scratch, slot, keep))
        self._rows: list[Row] = []

    def add(self, group: Sequence[Reduce | Copy]) -> list[int]:
        """Add a group of instructions, and return the numbers of its steps."""
        starts: list[int] = []
        for tile in self._cut(group):
            starts.append(len(self._rows))
            self._rows += [*make_group(tile, self._locate, self._space.itemsize), FENCE_ROW]
        return starts

    def bind(self) -> list[BoundCall]:
        """Return the calls of the steps, by number; numbers between steps have a call, too."""
        call, itemsize = self._call, self._space.itemsize
        source, result = (buffer.nbytes if buffer else 0 for buffer in (call.source, call.result))
        plan, others = self._program.plan, self._node.others
        peers = [size * itemsize for rank in others for size in count_elements(plan, rank, call.count)]
        slots = [self._node.slot_bytes] * len(self._node.ranks)
        has_peers = self._has_peers
        limits = np.array([source, result, self._scratch.nbytes, *slots, *(peers if has_peers else [])], np.int64)
        bounce = self._scratch.nbytes - 2 * REMOTE_TILE_BYTES if has_peers else -1
        reducer = make_reducer(call.reduction.function, call.dtype)
        program = Program(as_words(self._rows), limits, reducer, None, TILE_BYTES, bounce)
        first, second = (buffer.address if buffer else 0 for buffer in (call.source, call.result))
        return [partial(program.execute, self._memories, first, second, at) for at in range(len(self._rows))]

    def _cut(self, group: Sequence[Reduce | Copy]) -> list[list[Reduce | Copy]]:
        """Return the group cut into tiles: all its instructions on the first tile, then on the next, and so on."""
        if not group:
            return []
        itemsize, count = self._space.itemsize, group[0].out.count
        reduces = any(isinstance(instruction, Reduce) for instruction in group)
        is_remote = any(self._is_remote(place) for instruction in group for place in instruction.ranges)
        nbytes = REMOTE_COPY_BYTES if is_remote else count * itemsize
        if reduces:
            nbytes = REMOTE_TILE_BYTES if is_remote else TILE_BYTES
        tile = max(nbytes // itemsize, 1)
        return [
            [_part(instruction, start, min(start + tile, count)) for instruction in group]
            for start in range(0, count, tile)
        ]

    def _is_remote(self, place: MemoryRange) -> bool:
        """Whether a range is in memory of another process."""
        return place.memory is not MemoryKind.SLOT and place.owner in self._remote

    def _locate(self, place: MemoryRange) -> tuple[int, int]:
        """Return the number of the memory that contains a range, and the offset there in bytes."""
        node, start, itemsize = self._node, self._space.start(place), self._space.itemsize
        if place.memory is MemoryKind.SLOT:
            owner = node.rank if place.owner == OWN else place.owner
            return FIRST_SHARED + node.ranks.index(owner), start * itemsize
        if place.owner != OWN:
            at = 2 * node.others.index(place.owner) + USER_MEMORY.index(place.memory)
            return FIRST_SHARED + len(node.ranks) + at, start * itemsize
        if place.memory is MemoryKind.LANDING:
            start += self._program.work
        return (SOURCE, RESULT, SCRATCH, SCRATCH)[place.memory], start * itemsize


def _part(instruction: Reduce | Copy, start: int, stop: int) -> Reduce | Copy:
    """Return an instruction on elements `start` to `stop` (exclusive) of its ranges."""
    return type(instruction)(*(place.part(start, stop) for place in instruction.ranges))
