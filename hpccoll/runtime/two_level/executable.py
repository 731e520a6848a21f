"""Two-level plans, which run as native pipelines of segments.

While messages of some segments travel between nodes, a rank reduces the next segment and stores the previous one, so
the network stays busy until the last segment. The ranks of a node start a collective together and agree whether they
access each other's buffers in place or through slots (shared memory). Messages between nodes are the same for access in
place and through slots, so each node may choose either.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hpccoll.algorithms.pipelining import MESSAGE_BYTES, choose_segment_count
from hpccoll.arrays import take_scratch
from hpccoll.errors import UnavailableError, UsageError
from hpccoll.lowering import Segment, chunk_sizes, cut_chunks, list_sizes, make_find_start
from hpccoll.lowering.native_rows import FIRST_SHARED, make_rows
from hpccoll.native import REMOTE_TILE_BYTES, MemoryTable, PipelineCall, PipelineRun, Segments
from hpccoll.runtime.backoff import settle
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.messages.mpi_functions import get_handle, get_mpi_functions
from hpccoll.runtime.native_plan import NativeExecutable, make_program
from hpccoll.runtime.node_memory.node import compute_fingerprint
from hpccoll.runtime.node_memory.symmetric import shared_buffers
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.plan_executable import PlanContext
from hpccoll.runtime.queued_run import RunInQueue, bind_start
from hpccoll.runtime.shared_memory.access import can_access_in_place, get_peers, list_peer_bytes
from hpccoll.runtime.shared_memory.staged import make_node_locate

FIRST_TAG = 8192  # one tag per slot, above the tags of asynchronous calls


class PipelineExecutable(NativeExecutable):
    """A plan on given buffers that runs as a pipeline of segments; `direct` tells whether it accesses buffers in place.

    Raises:
        UnavailableError: memory cannot be shared within nodes, or the plan has more chunks than a slot has room for.
        UsageError: the buffers are device memory.
    """

    __slots__ = ("direct", "segments")

    def __init__(self, context: PlanContext, call: CollectiveCall) -> None:
        super().__init__(context, call)
        _require_host_memory(context, call)
        self.segments = cut_segments(context, self._call_without_arrays)
        self.direct = can_access_in_place(context, self._call)

    def run(self) -> None:
        """Run the collective once; local work before the plan waits for earlier runs on the same arrays."""
        if not self.live:
            self._require_live()
        if self._native is None:
            self._native = self._find_native()
        self._native(*self._addresses)

    def _find_native(self) -> Callable[[int, int], None]:
        """Return a function that runs this collective on the addresses of an input and an output.

        The function includes the local work before the plan.
        """
        return partial(_run, self._context, self._begin, self.make_start())

    def make_start(self) -> Callable[[int, int, object], RunInQueue]:
        """Return a function that starts a run on the addresses of an input and an output.

        The run begins as soon as earlier runs are done and all ranks of the node have started the run.
        `NativeExecutable.make_start` describes the function.
        """
        context, call = self._context, self._call_without_arrays
        make_call = partial(_make_pipeline_call, context, call, direct=self.direct)
        native = context.get_native(("pipeline", self.direct, call.plan_key), make_call)
        make_staged = partial(_make_segments, context, call, direct=False)
        staged = context.get_native(("segments", call.plan_key), make_staged)
        make_run = partial(PipelineRun, native, staged)
        return bind_start(make_run, context.node.pipelines, self._before, self._call_without_arrays.nbytes)


def _run(
    context: PlanContext,
    begin: Callable[[], int],
    start: Callable[[int, int, object], RunInQueue],
    source: int,
    result: int,
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


def _require_host_memory(context: PlanContext, call: CollectiveCall) -> None:
    """Raise UnavailableError if the node cannot share memory, and UsageError if the buffers are device memory."""
    full_name = call.algorithm.full_name if call.algorithm else call.operation.value
    context.node.require_memory(full_name)
    if call.module.on_device:
        raise UsageError(
            f"{full_name} does not access device memory on several nodes; choose hierarchical or another algorithm "
            "of messages, or leave the choice to auto"
        )


def cut_segments(context: PlanContext, call: CollectiveCall) -> list[Segment]:
    """Return the segments into which chunks are cut, in the order in which they are started; equal on all ranks."""
    plan, itemsize, slot_bytes = context.plan(call), call.dtype.itemsize, context.node.slot_bytes
    sizes = chunk_sizes(plan, call.count)
    room = slot_bytes // itemsize - len(sizes)  # segments of a chunk differ by at most one element
    if room < len(sizes):
        raise UnavailableError(
            f"{plan.name} on {plan.ranks} ranks has {len(sizes)} chunks, but a slot holds only {room} elements; "
            "choose another algorithm"
        )
    count = max(choose_segment_count(plan, sizes, itemsize, MESSAGE_BYTES), -(-int(sizes.sum()) // room))
    return cut_chunks(sizes, count)


def _make_pipeline_call(context: PlanContext, call: CollectiveCall, *, direct: bool) -> PipelineCall:
    """Return the native pipeline (C code) for calls like `call`, in place if `direct`, else through slots."""
    node, arguments = context.node, call.compared_arguments
    divides = call.reduction.divides and call.nbytes[1] > 0
    return PipelineCall(
        get_mpi_functions(),
        get_handle(context.comm),
        FIRST_TAG,
        node.pipeline_barrier,
        node.pipeline_counters,
        compute_fingerprint(arguments),
        shared_buffers(),
        node.symmetric,
        get_peers(context, "pipeline") if direct else None,
        _make_segments(context, call, direct=True) if direct else None,
        make_program(context, call, [], 0, divides=True) if divides else None,
        call.operation.value,
        partial(node.raise_mismatch, arguments),
    )


def _make_segments(context: PlanContext, call: CollectiveCall, *, direct: bool) -> Segments:
    """Return the extension's `Segments`: one program per segment, and one table of memory addresses per slot.

    The programs access other ranks' buffers in place if `direct`, else through slots.
    """
    node, itemsize = context.node, call.dtype.itemsize
    segments = cut_segments(context, call)
    lowered = [context.lower(call, list_sizes(segment), staged=not direct) for segment in segments]
    used = -(-max(program.work + program.landing for program in lowered) * itemsize // 16) * 16
    stride = used + (2 * REMOTE_TILE_BYTES if direct else 0)  # a multiple of 16, which every element size divides
    shared = [node.slot_bytes] * len(node.ranks) + (list_peer_bytes(context, call) if direct else [])
    programs = []
    for program, segment in zip(lowered, segments, strict=True):
        find_start = make_find_start(program.plan, call.count, segment, node.rank)
        locate = make_node_locate(node, program, itemsize, FIRST_SHARED, find_start)
        rows, requests = make_rows(program.instructions, locate, itemsize)
        options = {"bounce": used if direct else -1, "requests": requests}
        programs.append(make_program(context, call, rows, stride, shared, divides=False, **options))
    count = stride // itemsize * len(node.pipeline_slots)
    scratch = take_scratch(context.shared_scratch, call.module, call.dtype, count)
    peers = [0] * (2 * len(node.others) if direct else 0)
    tables: list[MemoryTable] = []
    for number, slot in enumerate(node.pipeline_slots):
        slots = [get_address(slot[rank]) for rank in node.ranks]
        addresses = [0, 0, get_address(scratch) + stride * number, *slots, *peers]
        tables.append(MemoryTable(addresses, [0] * len(addresses) if direct else [], (scratch, slot)))
    return Segments(tuple(programs), tuple(tables))
