"""Two-level plans, which run as native pipelines of segments.

While messages of some segments travel between nodes, a rank reduces the next segment and stores the previous one, so
the network stays busy until the last segment. The ranks of a node start a collective together and agree whether they
access each other's buffers in place or through slots (shared memory). Messages between nodes are the same for access in
place and through slots, so each node may choose either.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from hpccoll.algorithms.pipelining import MESSAGE_BYTES, choose_segment_count
from hpccoll.errors import UnavailableError, UsageError
from hpccoll.native import REMOTE_TILE_BYTES, MemoryTable, PipelineCall, PipelineRun, Program, Segments
from hpccoll.runtime.address_space import AddressSpace, ChunkSegment, chunk_sizes, cut_chunks
from hpccoll.runtime.arrays import BoundCall, ScratchPool
from hpccoll.runtime.arrays.host_reducers import make_divider, make_reducer
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.instructions import FIRST_SHARED, TILE_BYTES, as_words, divide_row, make_rows
from hpccoll.runtime.lowering import Program as LoweredProgram
from hpccoll.runtime.messages.mpi_functions import get_handle, get_mpi_functions
from hpccoll.runtime.node_memory.node import fingerprint_of
from hpccoll.runtime.plan_executable import Context, PlanExecutable
from hpccoll.runtime.progress import settle
from hpccoll.runtime.queued_run import RunInQueue, call_or_defer, get_last
from hpccoll.runtime.shared_memory.access import can_access_in_place, count_elements, make_peers
from hpccoll.runtime.shared_memory.staged import get_address, make_locate
from hpccoll.selection import Selection

FIRST_TAG = 8192  # one tag per slot, above the tags of asynchronous calls


class PipelineExecutable(PlanExecutable):
    """A plan bound to buffers that runs as a pipeline of segments; see `Executable` and `PlanExecutable`.

    Raises:
        UnavailableError: memory cannot be shared within nodes, or the plan has more chunks than a slot has room for.
        UsageError: the buffers are device memory.
    """

    __slots__ = ("_addresses", "_entry", "_facts", "_native", "_staged", "direct", "segments")

    def __init__(
        self, context: Context, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None = None
    ) -> None:
        super().__init__(context, call, selection, scratch)
        node, call = context.node, self._call
        self._after = ()  # the native call divides
        self._facts = self._describe()
        self._require_host_memory()
        self._entry = fingerprint_of(self._facts)
        self.segments = self._cut_segments()  # of the message, in the order of their start
        self.direct = can_access_in_place(node, self._lower(), call)
        source, result = (buffer.address if buffer else 0 for buffer in (call.source, call.result))
        self._addresses = source, result
        self._native: PipelineCall | None = None
        self._staged: Segments | None = None

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls to time one by one: only this executable, because its segments overlap in time."""
        return (self,)

    def run(self) -> None:
        self._require_live()
        with self._state.record(self._begin):
            run = self.start(None)
            try:
                run.wait()
            except BaseException:
                settle([run.is_settled])
                raise
        if self._context.node.pipelines:  # earlier runs have ended, and `advance` releases their arrays
            self._context.progress.advance()

    __call__ = run

    def start(self, keep: object) -> RunInQueue:
        """Return a run in flight, which begins after earlier runs are done and the node's ranks have entered.

        `keep` is kept alive until the end of the run.
        """
        self._require_live()
        queue = self._context.node.pipelines
        before = call_or_defer(self._before, self._call, queue)
        arguments = *self._addresses, get_last(queue), before, keep
        native = PipelineRun(self._get_native(), self._get_staged(), *arguments)
        self.operation = run = RunInQueue(native, queue, self._call)
        return run

    def free(self) -> None:
        """Free the executable, so that a later run raises UsageError; a run in flight goes on."""
        if self.in_flight:
            self.live = False
            return
        super().free()
        self._native = self._staged = None

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

    def _get_native(self) -> PipelineCall:
        """Return the native call, which is made once."""
        if self._native is None:
            node, call, context = self._context.node, self._call, self._context
            locate = node.symmetric.locate
            locations = (locate(call.source), locate(call.result)) if self.direct else (0, 0)
            self._native = PipelineCall(
                get_mpi_functions(),
                get_handle(context.comm),
                FIRST_TAG,
                node.pipeline_barrier,
                node.pipeline_slots,
                self._entry,
                locations,
                make_peers(node, call) if self.direct else None,
                self._make_segments(direct=True) if self.direct else None,
                self._make_last(),
                call.operation.value,
                partial(node.raise_mismatch, self._facts),
            )
        return self._native

    def _get_staged(self) -> Segments:
        """Return the segments that go through the slots, which are made once."""
        if self._staged is None:
            self._staged = self._make_segments(direct=False)
        return self._staged

    def _make_segments(self, *, direct: bool) -> Segments:
        """Return the programs of the segments, and the memories of each slot: in place, or through the slots."""
        node, itemsize = self._context.node, self._call.dtype.itemsize
        lowered = [self._lower(segment.sizes, staged=not direct) for segment in self.segments]
        used = -(-max(program.work + program.landing for program in lowered) * itemsize // 16) * 16
        stride = used + (2 * REMOTE_TILE_BYTES if direct else 0)  # a multiple of 16, which every element size divides
        make = partial(self._make_programs, lowered, used, stride, direct=direct)
        programs = self._context.get_native(self._get_program_key("segments in place" if direct else "segments"), make)
        scratch = self._take_scratch(stride // itemsize * len(node.pipeline_slots))
        peers = [0] * (2 * len(node.others) if direct else 0)
        tables: list[MemoryTable] = []
        for lane, slot in enumerate(node.pipeline_slots):
            slots = [get_address(slot.memory[rank]) for rank in node.ranks]
            addresses = [0, 0, get_address(scratch) + stride * lane, *slots, *peers]
            tables.append(MemoryTable(addresses, [0] * len(addresses) if direct else [], (scratch, slot)))
        return Segments(programs, tuple(tables))

    def _make_programs(
        self, lowered: list[LoweredProgram], used: int, stride: int, *, direct: bool
    ) -> tuple[Program, ...]:
        """Return the native programs of the segments; `make_locate` numbers their memories.

        Args:
            lowered: the lowered programs.
            used: bytes of scratch that the programs use.
            stride: bytes of scratch of each slot.
        """
        node, call = self._context.node, self._call
        itemsize = call.dtype.itemsize
        own = [buffer.nbytes if buffer else 0 for buffer in (call.source, call.result)]
        peers = [size * itemsize for rank in node.others for size in count_elements(self.plan, rank, call.count)]
        limits = np.array([*own, stride, *[node.slot_bytes] * len(node.ranks), *(peers if direct else [])], np.int64)
        reducer = make_reducer(call.reduction.function, call.dtype)
        programs: list[Program] = []
        for program, segment in zip(lowered, self.segments, strict=True):
            space = AddressSpace(call, program, np.empty(0, call.dtype.numpy), segment=segment, rank=node.rank)
            rows, requests = make_rows(program.instructions, make_locate(space, program, node, FIRST_SHARED), itemsize)
            bounce, ranks = used if direct else -1, self._context.comm.size
            programs.append(Program(as_words(rows), limits, reducer, None, TILE_BYTES, bounce, requests, ranks))
        return tuple(programs)

    def _make_last(self) -> Program | None:
        """Return the program that divides the result for `avg`; None if there is nothing to divide."""
        call = self._call
        if not call.reduction.divides or call.result is None or not call.result.nbytes:
            return None
        limits = np.array([0, call.result.nbytes, 0], np.int64)
        divider = make_divider(self._context.comm.size, call.dtype)
        return Program(as_words([divide_row(call.result.nbytes)]), limits, None, divider, TILE_BYTES)
