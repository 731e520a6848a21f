"""Lowers one rank's rounds of a plan to a program of receives, sends, waits, reduces, copies and fences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpccoll.lowering.chunk_locations import ChunkLocations
from hpccoll.lowering.message_lowering import MessageLowering, get_own_chunks, get_own_move, get_own_value
from hpccoll.lowering.program import Instruction, Program
from hpccoll.lowering.shared_memory_lowering import SharedMemoryLowering
from hpccoll.plan import NO_PEER, Count, IntArray, Load, Move, Operation, Plan, Step


def lower_plan(
    plan: Plan,
    rank: int,
    count: Count,
    itemsize: int,
    in_place: bool,
    *,
    on_device: bool = False,
    staged: bool = False,
    sizes: IntArray | None = None,
) -> Program:
    """Return the program of `rank`: the instructions of all rounds in order.

    Args:
        plan: a plan that `check` accepts. The program of a plan that `check` rejects may hang or compute a wrong
            result.
        count: number of elements of the vector, or of one block in an operation with a block per rank; if blocks
            differ in size, the number of elements of each block.
        itemsize: bytes per element.
        in_place: whether input and output share memory for the chunks that are in both.
        on_device: whether the buffers are device memory, which the cores of other ranks do not cache.
        staged: whether ranks load and store each other's chunks in shared-memory slots instead of the users' arrays.
        sizes: number of elements of each chunk if the program runs on a segment of each chunk; None for whole chunks.
    """
    column, separate = plan.column(rank), sizes is not None
    rounds = list(column)
    sizes = plan.operation.chunk_sizes(count, plan.ranks, column.chunks) if sizes is None else sizes
    instructions: list[Instruction] = []
    are_moves = [isinstance(step, Move) for steps in rounds for step in steps]
    node = None if all(are_moves) else SharedMemoryLowering(plan, rank, sizes, staged, in_place, instructions)
    used, in_slot = _find_used_chunks(rounds, len(sizes)), node.find_slot_chunks(rank) if node else None
    locations = ChunkLocations(plan, rank, sizes, used, in_place, in_slot, separate)
    signals = plan.operation is Operation.BARRIER
    messages = MessageLowering(rank, itemsize, on_device, signals, locations, instructions) if any(are_moves) else None
    starts = _lower_rounds(rounds, messages, node, locations, instructions)
    accessed = node.find_accessed_memories() if node else frozenset()
    scratch = locations.work, locations.landing
    once = node is not None and node.loads_once()
    return Program(tuple(instructions), *scratch, plan, locations.slot, accessed, starts, once)


def _lower_rounds(
    rounds: Sequence[Sequence[Step]],
    messages: MessageLowering | None,
    node: SharedMemoryLowering | None,
    locations: ChunkLocations,
    instructions: list[Instruction],
) -> tuple[int, ...]:
    """Append the instructions of all rounds, then copies of output chunks that are not yet in the user's output.

    Returns the number of the first instruction of each round.
    """
    starts = []
    if node is not None:
        node.begin(locations)
    for t, steps in enumerate(rounds):
        starts.append(len(instructions))
        if node is None or not node.deferred:
            locations.reset_scratch()
        if messages is not None:
            messages.lower_round([get_own_move(step) for step in steps if isinstance(step, Move)])
        if node is not None:
            node.lower_round(t, [step for step in steps if not isinstance(step, Move)])
    missing = locations.find_missing_outputs()
    locations.move_homes_to_result(missing)
    instructions += locations.move_home(missing)
    return tuple(starts)


def _find_used_chunks(rounds: Sequence[Sequence[Step]], chunks: int) -> NDArray[np.bool_]:
    """Return a mask over all chunks: which of them this rank holds at any time."""
    used = np.zeros(chunks, np.bool_)
    for steps in rounds:
        for step in steps:
            if isinstance(step, Move):
                move = get_own_move(step)
                used[move.sent] = used[move.received] = True
            elif isinstance(step, Load) and get_own_value(step.source) != NO_PEER:
                used[get_own_chunks(step.local)] = True
    return used
