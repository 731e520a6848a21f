"""Two-level collectives bound to buffers: shared memory within nodes, messages between nodes, pipelined over slots.

While messages of some segments travel between nodes, a rank reduces the next segment and stores the previous one, so
the network stays busy until the last segment. The ranks of a node start a collective together and agree whether they
access each other's buffers in place or through slots (shared memory). Messages between nodes are the same for access in
place and through slots, so each node may choose either.
"""

from __future__ import annotations

from collections.abc import Callable

from hpccoll.algorithms.pipelining import MESSAGE_BYTES, choose_segment_count
from hpccoll.errors import UnavailableError, UsageError
from hpccoll.runtime.address_space import AddressSpace, ChunkSegment, chunk_sizes, cut_chunks
from hpccoll.runtime.arrays import BoundCall, ScratchPool
from hpccoll.runtime.backoff import Backoff
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.hierarchical.pipeline_task import Action, PipelineTask, bind_actions
from hpccoll.runtime.lowering import Program
from hpccoll.runtime.node_memory.node import fingerprint_of
from hpccoll.runtime.node_memory.node_barrier import DIRECT
from hpccoll.runtime.node_memory.pipeline_slot import PipelineSlot
from hpccoll.runtime.plan_executable import Context, PlanExecutable
from hpccoll.runtime.shared_memory.executable import add_peer_buffers, can_access_in_place, slot_memory
from hpccoll.runtime.shared_memory.tiling import LocalBinder, bounce_count
from hpccoll.selection import Selection

FIRST_TAG = 8192  # one tag per slot, above the tags of asynchronous calls


