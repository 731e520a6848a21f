"""Collectives of loads, stores and fences in the host memory of one node.

In a direct run, ranks access each other's buffers in place. A direct run needs buffers that are symmetric, or large and
accessible by cross-memory attach. At the start of a direct run, the ranks exchange the locations of their buffers. A
staged run copies chunks through slots (shared memory), segment by segment. If the buffers of only some ranks permit a
direct run, all ranks detect the difference at the start and run staged. The native extension executes both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.native import REMOTE_TILE_BYTES, DirectCall, MemoryTable, NodeRun, Program, StagedCall
from hpccoll.runtime.address_space import USER_MEMORY
from hpccoll.runtime.arrays import BoundCall
from hpccoll.runtime.arrays.host_reducers import make_reducer
from hpccoll.runtime.collective_call import CollectiveCall
from hpccoll.runtime.instructions import (
    FIRST_SHARED,
    RESULT,
    SCRATCH,
    SOURCE,
    TILE_BYTES,
    as_words,
    divide_row,
    make_rows,
)
from hpccoll.runtime.lowering import OWN, MemoryKind, MemoryRange
from hpccoll.runtime.node_memory.node import compute_fingerprint
from hpccoll.runtime.node_memory.node_barrier import ENTRY_PAYLOAD_BYTES
from hpccoll.runtime.node_memory.symmetric import shared_buffers
from hpccoll.runtime.plan_executable import Context, PlanExecutable, PlanKind
from hpccoll.runtime.queued_run import RunInQueue, call_or_defer, get_last
from hpccoll.runtime.shared_memory.access import (
    can_access_in_place,
    count_elements,
    get_peers,
    local_instructions,
)
from hpccoll.runtime.shared_memory.staged import find_segments, get_address, make_staged_program, make_tables
from hpccoll.selection import Selection


class SharedMemoryExecutable(PlanExecutable):
    """A collective of loads and stores on host buffers of one node; see `Executable` and `PlanExecutable`."""

    __slots__ = ("_addresses", "_native", "_runs", "direct")

    def __init__(self, context: Context, call: CollectiveCall, selection: Selection) -> None:
        super().__init__(context, call, selection, context.shared_scratch)
        self._after, self._runs = (), context.node.runs  # the programs divide
        self.direct = can_access_in_place(context.node, self._lower(), self._call)
        source, result = (buffer.address if buffer else 0 for buffer in (self._call.source, self._call.result))
        self._addresses = source, result
        self._native: DirectCall | StagedCall | None = None

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls to time one by one: only this executable, because one native call runs the whole program."""
        return (self,)

    def run(self) -> None:
        """The function that runs the collective once on this executable's buffers."""
        if not self.live:
            self._require_live()
        if self._runs:  # earlier asynchronous runs, which use the same barrier and slots
            self._context.progress.sleep_until(self._have_earlier_ended)
        for step in self._before:
            step()
        if self._native is None:
            self._native = self._get_native()
        self._native(*self._addresses)

    def get_native(self) -> DirectCall | StagedCall | None:
        """Return the call that runs this collective on other arrays in memory of the same kind.

        Return None if there is local work before the plan.
        """
        return None if self._before else self._get_native()

    def make_start(self) -> Callable[[int, int, object], RunInQueue]:
        """Return the function that starts a run on the addresses of an input and output in memory of the same kind.

        The function returns the run in flight, which begins when earlier runs are done; the third argument is kept
        alive until its end.
        """
        kind, runs = self._kind, self._runs
        direct = get_direct_call(kind) if self.direct else None
        staged: StagedCall | None = None
        # A rank whose buffers cannot be accessed in place makes all ranks run staged, and the progress thread cannot
        # make the staged call then. If the slots have no room for the plan (UsageError), no rank can run staged.
        with suppress(UsageError) if self.direct else nullcontext():
            staged = get_staged_call(kind)
        steps, nbytes = self._before, kind.nbytes

        def start(source: int, result: int, keep: object) -> RunInQueue:
            """Start a run at these addresses; `keep` is referenced until it ends."""
            buffers = (source, nbytes[0]), (result, nbytes[1])
            before = call_or_defer(steps, buffers, runs) if steps else None
            previous = get_last(runs)
            native = NodeRun(staged, direct, source, result, previous, before, keep)
            return RunInQueue(native, runs, buffers)

        return start

    def start(self) -> RunInQueue:
        """Start a run on this executable's buffers, which are kept alive until its end."""
        self._require_live()
        return self.make_start()(*self._addresses, self._call)

    def free(self) -> None:
        """Free the executable; a later run raises UsageError. A run in flight goes on."""
        super().free()
        self._native = None

    def _get_native(self) -> DirectCall | StagedCall:
        """Return the native call for the memory of this executable's buffers."""
        return get_direct_call(self._kind) if self.direct else get_staged_call(self._kind)

    def _have_earlier_ended(self) -> bool:
        """Whether all asynchronous runs that were called before have ended."""
        return not self._runs


