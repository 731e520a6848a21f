"""Finds out whether other ranks can access a rank's buffers in place, and where other ranks' buffers are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import inf
from typing import Any

import numpy as np

from hpccoll.lowering import USER_MEMORY, LocalInstruction, MemoryKind, Program, Reduce, chunk_sizes
from hpccoll.native import Peers
from hpccoll.plan import Operation
from hpccoll.runtime.address_space import AddressSpace
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.node_memory.file_memory import is_in_file
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.node_memory.symmetric import is_token
from hpccoll.runtime.plan_executable import PlanContext

# Times of staged runs, and of runs by cross-memory attach (CMA):
# - all_reduce on 2 ranks of an EPYC, 1, 16 and 64 MiB: 45, 1000 and 5500 us staged, 95, 1400 and 5500 us by CMA;
# - all_gather on 2 ranks of an EPYC, 4 and 16 MiB: 304 and 1500 us staged, 316 and 1000 us by CMA;
# - all_reduce on 4 ranks of 2 cores, 2, 4, 16 and 64 MiB: 0.9, 1.8, 5.7 and 22 ms staged, 1.7, 2.7, 6.3 and 24 ms by
#   CMA; beside other programs, 4 MiB of new arrays take 13 ms staged and 10 ms by CMA;
# - reduce_scatter on 4 ranks of 2 cores, 4 and 64 MiB: 1.7 and 22 ms staged, 1.3 and 19 ms by CMA.
# Where ranks outnumber cores, ranks wait for a core at each fence of a staged run.
LEAST_REMOTE_BYTES = 256 * 2**10  # of cross-memory attach in two-level plans, and of copies where ranks share cores
LEAST_REMOTE_REDUCTION_BYTES = 4 * 2**20  # of reduce and reduce_scatter, where ranks outnumber cores
SHORT_BYTES = 16 * 2**10  # buffers below this size gain nothing from access in place
LEAST_REMOTE_COPY_BYTES = 8 * 2**20  # of plans that reduce nothing, where every rank has a core


def local_instructions(program: Program) -> list[LocalInstruction]:
    """Return all instructions of a plan of loads and stores: reduces, copies and fences."""
    return [step for step in program.instructions if isinstance(step, LocalInstruction)]


def can_access_in_place(context: PlanContext, call: CollectiveCall) -> bool:
    """Whether all buffers of this rank that other ranks access in the plan of `call` can be accessed in place.

    A rank whose buffers no other rank accesses can run in place or staged, but must choose before it knows the choices
    of the other ranks. A rank with short buffers on the host chooses to run staged, unless one of the buffers is
    symmetric.
    """
    node, locate = context.node, context.node.symmetric.locate
    buffers = [
        (kind, buffer)
        for kind, buffer in zip(USER_MEMORY, (call.source, call.result), strict=True)
        if buffer is not None and buffer.nbytes
    ]
    is_short = not call.module.on_device and all(buffer.nbytes < SHORT_BYTES for _, buffer in buffers)
    if is_short and not any(is_token(locate(buffer)) for _, buffer in buffers):
        return False
    program = context.lower(call)
    if program.uses_slots:  # these chunks are in no user's memory
        return False
    accessed = [buffer for kind, buffer in buffers if kind in program.accessed]
    for buffer in accessed:
        location = locate(buffer)
        if is_token(location) and not (is_in_file(location) and node.readable is None):
            continue
        if node.readable is None or call.module.on_device or buffer.nbytes < find_least_remote_bytes(node, program):
            return False
    return True


def find_least_remote_bytes(node: NodeMemory, program: Program) -> float:
    """Return the least size of buffers, in bytes, for which cross-memory attach is faster than slots; inf if none."""
    if not node.slots:
        return LEAST_REMOTE_BYTES
    reduces = any(isinstance(instruction, Reduce) for instruction in program.instructions)
    if node.oversubscribed and program.plan.operation is not Operation.ALL_REDUCE:
        return LEAST_REMOTE_REDUCTION_BYTES if reduces else LEAST_REMOTE_BYTES
    return inf if reduces else LEAST_REMOTE_COPY_BYTES


def find_peer_buffers(node: NodeMemory, locations: Sequence[int]) -> Iterator[tuple[int, MemoryKind, Any, int]]:
    """Yield rank, kind, mapped memory and offset of each input and output of the node's other ranks.

    The memory is None if another process owns it; the offset is then the address. `locations` lists the locations of
    the input and the output of each other rank. May map memfds of other ranks, but does not communicate.

    Raises:
        UsageError: a location is in a symmetric buffer that was freed on this rank.
    """
    for (rank, kind), location in zip(product(node.others, USER_MEMORY), locations, strict=True):
        yield (rank, kind, *(node.resolve(rank, location) if is_token(location) else (None, location)))


def locate_peers(node: NodeMemory, locations: Sequence[int]) -> tuple[list[int], list[int], list[Any]]:
    """Return three lists: addresses and owners of other ranks' inputs and outputs, and objects that keep them mapped.

    An owner is the id of the process in which the address is valid; 0 means this process.
    """
    addresses, processes, keep = [], [], []
    for rank, _, memory, offset in find_peer_buffers(node, locations):
        if memory is None:
            addresses.append(offset)
            processes.append(node.readable[rank] if node.readable is not None else 0)
        else:
            addresses.append(int(memory.__array_interface__["data"][0]) + offset)
            processes.append(0)
            keep.append(memory)
    return addresses, processes, keep


def get_peers(context: PlanContext, barrier: str) -> Peers:
    """Return the extension's object that finds other ranks' buffers when they enter a barrier; made once per barrier.

    `barrier` is the name of the barrier, `node` or `pipeline`.
    """
    node = context.node
    processes = [node.readable[rank] if node.readable is not None else 0 for rank in node.others for _ in USER_MEMORY]
    return context.get_native(("peers", barrier), lambda: Peers(processes, partial(locate_peers, node)))


def list_peer_bytes(context: PlanContext, call: CollectiveCall) -> list[int]:
    """Return a list of sizes in bytes: of the input and the output of each other rank of the node, in rank order."""
    plan, others = context.plan(call), np.array(context.node.others, np.int64)
    sizes = chunk_sizes(plan, call.count)
    masks = plan.operation.input_mask, plan.operation.output_mask
    counts = [mask(others, plan.ranks, len(sizes), plan.root) @ sizes for mask in masks]
    return [int(nbytes) for nbytes in np.stack(counts, axis=1).ravel() * call.dtype.itemsize]


def add_peer_buffers(space: AddressSpace, node: NodeMemory, locations: Sequence[int]) -> None:
    """Record in `space` where the other ranks' inputs and outputs in symmetric device memory are."""
    for rank, kind, memory, offset in find_peer_buffers(node, locations):
        space.add_peer(kind, rank, offset if memory is None else memory.address + offset)
