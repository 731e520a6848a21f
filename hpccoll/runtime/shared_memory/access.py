"""Access to the buffers of other ranks in place: whether all ranks can have it, and where the buffers are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import inf
from typing import Any

import numpy as np

from hpccoll.native import Peers
from hpccoll.runtime.address_space import USER_MEMORY, AddressSpace, chunk_sizes
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.lowering import LocalInstruction, MemoryKind, Program, Reduce
from hpccoll.runtime.node_memory.file_memory import is_in_file
from hpccoll.runtime.node_memory.node import NodeMemory
from hpccoll.runtime.node_memory.symmetric import is_token
from hpccoll.runtime.plan_executable import Context, PlanKind

# Times of staged runs, and of runs by cross-memory attach (CMA):
# - all_reduce on 2 ranks of an EPYC, 1, 16 and 64 MiB: 45, 1000 and 5500 us staged, 95, 1400 and 5500 us by CMA;
# - all_gather on 2 ranks of an EPYC, 4 and 16 MiB: 304 and 1500 us staged, 316 and 1000 us by CMA;
# - all_reduce of new arrays on 4 ranks of 2 busy cores, 1 and 4 MiB: 2.0 and 13 ms staged, 3.8 and 10 ms by CMA.
# Where ranks outnumber cores, a long staged run takes more time, because ranks wait for a core at each of its fences.
LEAST_REMOTE_BYTES = 256 * 2**10  # of cross-memory attach in two-level plans, and of copies where ranks share cores
LEAST_REMOTE_REDUCTION_BYTES = 4 * 2**20  # of plans that reduce, where ranks outnumber cores; elsewhere they are staged
SHORT_BYTES = 16 * 2**10  # buffers below this size gain nothing from access in place
LEAST_REMOTE_COPY_BYTES = 8 * 2**20  # of plans that reduce nothing, where every rank has a core


def local_instructions(program: Program) -> list[LocalInstruction]:
    """Return all instructions of a plan of loads and stores: reduces, copies and fences."""
    return [step for step in program.instructions if isinstance(step, LocalInstruction)]


def can_access_in_place(node: NodeMemory, program: Program, call: CollectiveCall) -> bool:
    """Whether all buffers of this rank that other ranks access in the program can be accessed in place.

    A rank whose buffers no other rank accesses can run either way, but chooses before it knows what others choose.
    A rank with short buffers on the host chooses to run staged, unless one of the buffers is symmetric.
    """
    if program.uses_slots:  # these chunks are in no user's memory
        return False
    buffers = [
        (kind, buffer)
        for kind, buffer in zip(USER_MEMORY, (call.source, call.result), strict=True)
        if buffer is not None and buffer.nbytes
    ]
    accessed = [buffer for kind, buffer in buffers if kind in program.accessed]
    if not accessed and not call.module.on_device and all(buffer.nbytes < SHORT_BYTES for _, buffer in buffers):
        return any(is_token(node.symmetric.locate(buffer)) for _, buffer in buffers)
    for buffer in accessed:
        location = node.symmetric.locate(buffer)
        if is_token(location) and not (is_in_file(location) and node.readable is None):
            continue
        if node.readable is None or call.module.on_device or buffer.nbytes < find_least_remote_bytes(node, program):
            return False
    return True


def find_least_remote_bytes(node: NodeMemory, program: Program) -> float:
    """Return the size of the smallest buffers of a program for which cross-memory attach costs less than slots."""
    if not node.slots:
        return LEAST_REMOTE_BYTES
    reduces = any(isinstance(instruction, Reduce) for instruction in program.instructions)
    if node.oversubscribed:
        return LEAST_REMOTE_REDUCTION_BYTES if reduces else LEAST_REMOTE_BYTES
    return inf if reduces else LEAST_REMOTE_COPY_BYTES


def find_peer_buffers(node: NodeMemory, locations: Sequence[int]) -> Iterator[tuple[int, MemoryKind, Any, int]]:
    """Yield rank, kind, mapped memory and offset of each input and output of the node's other ranks.

    The memory is None if another process owns it; the offset is then the address. `locations` has two numbers per rank.
    Maps memfds and does not communicate.

    Raises:
        UsageError: a location is in a symmetric buffer that was freed on this rank.
    """
    for (rank, kind), location in zip(product(node.others, USER_MEMORY), locations, strict=True):
        yield (rank, kind, *(node.resolve(rank, location) if is_token(location) else (None, location)))


def locate_peers(node: NodeMemory, locations: Sequence[int]) -> tuple[list[int], list[int], list[Any]]:
    """Return addresses and owners of the node's other ranks' inputs and outputs, and objects that keep mappings alive.

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


def get_peers(context: Context, barrier: str) -> Peers:
    """Return the native object that finds the other ranks' buffers when they enter a barrier; made once.

    `barrier` is the name of the barrier, `node` or `pipeline`.
    """
    node = context.node
    processes = [node.readable[rank] if node.readable is not None else 0 for rank in node.others for _ in USER_MEMORY]
    return context.get_native(("peers", barrier), lambda: Peers(processes, partial(locate_peers, node)))


def list_peer_bytes(kind: PlanKind) -> list[int]:
    """Return the bytes of input and output of each other rank of the node."""
    plan, others, itemsize = kind.lower().plan, np.array(kind.context.node.others, np.int64), kind.call.dtype.itemsize
    sizes = chunk_sizes(plan, kind.call.count)
    masks = plan.operation.input_mask, plan.operation.output_mask
    counts = [mask(others, plan.ranks, len(sizes), plan.root) @ sizes for mask in masks]
    return [int(nbytes) for nbytes in np.stack(counts, axis=1).ravel() * itemsize]


def add_peer_buffers(space: AddressSpace, node: NodeMemory, locations: Sequence[int]) -> None:
    """Record in `space` where the other ranks' inputs and outputs in symmetric device memory are."""
    for rank, kind, memory, offset in find_peer_buffers(node, locations):
        space.add_peer(kind, rank, offset if memory is None else memory.address + offset)
