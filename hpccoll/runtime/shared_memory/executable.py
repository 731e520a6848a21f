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

from hpccoll.errors import UsageError
from hpccoll.native import REMOTE_TILE_BYTES, DirectCall, MemoryTable, NodeRun, StagedCall
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.instructions import FIRST_SHARED, make_rows
from hpccoll.runtime.native_plan import NativeExecutable, make_program
from hpccoll.runtime.node_memory.node import compute_fingerprint
from hpccoll.runtime.node_memory.symmetric import shared_buffers
from hpccoll.runtime.plain_arrays import get_address
from hpccoll.runtime.plan_executable import Context, PlanKind
from hpccoll.runtime.queued_run import RunInQueue, bind_start
from hpccoll.runtime.shared_memory.access import can_access_in_place, get_peers, list_peer_bytes
from hpccoll.runtime.shared_memory.staged import get_staged_call, make_node_locate
from hpccoll.selection import Selection


class SharedMemoryExecutable(NativeExecutable):
    """A collective of loads and stores on host buffers of one node; `direct` tells whether it runs in place."""

    __slots__ = ("direct",)

    def __init__(self, context: Context, call: CollectiveCall, selection: Selection) -> None:
        super().__init__(context, call, selection)
        self._earlier = context.node.runs  # they use the same barrier and slots
        self.direct = can_access_in_place(context.node, self._lower(), self._call)

    def _find_native(self) -> DirectCall | StagedCall:
        """Return the native call for the memory of this executable's buffers."""
        return get_direct_call(self._kind) if self.direct else get_staged_call(self._kind)

    def make_start(self) -> Callable[[int, int, object], RunInQueue]:
        """Return a function that starts a run on the addresses of an input and an output.

        The run begins when earlier runs are done. `NativeExecutable.make_start` describes the function.
        """
        direct = get_direct_call(self._kind) if self.direct else None
        staged: StagedCall | None = None
        # A rank whose buffers cannot be accessed in place makes all ranks run staged.
        # The progress thread cannot make the staged call, so the call is made before the run starts.
        # If the slots have no room for the plan (UsageError), no rank can run staged.
        with suppress(UsageError) if self.direct else nullcontext():
            staged = get_staged_call(self._kind)
        runs = self._context.node.runs
        return bind_start(partial(NodeRun, staged, direct), runs, self._before, self._kind.nbytes)


def get_direct_call(kind: PlanKind) -> DirectCall:
    """Return the native call for calls of a kind on the users' buffers in place; made once per kind."""
    return kind.context.get_native(kind.make_key("direct"), partial(_make_direct_call, kind))


def _make_direct_call(kind: PlanKind) -> DirectCall:
    """Make the native call for calls of a kind in place; it uses the slots if a rank's buffers are not shared.

    The memories are scratch, which ends with the buffers for memory of other processes, and two buffers of each other
    rank, whose addresses each run sets.
    """
    context, call, program, arguments = kind.context, kind.call, kind.lower(), kind.get_compared_arguments()
    node, itemsize = context.node, call.dtype.itemsize
    # No range of the program is in a slot, so the other ranks' buffers have the numbers of the slots.
    locate = make_node_locate(node, program, itemsize, FIRST_SHARED - len(node.ranks))
    used = -(-(program.work + program.landing) * itemsize // 16) * 16
    nbytes = used + 2 * REMOTE_TILE_BYTES
    native = make_program(
        kind,
        make_rows(program.instructions, locate, itemsize)[0],
        nbytes,
        list_peer_bytes(kind),
        divides=True,
        bounce=used,
    )
    scratch = context.shared_scratch.take(call.module, call.dtype, nbytes // itemsize)
    peers = [0] * (2 * len(node.others))
    return DirectCall(
        node.barrier,
        native,
        MemoryTable([0, 0, get_address(scratch), *peers], [0, 0, 0, *peers], scratch),
        get_peers(context, "node"),
        compute_fingerprint(arguments),
        shared_buffers(),
        node.symmetric,
        partial(get_staged_call, kind),
        *kind.get_entry(),
        partial(node.raise_mismatch, arguments),
    )
