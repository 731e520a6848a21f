"""Collectives of loads, stores and fences in the host memory of one node, bound to buffers.

In a direct run, ranks access each other's buffers in place. A direct run needs buffers that are symmetric, or large and
accessible by cross-memory attach. At the start of a direct run, the ranks exchange the locations of their buffers. A
staged run copies chunks through slots (shared memory), segment by segment. If the buffers of only some ranks permit a
direct run, all ranks detect the difference at the start and run staged. The native extension executes both.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import partial

import numpy as np

from hpccoll.errors import UsageError
from hpccoll.native import REMOTE_TILE_BYTES, DirectCall, MemoryTable, NodeRun, Program, StagedCall
from hpccoll.runtime.address_space import USER_MEMORY
from hpccoll.runtime.arrays import BoundCall, ScratchPool
from hpccoll.runtime.arrays.host_reducers import make_divider, make_reducer
from hpccoll.runtime.collective_call import CollectiveCall, describe_call
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
from hpccoll.runtime.lowering import Program as LoweredProgram
from hpccoll.runtime.node_memory.node import fingerprint_of
from hpccoll.runtime.node_memory.node_barrier import ENTRY_PAYLOAD_BYTES
from hpccoll.runtime.plan_executable import Context, PlanExecutable
from hpccoll.runtime.queued_run import RunInQueue, call_or_defer, get_last
from hpccoll.runtime.shared_memory.access import (
    can_access_in_place,
    count_elements,
    local_instructions,
    make_peers,
)
from hpccoll.runtime.shared_memory.staged import find_segments, get_address, make_staged_program, make_tables
from hpccoll.selection import Selection


class SharedMemoryExecutable(PlanExecutable):
    """A collective of loads and stores on host buffers of one node; see `Executable` and `PlanExecutable`."""

    __slots__ = (
        "_addresses", "_direct", "_divisor", "_entry", "_facts", "_runs", "_staged", "direct",
    )  # fmt: skip

    def __init__(
        self, context: Context, call: CollectiveCall, selection: Selection, scratch: ScratchPool | None = None
    ) -> None:
        super().__init__(context, call, selection, scratch)
        call = self._call
        self._divisor = context.comm.size if call.reduction.divides else 1
        self._after = ()  # the programs divide
        self._facts, self._runs = self._describe(), context.node.runs
        self._entry = fingerprint_of(self._facts)
        self.direct = can_access_in_place(context.node, self._lower(), call)
        source, result = (buffer.address if buffer else 0 for buffer in (call.source, call.result))
        self._addresses = source, result
        self._direct: DirectCall | None = None
        self._staged: StagedCall | None = None

    @property
    def calls(self) -> tuple[BoundCall, ...]:
        """The calls to time one by one: only this executable, because one native call runs the whole program."""
        return (self,)

    def run(self) -> None:
        if not self.live:
            self._require_live()
        if self._runs:  # earlier asynchronous runs, which use the same barrier and slots
            self._context.progress.sleep_until(self._have_earlier_ended)
        for step in self._before:
            step()
        if not self.direct:
            self._get_staged()(*self._addresses)
            return
        place = self._begin()
        try:
            if not self._get_direct().run(*self._addresses):  # some rank started a staged run
                self._get_staged().run_unrecorded(*self._addresses)
        except BaseException:
            self._state.fail(place)
            raise
        self._state.end(place)

    __call__ = run

    def _have_earlier_ended(self) -> bool:
        """Whether all asynchronous runs that were called before have ended."""
        return not self._runs

    def start(self, keep: object) -> RunInQueue:
        """Return a run in flight, which begins when earlier runs are done; `keep` is kept alive until its end."""
        self._require_live()
        direct = self._get_direct() if self.direct else None
        # Another rank's buffers may require a staged run, and the progress thread cannot make its call. UsageError: the
        # slots have no room for the plan, so no rank runs staged.
        with suppress(UsageError) if self.direct else nullcontext():
            self._get_staged()
        before, previous = call_or_defer(self._before, self._call, self._runs), get_last(self._runs)
        native = NodeRun(self._staged, direct, *self._addresses, previous, before, keep)
        self.operation = run = RunInQueue(native, self._runs, self._call)
        return run

    def free(self) -> None:
        """Free the executable; a later run raises UsageError. A run in flight goes on."""
        if self.in_flight:
            self.live = False
            return
        super().free()
        self._direct = self._staged = None

    def make_unbound(self) -> StagedCall | None:
        """Return the call that runs this collective on any host arrays; None for a direct run."""
        return None if self.direct or self._before else self._get_staged()

    def _get_staged(self) -> StagedCall:
        """Return the staged call, which is made once."""
        if self._staged is None:
            self._staged = self._make_staged()
        return self._staged

    def _make_staged(self) -> StagedCall:
        """Return the call that runs this collective through the slots."""
        node, call, state = self._context.node, self._call, self._state
        kind, make = self._get_program_key("staged"), partial(self._make_staged_program, self._lower())
        program, scratch_count, segments, in_entry = self._context.get_native(kind, make)
        return StagedCall(
            node.barrier,
            program,
            make_tables(node, self._take_scratch(scratch_count), in_entry=in_entry),
            segments,
            in_entry,
            self._entry,
            state,
            state.recorder.take_entry,
            call.operation.value,
            describe_call(state, call, self._algorithm),
            partial(node.raise_mismatch, self._facts),
        )

    def _make_staged_program(self, whole: LoweredProgram) -> tuple[Program, int, int, bool]:
        """Return the native program, its scratch elements, its segments, and whether entries hold the data."""
        node, call = self._context.node, self._call
        segments, in_entry = find_segments(node, whole, call)
        programs = [self._lower(segment.sizes, staged=True) for segment in segments]
        slot_bytes = ENTRY_PAYLOAD_BYTES if in_entry else node.slot_bytes
        native = make_staged_program(call, node, programs, segments, slot_bytes, self._divisor)
        return native, max(program.work + program.landing for program in programs), len(segments), in_entry

    def _get_direct(self) -> DirectCall:
        """Return the direct call, which is made once."""
        if self._direct is None:
            node, call = self._context.node, self._call
            self._direct = DirectCall(
                node.barrier,
                self._make_direct_program(),
                self._make_direct_memories(),
                make_peers(node, call),
                self._entry,
                (node.symmetric.locate(call.source), node.symmetric.locate(call.result)),
                partial(node.raise_mismatch, self._facts),
            )
        return self._direct

    def _make_direct_program(self) -> Program:
        """Return the native program of direct runs; the memories are scratch, and two buffers of each other rank."""
        node, call, program = self._context.node, self._call, self._lower()
        itemsize, work = call.dtype.itemsize, program.work

        def locate(place: MemoryRange) -> tuple[int, int]:
            """Return the number of the memory that contains a range, and the offset there in bytes."""
            number = (SOURCE, RESULT, SCRATCH, SCRATCH)[place.memory]
            if place.owner != OWN:
                number = FIRST_SHARED + 2 * node.others.index(place.owner) + USER_MEMORY.index(place.memory)
            return number, (place.start + work * (place.memory is MemoryKind.LANDING)) * itemsize

        rows, _ = make_rows(local_instructions(program), locate, itemsize)
        own = [buffer.nbytes if buffer else 0 for buffer in (call.source, call.result)]
        used = -(-(work + program.landing) * itemsize // 16) * 16
        divider = None
        if self._divisor > 1 and own[RESULT]:
            rows.append(divide_row(own[RESULT]))
            divider = make_divider(self._divisor, call.dtype)
        peers = [size * itemsize for rank in node.others for size in count_elements(program.plan, rank, call.count)]
        limits = np.array([*own, used + 2 * REMOTE_TILE_BYTES, *peers], np.int64)
        reducer = make_reducer(call.reduction.function, call.dtype)
        return Program(as_words(rows), limits, reducer, divider, TILE_BYTES, used)

    def _make_direct_memories(self) -> MemoryTable:
        """Return the memories of direct runs; each run sets the addresses of the other ranks' buffers."""
        itemsize, program = self._call.dtype.itemsize, self._lower()
        elements = -(-(program.work + program.landing) * itemsize // 16) * 16 // itemsize
        scratch = self._take_scratch(elements + 2 * (REMOTE_TILE_BYTES // itemsize))
        peers = [0] * (2 * len(self._context.node.others))
        return MemoryTable([0, 0, get_address(scratch), *peers], [0, 0, 0, *peers], scratch)
