"""Collectives of loads, stores and fences in the host memory of one node, bound to buffers.

In a direct run, ranks access each other's buffers in place. A direct run needs buffers that are symmetric, or large and
accessible by cross-memory attach. At the start of a direct run, the ranks exchange the locations of their buffers, and
bind again if a location has changed. A staged run copies chunks through slots (shared memory), segment by segment. If
the buffers of only some ranks permit a direct run, all ranks detect the difference at the start and run staged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product, takewhile
from math import inf
from typing import TypeAlias

from hpccoll.runtime.address_space import USER_MEMORY, AddressSpace, ChunkSegment, chunk_sizes, cut_chunks
from hpccoll.runtime.arrays import BoundCall, ScratchPool
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.lowering import OWN, LocalInstruction, NodeFence, Program, Reduce
from hpccoll.runtime.node_memory.file_memory import is_in_file
from hpccoll.runtime.node_memory.node import NodeMemory, fingerprint_of
from hpccoll.runtime.node_memory.node_barrier import DIRECT
from hpccoll.runtime.node_memory.pipeline_slot import PipelineSlot
from hpccoll.runtime.node_memory.symmetric import is_token
from hpccoll.runtime.plan_executable import Context, PlanExecutable
from hpccoll.runtime.shared_memory.queued_run import QueuedRun
from hpccoll.runtime.shared_memory.staged_program import StagedProgram
from hpccoll.runtime.shared_memory.tiling import LocalBinder, bounce_count
from hpccoll.runtime.unbound_program import Step, StepMaker
from hpccoll.selection import Selection

# Times on 2 ranks of an AMD EPYC, staged and by cross-memory attach: all_reduce of 1 MiB 45 us and 95 us, of 16 MiB
# 1.0 ms and 1.4 ms, of 64 MiB 5.5 ms both; all_gather of 4 MiB 304 us and 316 us, of 16 MiB 1.5 ms and 1.0 ms. 4 ranks
# on 2 cores, all_reduce of 16 MiB: 14 ms and 8.5 ms, because a staged run has more fences, at each of which ranks wait
# for a core.
LEAST_REMOTE_BYTES = 256 * 2**10  # of cross-memory attach, where ranks outnumber cores and in two-level plans
LEAST_REMOTE_COPY_BYTES = 8 * 2**20  # elsewhere, in plans that reduce nothing; plans that reduce are staged

# The calls of a staged run before and after `NodeBarrier.enter`, and the number of the slot for the next run.
StagedCalls: TypeAlias = tuple[list[BoundCall], list[BoundCall], int]


class SharedMemoryExecutable(PlanExecutable):
    """A collective of loads and stores on host buffers of one node; see `Executable` and `PlanExecutable`."""

    __slots__ = ("_direct_calls", "_entry", "_facts", "_location", "_locations", "_runs", "_staged", "direct")

    def __init__(
        self, context: Context, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None = None
    ) -> None:
        super().__init__(context, call, selection, scratch)
        symmetric, call = context.node.symmetric, self._call
        self._facts, self._runs = self._describe(), context.node.runs
        self._entry = fingerprint_of(self._facts)
        self.direct = can_access_in_place(context.node, self._lower(), call)
        self._location = symmetric.locate(call.source), symmetric.locate(call.result)
        self._locations: tuple[int, ...] | None = None
        self._direct_calls: list[BoundCall] = []
        self._staged: dict[int, StagedCalls] = {}

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls of the next run, to time one by one; empty until the first run has bound the calls."""
        barrier, slot = self._context.node.barrier, self._context.node.next_slot
        if self.direct and self._locations is not None:
            return (partial(barrier.enter, self._entry | DIRECT, *self._location), *self._direct_calls)
        if slot not in self._staged:
            return ()
        before_entry, after_entry, _ = self._staged[slot]
        return (*before_entry, partial(barrier.enter, self._entry), *after_entry)

    def run(self) -> None:
        if not self.live:
            self._require_live()
        place = self._begin()
        try:
            if self._runs:  # earlier asynchronous runs, which use the same barrier and slots
                self._context.progress.sleep_until(self._have_earlier_ended)
            for step in self._before:
                step()
            if not (self.direct and self._run_direct()):
                _ = self._run_staged() or self._run_staged()
            for step in self._after:
                step()
        except BaseException:
            self._state.fail(place)
            raise
        self._state.end(place)

    __call__ = run

    def _have_earlier_ended(self) -> bool:
        """Whether all asynchronous runs that were called before have ended."""
        return not self._runs

    def start(self, keep: object) -> QueuedRun:
        """Return a run in flight, which begins when earlier runs are done; `keep` is kept alive until its end."""
        self._require_live()
        self.operation = run = QueuedRun(self._run_in_steps, self._runs, keep)
        return run

    def _run_in_steps(self) -> Iterator[None]:
        """Run once without blocking; yield whenever the run has to wait for the node's ranks."""
        node = self._context.node
        barrier, fence, next_slot = node.barrier, node.barrier.fence, node.next_slot
        for step in self._before:
            step()
        calls: list[BoundCall] | None = None
        if self.direct:
            barrier.post(self._entry | DIRECT, *self._location)
            while not barrier.all_arrived():
                yield
            calls = self._choose_direct_calls(barrier.compare())
        while calls is None:
            before_entry, after_entry, next_slot = self._get_staged()
            for step in before_entry:
                step()
            barrier.post(self._entry)
            while not barrier.all_arrived():
                yield
            calls = after_entry if self._is_alike(barrier.compare()) else None
        for step in calls:
            if step != fence:
                step()
                continue
            barrier.arrive()
            while not barrier.all_arrived():
                yield
        node.next_slot = next_slot
        for step in self._after:
            step()

    def free(self) -> None:
        """Free the executable and drop its bound calls; a later run raises UsageError. A run in flight goes on."""
        if self.in_flight:
            self.live = False
            return
        super().free()
        self._direct_calls, self._staged = [], {}

    def make_unbound(self) -> StagedProgram | None:
        """Return the staged program for any host arrays; None for a direct run."""
        if self.direct:
            return None
        node, segments = self._context.node, self._segments()
        programs = [self._lower(segment.sizes, staged=True) for segment in segments]
        work, landing = max(each.work for each in programs), max(each.landing for each in programs)
        scratch, memories = self._take_scratch(work + landing), {}
        for number, slot in enumerate(node.slots):
            memory = slot_memory(slot, node, self._call)
            slots = [memory[rank] for rank in (OWN, *node.others)]
            memories[number] = (scratch[:work], scratch[work:], *slots)
        steps: list[list[Step]] = []
        for program, segment in zip(programs, segments, strict=True):
            space = AddressSpace(self._call, program, scratch, segment=segment, rank=node.rank)
            maker, instructions = StepMaker(space, node.others, node.barrier.fence), local_instructions(program)
            if not steps:
                before, instructions = split_at_first_fence(instructions)
                steps.append(maker.make(before))
            steps.append(maker.make(instructions))
        return StagedProgram(self._state, self._begin, node, self._entry, self._facts, steps[0], steps[1:], memories)

    def _run_direct(self) -> bool:
        """Run on all ranks' buffers in place; return False without running if some rank started a staged run."""
        calls = self._choose_direct_calls(self._context.node.barrier.enter(self._entry | DIRECT, *self._location))
        if calls is None:
            return False
        for step in calls:
            step()
        return True

    def _choose_direct_calls(self, alike: bool | None) -> list[BoundCall] | None:
        """Return a direct run's calls after the entry; None if some rank started a staged run.

        Args:
            alike: what `NodeBarrier.compare` returned.
        """
        if not self._is_alike(alike):
            return None
        locations = self._context.node.barrier.locations()
        if locations != self._locations:
            self._direct_calls, self._locations = self._bind_direct(locations), locations
        return self._direct_calls

    def _is_alike(self, alike: bool | None) -> bool:
        """Return whether all ranks start the same run; raise MismatchError if they call different collectives."""
        return self._context.node.raise_mismatch(self._facts) if alike is None else alike

    def _run_staged(self) -> bool:
        """Run through the slots; return False without running if some rank started a direct run."""
        node = self._context.node
        before_entry, after_entry, next_slot = self._get_staged()
        for step in before_entry:
            step()
        if not self._is_alike(node.barrier.enter(self._entry)):
            return False
        for step in after_entry:
            step()
        node.next_slot = next_slot
        return True

    def _get_staged(self) -> StagedCalls:
        """Return the calls of a staged run that begins with the next slot."""
        slot = self._context.node.next_slot
        staged = self._staged.get(slot)
        if staged is None:
            staged = self._staged[slot] = self._bind_staged(slot)
        return staged

    def _bind_direct(self, locations: Sequence[int]) -> list[BoundCall]:
        """Return a direct run's calls after `NodeBarrier.enter`; the other ranks' buffers are at `locations`."""
        node, program, itemsize = self._context.node, self._lower(), self._call.dtype.itemsize
        used = program.work + program.landing
        scratch = self._take_scratch(used + bounce_count(itemsize))
        space = AddressSpace(self._call, program, scratch)
        add_peer_buffers(space, node, self._call, locations)
        before, after = split_at_first_fence(local_instructions(program))
        binder = LocalBinder(space, node.barrier.fence, node.remote, scratch[used:])
        return [*binder.bind(before), *binder.bind(after)]

    def _bind_staged(self, slot: int) -> StagedCalls:
        """Return a staged run's calls before and after `NodeBarrier.enter`, and the slot number for the next run.

        The segments use the two slots (shared buffers) in turn, beginning with number `slot`.
        """
        node = self._context.node
        calls: tuple[list[BoundCall], list[BoundCall]] = [], []
        for number, segment in enumerate(self._segments()):
            program = self._lower(segment.sizes, staged=True)
            scratch = self._take_scratch(program.work + program.landing)
            slots = slot_memory(node.slots[slot], node, self._call)
            space = AddressSpace(self._call, program, scratch, slots=slots, segment=segment, rank=node.rank)
            binder, instructions = LocalBinder(space, node.barrier.fence), local_instructions(program)
            before, after = split_at_first_fence(instructions) if number == 0 else ([], instructions)
            calls[0].extend(binder.bind(before))
            calls[1].extend(binder.bind(after))
            slot = (slot + 1) % len(node.slots)
        return (*calls, slot)

    def _segments(self) -> list[ChunkSegment]:
        """Return the segments of a staged run, each of which fits into a slot."""
        sizes = chunk_sizes(self.plan, self._call.count)
        room = self._context.node.slot_bytes // self._call.dtype.itemsize - len(sizes)  # segments differ by an element
        return cut_chunks(sizes, max(-(-int(sizes.sum()) // room), 1))


def local_instructions(program: Program) -> list[LocalInstruction]:
    """Return all instructions of a plan of loads and stores: reduces, copies and fences."""
    return [step for step in program.instructions if isinstance(step, LocalInstruction)]


def split_at_first_fence(
    instructions: Sequence[LocalInstruction],
) -> tuple[list[LocalInstruction], list[LocalInstruction]]:
    """Return the instructions before the first fence and those after the first fence."""
    before = list(takewhile(lambda instruction: not isinstance(instruction, NodeFence), instructions))
    return before, list(instructions[len(before) + 1 :])


def slot_memory(slot: PipelineSlot, node: NodeMemory, call: CollectiveCall) -> dict[int, object]:
    """Return the memory of a slot as arrays of the call's dtype, by rank; the key OWN is this rank."""
    itemsize = call.dtype.itemsize

    def typed(rank: int) -> object:
        """Return a rank's memory of the slot as an array of the call's dtype."""
        memory = slot.memory[rank]
        return memory[: len(memory) // itemsize * itemsize].view(call.dtype.numpy)

    return {OWN: typed(node.rank)} | {rank: typed(rank) for rank in node.others}


def add_peer_buffers(space: AddressSpace, node: NodeMemory, call: CollectiveCall, locations: Sequence[int]) -> None:
    """Record in `space` where the other ranks' inputs and outputs are; `locations` has two numbers per rank.

    Maps no memory and does not communicate. Raises UsageError if a location is in a symmetric buffer that was freed on
    this rank.
    """
    itemsize = call.dtype.itemsize
    for (rank, kind), location in zip(product(node.others, USER_MEMORY), locations, strict=True):
        if not is_token(location):
            space.add_peer(kind, rank, None, location)
            continue
        memory, offset = node.resolve(rank, location)
        if call.module.on_device:
            space.add_peer(kind, rank, None, memory.address + offset)
            continue
        array = memory[offset:]
        space.add_peer(kind, rank, array[: len(array) // itemsize * itemsize].view(call.dtype.numpy), 0)


def can_access_in_place(node: NodeMemory, program: Program, call: CollectiveCall) -> bool:
    """Whether all buffers of this rank that other ranks access in the program can be accessed in place."""
    if program.uses_slots:  # these chunks are in no user's memory
        return False
    for kind, buffer in zip(USER_MEMORY, (call.source, call.result), strict=True):
        if kind not in program.accessed or buffer is None or not buffer.nbytes:
            continue
        location = node.symmetric.locate(buffer)
        if is_token(location) and not (is_in_file(location) and node.remote is None):
            continue
        if node.remote is None or call.module.on_device or buffer.nbytes < find_least_remote_bytes(node, program):
            return False
    return True


def find_least_remote_bytes(node: NodeMemory, program: Program) -> float:
    """Return the size of the smallest buffers of a program for which cross-memory attach costs less than slots."""
    if node.oversubscribed or not node.slots:
        return LEAST_REMOTE_BYTES
    reduces = any(isinstance(instruction, Reduce) for instruction in program.instructions)
    return inf if reduces else LEAST_REMOTE_COPY_BYTES
