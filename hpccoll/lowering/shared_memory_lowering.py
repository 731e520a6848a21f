"""Lowers rounds of loads, stores and fences to instructions on the memory that the ranks of a node share.

A rank accesses another rank's chunks in one of two ways. In direct access, a rank loads from and stores to the other
ranks' input and output arrays. In staged access, a rank copies the chunks that other ranks access to its slot (a buffer
in memory that the node's ranks share) before the first fence, and from the slot to its output after the last fence.

The result of a load must not become visible to other ranks before the next fence. If other ranks still load from the
memory where a result is to be stored, the result goes to scratch and is copied to that memory after the next fence. If
no rank accesses a chunk again, results for the chunk go to the output at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hpccoll.lowering.chunk_locations import ChunkLocations, align_ranges, make_copies
from hpccoll.lowering.message_lowering import get_own_chunks, get_own_value
from hpccoll.lowering.program import Instruction, MemoryKind, MemoryRange, NodeFence, Reduce
from hpccoll.lowering.remote_accesses import RemoteAccesses
from hpccoll.plan import NO_CHUNK, NO_PEER, Fence, IntArray, Load, Op, Operation, Plan, Step, Store

Operand = tuple[int, list[MemoryRange]]  # how the operand is combined (`Op`), and its ranges


class SharedMemoryLowering:
    """Turns one rank's loads and stores (accesses to other ranks' memory) and fences (barriers) into instructions.

    Works round by round, and appends to `instructions`.

    Args:
        sizes: each chunk's number of elements, as an array.
        staged: whether ranks access each other's chunks in the node's shared memory instead of the users' arrays.
        in_place: whether this rank's input and output share memory.
    """

    def __init__(
        self, plan: Plan, rank: int, sizes: IntArray, staged: bool, in_place: bool, instructions: list[Instruction]
    ) -> None:
        self._plan, self._rank, self._sizes, self._staged, self._in_place = plan, rank, sizes, staged, in_place
        self._instructions, self._accesses = instructions, RemoteAccesses(plan)
        self._is_barrier = plan.operation is Operation.BARRIER
        self.deferred: list[tuple[list[MemoryRange], IntArray]] = []  # results in scratch, copied after the next fence
        self._others: dict[int, ChunkLocations] = {}

    def find_slot_chunks(self, rank: int) -> NDArray[np.bool_]:
        """Return a mask over all chunks: which of them a rank keeps in its slot (in the node's shared memory)."""
        accessed = self._accesses.accessed[rank]
        return np.asarray(accessed if self._staged else accessed & ~self._output_mask(rank))

    def find_accessed_memories(self) -> frozenset[MemoryKind]:
        """Return the set of this rank's memories, SOURCE (input) or RESULT (output), that others access in place."""
        accesses, rank, full = self._accesses, self._rank, self._sizes > 0
        loads_source = (accesses.loaded_before_write[rank] & full).any()
        in_result = (accesses.stored[rank] | accesses.loaded_after_write[rank]) & self._output_mask(rank) & full
        memories = ((MemoryKind.SOURCE, loads_source), (MemoryKind.RESULT, in_result.any()))
        return frozenset(memory for memory, is_accessed in memories if is_accessed)

    def loads_once(self) -> bool:
        """Return whether each chunk of a rank is loaded by at most one other rank, and only once."""
        return bool((self._accesses.loads <= 1).all())

    def _output_mask(self, rank: int) -> NDArray[np.bool_]:
        """Return a mask over all chunks: which of them belong to a rank's output."""
        plan = self._plan
        masks = plan.operation.output_mask(np.array([rank]), plan.ranks, len(self._sizes), plan.root)
        return np.asarray(masks[0])

    def begin(self, locations: ChunkLocations) -> None:
        """Start lowering with the memory locations of this rank's chunks; if staged, append copies to shared memory.

        The copied chunks are those that another rank loads before any rank has written them.
        """
        self._locations = locations
        if self._staged:
            chunks = np.nonzero(self._accesses.loaded_before_write[self._rank])[0]
            slots = locations.ranges_in(MemoryKind.SLOT, chunks)
            self._instructions += make_copies(locations.current_ranges(chunks), slots)
            locations.mark_at_home(chunks)

    def lower_round(self, t: int, steps: Sequence[Step]) -> None:
        """Append the instructions of this rank's steps of round `t`, and record the chunks that all ranks write."""
        if any(isinstance(step, Fence) and get_own_value(step.leader) != NO_PEER for step in steps):
            self._lower_fence(t)
        operands: dict[tuple[int, ...], list[Operand]] = {}
        for step in steps:
            if isinstance(step, Load) and (source := get_own_value(step.source)) != NO_PEER:
                ranges = self._find_operand(source, get_own_chunks(step.remote))
                key = tuple(get_own_chunks(step.local).tolist())
                operands.setdefault(key, []).append((get_own_value(step.op), ranges))
            elif isinstance(step, Store) and (dest := get_own_value(step.dest)) != NO_PEER:
                out = self._find_store_target(dest, get_own_chunks(step.remote))
                self._instructions += make_copies(self._locations.current_ranges(get_own_chunks(step.local)), out)
        for chunks, loaded in operands.items():
            self._combine(t, np.array(chunks, np.int64), loaded)
        for step in self._accesses.rounds[t]:
            if isinstance(step, Store):
                ids = step.remote.ids(self._plan.ranks)[step.dest == self._rank]
                self._locations.mark_at_home(ids[ids != NO_CHUNK])
        self._accesses.record_writes(t)

    def _lower_fence(self, t: int) -> None:
        """Append a fence, then copies of the deferred results from scratch to the chunks that they belong to.

        A last fence that only waits for readers of slots is left out, because each rank uses two slots (shared buffers)
        in turn. The last fence of the operation `barrier` is kept.
        """
        is_last = t == len(self._accesses.rounds) - 1
        if self._staged and is_last and not self._is_barrier and not self._accesses.has_late_stores():
            return
        self._instructions.append(NodeFence())
        for staged, chunks in self.deferred:
            self._instructions += make_copies(staged, self._locations.home_ranges(chunks))
            self._locations.mark_at_home(chunks)
        self.deferred.clear()
        if self._accesses.needs_second_fence(t):
            self._instructions.append(NodeFence())  # other ranks access the copied results after this fence

    def _find_operand(self, rank: int, chunks: IntArray) -> list[MemoryRange]:
        """Return the ranges that hold a rank's chunks now."""
        if rank == self._rank:
            return self._locations.current_ranges(chunks)
        other = self._get_locations(rank)
        written = self._accesses.written[rank, chunks]
        unwritten_memory = MemoryKind.SLOT if self._staged else MemoryKind.SOURCE
        memory = np.where(written, other.get_home_memories(chunks), unwritten_memory)
        return [replace(part, owner=rank) for part in other.merge_ranges(chunks, memory)]

    def _find_store_target(self, rank: int, chunks: IntArray) -> list[MemoryRange]:
        """Return the memory ranges that a store to `chunks` of `rank` writes."""
        if rank == self._rank:
            return self._locations.home_ranges(chunks)
        return [replace(part, owner=rank) for part in self._get_locations(rank).home_ranges(chunks)]

    def _get_locations(self, rank: int) -> ChunkLocations:
        """Return the locations of another rank's chunks at the start of the plan."""
        if rank not in self._others:
            unused, separate = np.zeros(len(self._sizes), np.bool_), self._locations.separate
            self._others[rank] = ChunkLocations(
                self._plan, rank, self._sizes, unused, False, self.find_slot_chunks(rank), separate
            )
        return self._others[rank]

    def _combine(self, t: int, chunks: IntArray, operands: list[Operand]) -> None:
        """Combine operands that are loaded in round `t`, in order, with the chunks' values; store the result there.

        The result goes to scratch first if a later operand is in the chunks' memory or other ranks still load from
        this memory.
        """
        current = self._locations.current_ranges(chunks)
        if self._staged:
            self._locations.move_homes_to_result(chunks[self._accesses.last[self._rank, chunks] <= t])
        home = target = self._locations.home_ranges(chunks)
        is_still_loaded = self._accesses.loaded_between_fences(t, self._rank)[chunks].any() and any(
            part.overlaps(out) for part in self._find_loaded_by_others(chunks) for out in home
        )
        later = [part for _, ranges in operands[1:] for part in ranges]
        if is_still_loaded or any(part.overlaps(out) for part in later for out in home):
            target = [self._locations.take_scratch(sum(part.count for part in home))] if home else []
        accumulated: list[MemoryRange] | None = None
        for op, ranges in operands:
            if op == Op.COPY:
                accumulated = ranges
                continue
            own = accumulated or current
            left, right = (own, ranges) if op == Op.OWN_FIRST else (ranges, own)
            self._instructions.extend(Reduce(*sides) for sides in align_ranges(left, right, target))
            accumulated = target
        if accumulated is not None and accumulated is not target:
            self._instructions += make_copies(accumulated, target)
        if is_still_loaded:
            self.deferred.append((target, chunks))
            return
        if target is not home:
            self._instructions += make_copies(target, home)
        self._locations.mark_at_home(chunks)

    def _find_loaded_by_others(self, chunks: IntArray) -> list[MemoryRange]:
        """Return the memory ranges from which other ranks now load `chunks` of this rank."""
        if self._staged:
            return self._locations.ranges_in(MemoryKind.SLOT, chunks)
        written = self._accesses.written[self._rank, chunks]
        unwritten_memory = MemoryKind.RESULT if self._in_place else MemoryKind.SOURCE
        return [
            *self._locations.ranges_in(MemoryKind.RESULT, chunks[written]),
            *self._locations.ranges_in(unwritten_memory, chunks[~written]),
        ]