class TwoLevelExecutable(PlanExecutable):
    """A two-level collective bound to buffers; see `Executable` and `PlanExecutable`.

    Raises:
        UnavailableError: memory cannot be shared within nodes, or the plan has more chunks than a slot has room for.
        UsageError: the buffers are device memory.
    """

    __slots__ = (
        "_actions",
        "_entry",
        "_facts",
        "_location",
        "_locations",
        "_programs",
        "_scratch_memory",
        "_scratch_stride",
        "_segments",
        "direct",
    )

    def __init__(
        self, context: Context, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None = None
    ) -> None:
        super().__init__(context, call, selection, scratch)
        node, call = context.node, self._call
        self._facts = self._describe()
        self._require_host_memory()
        self._entry = fingerprint_of(self._facts)
        self._segments = self._cut_segments()
        self.direct = can_access_in_place(node, self._lower(), call)
        locate = node.symmetric.locate
        self._location = (locate(call.source), locate(call.result)) if self.direct else (0, 0)
        self._locations: tuple[int, ...] | None = None
        self._actions: dict[int, list[Action]] = {}
        self._programs: list[Program] = []
        self._scratch_memory, self._scratch_stride = self._take_scratch(0), 0
        node.symmetric.free_with(self, call.source, call.result)

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls to time one by one: only this executable, because its segments overlap in time."""
        return (self,)

    def __call__(self) -> None:
        pipeline, backoff = self.start(), Backoff(spins=not self._context.node.oversubscribed)
        progress = self._context.progress
        while not pipeline.done:
            moved = pipeline.poll()
            if progress:
                progress.advance()
            if moved:
                backoff.reset()
            else:
                backoff.pause()

    def start(self) -> Pipeline:
        """Block until all ranks of the node have started the collective, and return the pipeline in flight.

        An earlier pipeline of the node is completed first, because only one at a time can use the slots.
        """
        self._require_live()
        node = self._context.node
        if node.pipeline is not None:
            self._context.progress.wait_until(node.pipeline.advance)
        for step in self._before:
            step()
        self._enter()
        node.pipeline = pipeline = Pipeline(self._get_actions, node.slots, len(self._segments), self._after)
        return pipeline

    def free(self) -> None:
        """Free the executable and drop its bound actions; a later run raises UsageError."""
        super().free()
        self._actions.clear()
        self._programs, self._scratch_memory = [], None

    def _require_host_memory(self) -> None:
        """Raise UnavailableError if the node cannot share memory, and UsageError if the buffers are device memory."""
        full_name = "/".join(map(str, self._facts[:2]))
        self._context.node.require_memory(full_name)
        if self._call.module.on_device:
            raise UsageError(
                f"{full_name} does not access device memory on several nodes; choose hierarchical or another algorithm "
                "of messages, or leave the choice to auto"
            )

    def _cut_segments(self) -> list[ChunkSegment]:
        """Return the segments into which the chunks are cut, the same on all ranks."""
        plan, itemsize, slot_bytes = self.plan, self._call.dtype.itemsize, self._context.node.slot_bytes
        sizes = chunk_sizes(plan, self._call.count)
        room = slot_bytes // itemsize - len(sizes)  # segments of a chunk differ by at most one element
        if room < len(sizes):
            raise UnavailableError(
                f"{plan.name} on {plan.ranks} ranks has {len(sizes)} chunks, but a slot holds only {room} elements; "
                "choose another algorithm"
            )
        return cut_chunks(
            sizes, max(choose_segment_count(plan, sizes, itemsize, MESSAGE_BYTES), -(-int(sizes.sum()) // room))
        )

    def _enter(self) -> None:
        """Block until all ranks of the node start the run; lower the plan again if a buffer has moved."""
        node = self._context.node
        alike = node.barrier.enter(self._entry | (DIRECT if self.direct else 0), *self._location)
        if alike is None:
            node.raise_mismatch(self._facts)
        locations = node.barrier.locations() if alike and self.direct else ()
        if locations != self._locations:
            self._lower_segments(locations)

    def _lower_segments(self, locations: tuple[int, ...]) -> None:
        """Lower every segment for access to buffers at `locations`, or to the slots if `locations` is empty."""
        self._actions.clear()
        self._locations = locations
        self._programs = [self._lower(segment.sizes, staged=not locations) for segment in self._segments]
        scratch = max(program.work + program.landing for program in self._programs)
        self._scratch_stride = scratch + (bounce_count(self._call.dtype.itemsize) if locations else 0)
        self._scratch_memory = self._take_scratch(self._scratch_stride * len(self._context.node.slots))

    def _get_actions(self, number: int) -> list[Action]:
        """Return the actions of a segment; the first call for a segment binds them to memory."""
        actions = self._actions.get(number)
        if actions is None:
            node, call, program = self._context.node, self._call, self._programs[number]
            slot = node.slots[number % len(node.slots)]
            scratch = self._scratch_memory[slot.number * self._scratch_stride :][: self._scratch_stride]
            slots = slot_memory(slot, node, call)
            space = AddressSpace(call, program, scratch, slots=slots, segment=self._segments[number], rank=node.rank)
            if self._locations:
                add_peer_buffers(space, node, call, self._locations)
            bounce = scratch[program.work + program.landing :][: bounce_count(space.itemsize)]
            binder = LocalBinder(space, node.barrier.fence, node.remote, bounce if self._locations else None)
            tag = FIRST_TAG + slot.number
            actions = self._actions[number] = bind_actions(program, space, binder, self._context.comm, tag)
        return actions


class Pipeline:
    """A two-level collective in flight.

    Args:
        get_actions: returns the actions of a segment, given the segment's number.
        slots: the node's slots; segment s uses slot s % len(slots).
        segments: number of segments.
        after: calls to make when all segments are complete.
    """

    __slots__ = ("_after", "_get_actions", "_next", "_segments", "_slots", "_tasks", "done")

    def __init__(
        self,
        get_actions: Callable[[int], list[Action]],
        slots: tuple[PipelineSlot, ...],
        segments: int,
        after: tuple[BoundCall, ...],
    ) -> None:
        self._get_actions, self._slots, self._segments, self._after = get_actions, slots, segments, after
        self._tasks: dict[int, PipelineTask] = {}
        self._next, self.done = 0, False

    def poll(self) -> bool:
        """Start the next segment if its slot is free; advance the segments in flight; return whether any advanced."""
        moved, slot = False, self._next % len(self._slots)
        if self._next < self._segments and slot not in self._tasks:
            self._tasks[slot] = PipelineTask(self._get_actions(self._next), self._slots[slot])
            self._next, moved = self._next + 1, True
        for number, task in list(self._tasks.items()):
            moved |= task.advance()
            if task.done:
                del self._tasks[number]
        if not self._tasks and self._next == self._segments and not self.done:
            for step in self._after:
                step()
            self.done = True
        return moved

    def advance(self) -> bool:
        """Poll until nothing can be done without blocking; return whether all segments are complete."""
        while self.poll():
            pass
        return self.done
