"""Two-level plans, which run as native pipelines of segments.

While messages of some segments travel between nodes, a rank reduces the next segment and stores the previous one, so
the network stays busy until the last segment. The ranks of a node start a collective together and agree whether they
access each other's buffers in place or through slots (shared memory). Messages between nodes are the same for access in
place and through slots, so each node may choose either.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from hpccoll.algorithms.pipelining import MESSAGE_BYTES, choose_segment_count
from hpccoll.errors import UnavailableError, UsageError
from hpccoll.native import REMOTE_TILE_BYTES, MemoryTable, PipelineCall, PipelineRun, Program, Segments
from hpccoll.runtime.address_space import AddressSpace, ChunkSegment, chunk_sizes, cut_chunks
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.arrays.host_reducers import make_reducer
from hpccoll.runtime.backoff import settle
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.instructions import FIRST_SHARED, RESULT, TILE_BYTES, as_words, divide_row, make_rows
from hpccoll.runtime.lowering import Program as LoweredProgram
from hpccoll.runtime.messages.mpi_functions import get_handle, get_mpi_functions
from hpccoll.runtime.node_memory.node import compute_fingerprint
from hpccoll.runtime.node_memory.symmetric import shared_buffers
from hpccoll.runtime.plan_executable import Context, PlanExecutable, PlanKind
from hpccoll.runtime.queued_run import RunInQueue, call_or_defer, get_last
from hpccoll.runtime.recorder.call_recorder import Begin
from hpccoll.runtime.shared_memory.access import can_access_in_place, count_elements, get_peers
from hpccoll.runtime.shared_memory.staged import get_address, make_locate
from hpccoll.selection import Selection

FIRST_TAG = 8192  # one tag per slot, above the tags of asynchronous calls


class PipelineExecutable(PlanExecutable):
    """A plan on given buffers that runs as a pipeline of segments; see `Executable` and `PlanExecutable`.

    Raises:
        UnavailableError: memory cannot be shared within nodes, or the plan has more chunks than a slot has room for.
        UsageError: the buffers are device memory.
    """

    __slots__ = ("_addresses", "_start", "direct", "segments")

    def __init__(self, context: Context, call: CollectiveCall, selection: Selection) -> None:
        super().__init__(context, call, selection, context.shared_scratch)
        self._after = ()  # the native call divides
        _require_host_memory(self._kind)
        self.segments = cut_segments(self._kind)
        self.direct = can_access_in_place(context.node, self._lower(), self._call)
        source, result = (buffer.address if buffer else 0 for buffer in (self._call.source, self._call.result))
        self._addresses = source, result
        self._start: Callable[[int, int, object], RunInQueue] | None = None

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls to time one by one: only this executable, because its segments overlap in time."""
        return (self,)

    def run(self) -> None:
        """Run the collective once on this executable's buffers, and wait for its end."""
        self._require_live()
        if self._start is None:
            self._start = self.make_start()
        _run(self._context, self._begin, self._start, *self._addresses)

    def get_native(self) -> Callable[[int, int], None] | None:
        """Return a function that runs this collective, given the addresses of an input and an output.

        The input and output are in memory of the same kind as this executable's buffers. Return None if the call does
        local work before the plan.
        """
        return None if self._before else partial(_run, self._context, self._begin, self.make_start())

    def make_start(self) -> Callable[[int, int, object], RunInQueue]:
        """Return a function `start(source, result, keep)` that starts a run of this collective without waiting for it.

        `source` and `result` are the addresses of an input and an output, in memory of the same kind as this
        executable's buffers. `keep` is an object that stays alive until the end of the run. The function returns the
        run, which begins as soon as earlier runs are done and all ranks of the node have started it.
        """
        kind, queue, steps = self._kind, self._context.node.pipelines, self._before
        native, staged, nbytes = (
            get_pipeline_call(kind, direct=self.direct),
            get_segments(kind, direct=False),
            kind.nbytes,
        )

        def start(source: int, result: int, keep: object) -> RunInQueue:
            """Start a run on an input and an output at these addresses; keep a reference to `keep` until it ends."""
            buffers = (source, nbytes[0]), (result, nbytes[1])
            before = call_or_defer(steps, buffers, queue) if steps else None
            previous = get_last(queue)
            return RunInQueue(PipelineRun(native, staged, source, result, previous, before, keep), queue, buffers)

        return start

    def start(self) -> RunInQueue:
        """Start a run on this executable's buffers, which are kept alive until its end."""
        self._require_live()
        return self.make_start()(*self._addresses, self._call)

    def free(self) -> None:
        """Free the executable, so that a later run raises UsageError; a run in flight goes on."""
        super().free()
        self._start = None


def _run(
    context: Context, begin: Begin, start: Callable[[int, int, object], RunInQueue], source: int, result: int
) -> None:
    """Start a run on the addresses of an input and output, record it, and wait for its end."""
    with context.state.record(begin):
        run = start(source, result, None)
        try:
            run.wait()
        except BaseException:
            settle([run.is_settled])
            raise
    if context.node.pipelines:  # earlier runs end before this one; `advance` then releases their arrays
        context.progress.advance()


def _require_host_memory(kind: PlanKind) -> None:
    """Raise UnavailableError if the node cannot share memory, and UsageError if the buffers are device memory."""
    full_name = "/".join(map(str, kind.get_compared_arguments()[:2]))
    kind.context.node.require_memory(full_name)
    if kind.call.module.on_device:
        raise UsageError(
            f"{full_name} does not access device memory on several nodes; choose hierarchical or another algorithm "
            "of messages, or leave the choice to auto"
        )


