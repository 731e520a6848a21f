"""Collectives of loads, stores and fences in the host memory of one node.

In a direct run, ranks access each other's buffers in place. A direct run needs buffers that are symmetric, or large and
accessible by cross-memory attach. At the start of a direct run, the ranks exchange the locations of their buffers. A
staged run copies chunks through slots (shared memory), segment by segment. If the buffers of only some ranks permit a
direct run, all ranks detect the difference at the start and run staged. The native extension executes direct and staged
runs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial

from hpccoll.arrays import take_scratch
from hpccoll.errors import UsageError
from hpccoll.lowering.native_rows import FIRST_SHARED, make_rows
from hpccoll.native import REMOTE_TILE_BYTES, DirectCall, MemoryTable, NodeRun, StagedCall
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.native_plan import NativeExecutable, make_program
from hpccoll.runtime.node_memory.node import compute_fingerprint
from hpccoll.runtime.node_memory.symmetric import shared_buffers
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.plan_executable import PlanContext
from hpccoll.runtime.queued_run import RunInQueue, bind_start
from hpccoll.runtime.shared_memory.access import can_access_in_place, get_peers, list_peer_bytes
from hpccoll.runtime.shared_memory.staged import get_staged_call, make_node_locate


class SharedMemoryExecutable(NativeExecutable):
    """A collective of loads and stores on host buffers of one node; `direct` tells whether it runs in place."""

    __slots__ = ("direct",)

    def __init__(self, context: PlanContext, call: CollectiveCall) -> None:
        super().__init__(context, call)
        self._earlier = context.node.runs  # they use the same barrier and slots
        self.direct = can_access_in_place(context, self._call)

    def _find_native(self) -> DirectCall | StagedCall:
        """Return the native call (C code), direct or staged, for the memory of this executable's buffers."""
        return self._get_direct_call() if self.direct else get_staged_call(self._context, self._call_without_arrays)

    def _get_direct_call(self) -> DirectCall:
        """Return the native call (C code) that runs calls of this kind in place; made once per kind."""
        make = partial(_make_direct_call, self._context, self._call_without_arrays)
        return self._context.get_native(("direct", self._call_without_arrays.plan_key), make)

    def make_start(self) -> Callable[[int, int, object], RunInQueue]:
        """Return a function that starts a run on the addresses of an input and an output.

        The run begins when earlier runs are done. `NativeExecutable.make_start` describes the function.
        """
        direct = self._get_direct_call() if self.direct else None
        staged: StagedCall | None = None
        # A rank whose buffers cannot be accessed in place makes all ranks run staged.
        # The progress thread cannot make the staged call, so the call is made before the run starts.
        # If the slots have no room for the plan (UsageError), no rank can run staged.
        with suppress(UsageError) if self.direct else nullcontext():
            staged = get_staged_call(self._context, self._call_without_arrays)
        runs = self._context.node.runs
        return bind_start(partial(NodeRun, staged, direct), runs, self._before, self._call_without_arrays.nbytes)


def _make_direct_call(context: PlanContext, call: CollectiveCall) -> DirectCall:
    """Return the native call that runs calls like `call` in place; it uses slots if a rank's buffers are not shared.

    Its memories are scratch memory, and the input and output of each other rank, whose addresses each run sets. The end
    of the scratch memory is for copies from other processes.
    """
    program, arguments, node, itemsize = context.lower(call), call.compared_arguments, context.node, call.dtype.itemsize
    # The program has no ranges in slots, so the numbers of slots are used for the other ranks' buffers.
    locate = make_node_locate(node, program, itemsize, FIRST_SHARED - len(node.ranks))
    used = -(-(program.work + program.landing) * itemsize // 16) * 16
    nbytes = used + 2 * REMOTE_TILE_BYTES
    native = make_program(
        context,
        call,
        make_rows(program.instructions, locate, itemsize)[0],
        nbytes,
        list_peer_bytes(context, call),
        divides=True,
        bounce=used,
    )
    scratch = take_scratch(context.shared_scratch, call.module, call.dtype, nbytes // itemsize)
    peers = [0] * (2 * len(node.others))
    return DirectCall(
        node.barrier,
        native,
        MemoryTable([0, 0, get_address(scratch), *peers], [0, 0, 0, *peers], scratch),
        get_peers(context, "node"),
        compute_fingerprint(arguments),
        shared_buffers(),
        node.symmetric,
        partial(get_staged_call, context, call),
        *context.get_recorder_arguments(call),
        partial(node.raise_mismatch, arguments),
    )
