"""Makes the staged call of a kind of collectives, which copies chunks through slots, segment by segment.

A payload of a few bytes travels in the entry of the node barrier instead of a slot, in the cache line that the other
ranks read anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.native import MemoryTable, Program
from hpccoll.runtime.address_space import USER_MEMORY, AddressSpace, ChunkSegment, chunk_sizes, cut_chunks
from hpccoll.runtime.arrays import FlatArray
from hpccoll.runtime.arrays.host_reducers import make_reducer
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.instructions import (
    FIRST_SHARED,
    RESULT,
    SCRATCH,
    SOURCE,
    TILE_BYTES,
    Locate,
    Row,
    as_words,
    divide_row,
    make_rows,
)
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange
from hpccoll.runtime.lowering import Program as LoweredProgram
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.node_memory.node_barrier import ENTRY_PAYLOAD_AT, ENTRY_PAYLOAD_BYTES
from hpccoll.runtime.shared_memory.access import local_instructions

_NUMBERS = {MemoryKind.SOURCE: SOURCE, MemoryKind.RESULT: RESULT, MemoryKind.WORK: SCRATCH, MemoryKind.LANDING: SCRATCH}


def find_segments(node: NodeMemory, program: LoweredProgram, call: CollectiveCall) -> tuple[list[ChunkSegment], bool]:
    """Return the segments of a staged run, each of which fits into a slot, and whether entries have room for the data.

    The result is the same on all ranks.

    Raises:
        UsageError: the data needs several segments, and half a slot has no room for one element of each chunk.
    """
    sizes = chunk_sizes(program.plan, call.count)
    total = int(sizes.sum())
    in_entry = total * call.dtype.itemsize <= ENTRY_PAYLOAD_BYTES
    slot = node.slot_bytes // call.dtype.itemsize
    if in_entry or total <= slot:
        return cut_chunks(sizes, 1), in_entry
    if len(sizes) > slot // 2:
        raise UsageError(
            f"{program.plan.name} has {len(sizes)} chunks, but the {slot} elements of a slot have room for segments of "
            f"at most {slot // 2} chunks; use fewer chunks, such as '{program.plan.name}:{slot // 2}', or arrays of "
            "Communicator.empty"
        )
    return cut_chunks(sizes, -(-total // (slot - len(sizes)))), False  # chunks differ by at most one element in length


def make_staged_program(
    call: CollectiveCall,
    node: NodeMemory,
    programs: Sequence[LoweredProgram],
    segments: Sequence[ChunkSegment],
    slot_bytes: int,
    divisor: int = 1,
) -> Program:
    """Return the native program of all segments; its memories are those of `make_tables`.

    Args:
        programs: the lowered program of each segment.
        slot_bytes: the size of a rank's slot.
        divisor: a number by which the result is divided in the end.
    """
    itemsize, ranks = call.dtype.itemsize, len(node.ranks)
    rows: list[Row] = []
    for number, (program, segment) in enumerate(zip(programs, segments, strict=True)):
        space = AddressSpace(call, program, np.empty(0, call.dtype.numpy), segment=segment, rank=node.rank)
        locate = make_locate(space, program, node, FIRST_SHARED + number % 2 * ranks)
        rows += make_rows(local_instructions(program), locate, itemsize)[0]
    source, result = (buffer.nbytes if buffer else 0 for buffer in (call.source, call.result))
    if divisor > 1 and result:
        rows.append(divide_row(result))
    scratch = max(program.work + program.landing for program in programs) * itemsize
    limits = np.array([source, result, scratch, *[slot_bytes] * (2 * ranks)], np.int64)
    divider = make_reducer("divide", call.dtype, divisor) if divisor > 1 else None
    return Program(as_words(rows), limits, make_reducer(call.reduction.function, call.dtype), divider, TILE_BYTES)


def make_locate(space: AddressSpace, program: LoweredProgram, node: NodeMemory, first_slot: int) -> Locate:
    """Return the function that finds ranges in a program's memories; number `first_slot` is the slot of row 0.

    The inputs and outputs of the other ranks follow the slots.
    """
    itemsize, work = space.itemsize, program.work

    def locate(place: MemoryRange) -> tuple[int, int]:
        """Return the number of the memory that contains a range, and the offset there in bytes."""
        start = space.start(place)
        if place.memory is MemoryKind.SLOT:
            owner = node.rank if place.owner == OWN else place.owner
            return first_slot + node.ranks.index(owner), start * itemsize
        if place.owner != OWN:
            at = 2 * node.others.index(place.owner) + USER_MEMORY.index(place.memory)
            return first_slot + len(node.ranks) + at, start * itemsize
        return _NUMBERS[place.memory], (start + work * (place.memory is MemoryKind.LANDING)) * itemsize

    return locate


def make_tables(node: NodeMemory, scratch: FlatArray, *, in_entry: bool) -> tuple[MemoryTable, MemoryTable]:
    """Return the memories of staged runs that begin with slot 0 and slot 1, or with entry 0 and entry 1."""
    address = scratch.__array_interface__["data"][0]
    slots = [[get_address(slot.memory[rank]) for rank in node.ranks] for slot in node.slots]
    if in_entry:
        slots = [[get_address(line) + at for line in node.barrier_lines] for at in ENTRY_PAYLOAD_AT]
    first, second = slots
    keep = scratch, node.slots, node.barrier_lines
    return (
        MemoryTable([0, 0, address, *first, *second], [], keep),
        MemoryTable([0, 0, address, *second, *first], [], keep),
    )


def get_address(array: FlatArray) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])
