"""Two-level plans, which run as pipelines of segments and never block.

While messages of some segments travel between nodes, a rank reduces the next segment and stores the previous one, so
the network stays busy until the last segment. The ranks of a node start a collective together and agree whether they
access each other's buffers in place or through slots (shared memory). Messages between nodes are the same for access in
place and through slots, so each node may choose either.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import numpy as np
from mpi4py import MPI

from hpccoll.algorithms.pipelining import MESSAGE_BYTES, choose_segment_count
from hpccoll.errors import UnavailableError, UsageError
from hpccoll.native import REMOTE_TILE_BYTES
from hpccoll.runtime.address_space import AddressSpace, ChunkSegment, chunk_sizes, cut_chunks
from hpccoll.runtime.arrays import BoundCall, DType, FlatArray, ScratchPool
from hpccoll.runtime.backoff import Backoff
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.hierarchical.local_steps import LocalSteps
from hpccoll.runtime.hierarchical.pipeline_task import Action, PipelineTask, bind_actions
from hpccoll.runtime.lowering import OWN, Program
from hpccoll.runtime.node_memory.node import fingerprint_of
from hpccoll.runtime.node_memory.node_barrier import DIRECT
from hpccoll.runtime.node_memory.pipeline_slot import PipelineSlot
from hpccoll.runtime.node_memory.symmetric import Bytes
from hpccoll.runtime.plan_executable import Context, PlanExecutable
from hpccoll.runtime.progress import InFlight, settle
from hpccoll.runtime.shared_memory.access import can_access_in_place
from hpccoll.runtime.work import explain_mpi_error
from hpccoll.selection import Selection

FIRST_TAG = 8192  # one tag per slot, above the tags of asynchronous calls


class PipelineExecutable(PlanExecutable):
    """A plan bound to buffers that runs as a pipeline of segments; see `Executable` and `PlanExecutable`.

    Raises:
        UnavailableError: memory cannot be shared within nodes, or the plan has more chunks than a slot has room for.
        UsageError: the buffers are device memory.
    """

    __slots__ = (
        "_actions", "_entry", "_facts", "_location", "_locations", "_programs", "_scratch_memory", "_scratch_stride",
        "direct", "segments",
    )  # fmt: skip

    def __init__(
        self, context: Context, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None = None
    ) -> None:
        super().__init__(context, call, selection, scratch)
        node, call = context.node, self._call
        self._facts = self._describe()
        self._require_host_memory()
        self._entry = fingerprint_of(self._facts)
        self.segments = self._cut_segments()  # of the message, in the order of their start
        self.direct = can_access_in_place(node, self._lower(), call)
        locate = node.symmetric.locate
        self._location = (locate(call.source), locate(call.result)) if self.direct else (0, 0)
        self._locations: tuple[int, ...] | None = None
        self._actions: dict[int, list[Action]] = {}
        self._programs: list[Program] = []
        self._scratch_memory, self._scratch_stride = self._take_scratch(0), 0

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls to time one by one: only this executable, because its segments overlap in time."""
        return (self,)

    def run(self) -> None:
        self._require_live()
        with self._state.record(self._begin):
            pipeline, backoff = self.start(None), Backoff(spins=not self._context.node.oversubscribed)
            progress = self._context.progress
            try:
                while not pipeline.done:
                    if pipeline.poll():
                        backoff.reset()
                    else:
                        progress.idle(backoff)
            except MPI.Exception as error:
                raise explain_mpi_error(error, self._call.operation.value) from None
            except BaseException:
                settle([pipeline.is_settled])
                raise
            finally:
                pipeline.end()

    __call__ = run

    def start(self, keep: object) -> Pipeline:
        """Return a run in flight, which begins after earlier runs are done and the node's ranks have entered.

        `keep` is kept alive until the end of the run.
        """
        self._require_live()
        node = self._context.node
        self.operation = pipeline = Pipeline(self, node.pipelines, node.pipeline_slots, keep)
        return pipeline

    def free(self) -> None:
        """Free the executable, so that a later run raises UsageError; a pipeline in flight is completed."""
        self.live = False
        if not self.in_flight:
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

    def post_entry(self) -> None:
        """Run the local work before the plan, and tell the node's ranks that this rank enters; never blocks."""
        for step in self._before:
            step()
        self._context.node.pipeline_barrier.post(self._entry | (DIRECT if self.direct else 0), *self._location)

    def try_to_enter(self) -> bool:
        """Return whether the node's ranks have all entered the collective; lower the plan again if a buffer has moved.

        Raises:
            MismatchError: on all ranks of the node, if they entered different collectives.
        """
        node, barrier = self._context.node, self._context.node.pipeline_barrier
        if not barrier.all_arrived():
            return False
        alike = barrier.compare()
        if alike is None:
            node.raise_mismatch(self._facts)
        locations = barrier.locations() if alike and self.direct else ()
        if locations != self._locations:
            self._lower_segments(locations)
        return True

    def finish(self) -> None:
        """Run the local work that follows the plan, such as the division of `avg`."""
        for step in self._after:
            step()

    def _lower_segments(self, locations: tuple[int, ...]) -> None:
        """Lower the plan for each segment, to access buffers at `locations`, or the slots if `locations` is empty."""
        self._actions.clear()
        self._locations = locations
        self._programs = [self._lower(segment.sizes, staged=not locations) for segment in self.segments]
        itemsize = self._call.dtype.itemsize
        scratch = max(program.work + program.landing for program in self._programs)
        aligned = -(-scratch * itemsize // 16) * 16 // itemsize
        self._scratch_stride = aligned + (2 * REMOTE_TILE_BYTES // itemsize if locations else 0)
        self._scratch_memory = self._take_scratch(self._scratch_stride * len(self._context.node.pipeline_slots))

    def get_actions(self, number: int) -> list[Action]:
        """Return a segment's actions (calls, messages, fences), which are made once and kept for later runs."""
        actions = self._actions.get(number)
        if actions is None:
            node, call, program = self._context.node, self._call, self._programs[number]
            lane = number % len(node.pipeline_slots)
            scratch = self._scratch_memory[lane * self._scratch_stride :][: self._scratch_stride]
            slot = node.pipeline_slots[lane]
            own = {OWN: as_elements(slot.memory[node.rank], call.dtype)}
            space = AddressSpace(call, program, scratch, slots=own, segment=self.segments[number], rank=node.rank)
            local = LocalSteps(call, node, program, space, scratch.view(np.uint8), slot, self._locations or ())
            actions = self._actions[number] = bind_actions(program, space, local, self._context.comm, FIRST_TAG + lane)
        return actions


class Pipeline(InFlight):
    """One run of an executable, segment by segment; segments use the slots (shared buffers of the node) in turn.

    The pipelines in `queue` run one after the other, in call order.
    """

    __slots__ = ("_entered", "_executable", "_keep", "_number", "_posted", "_queue", "_slots", "_tasks")

    def __init__(
        self, executable: PipelineExecutable, queue: deque[InFlight], slots: tuple[PipelineSlot, ...], keep: object
    ) -> None:
        super().__init__()
        self._keep = keep
        self._executable, self._queue, self._slots = executable, queue, slots
        self._posted = self._entered = False
        self._number, self._tasks = 0, dict[PipelineSlot, PipelineTask]()  # number of the next segment
        queue.append(self)

    def poll(self) -> bool:
        """Make a few calls of each segment in flight, without blocking; return whether any was made."""
        if self.done or self._queue[0] is not self:
            return False
        try:
            return (self._entered or self._enter()) and self._advance_tasks()
        except BaseException:
            self.end()
            raise

    def _advance(self) -> bool:
        while self.poll():
            pass
        return self.done

    def _enter(self) -> bool:
        """Enter the collective, at the first call; return whether all ranks of the node have entered it."""
        if not self._posted:
            self._executable.post_entry()
            self._posted = True
            self.mark_started()
        self._entered = self._executable.try_to_enter()
        return self._entered

    def _advance_tasks(self) -> bool:
        """Start the next segment if its slot is free, and advance segments in flight; return whether any advanced."""
        moved = False
        if self._number < len(self._executable.segments):
            slot = self._slots[self._number % len(self._slots)]
            if slot not in self._tasks:
                self._tasks[slot] = PipelineTask(self._executable.get_actions(self._number), slot)
                self._number, moved = self._number + 1, True
        for slot, task in list(self._tasks.items()):
            moved |= task.advance()
            if task.done:
                del self._tasks[slot]
        if not self._tasks and self._number == len(self._executable.segments):
            self._executable.finish()
            self.end()
        return moved

    def is_settled(self) -> bool:
        """Whether the messages of the segments in flight are complete, and the node's ranks have read their memory."""
        return all(task.is_settled() for task in self._tasks.values())

    def mark_started(self) -> None:
        """Record the start of the operation once this rank has entered the collective."""
        if self._posted:
            super().mark_started()

    def end(self) -> None:
        """Let the next pipeline use the slots (shared buffers); this pipeline completed, failed or was interrupted."""
        self.done, self._keep = True, None
        with suppress(ValueError):
            self._queue.remove(self)


def as_elements(memory: Bytes, dtype: DType) -> FlatArray:
    """Return the whole elements of a memory as an array."""
    return memory[: len(memory) // dtype.itemsize * dtype.itemsize].view(dtype.numpy)