def get_staged_call(kind: PlanKind) -> StagedCall:
    """Return the native call for calls of a kind through the slots; made once per kind.

    Raises:
        UsageError: see `find_segments`.
    """
    return kind.context.get_native(kind.make_key("staged"), partial(_make_staged_call, kind))


def get_direct_call(kind: PlanKind) -> DirectCall:
    """Return the native call for calls of a kind on the users' buffers in place; made once per kind."""
    return kind.context.get_native(kind.make_key("direct"), partial(_make_direct_call, kind))


def _make_staged_call(kind: PlanKind) -> StagedCall:
    """Make the native call for calls of a kind through the slots."""
    node, call = kind.context.node, kind.call
    segments, in_entry = find_segments(node, kind.lower(), call)
    programs = [kind.lower(segment.sizes, staged=True) for segment in segments]
    slot_bytes = ENTRY_PAYLOAD_BYTES if in_entry else node.slot_bytes
    count = max(program.work + program.landing for program in programs)
    scratch, arguments = kind.context.shared_scratch.take(call.module, call.dtype, count), kind.get_compared_arguments()
    return StagedCall(
        node.barrier,
        make_staged_program(call, node, programs, segments, slot_bytes, _get_divisor(kind)),
        make_tables(node, scratch, in_entry=in_entry),
        len(segments),
        in_entry,
        compute_fingerprint(arguments),
        *kind.get_entry(),
        partial(node.raise_mismatch, arguments),
    )


def _make_direct_call(kind: PlanKind) -> DirectCall:
    """Make the native call for calls of a kind in place; it uses the slots if a rank's buffers are not shared."""
    node, arguments = kind.context.node, kind.get_compared_arguments()
    return DirectCall(
        node.barrier,
        _make_direct_program(kind),
        _make_direct_memories(kind),
        get_peers(kind.context, "node"),
        compute_fingerprint(arguments),
        shared_buffers(),
        node.symmetric,
        partial(get_staged_call, kind),
        *kind.get_entry(),
        partial(node.raise_mismatch, arguments),
    )


def _get_divisor(kind: PlanKind) -> int:
    """Return the number that divides the result: the number of ranks for `avg`, 1 for other reductions."""
    return kind.context.comm.size if kind.call.reduction.divides else 1


def _make_direct_program(kind: PlanKind) -> Program:
    """Return the native program of direct runs; the memories are scratch, and two buffers of each other rank."""
    node, call, program, divisor = kind.context.node, kind.call, kind.lower(), _get_divisor(kind)
    itemsize, work = call.dtype.itemsize, program.work

    def locate(place: MemoryRange) -> tuple[int, int]:
        """Return the number of the memory that contains a range, and the offset there in bytes."""
        number = (SOURCE, RESULT, SCRATCH, SCRATCH)[place.memory]
        if place.owner != OWN:
            number = FIRST_SHARED + 2 * node.others.index(place.owner) + USER_MEMORY.index(place.memory)
        return number, (place.start + work * (place.memory is MemoryKind.LANDING)) * itemsize

    rows, _ = make_rows(local_instructions(program), locate, itemsize)
    used = -(-(work + program.landing) * itemsize // 16) * 16
    divider = None
    if divisor > 1 and kind.nbytes[RESULT]:
        rows.append(divide_row(kind.nbytes[RESULT]))
        divider = make_reducer("divide", call.dtype, divisor)
    peers = [size * itemsize for rank in node.others for size in count_elements(program.plan, rank, call.count)]
    limits = np.array([*kind.nbytes, used + 2 * REMOTE_TILE_BYTES, *peers], np.int64)
    reducer = make_reducer(call.reduction.function, call.dtype)
    return Program(as_words(rows), limits, reducer, divider, TILE_BYTES, used)


def _make_direct_memories(kind: PlanKind) -> MemoryTable:
    """Return the memories of direct runs; each run sets the addresses of the other ranks' buffers."""
    call, program, context = kind.call, kind.lower(), kind.context
    itemsize = call.dtype.itemsize
    elements = -(-(program.work + program.landing) * itemsize // 16) * 16 // itemsize
    count = elements + 2 * (REMOTE_TILE_BYTES // itemsize)
    scratch = context.shared_scratch.take(call.module, call.dtype, count)
    peers = [0] * (2 * len(context.node.others))
    return MemoryTable([0, 0, get_address(scratch), *peers], [0, 0, 0, *peers], scratch)