def cut_segments(kind: PlanKind) -> list[ChunkSegment]:
    """Return the segments into which the chunks are cut, in the order of their start, the same on all ranks."""
    plan, itemsize, slot_bytes = kind.lower().plan, kind.call.dtype.itemsize, kind.context.node.slot_bytes
    sizes = chunk_sizes(plan, kind.call.count)
    room = slot_bytes // itemsize - len(sizes)  # segments of a chunk differ by at most one element
    if room < len(sizes):
        raise UnavailableError(
            f"{plan.name} on {plan.ranks} ranks has {len(sizes)} chunks, but a slot holds only {room} elements; "
            "choose another algorithm"
        )
    count = max(choose_segment_count(plan, sizes, itemsize, MESSAGE_BYTES), -(-int(sizes.sum()) // room))
    return cut_chunks(sizes, count)


def get_pipeline_call(kind: PlanKind, *, direct: bool) -> PipelineCall:
    """Return the native pipeline for calls of a kind, in place if `direct`, else through slots; made once per kind."""
    form = "pipeline in place" if direct else "pipeline"
    return kind.context.get_native(kind.make_key(form), partial(_make_pipeline_call, kind, direct=direct))


def get_segments(kind: PlanKind, *, direct: bool) -> Segments:
    """Return the native segments for calls of a kind, in place if `direct`, else through slots; made once per kind."""
    form = "segments in place" if direct else "segments"
    return kind.context.get_native(kind.make_key(form), partial(_make_segments, kind, direct=direct))


def _make_pipeline_call(kind: PlanKind, *, direct: bool) -> PipelineCall:
    """Make the native pipeline for calls of a kind, in place if `direct`, else through slots."""
    node, context, arguments = kind.context.node, kind.context, kind.get_compared_arguments()
    return PipelineCall(
        get_mpi_functions(),
        get_handle(context.comm),
        FIRST_TAG,
        node.pipeline_barrier,
        node.pipeline_slots,
        compute_fingerprint(arguments),
        shared_buffers(),
        node.symmetric,
        get_peers(context, "pipeline") if direct else None,
        get_segments(kind, direct=True) if direct else None,
        _make_last(kind),
        kind.call.operation.value,
        partial(node.raise_mismatch, arguments),
    )


def _make_segments(kind: PlanKind, *, direct: bool) -> Segments:
    """Make the native segments: one program per segment, and one table of memory addresses per slot."""
    node, call, segments = kind.context.node, kind.call, cut_segments(kind)
    itemsize = call.dtype.itemsize
    lowered = [kind.lower(segment.sizes, staged=not direct) for segment in segments]
    used = -(-max(program.work + program.landing for program in lowered) * itemsize // 16) * 16
    stride = used + (2 * REMOTE_TILE_BYTES if direct else 0)  # a multiple of 16, which every element size divides
    programs = _make_programs(kind, segments, lowered, used, stride, direct=direct)
    scratch = kind.context.shared_scratch.take(call.module, call.dtype, stride // itemsize * len(node.pipeline_slots))
    peers = [0] * (2 * len(node.others) if direct else 0)
    tables: list[MemoryTable] = []
    for number, slot in enumerate(node.pipeline_slots):
        slots = [get_address(slot.memory[rank]) for rank in node.ranks]
        addresses = [0, 0, get_address(scratch) + stride * number, *slots, *peers]
        tables.append(MemoryTable(addresses, [0] * len(addresses) if direct else [], (scratch, slot)))
    return Segments(programs, tuple(tables))


def _make_programs(
    kind: PlanKind, segments: list[ChunkSegment], lowered: list[LoweredProgram], used: int, stride: int, *, direct: bool
) -> tuple[Program, ...]:
    """Return one native program per segment, whose instructions name memories by the numbers of `make_locate`.

    Args:
        lowered: one lowered program per segment.
        used: bytes of scratch that the programs use.
        stride: bytes of scratch per slot.
        direct: whether ranks access each other's buffers in place, not through slots.
    """
    node, call, comm = kind.context.node, kind.call, kind.context.comm
    itemsize, plan = call.dtype.itemsize, kind.lower().plan
    peers = [size * itemsize for rank in node.others for size in count_elements(plan, rank, call.count)]
    limits = np.array(
        [*kind.nbytes, stride, *[node.slot_bytes] * len(node.ranks), *(peers if direct else [])], np.int64
    )
    reducer = make_reducer(call.reduction.function, call.dtype)
    programs: list[Program] = []
    for program, segment in zip(lowered, segments, strict=True):
        space = AddressSpace(call, program, np.empty(0, call.dtype.numpy), segment=segment, rank=node.rank)
        rows, requests = make_rows(program.instructions, make_locate(space, program, node, FIRST_SHARED), itemsize)
        bounce = used if direct else -1
        programs.append(Program(as_words(rows), limits, reducer, None, TILE_BYTES, bounce, requests, comm.size))
    return tuple(programs)


def _make_last(kind: PlanKind) -> Program | None:
    """Return the program that divides the result for `avg`; None if there is nothing to divide."""
    call, nbytes = kind.call, kind.nbytes[RESULT]
    if not call.reduction.divides or not nbytes:
        return None
    limits = np.array([0, nbytes, 0], np.int64)
    divider = make_reducer("divide", call.dtype, kind.context.comm.size)
    return Program(as_words([divide_row(nbytes)]), limits, None, divider, TILE_BYTES)
