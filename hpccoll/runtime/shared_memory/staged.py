"""Makes staged calls, which copy the chunks of a collective through slots, segment by segment.

A payload of a few bytes travels in the entry of the node barrier instead of a slot, in the cache line that the other
ranks read anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hpccoll.arrays import FlatArray, take_scratch
from hpccoll.errors import UsageError
from hpccoll.lowering import (
    OWN,
    USER_MEMORY,
    MemoryKind,
    MemoryRange,
    Segment,
    chunk_sizes,
    cut_chunks,
    list_sizes,
    make_find_start,
)
from hpccoll.lowering import Program as LoweredProgram
from hpccoll.lowering.native_rows import FIRST_SHARED, Locate, Row, claim_reads, make_locate, make_rows
from hpccoll.native import MemoryTable, Program, StagedCall
from hpccoll.plan import Plan
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.native_plan import make_program
from hpccoll.runtime.node_memory.node import NodeMemory, compute_fingerprint
from hpccoll.runtime.node_memory.node_barrier import ENTRY_PAYLOAD_AT, ENTRY_PAYLOAD_BYTES
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.plan_executable import PlanContext


def get_staged_call(context: PlanContext, call: CollectiveCall) -> StagedCall:
    """Return the native call (C code) that runs calls like `call` through slots (shared memory); made once per kind.

    Raises:
        UsageError: the data needs several segments, and half a slot has no room for one element of each chunk.
    """
    return context.get_native(("staged", call.plan_key), partial(_make_staged_call, context, call))


def _make_staged_call(context: PlanContext, call: CollectiveCall) -> StagedCall:
    """Return a new native call (C code) that runs calls like `call` through slots (shared memory)."""
    node, arguments = context.node, call.compared_arguments
    segments, in_entry = find_segments(node, context.plan(call), call)
    programs = [context.lower(call, list_sizes(segment), staged=True) for segment in segments]
    count = max(program.work + program.landing for program in programs)
    scratch = take_scratch(context.shared_scratch, call.module, call.dtype, count)
    return StagedCall(
        node.barrier,
        _make_program(context, call, programs, segments, ENTRY_PAYLOAD_BYTES if in_entry else node.slot_bytes),
        _make_tables(node, scratch, in_entry=in_entry),
        len(segments),
        in_entry,
        compute_fingerprint(arguments),
        *context.get_recorder_arguments(call),
        partial(node.raise_mismatch, arguments),
    )


def find_segments(node: NodeMemory, plan: Plan, call: CollectiveCall) -> tuple[list[Segment], bool]:
    """Return a staged run's segments, small enough for a slot, and whether the barrier's words have room for the data.

    The result is the same on all ranks.

    Raises:
        UsageError: the data needs several segments, and half a slot has no room for one element of each chunk.
    """
    sizes = chunk_sizes(plan, call.count)
    total = int(sizes.sum())
    in_entry = total * call.dtype.itemsize <= ENTRY_PAYLOAD_BYTES
    slot = node.slot_bytes // call.dtype.itemsize
    if in_entry or total <= slot:
        return cut_chunks(sizes, 1), in_entry
    if len(sizes) > slot // 2:
        raise UsageError(
            f"{plan.name} has {len(sizes)} chunks, but the {slot} elements of a slot have room for segments of "
            f"at most {slot // 2} chunks; use fewer chunks, such as '{plan.name}:{slot // 2}', or arrays of "
            "Communicator.empty"
        )
    return cut_chunks(sizes, -(-total // (slot - len(sizes)))), False  # chunks differ by at most one element in length


def _make_program(
    context: PlanContext,
    call: CollectiveCall,
    programs: list[LoweredProgram],
    segments: list[Segment],
    slot_bytes: int,
) -> Program:
    """Return the native program of all segments; its memories are those of `_make_tables`.

    Args:
        programs: the lowered program of each segment.
        slot_bytes: the size of a rank's slot.
    """
    node, itemsize = context.node, call.dtype.itemsize
    ranks = len(node.ranks)
    rows: list[Row] = []
    for number, (program, segment) in enumerate(zip(programs, segments, strict=True)):
        find_start = make_find_start(program.plan, call.count, segment, node.rank)
        locate = make_node_locate(node, program, itemsize, FIRST_SHARED + number % 2 * ranks, find_start)
        part = make_rows(program.instructions, locate, itemsize)[0]
        rows += claim_reads(part) if program.is_loaded_once else part
    scratch = max(program.work + program.landing for program in programs) * itemsize
    return make_program(context, call, rows, scratch, [slot_bytes] * (2 * ranks), divides=True)


def make_node_locate(
    node: NodeMemory,
    program: LoweredProgram,
    itemsize: int,
    first_slot: int,
    find_start: Callable[[MemoryRange], int] | None = None,
) -> Locate:
    """Return a function that maps a memory range to its memory's number and its byte offset, as `make_locate` does.

    Args:
        first_slot: the number of the slot of the node's first rank. The slots, inputs and outputs of the other ranks
            have the numbers that follow `first_slot`.
        find_start: finds ranges of the segment on which the program works; None for whole chunks.
    """

    def find_shared(place: MemoryRange) -> int:
        """Return the number of the memory that contains a range: a slot, or another rank's input or output."""
        if place.memory is MemoryKind.SLOT:
            return first_slot + node.ranks.index(node.rank if place.owner == OWN else place.owner)
        return first_slot + len(node.ranks) + 2 * node.others.index(place.owner) + USER_MEMORY.index(place.memory)

    return make_locate(program.work, itemsize, find_shared, find_start)


def _make_tables(node: NodeMemory, scratch: FlatArray, *, in_entry: bool) -> tuple[MemoryTable, MemoryTable]:
    """Return a pair of tables of memory addresses: for staged runs that begin with slot 0, and with slot 1.

    If `in_entry`, entries of the node barrier take the place of the slots.
    """
    slots = [[get_address(slot[rank]) for rank in node.ranks] for slot in node.slots]
    if in_entry:
        slots = [[get_address(line) + at for line in node.barrier_lines] for at in ENTRY_PAYLOAD_AT]
    keep = scratch, node.slots, node.barrier_lines
    memories = 0, 0, get_address(scratch)
    first, second = slots
    return MemoryTable([*memories, *first, *second], [], keep), MemoryTable([*memories, *second, *first], [], keep)
