"""Makes the staged call of a kind of collectives, which copies chunks through slots, segment by segment.

A payload of a few bytes travels in the entry of the node barrier instead of a slot, in the cache line that the other
ranks read anyway.
"""

from __future__ import annotations

from functools import partial

from hpccoll.errors import UsageError
from hpccoll.native import MemoryTable, Program, StagedCall
from hpccoll.runtime.address_space import USER_MEMORY, ChunkSegment, SegmentOffsets, chunk_sizes, cut_chunks
from hpccoll.runtime.arrays import FlatArray
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.instructions import FIRST_SHARED, Locate, Row, claim_reads, make_locate, make_rows
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange
from hpccoll.runtime.lowering import Program as LoweredProgram
from hpccoll.runtime.native_plan import make_program
from hpccoll.runtime.node_memory.node import NodeMemory, compute_fingerprint
from hpccoll.runtime.node_memory.node_barrier import ENTRY_PAYLOAD_AT, ENTRY_PAYLOAD_BYTES
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.plan_executable import PlanKind


def get_staged_call(kind: PlanKind) -> StagedCall:
    """Return the native call for calls of a kind through the slots; made once per kind.

    Raises:
        UsageError: see `find_segments`.
    """
    return kind.context.get_native(kind.make_key("staged"), partial(_make_staged_call, kind))


def _make_staged_call(kind: PlanKind) -> StagedCall:
    """Make the native call for calls of a kind through the slots."""
    node, call, arguments = kind.context.node, kind.call, kind.get_compared_arguments()
    segments, in_entry = find_segments(node, kind.lower(), call)
    programs = [kind.lower(segment.sizes, staged=True) for segment in segments]
    count = max(program.work + program.landing for program in programs)
    scratch = kind.context.shared_scratch.take(call.module, call.dtype, count)
    return StagedCall(
        node.barrier,
        _make_program(kind, programs, segments, ENTRY_PAYLOAD_BYTES if in_entry else node.slot_bytes),
        _make_tables(node, scratch, in_entry=in_entry),
        len(segments),
        in_entry,
        compute_fingerprint(arguments),
        *kind.get_entry(),
        partial(node.raise_mismatch, arguments),
    )


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


def _make_program(
    kind: PlanKind, programs: list[LoweredProgram], segments: list[ChunkSegment], slot_bytes: int
) -> Program:
    """Return the native program of all segments; its memories are those of `_make_tables`.

    Args:
        programs: the lowered program of each segment.
        slot_bytes: the size of a rank's slot.
    """
    call, node, itemsize = kind.call, kind.context.node, kind.call.dtype.itemsize
    ranks = len(node.ranks)
    rows: list[Row] = []
    for number, (program, segment) in enumerate(zip(programs, segments, strict=True)):
        offsets = SegmentOffsets(program.plan, call.count, segment, node.rank)
        locate = make_node_locate(node, program, itemsize, FIRST_SHARED + number % 2 * ranks, offsets)
        part = make_rows(program.instructions, locate, itemsize)[0]
        rows += claim_reads(part) if program.is_loaded_once else part
    scratch = max(program.work + program.landing for program in programs) * itemsize
    return make_program(kind, rows, scratch, [slot_bytes] * (2 * ranks), divides=True)


def make_node_locate(
    node: NodeMemory, program: LoweredProgram, itemsize: int, first_slot: int, offsets: SegmentOffsets | None = None
) -> Locate:
    """Return the function that finds ranges in a program's memories, as `make_locate` does.

    Args:
        first_slot: the number of the slot of the node's first rank. The slots of the other ranks, and the inputs and
            outputs of the other ranks, have the next numbers.
        offsets: the segment on which the program works; None for whole chunks.
    """

    def find_shared(place: MemoryRange) -> int:
        """Return the number of a slot, or of another rank's input or output."""
        if place.memory is MemoryKind.SLOT:
            return first_slot + node.ranks.index(node.rank if place.owner == OWN else place.owner)
        return first_slot + len(node.ranks) + 2 * node.others.index(place.owner) + USER_MEMORY.index(place.memory)

    return make_locate(program.work, itemsize, find_shared, None if offsets is None else offsets.find_start)


def _make_tables(node: NodeMemory, scratch: FlatArray, *, in_entry: bool) -> tuple[MemoryTable, MemoryTable]:
    """Return the memories of staged runs that begin with slot 0 and slot 1, or with entry 0 and entry 1."""
    slots = [[get_address(slot[rank]) for rank in node.ranks] for slot in node.slots]
    if in_entry:
        slots = [[get_address(line) + at for line in node.barrier_lines] for at in ENTRY_PAYLOAD_AT]
    keep = scratch, node.slots, node.barrier_lines
    memories = 0, 0, get_address(scratch)
    first, second = slots
    return MemoryTable([*memories, *first, *second], [], keep), MemoryTable([*memories, *second, *first], [], keep)
